"""Image folders: which images are in one, of which class, in which order; and the folder as a shard.

The order is that in which `feeder pack` writes the same folder with the same seed, so that a folder and its
shards give the same batches.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pyarrow as pa

from feeder.errors import BadShard, ConfigError, StorageError
from feeder.records.crc32c import crc32c
from feeder.records.index import MAX_SHARD_RECORDS, IndexBuilder, ShardIndex, ShardState
from feeder.records.storage import retry
from feeder.records.stream import MAX_RECORD_BYTES

__all__ = [
    "IMAGE_SUFFIXES",
    "LABELS_FILE",
    "ImageFolder",
    "find_images",
    "index_folder",
    "is_image_folder",
    "label_map",
    "shuffled",
]

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".gif", ".webp", ".bmp")

LABELS_FILE = "labels.json"
"""Beside shards, says which class each of their labels is."""


def find_images(src: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """Images of a folder and their classes.

    A folder that holds folders is read as class folders (SRC/CLASS/**/IMAGE); otherwise names must be
    ImageNet's, with the class in front of the first underscore (SRC/n01440764_10026.JPEG). Hidden files and
    files that do not end like an image are passed over. Links to folders are followed, unless they lead back
    to a folder they are in.

    Returns:
        Class names, sorted, and for each image its path below `src` and its label from 0, sorted by path.

    Raises:
        ConfigError: there is no image, both layouts at once, or a name without a class.
        StorageError: the folder cannot be read.
    """

    def unreadable(error: OSError) -> None:
        raise StorageError(f"{error.filename}: cannot read: {error.strerror}") from error

    if not os.path.isdir(src):
        raise ConfigError(f"{src}: no such folder")
    flat: list[str] = []
    in_folders: list[str] = []
    above: dict[str, frozenset[tuple[int, int]]] = {str(src): frozenset()}
    for folder, folders, names in os.walk(src, onerror=unreadable, followlinks=True):
        here = os.stat(folder)
        outer = above.pop(folder)
        if (here.st_dev, here.st_ino) in outer:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        above |= {os.path.join(folder, name): outer | {(here.st_dev, here.st_ino)} for name in folders}
        found = in_folders if Path(folder) != src else flat
        below = os.path.relpath(folder, src)
        found.extend(
            os.path.normpath(os.path.join(below, name))
            for name in names
            if not name.startswith(".") and name.lower().endswith(IMAGE_SUFFIXES)
        )
    if flat and in_folders:
        raise ConfigError(
            f"{src}: holds images both beside and in folders ({flat[0]}, {in_folders[0]}): use one way"
        )
    if not flat and not in_folders:
        raise ConfigError(f"{src}: no image in it (looked for {', '.join(IMAGE_SUFFIXES)})")
    if flat and (nameless := [name for name in sorted(flat) if "_" not in name.lstrip("_")]):
        raise ConfigError(
            f"{src}: {len(nameless)} {'name has' if len(nameless) == 1 else 'names have'} no class, such as "
            f"{nameless[0]}: put images into class folders, or name them CLASS_NUMBER.JPEG"
        )
    class_of = {
        path: path.split("_")[0] if flat else path.split(os.sep)[0] for path in sorted(flat or in_folders)
    }
    classes = sorted(set(class_of.values()))
    labels = {name: label for label, name in enumerate(classes)}
    return classes, [(path, labels[name]) for path, name in class_of.items()]


def label_map(classes: Sequence[str]) -> str:
    """What LABELS_FILE says: the label, from 0, of each class, as JSON."""
    return json.dumps({name: label for label, name in enumerate(classes)}, indent=1) + "\n"


def shuffled(images: Sequence[tuple[str, int]], seed: int) -> list[tuple[str, int]]:
    """Images in the order of a hash of seed and path.

    So it is the same everywhere, and one more image leaves the order of the others alone.
    """

    def key(image: tuple[str, int]) -> bytes:
        return hashlib.sha256(b"%d\0" % seed + os.fsencode(image[0])).digest()

    return sorted(images, key=key)


def is_image_folder(folder: Path) -> bool:
    """Whether there is an image in a folder or below it, by name; stops at the first."""
    return any(
        name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
        for _, _, names in os.walk(folder)
        for name in names
    )


class ImageFolder:
    """A folder of images as one shard; record n is the n-th image in the order of seed 0.

    Attributes:
        path: of the folder.
        state: changes when an image comes, goes or is written, or when its name changes.
        labels: class from 0 of each record.
    """

    def __init__(self, path: Path, state: ShardState, names: pa.Array, labels: list[int]) -> None:
        self.path = path
        self.state = state
        self.labels = labels
        self._names = names

    @classmethod
    def read(cls, path: Path) -> Self:
        """Lists a folder and looks at each file's size and times, but not into it.

        Raises:
            ConfigError: see find_images().
            StorageError: the folder cannot be read.
        """
        _, images = find_images(path)
        images = shuffled(images, 0)
        listing = hashlib.sha256()
        size = mtime_ns = ctime_ns = 0
        try:
            for name, label in images:
                found = os.stat(path / name)
                size += found.st_size
                mtime_ns = max(mtime_ns, found.st_mtime_ns)
                ctime_ns = max(ctime_ns, found.st_ctime_ns)
                listing.update(b"%d %d %d " % (label, found.st_size, found.st_mtime_ns))
                listing.update(os.fsencode(name) + b"\0")
            inode = os.stat(path).st_ino
        except OSError as error:
            raise StorageError(f"{error.filename}: cannot read: {error.strerror}") from error
        state = ShardState(size, mtime_ns, ctime_ns, inode, listing.hexdigest())
        names = pa.array([os.fsencode(name) for name, _ in images], pa.large_binary())
        return cls(path, state, names, [label for _, label in images])

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, number: int) -> bytes:
        """Path of a record's file below the folder."""
        name: bytes = self._names[number].as_py()
        return name


def index_folder(
    path: Path, *, max_records: int = MAX_SHARD_RECORDS, advance: Callable[[int], None] | None = None
) -> ShardIndex:
    """Reads every image of a folder once.

    Args:
        path: the folder.
        max_records: a folder of more images is refused.
        advance: called with the number of bytes of each read; may raise to stop.

    Raises:
        ConfigError: see find_images().
        BadShard: too many images.
        StorageError: the folder or an image cannot be read, or something changed meanwhile.
    """
    folder = ImageFolder.read(path)
    if len(folder) > max_records:
        raise BadShard(
            f"{path}: has {len(folder)} images, more than {max_records}: make shards of it with `feeder pack`"
        )
    builder = IndexBuilder(max_records)
    for number, label in enumerate(folder.labels):
        file = path / os.fsdecode(folder.name(number))
        data = retry(lambda file=file: _read(file), str(file))  # type: ignore[misc]
        if data is None:
            builder.add_bad(number, "is no regular file, or too long", f"({file.relative_to(path)})")
        elif not data:
            builder.add_bad(number, "image is empty (0 bytes)", f"({file.relative_to(path)})")
        else:
            builder.add(number, len(data), label, crc32c(data), 0, len(data))
            if advance is not None:
                advance(len(data))
    if ImageFolder.read(path).state != folder.state:
        raise StorageError(f"{path}: changed while it was indexed: index it again when it is complete")
    return builder.index("folder", folder.state)


def _read(file: Path) -> bytes | None:
    """The bytes of a file, or None for what is no file or above the limit."""
    if not file.is_file() or file.stat().st_size > MAX_RECORD_BYTES:
        return None
    return file.read_bytes()
