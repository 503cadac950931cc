"""From what a user names (files, objects, globs, folders) to a sorted list of shards."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from feeder.errors import ConfigError, StorageError
from feeder.records.folder import IMAGE_SUFFIXES, is_image_folder
from feeder.records.keys import FormatName
from feeder.records.locations import Location, folder_of, is_glob, is_url, matcher
from feeder.records.objects import ObjectShard, Shard
from feeder.records.requests import Requests
from feeder.records.stores import describe, open_store

__all__ = ["INDEX_SUFFIX", "SEEK_SUFFIX", "expand", "is_shard_name"]

INDEX_SUFFIX = ".feederidx"
SEEK_SUFFIX = ".feederseek"

# What lies beside shards without being one: our own files, half-written ones, notes and label maps.
_NOT_SHARDS = (
    INDEX_SUFFIX,
    SEEK_SUFFIX,
    ".tmp",
    ".part",
    ".partial",
    ".lock",
    ".json",
    ".txt",
    ".md",
    ".csv",
    ".yaml",
    ".yml",
    *IMAGE_SUFFIXES,
)

# TensorFlow's naming of sharded files, with or without something behind it.
_NUMBERED = re.compile(r"(?P<set>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<rest>.*)")

_SHOWN = 8


def is_shard_name(name: str) -> bool:
    """Whether a file of this name in a folder is taken for a shard."""
    return not name.startswith((".", "_")) and not name.lower().endswith(_NOT_SHARDS)


def expand(patterns: Sequence[str], format_name: FormatName | None = None) -> list[Shard]:
    """All shards that the patterns name, sorted by path, each once; objects come after files.

    Args:
        patterns: each a file, a glob (`*`, `?`, `[...]`, `**`), or a folder: all shards in it, or, where
            there is no shard but an image in it or below, the folder itself, which is one shard of images.
            The same as URLs (`s3://bucket/train-*`) names objects, but without `?`, which begins the options,
            and without folders of images.
        format_name: what the shards are; "folder" takes each folder as one of images.

    Raises:
        ConfigError: a pattern matches nothing; a folder holds several sets, or only some shards of one; a URL
            is of no store that can be read.
        StorageError: a folder or a store cannot be read.
    """
    if isinstance(patterns, str) or not patterns:
        raise ConfigError(f"need a list of at least one file, glob or folder, got {patterns!r}")
    found: dict[str, Path] = {}
    for pattern in patterns:
        if is_url(pattern):
            continue
        try:
            for path in _matches(pattern, format_name):
                found.setdefault(os.path.realpath(path), path)
        except OSError as error:
            raise StorageError(f"{error.filename or pattern}: cannot read: {error.strerror}") from error
    objects = _objects([pattern for pattern in patterns if is_url(pattern)], format_name)
    return [*sorted(found.values()), *objects]


def _objects(urls: Sequence[str], format_name: FormatName | None) -> list[ObjectShard]:
    if urls and format_name == "folder":
        raise ConfigError("folders of images are read from disk only: make shards of them with `feeder pack`")
    found: set[ObjectShard] = set()
    if urls:
        with Requests(describe=describe) as requests:
            for url in urls:
                location = Location.parse(url)
                found.update(requests.submit(lambda at=location: _in_store(at), location.shown).result())  # type: ignore[misc]
    return sorted(found, key=lambda shard: shard.url.split("/"))


def _in_store(location: Location) -> list[ObjectShard]:
    """The shards that a URL names."""
    store = open_store(location)
    path = store.path(location)
    if location.scheme in ("http", "https") and not is_glob(location.path):
        return [ObjectShard(location.shown, path, store)]
    if is_glob(path):
        pattern, folder = matcher(path), folder_of(path)
        recursive = "/" in path[len(folder) + 1 :]
        paths = [found for found in store.walk(folder, recursive) if pattern.fullmatch(found)]
        paths = [found for found in paths if is_shard_name(found.rpartition("/")[2])]
        if not paths:
            raise ConfigError(f"{location.shown}: matches no shard")
    elif not location.folder and store.kind(path) == "object":
        paths = [path]
    else:
        names = {found.rpartition("/")[2]: found for found in store.walk(path, False)}
        shards = sorted(name for name in names if is_shard_name(name))
        if not shards:
            holds = f" (it holds {_some(sorted(names))})" if names else ""
            raise ConfigError(f"{location.shown}: no such object, and no shard in such a folder{holds}")
        _require_one_whole_set(location.shown, shards)
        paths = [names[name] for name in shards]
    return [ObjectShard(f"{location.scheme}://{found.strip('/')}", found, store) for found in paths]


def _matches(pattern: str, format_name: FormatName | None) -> list[Path]:
    if not pattern:
        raise ConfigError("a pattern is empty: name a file, a glob or a folder")
    path = Path(os.path.expanduser(pattern))
    if path.is_dir():
        if format_name == "folder" or (
            format_name is None and not _shard_names(path) and is_image_folder(path)
        ):
            return [Path(os.path.abspath(path))]
        return _folder(path)
    if format_name == "folder" and path.exists():
        raise ConfigError(f"{pattern}: is no folder of images, but a file")
    if path.exists():
        return [path]
    if not glob.has_magic(pattern):
        raise ConfigError(f"{pattern}: no such file or folder{_neighbours(path.parent)}")
    matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    shards = [match for match in matches if is_shard_name(match.name) and match.is_file()]
    if not shards:
        others = f"; it matches {_some(match.name for match in matches)}, none a shard" if matches else ""
        raise ConfigError(f"{pattern}: matches no shard file{others or _neighbours(path.parent)}")
    return shards


def _folder(folder: Path) -> list[Path]:
    names = _shard_names(folder)
    if not names:
        raise ConfigError(f"{folder}: no shard file in this folder{_neighbours(folder)}")
    _require_one_whole_set(str(folder), names)
    return [folder / name for name in names]


def _require_one_whole_set(folder: str, names: Sequence[str]) -> None:
    sets: dict[tuple[str, int], int] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            key = match["set"], int(match["count"])
            sets[key] = sets.get(key, 0) + 1
    if len(sets) > 1:
        listed = ", ".join(f"{name}-* ({have} files)" for (name, _), have in sorted(sets.items()))
        raise ConfigError(
            f"{folder}: holds several data sets, {listed}: name one, such as {folder}/{min(sets)[0]}-*"
        )
    for (name, count), have in sets.items():
        if have != count:
            raise ConfigError(
                f"{folder}: {have} of the {count} shards of {name!r} are there: copy the others, "
                f"or say {folder}/{name}-* to read what is there"
            )


def _shard_names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if is_shard_name(name) and (folder / name).is_file())


def _neighbours(folder: Path) -> str:
    """What a folder holds, for the error of a user who mistyped."""
    if not folder.is_dir():
        return f" (there is no folder {folder} either)"
    return f" (in {folder}: {_some(sorted(os.listdir(folder)))})"


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) + more) if names else "nothing"
