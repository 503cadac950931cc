"""The index of a shard: where each record and its image lie, its label, its crc.

It is held in memory, at most 28 bytes a record (32 where pages are compressed), in columns that are as narrow
as their largest value allows; `feeder.records.sidecar` keeps it in a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.errors import printable
from feeder.records.keys import BAD, FormatName
from feeder.records.stream import Torn

__all__ = ["COLUMNS", "MAX_SHARD_RECORDS", "IndexBuilder", "ShardIndex", "ShardState", "make_index"]

COLUMNS: dict[str, str] = {
    "offset": "<u8",
    "length": "<u4",
    "label": "<i4",
    "crc": "<u4",
    "image_start": "<u4",
    "image_bytes": "<u4",
    "unpacked": "<u4",
}
"""The widest form of each column, which is also the one in the file."""

MAX_SHARD_RECORDS = 1 << 24
"""Records of one shard that are taken, twelve times those of ImageNet. An index in the making has 56 bytes
for each, while a TFRecord can hold one in 16 bytes."""

MAX_REASONS = 1000
"""Bad records of a shard whose reason is kept in full; the others keep it without the name of the sample."""

MAX_REASON_LENGTH = 500

_ROW = struct.Struct("=7q")

_ONE_MORE = "is bad, as very many others of this shard: see those before it"


@dataclass(frozen=True)
class ShardState:
    """What tells, without reading it, that a shard is still the one that was indexed.

    The change time (ctime) catches what the others miss: a file overwritten in place, its mtime set back.

    Attributes:
        size: bytes; of an image folder, of all its images.
        mtime_ns, ctime_ns: nanoseconds; of an image folder, the latest of its images.
        inode: of the file or folder.
        listing: hex sha256 over names, sizes and mtimes of the images of a folder; "" for a file.
        tag: generation, ETag or what else a store has of an object, of which nothing but the size is known
            besides; "" for a file.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    listing: str = ""
    tag: str = ""

    @classmethod
    def of(cls, stat: os.stat_result) -> ShardState:
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


@dataclass(frozen=True)
class ShardIndex:
    """The columns have one entry for each record, in the shard's order; each is private memory.

    What is read of a record is `length` bytes at `offset`. In a TFRecord that is the payload, of which the
    image is a part; in other formats it is the image, or something compressed that the image is a part of.

    Attributes:
        format: of the shard.
        codec: how the stored bytes are packed: "" not at all; "gzip" or "zlib", the shard as a whole, whose
            offsets are those of what it unpacks to; else the codec of Parquet pages, such as "SNAPPY".
        state: of the shard when it was indexed.
        offset: uint16, uint32 or uint64 [n], first byte to read; of a damaged tail, where it breaks. Number
            of the file in an image folder.
        length: uint16 or uint32 [n], bytes to read; 0 where a bad record is not read.
        label: int32 [n], class from 0; -1: the record is bad.
        crc: uint32 [n], crc32c, not masked: of the payload, as the shard states it, in TFRecords; of the
            image, as it was when it was indexed, in other formats.
        image_start: uint16 or uint32 [n], first byte of the encoded image in what was read (and unpacked).
            Of a bad record that is no TFRecord: number of its reason.
        image_bytes: uint16 or uint32 [n], length of the encoded image; 0 where bad.
        unpacked: uint16 or uint32 [n], length of what was read after it is unpacked by `codec`; 0 where it is
            stored as it is.
        reasons: why bad records are bad; empty for TFRecords, where reading one tells.
        damage: why the shard cannot be read to its end, or None. If set, the last entry (length 0, label -1)
            stands for everything that was lost there.
        content: hex sha256 over all of this but state and places: equal for copies, different for other data.
            Formats other than TFRecord are alike where image bytes, labels and their order are.
    """

    format: FormatName
    codec: str
    state: ShardState
    offset: npt.NDArray[np.unsignedinteger]
    length: npt.NDArray[np.unsignedinteger]
    label: npt.NDArray[np.int32]
    crc: npt.NDArray[np.uint32]
    image_start: npt.NDArray[np.unsignedinteger]
    image_bytes: npt.NDArray[np.unsignedinteger]
    unpacked: npt.NDArray[np.unsignedinteger]
    reasons: tuple[str, ...]
    damage: str | None
    content: str

    def __len__(self) -> int:
        return len(self.label)

    @property
    def nbytes(self) -> int:
        """Bytes of all records: of the payloads in TFRecords, of the images in other formats."""
        return int((self.length if self.format == "tfrecord" else self.image_bytes).sum(dtype="u8"))


class IndexBuilder:
    """Takes in the records of a shard in order.

    Attributes:
        max_records: one more, and the shard counts as broken there.
    """

    def __init__(self, max_records: int = MAX_SHARD_RECORDS) -> None:
        self.max_records = max_records
        self._most = max_records * _ROW.size
        self._rows = bytearray()
        self._reasons: dict[str, int] = {}
        self._damage: str | None = None

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """int64 [n, 7], what was taken in; nothing can be added while an array of it lives."""
        return np.frombuffer(self._rows, np.int64).reshape(-1, len(COLUMNS))

    def add_rows(self, rows: npt.NDArray[np.int64]) -> None:
        """Several records.

        Args:
            rows: int64 [n, 7], C-contiguous: the arguments of `add`, in its order.

        Raises:
            Torn: one of them is one too many; those before it are taken in.
        """
        room = (self._most - len(self._rows)) // _ROW.size
        self._rows += rows[:room].data
        if len(rows) > room:
            raise self._full(int(rows[room, 0]))

    def add(
        self,
        offset: int,
        length: int,
        label: int,
        crc: int,
        image_start: int,
        image_bytes: int,
        unpacked: int = 0,
    ) -> None:
        """One record; the arguments are those of ShardIndex.

        Raises:
            Torn: it is one too many.
        """
        if len(self._rows) >= self._most:
            raise self._full(offset)
        self._rows += _ROW.pack(offset, length, label, crc, image_start, image_bytes, unpacked)

    def add_bad(self, offset: int, reason: str, about: str = "") -> None:
        """A record that cannot be used.

        Args:
            offset: where it is.
            reason: why, in general.
            about: which sample, and what else is left out where there are too many.

        Raises:
            Torn: it is one too many.
        """
        for text, limit in ((f"{reason} {about}", MAX_REASONS), (reason, 2 * MAX_REASONS), (_ONE_MORE, None)):
            text = printable(text.strip()[:MAX_REASON_LENGTH])
            if text in self._reasons or limit is None or len(self._reasons) < limit:
                break
        number = self._reasons.setdefault(text, len(self._reasons))
        self.add(offset, 0, BAD, 0, number, 0)

    def tear(self, offset: int, reason: str) -> None:
        """The shard cannot be read from `offset` on; nothing comes after this."""
        self._damage = reason
        self._rows += _ROW.pack(offset, 0, BAD, 0, 0, 0, 0)

    def index(self, format_name: FormatName, state: ShardState, codec: str = "") -> ShardIndex:
        """What was taken in."""
        rows = self.rows
        columns = {name: rows[:, number].astype(code) for number, (name, code) in enumerate(COLUMNS.items())}
        digest = hashlib.sha256()
        if format_name == "tfrecord":
            hashed = ["length", "label", "crc", "image_start", "image_bytes"]
            digest.update(json.dumps([1, len(columns["label"]), self._damage]).encode())
        else:
            hashed = ["label", "crc", "image_bytes"]
            digest.update(json.dumps(["images", len(columns["label"]), self._damage]).encode())
        for name in hashed:
            digest.update(columns[name].data)
        return make_index(
            format_name, codec, state, columns, tuple(self._reasons), self._damage, digest.hexdigest()
        )

    def _full(self, offset: int) -> Torn:
        return Torn(offset, f"has more than {self.max_records} records: cut it into smaller shards")


def make_index(
    format_name: FormatName,
    codec: str,
    state: ShardState,
    columns: dict[str, npt.NDArray[Any]],
    reasons: tuple[str, ...],
    damage: str | None,
    content: str,
) -> ShardIndex:
    """Copies columns into the smallest types that hold them."""
    return ShardIndex(
        format=format_name,
        codec=codec,
        state=state,
        offset=_narrow(columns["offset"]),
        length=_narrow(columns["length"]),
        label=columns["label"].astype(np.int32),
        crc=columns["crc"].astype(np.uint32),
        image_start=_narrow(columns["image_start"]),
        image_bytes=_narrow(columns["image_bytes"]),
        unpacked=_narrow(columns["unpacked"]) if columns["unpacked"].any() else np.empty(0, np.uint16),
        reasons=reasons,
        damage=damage,
        content=content,
    )


def _narrow(column: npt.NDArray[Any]) -> npt.NDArray[np.unsignedinteger]:
    """A copy in uint16, uint32 or uint64, the first that holds the largest value."""
    largest = int(column.max(initial=0))
    return column.astype(np.uint16 if largest < 1 << 16 else np.uint32 if largest < 1 << 32 else np.uint64)
