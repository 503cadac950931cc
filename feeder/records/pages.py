"""The pages of one column chunk of a Parquet file: where each binary value of them lies in the file.

A chunk is a row of pages, each a header (Thrift, compact protocol) and a body: definition levels and then
values, one after another with their lengths (PLAIN), or numbers of values in the chunk's dictionary page.
(Apache Parquet format: README.md, parquet.thrift and Encodings.md; Thrift: thrift-compact-protocol.md.)
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from feeder.records.crc32c import crc32c
from feeder.records.encodings import BadPage, rle_hybrid, thrift_struct, varint
from feeder.records.snappy import NotSeparable, SnappyBlocks
from feeder.records.stream import MAX_RECORD_BYTES, READ_BYTES, Blob, Window, open_window
from feeder.records.unpack import Garbled, unpack_page

__all__ = ["Chunk", "Value", "values"]

MAX_HEADER_BYTES = 16 << 20
"""Longest page header that is believed; statistics in it may hold whole values."""

MAX_PAGE_BYTES = 1 << 30
"""Largest page that is unpacked as a whole."""

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = 0, 1, 2, 3
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_RLE = 3

T = TypeVar("T")


class Value(NamedTuple):
    """Where a binary value is; see ShardIndex for how it is read.

    Attributes:
        offset, length: stored bytes that hold it.
        start: its first byte in what they unpack to.
        size: its length.
        unpacked: length of what they unpack to, or 0 if they are the value itself.
        crc: crc32c of the value.
    """

    offset: int
    length: int
    start: int
    size: int
    unpacked: int
    crc: int


@dataclass(frozen=True)
class Chunk:
    """One column of one row group.

    Attributes:
        start, stop: its part of the file.
        rows: values in it, nulls included.
        codec: as Parquet calls it, "UNCOMPRESSED" for none.
        max_level: definition level of a value that is there; below it, what is null: 0 the outermost.
    """

    start: int
    stop: int
    rows: int
    codec: str
    max_level: int


class _Body(Protocol):
    """What a page unpacks to, taken from start to end."""

    def take(self, count: int) -> npt.NDArray[np.uint8]:
        """The next bytes; valid until the next call."""

    def place(self, count: int) -> tuple[int, int, int, int]:
        """(offset, length, start, unpacked), see Value, of the bytes that were taken last."""

    def left(self) -> int:
        """Bytes that are left."""


class _Plain:
    """A page that is stored as it is."""

    def __init__(self, window: Window, size: int) -> None:
        self._window = window
        self._stop = window.position + size

    def left(self) -> int:
        return self._stop - self._window.position

    def take(self, count: int) -> npt.NDArray[np.uint8]:
        if count > self.left() or self._window.have(count) < count:
            raise BadPage(f"ends {count - self.left()} bytes early")
        lo = self._window.lo
        self._window.lo += count
        return self._window.bytes[lo : lo + count]

    def place(self, count: int) -> tuple[int, int, int, int]:
        return self._window.position - count, count, 0, 0


class _Whole:
    """A page that is unpacked as a whole."""

    def __init__(self, offset: int, stored: bytes, unpacked: int, codec: str) -> None:
        self._offset, self._length, self._unpacked = offset, len(stored), unpacked
        self._data = np.frombuffer(unpack_page(stored, unpacked, codec), np.uint8)
        self._pos = 0

    def left(self) -> int:
        return len(self._data) - self._pos

    def take(self, count: int) -> npt.NDArray[np.uint8]:
        if count > self.left():
            raise BadPage(f"ends {count - self.left()} bytes early")
        self._pos += count
        return self._data[self._pos - count : self._pos]

    def place(self, count: int) -> tuple[int, int, int, int]:
        return self._offset, self._length, self._pos - count, self._unpacked


def values(
    source: int | Blob, path: str, chunk: Chunk, advance: Callable[[int], None] | None = None
) -> Iterator[Value | int]:
    """All values of a chunk in order; for a null, the level at which it is null.

    Args:
        source: descriptor of a file, or an object, read by position; with bounded memory, but a page that
            must be unpacked as a whole is held.
        path: what errors call it.
        chunk: what to read.
        advance: called with the number of bytes of each read.

    Raises:
        BadPage: after all values of the pages before.
        StorageError: the file cannot be read.
    """
    window = open_window(source, path, start=chunk.start, stop=chunk.stop, advance=advance)
    dictionary: list[Value] | None = None
    seen = 0
    while seen < chunk.rows:
        at = window.position
        try:
            header = _header(window)
            kind, unpacked, stored = _field(header, 1), _field(header, 2), _field(header, 3)
            body_at = window.position
            if stored > chunk.stop - body_at:
                raise BadPage(f"is {stored} bytes long, {chunk.stop - body_at} are there")
            if header.get(4) is not None:
                _check_crc(open_window(source, path, start=body_at, stop=body_at + stored), header[4])
            if kind == _DICTIONARY:
                about = _sub(header, 7)
                if dictionary is not None or seen:
                    raise BadPage("is a second dictionary")
                if _field(about, 2) not in (_PLAIN, _PLAIN_DICTIONARY):
                    raise BadPage(f"is a dictionary with encoding {about[2]}")
                count = _field(about, 1)
                dictionary = _parsed(
                    source,
                    window,
                    chunk.codec,
                    stored,
                    unpacked,
                    lambda body, count=count: [_value(body) for _ in range(count)],  # type: ignore[misc]
                )
            elif kind in (_DATA, _DATA_V2):
                page = _Page(source, window, chunk, header, chunk.rows - seen)
                found = page.read(dictionary)
                seen += len(found)
                yield from found
            elif kind != _INDEX:
                raise BadPage(f"is of kind {kind}")
            if window.position > body_at + stored:
                raise BadPage("is longer than its header says")
            window.skip(body_at + stored - window.position)
        except (BadPage, Garbled) as error:
            raise BadPage(f"page at offset {at} {error}") from None


class _Page:
    """One data page."""

    def __init__(
        self, source: int | Blob, window: Window, chunk: Chunk, header: dict[int, object], most: int
    ) -> None:
        self._source, self._window, self._chunk = source, window, chunk
        self._unpacked, self._stored = _field(header, 2), _field(header, 3)
        self._is_v2 = _field(header, 1) == _DATA_V2
        about = _sub(header, 8 if self._is_v2 else 5)
        self._count = _field(about, 1)
        self._encoding = _field(about, 4 if self._is_v2 else 2)
        self._level_bytes = _field(about, 5) if self._is_v2 else 0
        self._is_packed = chunk.codec != "UNCOMPRESSED" and about.get(7, True) is not False
        if self._is_v2 and _field(about, 6):
            raise BadPage("has repetition levels")
        if not self._is_v2 and chunk.max_level and _field(about, 3) != _RLE:
            raise BadPage(f"has definition levels of encoding {about[3]}")
        if self._count > most:
            raise BadPage(f"says it holds {self._count} values, {most} are left in the chunk")
        if self._level_bytes > min(self._stored, self._unpacked):
            raise BadPage(f"says it has {self._level_bytes} bytes of levels")

    def read(self, dictionary: list[Value] | None) -> list[Value | int]:
        """Values and nulls (as their level) of the page."""
        levels: npt.NDArray[np.uint32] | None = None
        if self._is_v2 and self._level_bytes:
            data = _Plain(self._window, self._level_bytes).take(self._level_bytes)
            levels = self._levels(data.tobytes())
        size, unpacked = self._stored - self._level_bytes, self._unpacked - self._level_bytes
        return _parsed(
            self._source,
            self._window,
            self._chunk.codec if self._is_packed and size else "UNCOMPRESSED",
            size,
            unpacked,
            lambda body: self._parse(body, levels, dictionary),
        )

    def _parse(
        self, body: _Body, levels: npt.NDArray[np.uint32] | None, dictionary: list[Value] | None
    ) -> list[Value | int]:
        if not self._is_v2 and self._chunk.max_level:
            size = int.from_bytes(body.take(4).tobytes(), "little")
            if size > body.left():
                raise BadPage(f"says it has {size} bytes of levels")
            levels = self._levels(body.take(size).tobytes())
        missing: list[int] = []
        count = self._count
        if levels is not None:
            missing = levels.tolist()
            count = int((levels == self._chunk.max_level).sum())
        found: list[Value]
        if self._encoding == _PLAIN:
            found = [_value(body) for _ in range(count)]
        elif self._encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
            if dictionary is None:
                raise BadPage("needs a dictionary, and there is none")
            numbers: list[int] = []
            if count:
                width = int(body.take(1)[0])
                numbers = rle_hybrid(body.take(body.left()).tobytes(), width, count).tolist()
            if numbers and max(numbers) >= len(dictionary):
                raise BadPage(f"names value {max(numbers)} of a dictionary of {len(dictionary)}")
            found = [dictionary[number] for number in numbers]
        else:
            raise BadPage(f"has encoding {self._encoding}, which feeder does not read")
        if levels is None:
            return list(found)
        there = iter(found)
        return [next(there) if level == self._chunk.max_level else level for level in missing]

    def _levels(self, data: bytes) -> npt.NDArray[np.uint32]:
        levels = rle_hybrid(data, self._chunk.max_level.bit_length(), self._count)
        if len(levels) and int(levels.max()) > self._chunk.max_level:
            raise BadPage(f"has a definition level of {levels.max()}")
        return levels


def _parsed(
    source: int | Blob,
    window: Window,
    codec: str,
    stored: int,
    unpacked: int,
    parse: Callable[[_Body], T],
) -> T:
    """What `parse` makes of the next `stored` bytes of the window, unpacked as far as it asks."""
    if codec == "UNCOMPRESSED":
        if stored != unpacked:
            raise BadPage(f"is {stored} bytes long, not compressed, and says it unpacks to {unpacked}")
        return parse(_Plain(window, stored))
    start = window.position
    if codec == "SNAPPY":
        with contextlib.suppress(NotSeparable):
            return parse(
                SnappyBlocks(open_window(source, window.path, start=start, stop=start + stored), unpacked)
            )
    if max(stored, unpacked) > MAX_PAGE_BYTES:
        raise BadPage(f"unpacks to {unpacked} bytes, above the limit of {MAX_PAGE_BYTES}")
    data = _Plain(window, stored).take(stored).tobytes()
    skipped = varint(data, 0)[1] if codec == "SNAPPY" else 0
    return parse(_Whole(start + skipped, data[skipped:], unpacked, codec))


def _check_crc(window: Window, stated: object) -> None:
    """Compares all of a window with the checksum that a page header may state: the crc32 of zip files."""
    crc = 0
    while there := window.have(READ_BYTES):
        crc = zlib.crc32(window.view[window.lo : window.lo + there], crc)
        window.lo += there
    if not isinstance(stated, int) or crc != stated & 0xFFFFFFFF:
        raise BadPage(f"has the crc32 {crc:08x}, which is not what its header says")


def _value(body: _Body) -> Value:
    size = int.from_bytes(body.take(4).tobytes(), "little")
    if size > MAX_RECORD_BYTES:
        raise BadPage(f"holds a value of {size} bytes, above the limit of {MAX_RECORD_BYTES}")
    if size > body.left():
        raise BadPage(f"holds a value of {size} bytes, {body.left()} are left")
    if not size:
        return Value(0, 0, 0, 0, 0, 0)
    crc = crc32c(body.take(size))
    offset, length, start, unpacked = body.place(size)
    return Value(offset, length, start, size, unpacked, crc)


def _header(window: Window) -> dict[int, object]:
    """The page header that comes next; numbers and structs of it by field number."""
    wanted = 1 << 12
    while True:
        there = window.have(wanted)
        try:
            header, size = thrift_struct(window.view[window.lo : window.lo + there], 0)
        except BadPage:
            if there < wanted or wanted >= MAX_HEADER_BYTES:
                raise BadPage("has a damaged header") from None
            wanted *= 16
            continue
        window.lo += size
        return header


def _field(header: dict[int, object], number: int) -> int:
    """A number of a header, from 0 on."""
    value = header.get(number)
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise BadPage(f"has {value} as field {number} of its header")
    return value


def _sub(header: dict[int, object], number: int) -> dict[int, object]:
    value = header.get(number)
    if not isinstance(value, dict):
        raise BadPage(f"has no field {number} in its header")
    return value
