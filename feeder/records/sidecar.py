"""Keeps the index of a shard in a file beside it, or in a folder of indexes.

The file is an Arrow IPC file with one record batch. Its schema metadata says which shard it was made from
(size, times, inode), as which format, with which keys, and the crc32c of the whole. It is read into memory,
not mapped: a mapped file that somebody cuts kills the process, and one that somebody overwrites changes
labels after its crc was checked.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feeder.errors import ConfigError, StorageError
from feeder.records.index import COLUMNS, ShardIndex, ShardState, make_index
from feeder.records.keys import FORMATS, FormatName, Keys, RecordKeys
from feeder.records.objects import ObjectShard, Shard
from feeder.records.shards import INDEX_SUFFIX
from feeder.records.storage import temporary

__all__ = ["IndexUnusable", "index_path", "load_index", "sidecar_path", "write_index"]

FORMAT = 2
"""Changes with every change of the columns or of what they mean; other formats are rebuilt."""

_METADATA_KEY = b"feeder_index"
_CRC_KEY = b"feeder_index_crc32c"

_TYPES = {"<u8": pa.uint64(), "<u4": pa.uint32(), "<i4": pa.int32()}


class IndexUnusable(Exception):
    """An index is missing, stale or damaged; the text says which. It can be built anew."""


def index_path(shard: Shard, index_dir: Path | None = None) -> Path:
    """Where the index of a shard is kept: beside it, or in a folder that serves shards of many folders.

    Raises:
        ConfigError: the shard is an object, and there is no such folder.
    """
    return sidecar_path(shard, index_dir, INDEX_SUFFIX)


def sidecar_path(shard: Shard, index_dir: Path | None, suffix: str) -> Path:
    """Where a file is kept that belongs to a shard; its name ends in `suffix`.

    Raises:
        ConfigError: the shard is an object, and there is no folder.
    """
    if isinstance(shard, ObjectShard):
        if index_dir is None:
            raise ConfigError(
                f"{shard}: indexes of objects are kept in a local folder: name one with --index-dir"
            )
        folder = shard.folder
    elif index_dir is None:
        return shard.with_name(shard.name + suffix)
    else:
        folder = os.path.realpath(shard.parent)
    place = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return index_dir / f"{shard.name}.{place}{suffix}"


def write_index(index: ShardIndex, path: Path, keys: Keys) -> None:
    """Writes an index so that a reader sees either the old file or the whole new one.

    Raises:
        StorageError: the folder cannot be written.
    """
    columns = {name: _wide(index, name) for name in COLUMNS}
    described = json.dumps(
        {
            "format": FORMAT,
            "records": index.format,
            "codec": index.codec,
            "shard": dataclasses.asdict(index.state),
            "keys": dataclasses.asdict(keys),
            "reasons": index.reasons,
            "damage": index.damage,
            "content": index.content,
        }
    ).encode()
    crc = _crc(described, columns)
    schema = pa.schema(
        [pa.field(name, _TYPES[code], nullable=False) for name, code in COLUMNS.items()],
        metadata={_METADATA_KEY: described, _CRC_KEY: f"{crc:08x}".encode()},
    )
    batch = pa.record_batch(
        [pa.array(columns[name], _TYPES[code]) for name, code in COLUMNS.items()], schema=schema
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary(path) as (fd, hidden), os.fdopen(fd, "wb", closefd=False) as file:
            with pa.ipc.new_file(file, schema) as writer:
                writer.write_batch(batch)
            file.flush()
            os.fchmod(fd, 0o644)
            os.fsync(fd)
            os.replace(hidden, path)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot write the index: {error.strerror or error}: "
            f"let its folder be writable and have room, or keep indexes elsewhere (--index-dir)"
        ) from error


def _wide(index: ShardIndex, name: str) -> npt.NDArray[Any]:
    column: npt.NDArray[Any] = getattr(index, name)
    if len(column) != len(index):  # `unpacked`, where nothing is packed
        column = np.zeros(len(index), column.dtype)
    return column.astype(COLUMNS[name])


def load_index(
    path: Path, state: ShardState, keys: RecordKeys, format_name: FormatName | None = None
) -> ShardIndex:
    """Reads an index into memory.

    Args:
        path: the index.
        state: of its shard now.
        keys: with which it must have been made.
        format_name: as which format it must have been made; None: whatever was found then.

    Raises:
        IndexUnusable: there is none, it is damaged, or belongs to another state of the shard, another format
            or other keys.
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
            columns = {name: _column(batch, name) for name in COLUMNS}
            stated = int(metadata[_CRC_KEY], 16)
            made_from, made_with = ShardState(**about["shard"]), Keys(**about["keys"])
            made_as, codec, reasons = about["records"], str(about["codec"]), tuple(about["reasons"])
            damage, content = about["damage"], about["content"]
            if made_as not in FORMATS:
                raise ValueError(f"records of format {made_as!r}")
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
    if format_name not in (None, made_as):
        raise IndexUnusable(f"{path}: made of the shard as {made_as}, not as {format_name}")
    if made_with != keys.of(made_as):
        raise IndexUnusable(f"{path}: made with other keys: {made_with}")
    return make_index(made_as, codec, state, columns, reasons, damage, content)


def _column(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    code = COLUMNS[name]
    type_ = _TYPES[code]
    column = batch.column(batch.schema.get_field_index(name))
    if column.type != type_ or column.null_count:
        raise ValueError(f"column {name} is {column.type} with {column.null_count} nulls")
    view: npt.NDArray[Any] = column.to_numpy(zero_copy_only=True)
    return view.view(np.dtype(code))


def _crc(described: bytes, columns: dict[str, npt.NDArray[Any]]) -> int:
    crc: int = google_crc32c.value(described)
    for name in COLUMNS:
        crc = google_crc32c.extend(crc, np.ascontiguousarray(columns[name]).view(np.uint8))
    return crc
