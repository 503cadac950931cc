"""The sidecar index of a shard: where each record and its image lie, its label, its crc.

An index is an Arrow IPC file with one record batch. Its schema metadata says which shard it was made from
(size, times, inode), with which keys, and the crc32c of the whole. With an index, any record is one ranged
read, and its image a slice of that.

It is read into memory, at most 24 bytes a record, not mapped: a mapped file that somebody cuts kills the
process, and one that somebody overwrites changes labels after its crc was checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feeder.errors import ConfigError, StorageError
from feeder.records.example import ExampleError, RecordKeys, parse_example, zero_based
from feeder.records.shards import INDEX_SUFFIX
from feeder.records.tfrecord import FOOTER_BYTES, HEADER_BYTES, MAX_RECORD_BYTES, Torn, frames

__all__ = [
    "IndexUnusable",
    "ShardIndex",
    "ShardState",
    "build_index",
    "index_path",
    "load_index",
    "write_index",
]

FORMAT = 1
"""Changes with every change of the columns or of what they mean; other formats are rebuilt."""

_METADATA_KEY = b"feeder_index"
_CRC_KEY = b"feeder_index_crc32c"

BAD = -1
"""Label of a record that cannot be used; reading it says why."""

_COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    "offset": ("<u8", pa.uint64()),
    "length": ("<u4", pa.uint32()),
    "label": ("<i4", pa.int32()),
    "crc": ("<u4", pa.uint32()),
    "image_start": ("<u4", pa.uint32()),
    "image_bytes": ("<u4", pa.uint32()),
}


class IndexUnusable(Exception):
    """An index is missing, stale or damaged; the text says which. It can be built anew."""


@dataclass(frozen=True)
class ShardState:
    """What tells, without reading it, that a file is still the one that was indexed.

    The change time (ctime) catches what the others miss: a file overwritten in place, its mtime set back.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, stat: os.stat_result) -> ShardState:
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


@dataclass(frozen=True)
class ShardIndex:
    """The columns have one entry for each record, in file order; each is private memory.

    Attributes:
        state: of the shard when it was indexed.
        start: uint16, uint32 or uint64 [n + 1], byte of the shard where the record's length field is. Its
            payload starts 12 bytes later and ends 4 bytes before the next start.
        label: int32 [n], class from 0; -1: the record is bad.
        crc: uint32 [n], crc32c that the shard states for the payload, not masked.
        image_start: uint16 or uint32 [n], first byte of the encoded image within the payload; 0 where bad.
        image_bytes: uint16 or uint32 [n], length of the encoded image; 0 where bad.
        damage: why the shard cannot be read to its end, or None. If set, the last entry (length 0, label -1,
            start where the framing breaks) stands for everything that was lost there.
        content: hex sha256 over all of this but state and start: equal for copies, different for other data.
    """

    state: ShardState
    start: npt.NDArray[np.unsignedinteger]
    label: npt.NDArray[np.int32]
    crc: npt.NDArray[np.uint32]
    image_start: npt.NDArray[np.unsignedinteger]
    image_bytes: npt.NDArray[np.unsignedinteger]
    damage: str | None
    content: str

    def __len__(self) -> int:
        return len(self.label)

    @property
    def offset(self) -> npt.NDArray[np.uint64]:
        """uint64 [n], byte of the shard where the payload starts; of a damaged tail, where it breaks."""
        offset = self.start[:-1].astype(np.uint64) + np.uint64(HEADER_BYTES)
        if self.damage is not None:
            offset[-1] = self.start[-2]
        return offset

    @property
    def length(self) -> npt.NDArray[np.uint32]:
        """uint32 [n], bytes of the payload."""
        return (np.diff(self.start) - (HEADER_BYTES + FOOTER_BYTES)).astype(np.uint32)


def index_path(shard: Path, index_dir: Path | None = None) -> Path:
    """Where the index of a shard is kept: beside it, or in a folder that serves shards of many folders."""
    if index_dir is None:
        return shard.with_name(shard.name + INDEX_SUFFIX)
    place = hashlib.sha256(os.fsencode(os.path.realpath(shard.parent))).hexdigest()[:12]
    return index_dir / f"{shard.name}.{place}{INDEX_SUFFIX}"


def build_index(
    shard: Path,
    keys: RecordKeys,
    *,
    max_record_bytes: int = MAX_RECORD_BYTES,
    advance: Callable[[int], None] | None = None,
) -> ShardIndex:
    """Reads a shard once, from start to end, and checks framing, crcs, and the Example in each record.

    Args:
        shard: file to read.
        keys: where image and label are.
        max_record_bytes: a longer record counts as damage.
        advance: called with numbers of bytes read; may raise to stop.

    Raises:
        BadShard: not a TFRecord file.
        StorageError: it cannot be read, or changed meanwhile.
    """
    columns = {
        name: array({"<u8": "Q", "<u4": "I", "<i4": "i"}[code]) for name, (code, _) in _COLUMNS.items()
    }
    appends = [column.append for column in columns.values()]

    def append(*values: int) -> None:
        for add, value in zip(appends, values, strict=True):
            add(value)

    damage = None
    try:
        file = open(shard, "rb", buffering=0)  # noqa: SIM115 (closed below; opening has an error of its own)
    except OSError as error:
        raise StorageError(f"{shard}: cannot open: {error.strerror}") from error
    with file:
        fd = file.fileno()
        state = ShardState.of(os.fstat(fd))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        try:
            for offset, payload, crc, intact in frames(
                fd, str(shard), max_record_bytes=max_record_bytes, advance=advance
            ):
                label, image_start, image_bytes = BAD, 0, 0
                if intact:
                    with contextlib.suppress(ExampleError):
                        start, length, stored = parse_example(payload, keys)
                        label, image_start, image_bytes = zero_based(stored, keys), start, length
                append(offset, len(payload), label, crc, image_start, image_bytes)
        except Torn as torn:
            damage = torn.reason
            append(torn.offset, 0, BAD, 0, 0, 0)
        if ShardState.of(os.fstat(fd)) != state:
            raise StorageError(f"{shard}: changed while it was indexed: index it again when it is complete")
    arrays = {name: np.array(columns[name], np.dtype(code)) for name, (code, _) in _COLUMNS.items()}
    return make_index(state, arrays, damage)


def make_index(state: ShardState, columns: dict[str, npt.NDArray[Any]], damage: str | None) -> ShardIndex:
    """An index of the given columns (see ShardIndex), with its content hash."""
    digest = hashlib.sha256(json.dumps([FORMAT, len(columns["offset"]), damage]).encode())
    for name, column in columns.items():
        if name != "offset":
            digest.update(np.ascontiguousarray(column).data)
    return _private(state, columns, damage, digest.hexdigest())


def _private(
    state: ShardState, columns: dict[str, npt.NDArray[Any]], damage: str | None, content: str
) -> ShardIndex:
    """Copies columns as they are in a file into the smallest types that hold them.

    Raises:
        ValueError: they do not describe records that lie one after another.
    """
    start = np.zeros(len(columns["offset"]) + 1, np.uint64)
    if len(start) > 1:
        start[:-1] = columns["offset"] - np.uint64(HEADER_BYTES)
        if damage is not None:
            start[-2] = columns["offset"][-1]
        start[-1] = start[-2] + np.uint64(int(columns["length"][-1]) + HEADER_BYTES + FOOTER_BYTES)
    index = ShardIndex(
        state,
        start=_narrow(start),
        label=columns["label"].astype(np.int32),
        crc=columns["crc"].astype(np.uint32),
        image_start=_narrow(columns["image_start"]),
        image_bytes=_narrow(columns["image_bytes"]),
        damage=damage,
        content=content,
    )
    if not np.array_equal(index.length, columns["length"]):
        raise ValueError("its records do not lie one after another")
    return index


def _narrow(column: npt.NDArray[Any]) -> npt.NDArray[np.unsignedinteger]:
    """A copy in uint16, uint32 or uint64, the first that holds the largest value."""
    largest = int(column.max(initial=0))
    return column.astype(np.uint16 if largest < 1 << 16 else np.uint32 if largest < 1 << 32 else np.uint64)


def write_index(index: ShardIndex, path: Path, keys: RecordKeys) -> None:
    """Writes an index so that a reader sees either the old file or the whole new one.

    Raises:
        StorageError: the folder cannot be written.
    """
    columns = {name: getattr(index, name).astype(code) for name, (code, _) in _COLUMNS.items()}
    described = json.dumps(
        {
            "format": FORMAT,
            "shard": dataclasses.asdict(index.state),
            "keys": dataclasses.asdict(keys),
            "damage": index.damage,
            "content": index.content,
        }
    ).encode()
    crc = _crc(described, columns)
    schema = pa.schema(
        [pa.field(name, type_, nullable=False) for name, (_, type_) in _COLUMNS.items()],
        metadata={_METADATA_KEY: described, _CRC_KEY: f"{crc:08x}".encode()},
    )
    batch = pa.record_batch(
        [pa.array(columns[name], type_) for name, (_, type_) in _COLUMNS.items()], schema=schema
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as (fd, temporary), os.fdopen(fd, "wb", closefd=False) as file:
            with pa.ipc.new_file(file, schema) as writer:
                writer.write_batch(batch)
            file.flush()
            os.fchmod(fd, 0o644)
            os.fsync(fd)
            os.replace(temporary, path)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot write the index: {error.strerror or error}: "
            f"make its folder writable, or keep indexes elsewhere (--index-dir)"
        ) from error


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[int, Path]]:
    """A hidden file beside `path`, open, and gone afterwards unless renamed; those of killed builds go first.

    A living build holds a lock on its file, which ends with the process.
    """
    prefix, suffix = f".{path.name}.", ".tmp"
    for name in os.listdir(path.parent):
        if name.startswith(prefix) and name.endswith(suffix):
            with contextlib.suppress(OSError):
                fd = os.open(path.parent / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path.parent / name)
                finally:
                    os.close(fd)
    while True:
        fd, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=path.parent)
        with contextlib.suppress(OSError):  # no locks here: then nobody else gets one either
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            break
        os.close(fd)  # another build took it for a leftover before it was locked
    try:
        yield fd, Path(name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    finally:
        os.close(fd)


def load_index(path: Path, state: ShardState, keys: RecordKeys) -> ShardIndex:
    """Reads an index into memory.

    Args:
        path: the index.
        state: of its shard now.
        keys: with which it must have been made.

    Raises:
        IndexUnusable: there is none, it is damaged, or belongs to another state of the shard or other keys.
    """
    try:
        with pa.ipc.open_file(pa.py_buffer(path.read_bytes())) as reader:
            metadata = reader.schema.metadata or {}
            described = metadata[_METADATA_KEY]
            about = json.loads(described)
            if about["format"] != FORMAT:
                raise IndexUnusable(f"{path}: is of format {about['format']}, this version writes {FORMAT}")
            if reader.num_record_batches != 1:
                raise IndexUnusable(f"{path}: damaged: {reader.num_record_batches} batches instead of one")
            batch = reader.get_batch(0)
            columns = {name: _column(batch, name) for name in _COLUMNS}
            stated = int(metadata[_CRC_KEY], 16)
            made_from, made_with = ShardState(**about["shard"]), RecordKeys(**about["keys"])
            damage, content = about["damage"], about["content"]
    except FileNotFoundError:
        raise IndexUnusable(f"{path}: no index yet") from None
    except (OSError, pa.ArrowException, ConfigError, ValueError, KeyError, TypeError) as error:
        raise IndexUnusable(
            f"{path}: damaged: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from error
    if _crc(described, columns) != stated:
        raise IndexUnusable(f"{path}: damaged: its crc32c is wrong")
    if made_from != state:
        raise IndexUnusable(f"{path}: stale: the shard has changed since")
    if made_with != keys:
        raise IndexUnusable(f"{path}: made with other keys: {made_with}")
    try:
        return _private(state, columns, damage, content)
    except ValueError as error:
        raise IndexUnusable(f"{path}: damaged: {error}") from error


def _column(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    code, type_ = _COLUMNS[name]
    column = batch.column(batch.schema.get_field_index(name))
    if column.type != type_ or column.null_count:
        raise ValueError(f"column {name} is {column.type} with {column.null_count} nulls")
    view: npt.NDArray[Any] = column.to_numpy(zero_copy_only=True)
    return view.view(np.dtype(code))


def _crc(described: bytes, columns: dict[str, npt.NDArray[Any]]) -> int:
    crc: int = google_crc32c.value(described)
    for name in _COLUMNS:
        crc = google_crc32c.extend(crc, np.ascontiguousarray(columns[name]).view(np.uint8))
    return crc
