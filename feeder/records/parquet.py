"""Parquet shards: which columns hold image and label, and where the images lie in the file.

The footer, the schema and the labels are read by Arrow. The images are not: their pages are walked through
with bounded memory (see feeder.records.pages), so that afterwards one image is read without its row group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from feeder.errors import BadShard, StorageError, printable
from feeder.records.encodings import BadPage
from feeder.records.index import IndexBuilder
from feeder.records.keys import Keys, Unusable, zero_based
from feeder.records.objects import ObjectBlob, Seekable, Shard
from feeder.records.pages import Chunk, Value, values

__all__ = ["looks_like_parquet", "scan_parquet"]

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"

LABELS_AT_ONCE = 8192

MAX_NULLS_A_BYTE = 1
"""Rows beyond this, by the size of the file, are no images; a few bytes can claim any number of nulls."""

_ROWS_ALWAYS = 1 << 20

_PLAIN_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}
_CODECS = {"UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4", "LZ4_RAW"}


def looks_like_parquet(head: bytes) -> bool:
    """Whether a file that starts with these bytes says it is Parquet."""
    return head.startswith((MAGIC, ENCRYPTED_MAGIC))


def scan_parquet(
    source: int | ObjectBlob,
    shard: Shard,
    keys: Keys,
    builder: IndexBuilder,
    size: int,
    *,
    advance: Callable[[int], None] | None = None,
) -> str:
    """Adds all rows of a shard to an index.

    A damaged page or label column makes the rest of its row group bad, and no more than that.

    Args:
        source: descriptor of the file, or the object.
        shard: where it is.
        keys: names of the columns.
        builder: takes the rows.
        size: of the shard, in bytes.
        advance: called with numbers of bytes read; may raise to stop.

    Returns:
        The codec of the pages, or "".

    Raises:
        BadShard: it is no Parquet file, its columns are others than the keys say, or of a kind that cannot be
            read.
        StorageError: it cannot be read.
    """
    try:
        place = shard if isinstance(source, int) else pa.PythonFile(Seekable(source), "r")
        with pq.ParquetFile(place, pre_buffer=False, buffer_size=1 << 20) as file:
            image = _image_column(shard, file, keys.image)
            _check_label(shard, file, keys.label)
            return _scan(source, shard, file, image, keys, builder, size, advance)
    except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
        if isinstance(error, StorageError) or (isinstance(error, OSError) and error.errno):
            raise
        raise BadShard(f"{shard}: is not a whole Parquet file: {_first_line(error)}") from error


def _scan(
    source: int | ObjectBlob,
    shard: Shard,
    file: pq.ParquetFile,
    image: int,
    keys: Keys,
    builder: IndexBuilder,
    size: int,
    advance: Callable[[int], None] | None,
) -> str:
    metadata = file.metadata
    if metadata.num_rows > max(_ROWS_ALWAYS, size * MAX_NULLS_A_BYTE):
        raise BadShard(f"{shard}: says it has {metadata.num_rows} rows in {size} bytes")
    if metadata.num_rows > builder.max_records:
        raise BadShard(
            f"{shard}: has {metadata.num_rows} rows, more than {builder.max_records}: "
            f"cut it into smaller shards"
        )
    max_level = file.schema.column(image).max_definition_level
    codecs = set()
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group)
        column = about.column(image)
        rows = about.num_rows
        if not rows:
            continue
        if unread := set(column.encodings) - _PLAIN_ENCODINGS:
            raise BadShard(
                f"{shard}: column {column.path_in_schema!r} is encoded as {', '.join(sorted(unread))}, which "
                f"feeder does not read: write it with PLAIN encoding"
            )
        if column.compression not in _CODECS:
            raise BadShard(f"{shard}: is compressed with {column.compression}, which feeder does not read")
        codecs.add(column.compression)
        starts = [
            at for at in (column.dictionary_page_offset, column.data_page_offset) if at is not None and at > 0
        ]
        start = min(starts, default=0)
        stop = start + column.total_compressed_size
        if not len(MAGIC) <= start < stop <= size or column.num_values != rows:
            raise BadShard(f"{shard}: row group {group} says its images are at {start} to {stop} of {size}")
        chunk = Chunk(start, stop, rows, column.compression, max_level)
        labels = _labels(file, group, keys.label)
        _add_rows(chunk, labels, values(source, str(shard), chunk, advance), keys, builder)
    packed = codecs - {"UNCOMPRESSED"}
    if len(packed) > 1:
        raise BadShard(f"{shard}: row groups are compressed in different ways: {', '.join(sorted(packed))}")
    return next(iter(packed), "")


def _add_rows(
    chunk: Chunk,
    labels: Iterator[int | None],
    images: Iterator[Value | int],
    keys: Keys,
    builder: IndexBuilder,
) -> None:
    left = chunk.rows
    lost = ""
    while left:
        try:
            image = next(images)
        except BadPage as error:
            lost = f"image column: {error}"
            break
        try:
            label = next(labels)
        except (pa.ArrowException, OSError, StopIteration) as error:
            lost = f"label column is damaged: {_first_line(error)}"
            break
        left -= 1
        try:
            if isinstance(image, int):
                raise Unusable(
                    "image is not embedded: its bytes are null" if image else "image is null: there is none"
                )
            if not image.size:
                raise Unusable("image is empty (0 bytes)")
            if label is None:
                raise Unusable("label is null: there is none")
            number = zero_based(label, keys)
        except Unusable as error:
            builder.add_bad(chunk.start, str(error))
            continue
        builder.add(image.offset, image.length, number, image.crc, image.start, image.size, image.unpacked)
    for _ in range(left):
        builder.add_bad(chunk.start, lost)


def _labels(file: pq.ParquetFile, group: int, name: str) -> Iterator[int | None]:
    for batch in file.iter_batches(LABELS_AT_ONCE, row_groups=[group], columns=[name], use_threads=False):
        yield from batch.column(0).to_pylist()


def _image_column(shard: Shard, file: pq.ParquetFile, key: str) -> int:
    """Number of the column with the images: a binary one of that name, or `bytes` in such a struct."""
    columns = [file.schema.column(number) for number in range(len(file.schema))]
    paths = [column.path for column in columns]
    found = [number for number, path in enumerate(paths) if path == (key if key in paths else f"{key}.bytes")]
    if len(found) == 1:
        column = columns[found[0]]
        if column.physical_type == "BYTE_ARRAY" and not column.max_repetition_level:
            return found[0]
    kind = _kind(shard, file, key.split(".")[0], f"no column {key!r} of images", "--image-key")
    raise BadShard(
        f"{shard}: column {key!r} is {printable(str(kind))}, not binary or a struct of bytes and path"
    )


def _check_label(shard: Shard, file: pq.ParquetFile, key: str) -> None:
    kind = _kind(shard, file, key, f"no column {key!r} of labels", "--label-key")
    if not pa.types.is_integer(kind):
        raise BadShard(f"{shard}: column {key!r} of labels is {printable(str(kind))}, not integers")


def _kind(shard: Shard, file: pq.ParquetFile, name: str, without: str, flag: str) -> pa.DataType:
    """Type of the one column of a name."""
    names = file.schema_arrow.names
    if name not in names:
        listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        raise BadShard(f"{shard}: {without}: it has {printable(listed)}: say {flag}")
    if names.count(name) > 1:
        raise BadShard(f"{shard}: {names.count(name)} columns are called {name!r}: write it with one")
    return file.schema_arrow.field(name).type


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [repr(error)])[0]
