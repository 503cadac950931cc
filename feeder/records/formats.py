"""Which format a shard is of, by its content; and its index, whatever the format."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from feeder.errors import BadShard, StorageError
from feeder.records.ahead import AheadWindow, pays
from feeder.records.folder import index_folder
from feeder.records.index import MAX_SHARD_RECORDS, IndexBuilder, ShardIndex, ShardState
from feeder.records.keys import FormatName, RecordKeys
from feeder.records.objects import ObjectBlob, ObjectShard, Shard
from feeder.records.parquet import looks_like_parquet, scan_parquet
from feeder.records.requests import Requests
from feeder.records.scan import find_middle, scan_halves, scan_tfrecord
from feeder.records.stream import (
    COMPRESSIONS,
    MAX_RECORD_BYTES,
    Blob,
    Compression,
    Torn,
    Window,
    open_window,
)
from feeder.records.tar import BLOCK_BYTES, looks_like_tar
from feeder.records.tfrecord import looks_like_tfrecord
from feeder.records.webdataset import scan_webdataset

__all__ = ["build_index", "detect", "refuse_compressed"]


def build_index(
    shard: Shard,
    keys: RecordKeys,
    *,
    format_name: FormatName | None = None,
    sequential: bool = False,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_records: int = MAX_SHARD_RECORDS,
    advance: Callable[[int], None] | None = None,
    spare: bool = False,
    requests: Requests | None = None,
) -> ShardIndex:
    """Reads a shard once, from start to end, and checks framing, checksums, and each record.

    Args:
        shard: file, object or image folder to read.
        keys: where image and label are.
        format_name: None finds it by the content.
        sequential: whether a shard that is compressed as a whole is welcome.
        max_record_bytes: a longer record counts as damage.
        max_records: what is beyond counts as one bad record of a TFRecord or tar; others, which say how many
            they have, are refused.
        advance: called with numbers of bytes read; may raise to stop.
        spare: whether another thread may share the work on a TFRecord or tar.
        requests: read the object, if it is one.

    Raises:
        BadShard: of no format that is read, of another than the one given, compressed and not welcome, or of
            too many records.
        ConfigError: an image folder has no classes.
        StorageError: it cannot be read, or changed meanwhile.
    """

    def scanned(source: int | ObjectBlob, state: ShardState) -> ShardIndex:
        builder = IndexBuilder(max_records)
        found, compression = detect(shard, source, format_name)
        if not sequential:
            refuse_compressed(shard, compression or "")
        codec: str = compression or ""
        if found == "parquet":
            codec = scan_parquet(source, shard, keys.of(found), builder, state.size, advance=advance)
        else:
            # An object is read ahead by its requests.
            shared = source if spare and isinstance(source, int) and compression is None else None
            middle = None
            if shared is not None and found == "tfrecord":
                middle = find_middle(shared, str(shard), state.size)
            try:
                if shared is not None and middle is not None:
                    scan_halves(
                        shared, str(shard), middle, keys.of(found), builder, max_record_bytes, advance
                    )
                else:
                    window = open_window(
                        source,
                        str(shard),
                        compression=compression,
                        advance=advance,
                        kind=Window if shared is None or not pays(state.size) else AheadWindow,
                    )
                    with contextlib.closing(window):
                        scan = scan_webdataset if found == "webdataset" else scan_tfrecord
                        scan(window, keys.of(found), builder, max_record_bytes)
            except Torn as torn:
                builder.tear(torn.offset, torn.reason)
        return builder.index(found, state, codec)

    if isinstance(shard, ObjectShard):
        assert requests is not None
        blob = ObjectBlob(shard, requests)
        try:
            index = scanned(blob, blob.state)
            unchanged = blob.unchanged()
        finally:
            blob.close()
    elif shard.is_dir():
        return index_folder(shard, max_records=max_records, advance=advance)
    else:
        try:
            file = open(shard, "rb", buffering=0)  # noqa: SIM115 (closed below; opening has an error of its own)
        except OSError as error:
            raise StorageError(f"{shard}: cannot open: {error.strerror}") from error
        with file:
            fd = file.fileno()
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            index = scanned(fd, ShardState.of(os.fstat(fd)))
            unchanged = ShardState.of(os.fstat(fd)) == index.state
    if not unchanged:
        raise StorageError(f"{shard}: changed while it was indexed: index it again when it is complete")
    return index


def detect(
    shard: Shard, source: int | Blob, format_name: FormatName | None = None
) -> tuple[FormatName, Compression | None]:
    """Format and compression of an open file or object.

    Args:
        shard: where it is, for errors.
        source: descriptor of the file, or the object.
        format_name: what it is known to be; then only its compression is found out.

    Raises:
        BadShard: it is of no format that is read.
        StorageError: it cannot be read.
    """
    window = open_window(source, str(shard))
    head = _head(window)
    if not head:
        return format_name or ("webdataset" if shard.suffix == ".tar" else "tfrecord"), None
    name = _format(head)
    if name is None and (compression := _compression(head)) is not None:
        window = open_window(source, str(shard), compression=compression)
        head = _head(window)
        if head or not window.broken:
            name = _format(head) or format_name
            if name is None and not head:
                name = "tfrecord"
            if name in ("tfrecord", "webdataset"):
                return format_name or name, compression
        why = f"and {window.broken}" if window.broken else f"around {_guess(head)}"
        raise BadShard(f"{shard}: is compressed with {compression}, {why}")
    if format_name or name:
        return format_name or name, None  # type: ignore[return-value]
    raise BadShard(
        f"{shard}: is {_guess(head)}, or damaged from its first byte on: check the pattern, copy it again, "
        f"or say its format (--format)"
    )


def refuse_compressed(shard: Shard, codec: str) -> None:
    """Raises BadShard for a shard that is compressed as a whole."""
    if codec in COMPRESSIONS:
        raise BadShard(
            f"{shard}: is compressed with {codec}, so that its records cannot be read one by one: unpack it "
            f"with `feeder rewrite {shard} FOLDER`, or make shards of the images with `feeder pack`"
        )


def _head(window: Window) -> bytes:
    there = window.have(BLOCK_BYTES)
    return bytes(window.view[:there])


def _format(head: bytes) -> FormatName | None:
    # TFRecord first: a length may start like anything, but then its crc is not right by chance.
    if looks_like_tfrecord(head):
        return "tfrecord"
    if looks_like_parquet(head):
        return "parquet"
    return "webdataset" if looks_like_tar(head) else None


def _compression(head: bytes) -> Compression | None:
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head[0] == 0x78 and len(head) > 1 and int.from_bytes(head[:2], "big") % 31 == 0:
        return "zlib"
    return None


def _guess(head: bytes) -> str:
    if head.startswith((b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM")):
        return "an image and not a shard"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "compressed with zstd"
    return "not a TFRecord, WebDataset (tar) or Parquet file"
