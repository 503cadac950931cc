"""A segment: the planes of some records in one Arrow IPC file, written once and then only mapped.

The file has one record batch, whose rows are records. Its name holds its size and the crc32c of all its
bytes, so that nothing of a file is believed, not even what Arrow says of itself, before it was checked.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

__all__ = ["OVERHEAD_BYTES", "SEGMENT_BYTES", "Draft", "Row", "Segment", "SegmentUnusable", "family"]

SEGMENT_BYTES = 32 << 20
"""Large enough that there are not too many (64 GiB are 2,048), small enough that an open one is no loss. An
epoch asks for records of all shards in turns, so a segment has some of each."""

FORMAT = 1
"""Changes with every change of the columns or of what they mean; segments of other formats are removed."""

_METADATA_KEY = b"feeder_planes"

_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.uint32(), nullable=False),
        pa.field("record", pa.uint32(), nullable=False),
        pa.field("digest", pa.uint32(), nullable=False),
        pa.field("reduction", pa.uint8(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("planes", pa.binary(), nullable=False),
    ]
)

_ROW_BYTES = 32
_SHARD_BYTES = 80
_FIXED_BYTES = 8192
"""More than Arrow takes for a row beside its planes, for the name of a shard, and for all else."""

OVERHEAD_BYTES = _FIXED_BYTES + _SHARD_BYTES + _ROW_BYTES
"""What a segment of one row takes beside its planes, at most."""

_NAME = re.compile(r"(?P<family>[0-9a-f]{16})-(?P<size>\d+)-(?P<crc>[0-9a-f]{8})-[0-9a-f]{8}\.arrow")


# What Arrow and json raise of bytes that are no segment; OSError is Arrow's, as the file is mapped by then.
_PARSING = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, RecursionError)


class SegmentUnusable(Exception):
    """A file is not the segment that its name promises; the text says why, without the name."""


class Row(NamedTuple):
    """Whose planes they are.

    Attributes:
        shard: content of the shard (see ShardIndex.content).
        record: number within the shard.
        digest: of the record.
        reduction: 1, 2, 4 or 8: scale of the planes.
        width, height: pixels of the image at full size.
    """

    shard: str
    record: int
    digest: int
    reduction: int
    width: int
    height: int


def family(pixels: str) -> str:
    """What the names of all segments begin with whose planes give the pixels of this fingerprint."""
    return hashlib.sha256(f"feeder planes {FORMAT} {pixels}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The parts of a file name that matter."""

    family: str
    size: int
    crc: int

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        """None where this is no segment's name."""
        match = _NAME.fullmatch(name)
        return None if match is None else cls(match["family"], int(match["size"]), int(match["crc"], 16))


class Draft:
    """The rows of a segment in private memory, before it is sealed.

    Args:
        pixels: fingerprint of the pixels that the planes give.
        dataset: what the data set is called here, for people.
        capacity: bytes that the file may have.
    """

    def __init__(self, pixels: str, dataset: str, capacity: int) -> None:
        self._pixels = pixels
        self._dataset = dataset
        self.capacity = capacity
        self._size = _FIXED_BYTES
        self._shards: dict[str, int] = {}
        self.rows: list[Row] = []
        self._planes: list[bytes] = []

    def append(self, row: Row, planes: bytes | memoryview) -> bool:
        """Copies the planes of one record; False where they don't fit any more."""
        size = self._size + len(planes) + _ROW_BYTES
        if row.shard not in self._shards:
            size += _SHARD_BYTES
        if size > self.capacity:
            return False
        self._size = size
        self._shards.setdefault(row.shard, len(self._shards))
        self.rows.append(row)
        self._planes.append(bytes(planes))
        return True

    def without(self, surplus: set[int]) -> Draft:
        """The same draft without the rows of some positions."""
        less = Draft(self._pixels, self._dataset, self.capacity)
        for position, (row, planes) in enumerate(zip(self.rows, self._planes, strict=True)):
            if position not in surplus:
                less.append(row, planes)
        return less

    def write(self, fd: int) -> str:
        """Writes the segment into a file that has `capacity` bytes reserved, and gives back what is left.

        Returns:
            The name that it must have to be read.

        Raises:
            OSError: the file cannot be written.
        """
        described = json.dumps(
            {
                "format": FORMAT,
                "pixels": self._pixels,
                "dataset": self._dataset,
                "shards": list(self._shards),
            }
        ).encode()
        schema = _SCHEMA.with_metadata({_METADATA_KEY: described})
        columns: list[Any] = [
            [self._shards[row.shard] for row in self.rows],
            *(
                [getattr(row, name) for row in self.rows]
                for name in ("record", "digest", "reduction", "width", "height")
            ),
            self._planes,
        ]
        batch = pa.record_batch(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
            schema=schema,
        )
        with os.fdopen(fd, "r+b", closefd=False) as file:
            with pa.ipc.new_file(file, schema) as writer:
                writer.write_batch(batch)
            file.flush()
            size = file.tell()
        assert size <= self.capacity, f"a segment of {size} bytes where {self.capacity} are reserved"
        os.ftruncate(fd, size)
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as written:
            crc = google_crc32c.value(np.frombuffer(written, np.uint8))
        return f"{family(self._pixels)}-{size}-{crc:08x}-{secrets.token_hex(4)}.arrow"


class Segment:
    """A sealed segment, mapped. It stays valid while this object lives, whatever becomes of its file.

    Attributes:
        name: of its file.
        nbytes: of its file.
        dataset: what the data set was called by the worker that wrote it.
        pixels: fingerprint of the pixels that the planes give.
        rows: whose planes they are.
    """

    __slots__ = ("__weakref__", "_offsets", "_planes", "dataset", "name", "nbytes", "pixels", "rows")

    def __init__(self, path: Path, name: str, *, check: bool = True) -> None:
        """Maps and checks a file, which need not have the name here that it was sealed with.

        Args:
            check: False leaves out the checksum, where only the rows are of interest.

        Raises:
            SegmentUnusable: it is torn, cut, damaged, or of another format.
            OSError: it cannot be opened or mapped.
        """
        promised = SegmentName.parse(name)
        if promised is None:
            raise SegmentUnusable("has not the name of a segment")
        self.name = name
        mapped = _map(path)
        self.nbytes = len(mapped)
        if len(mapped) != promised.size:
            raise SegmentUnusable(f"has {len(mapped)} bytes, not the {promised.size} of its name")
        if check and (crc := google_crc32c.value(np.frombuffer(mapped, np.uint8))) != promised.crc:
            raise SegmentUnusable(f"its crc32c is {crc:08x}, not the {promised.crc:08x} of its name")
        try:
            with pa.ipc.open_file(pa.py_buffer(mapped)) as reader:
                about = json.loads((reader.schema.metadata or {})[_METADATA_KEY])
                if about["format"] != FORMAT or not reader.schema.equals(_SCHEMA):
                    raise SegmentUnusable("is of another format")
                if reader.num_record_batches != 1:
                    raise SegmentUnusable(f"holds {reader.num_record_batches} batches instead of one")
                batch = reader.get_batch(0)
                batch.validate(full=True)
            self.dataset, self.pixels = str(about["dataset"]), str(about["pixels"])
            shards = [str(shard) for shard in about["shards"]]
            columns = [batch.column(number).to_pylist() for number in range(6)]
            self.rows = [Row(shards[shard], *rest) for shard, *rest in zip(*columns, strict=True)]
            _, offsets, planes = batch.column(6).buffers()
            # Python indexes a memoryview faster than an array.
            self._offsets: memoryview[int] = np.frombuffer(offsets, np.int32, len(self.rows) + 1).data
            self._planes = memoryview(planes).cast("B")
        except _PARSING as error:
            first = (str(error).splitlines() or [repr(error)])[0]
            raise SegmentUnusable(f"is no segment: {first}") from error
        if family(self.pixels) != promised.family:
            raise SegmentUnusable("holds other pixels than its name says")

    def planes(self, row: int) -> memoryview:
        """The planes of one row, not copied."""
        return self._planes[self._offsets[row] : self._offsets[row + 1]]


def _map(path: Path) -> mmap.mmap:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_size == 0:
            raise SegmentUnusable("is empty")
        return mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
