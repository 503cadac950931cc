"""Rewriting shards that cannot be read record by record, or only slowly, from start to end.

What is compressed as a whole is unpacked and stays what it is. Anything else becomes a TFRecord.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from feeder.errors import BadRecord, BadShard, ConfigError, StorageError
from feeder.records.build import ensure_indexes
from feeder.records.dataset import Dataset
from feeder.records.folder import LABELS_FILE, find_images, label_map
from feeder.records.formats import detect
from feeder.records.keys import DEFAULT_KEYS, FormatName, RecordKeys
from feeder.records.objects import ObjectShard, Shard
from feeder.records.shards import expand
from feeder.records.storage import temporary
from feeder.records.stream import READ_BYTES, Compression, open_window
from feeder.records.writers import Sample, open_writer

__all__ = ["RewriteResult", "rewrite"]

MAX_RATIO = 200
"""Most that a compressed shard unpacks to, by its size; images give 1, and 1000 is what only zeros reach."""

_PACKED_SUFFIXES = (".gz", ".gzip", ".zlib", ".z", ".zz")
_SHARD_SUFFIXES = (".tar", ".parquet", ".tfrecord", ".tfrecords")


@dataclass(frozen=True)
class RewriteResult:
    """What was written.

    Attributes:
        shards: new shards, in the order of the old ones.
        records: records in them, bad ones of unpacked shards included.
        nbytes: size of all of them.
        bad: records that were left out.
    """

    shards: list[Path]
    records: int
    nbytes: int
    bad: list[BadRecord] = field(default_factory=list)


@dataclass(frozen=True)
class _Plan:
    shard: Path
    target: Path
    compression: Compression | None


def rewrite(
    patterns: Sequence[str],
    dst: Path,
    *,
    keys: RecordKeys = RecordKeys(),  # noqa: B008 (frozen)
    format_name: FormatName | None = None,
    index_dir: Path | None = None,
    force: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> RewriteResult:
    """Writes one shard below `dst` for each that the patterns name, with its index beside it.

    The labels.json that lies beside the old shards, or says what the folders of images are, comes along.

    Args:
        patterns: see Dataset.open.
        dst: folder for the new shards; made if it is missing.
        keys: where the old shards keep image and label. A TFRecord that is made of another format has the
            usual keys and labels from 1.
        format_name: of the old shards; None finds it by their content.
        index_dir: folder of the indexes of the old shards.
        force: replace shards of the same names.
        jobs: threads, each of which rewrites one shard; None takes the usable cores.
        progress: show a bar of bytes on stderr.

    Raises:
        ConfigError: nothing matches, two shards would get the same name, or one is there already; or what
            labels mean differs between them, or from a labels.json that is there.
        BadShard: a shard is of no format that is read, or its compressed stream is damaged.
        StorageError: reading or writing failed.
    """
    plans = [_plan(shard, dst, format_name) for shard in expand(patterns, format_name)]
    for number, plan in enumerate(plans):
        if same := [other for other in plans[:number] if other.target == plan.target]:
            raise ConfigError(f"{same[0].shard} and {plan.shard} would both become {plan.target}")
        if plan.target.exists() and not force:
            raise ConfigError(f"{plan.target}: is there already: name another folder, or use --force")
    labels = _labels([plan.shard for plan in plans], dst / LABELS_FILE, force)
    try:
        dst.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{dst}: cannot make the folder: {error.strerror}") from error
    bad: list[BadRecord] = []
    total = sum(plan.shard.stat().st_size for plan in plans if plan.shard.is_file())
    with (
        tqdm(total=total, desc="rewriting", unit="B", unit_scale=True, disable=not progress) as bar,
        ThreadPoolExecutor(
            min(jobs or len(os.sched_getaffinity(0)), len(plans)), thread_name_prefix="feeder-rewrite"
        ) as pool,
    ):

        def one(plan: _Plan) -> list[BadRecord]:
            with temporary(plan.target) as (fd, hidden), os.fdopen(fd, "wb", closefd=False) as file:
                if plan.compression is not None:
                    _unpack(plan.shard, plan.compression, file, bar.update)
                    left_out = []
                else:
                    left_out = _convert(plan.shard, keys, format_name, index_dir, file)
                file.flush()
                os.fchmod(fd, 0o644)
                os.fsync(fd)
                os.replace(hidden, plan.target)
            return left_out

        futures = [pool.submit(one, plan) for plan in plans]
        try:
            for plan, future in zip(plans, futures, strict=True):
                try:
                    bad += future.result()
                except StorageError:
                    raise
                except OSError as error:
                    raise StorageError(f"{plan.target}: cannot write: {error.strerror or error}") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    if labels is not None:
        _write_labels(labels, dst / LABELS_FILE)
    unpacked = [plan.target for plan in plans if plan.compression is not None]
    made = [plan.target for plan in plans if plan.compression is None]
    indexes = [
        *ensure_indexes(unpacked, keys, jobs=jobs, progress=progress),
        *ensure_indexes(made, RecordKeys(), jobs=jobs, progress=progress),
    ]
    return RewriteResult(
        shards=[plan.target for plan in plans],
        records=sum(len(index) for index in indexes),
        nbytes=sum(index.state.size for index in indexes),
        bad=bad,
    )


def _labels(shards: Sequence[Path], target: Path, force: bool) -> bytes | None:
    """The label map of all shards; None where none has one, or `target` is it already."""
    maps: dict[bytes, Path] = {}
    for folder in sorted({shard if shard.is_dir() else shard.parent for shard in shards}):
        if folder in shards:
            maps.setdefault(label_map(find_images(folder)[0]).encode(), folder)
        elif (there := _read_if_there(folder / LABELS_FILE)) is not None:
            maps.setdefault(there, folder / LABELS_FILE)
    if len(maps) > 1:
        one, other, *_ = maps.values()
        raise ConfigError(
            f"{one} and {other}: their labels mean different classes: rewrite them into folders of their own"
        )
    labels = next(iter(maps), None)
    there = _read_if_there(target)
    if labels is not None and there not in (None, labels) and not force:
        raise ConfigError(
            f"{target}: is there and has other classes than {maps[labels]}: name another folder, "
            f"or use --force"
        )
    return None if there == labels else labels


def _read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot read: {error.strerror}") from error


def _write_labels(labels: bytes, path: Path) -> None:
    try:
        with temporary(path) as (fd, hidden), os.fdopen(fd, "wb", closefd=False) as file:
            file.write(labels)
            file.flush()
            os.fchmod(fd, 0o644)
            os.fsync(fd)
            os.replace(hidden, path)
    except OSError as error:
        raise StorageError(f"{path}: cannot write: {error.strerror or error}") from error


def _plan(shard: Shard, dst: Path, format_name: FormatName | None) -> _Plan:
    if isinstance(shard, ObjectShard):
        raise ConfigError(f"{shard}: only files are rewritten: copy the object to a disk first")
    if shard.is_dir():
        return _Plan(shard, dst / f"{shard.name}.tfrecord", None)
    try:
        with open(shard, "rb", buffering=0) as file:
            _, compression = detect(shard, file.fileno(), format_name)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{shard}: cannot open: {error.strerror}") from error
    name = _without(shard.name, _PACKED_SUFFIXES)
    if compression is None:
        name = _without(name, _SHARD_SUFFIXES) + ".tfrecord"
    target = dst / name
    if target.exists() and target.samefile(shard):
        raise ConfigError(f"{shard}: would be replaced by itself: name another folder")
    return _Plan(shard, target, compression)


def _without(name: str, suffixes: Sequence[str]) -> str:
    stem, suffix = os.path.splitext(name)
    return stem if stem and suffix.lower() in suffixes else name


def _unpack(shard: Path, compression: Compression, out: BinaryIO, advance: Callable[[int], object]) -> None:
    with open(shard, "rb", buffering=0) as file:
        limit = os.fstat(file.fileno()).st_size * MAX_RATIO
        window = open_window(file.fileno(), str(shard), compression=compression, advance=advance)
        while there := window.have(READ_BYTES):
            out.write(window.view[window.lo : window.lo + there])
            window.lo += there
            if window.position > limit:
                raise BadShard(
                    f"{shard}: unpacks to more than {MAX_RATIO} times its size, so it holds no images"
                )
    if window.broken:
        raise BadShard(f"{shard}: {window.broken}, {window.position} bytes behind its start: copy it again")


def _convert(
    shard: Path, keys: RecordKeys, format_name: FormatName | None, index_dir: Path | None, out: BinaryIO
) -> list[BadRecord]:
    """Writes the good records of a shard as a TFRecord; returns the others."""
    base = DEFAULT_KEYS["tfrecord"].label_base
    bad: list[BadRecord] = []
    writer = open_writer("tfrecord", out)
    with Dataset.open(
        shard.name, [str(shard)], keys=keys, format_name=format_name, index_dir=index_dir, jobs=1
    ) as dataset:
        for number in range(len(dataset)):
            try:
                record = dataset.read(number)
            except BadRecord as error:
                bad.append(error)
                continue
            name = f"{dataset.locate(number)[0]}: record {number}"
            writer.add(Sample(bytes(record.image), record.label + base, name, {}))
    writer.finish()
    return bad
