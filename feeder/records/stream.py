"""Reading a shard once from start to end, as it lies or through its compression, in a bounded buffer."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Literal, Protocol, get_args

import numpy as np

from feeder.errors import StorageError
from feeder.records.storage import retry

__all__ = [
    "COMPRESSIONS",
    "MAX_RECORD_BYTES",
    "READ_BYTES",
    "Blob",
    "Compression",
    "Source",
    "Torn",
    "Window",
    "open_window",
]

MAX_RECORD_BYTES = 256 << 20
"""Longest record or image that is believed; the longest record of ImageNet is 16 MB."""

READ_BYTES = 512 << 10
"""Size of one sequential read. What is read stays in the L2 cache until its crc was taken, which takes twice
as long otherwise; a smaller one is asked for more often than it saves."""

PACKED_BYTES = 64 << 10
"""Size of one read of a compressed file. What it unpacks to is lost where it is damaged."""

Compression = Literal["gzip", "zlib"]
"""What a shard as a whole may be compressed with."""

COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)

_WINDOW_BITS: dict[Compression, int] = {"gzip": 31, "zlib": 15}


class Torn(Exception):
    """A shard breaks at `offset`; nothing behind it can be found.

    Attributes:
        offset: byte where what cannot be read starts.
        reason: what is wrong there.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class _Broken(Exception):
    """A compressed stream ends here by damage; the text says which."""


class Blob(Protocol):
    """Bytes of a shard that can be read by position.

    Attributes:
        size: how many there are.
    """

    size: int

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fills the start of `view`; returns how many bytes came, 0 only at the end.

        Raises:
            StorageError: it cannot be read.
        """


class _File:
    """An open file."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self.size = os.fstat(fd).st_size

    def read_into(self, view: memoryview, offset: int) -> int:
        return retry(lambda: os.preadv(self._fd, [view], offset), self._path)


class Source(Protocol):
    """Bytes in order.

    Attributes:
        size: how many there are, or None where only reading tells.
    """

    size: int | None

    def read_into(self, view: memoryview) -> int:
        """Fills the start of `view`; returns how many bytes came, 0 only at the end."""

    def skip(self, count: int) -> None:
        """Leaves out the next bytes; only where the size is known."""


class _Plain:
    """A file or object as it lies."""

    def __init__(
        self, blob: Blob, path: str, start: int, stop: int, advance: Callable[[int], object] | None
    ) -> None:
        self.size: int | None = stop - start
        self._blob = blob
        self._path = path
        self._advance = advance
        self._read = start
        self._stop = stop

    def read_into(self, view: memoryview) -> int:
        view = view[: self._stop - self._read]
        if not view:
            return 0
        got = self._blob.read_into(view, self._read)
        if got == 0:
            raise StorageError(
                f"{self._path}: ends at byte {self._read}, was {self._stop}: it shrank meanwhile"
            )
        self._read += got
        if self._advance is not None:
            self._advance(got)
        return got

    def skip(self, count: int) -> None:
        self._read += count
        if self._advance is not None:
            self._advance(count)


class _Unpacked:
    """What a gzip or zlib file unpacks to; gzip members one after another are one stream."""

    def __init__(self, source: _Plain, compression: Compression) -> None:
        self.size: int | None = None
        self._source = source
        self._compression = compression
        self._inflate = zlib.decompressobj(_WINDOW_BITS[compression])
        self._chunk = memoryview(bytearray(PACKED_BYTES))
        self._packed: bytes | memoryview = b""
        self._inside = False  # a stream has begun and not ended

    def read_into(self, view: memoryview) -> int:
        while True:
            if not self._packed:
                got = self._source.read_into(self._chunk)
                self._packed = self._chunk[:got]
                if not got:
                    if self._inside:
                        raise _Broken(f"the {self._compression} stream is cut short")
                    return 0
            if self._inflate.eof:
                if self._compression == "zlib":
                    raise _Broken("something follows the end of the zlib stream")
                self._packed = bytes(self._packed).lstrip(b"\0")  # padding of tapes and block devices
                if not self._packed:
                    continue
                self._inflate = zlib.decompressobj(_WINDOW_BITS[self._compression])
            self._inside = True
            try:
                out = self._inflate.decompress(self._packed, len(view))
            except zlib.error as error:
                raise _Broken(f"the {self._compression} stream is damaged: {error}") from None
            if self._inflate.eof:
                self._inside = False
                self._packed = self._inflate.unused_data
            else:
                self._packed = self._inflate.unconsumed_tail
            if out:
                view[: len(out)] = out
                return len(out)

    def skip(self, count: int) -> None:
        raise AssertionError("a compressed stream is read through")


class Window:
    """A reusable buffer that slides over a stream; `lo:hi` of it are bytes that were read and not yet used.

    Attributes:
        path: file, as errors call it.
        bytes, view: the buffer, as an array and as a memoryview; both are replaced when it grows.
        lo: first byte in it that is not used; whoever uses bytes moves it.
        broken: why the stream ends earlier than it should, once have() met that end; or "".
    """

    def __init__(self, source: Source, path: str, start: int = 0) -> None:
        self.path = path
        self.broken = ""
        self._source = source
        self._left = source.size
        self.bytes = np.empty(READ_BYTES if self._left is None else min(READ_BYTES, self._left), np.uint8)
        self.view = self.bytes.data
        self.lo = self.hi = 0
        self._end = start  # offset of the first byte that was not read

    @property
    def position(self) -> int:
        """Offset in the stream of the first byte that is not used."""
        return self._end - (self.hi - self.lo)

    def have(self, count: int) -> int:
        """Makes `count` unread bytes available; returns `count`, or how many there are up to the end."""
        kept = self.hi - self.lo
        if kept >= count:
            return count
        if self._left is not None and kept + self._left < count:
            count = kept + self._left
        if kept < count:
            self._fill(kept, count)
        return min(count, self.hi - self.lo)

    def skip(self, count: int) -> int:
        """Passes over `count` bytes without keeping them; returns `count`, or how many there were."""
        done = min(count, self.hi - self.lo)
        self.lo += done
        if self._left is not None:
            far = min(count - done, self._left)
            if far > READ_BYTES:
                self._source.skip(far)
                self._left -= far
                self._end += far
                return done + far
        while done < count and (there := self.have(min(count - done, READ_BYTES))):
            self.lo += there
            done += there
        return done

    def close(self) -> None:
        """Ends what goes on for this window; the file is left to who opened it."""

    def _fill(self, kept: int, count: int) -> None:
        rest = self.view[self.lo : self.hi]
        if count > len(self.bytes):
            self.bytes = np.empty(count, np.uint8)
            self.view = self.bytes.data
        self.view[:kept] = rest
        self.lo, self.hi = 0, kept
        while self.hi < count and not self.broken:
            try:
                got = self._source.read_into(self.view[self.hi :])
            except _Broken as error:
                self.broken = str(error)
                return
            if got == 0:
                return
            self.hi += got
            self._end += got
            if self._left is not None:
                self._left -= got


def open_window(
    source: int | Blob,
    path: str,
    *,
    compression: Compression | None = None,
    start: int = 0,
    stop: int | None = None,
    advance: Callable[[int], object] | None = None,
    kind: type[Window] = Window,
) -> Window:
    """A window over an open file or an object, or a part of it, at the start.

    Args:
        source: descriptor of a file, or an object, to read by position.
        path: what errors call it.
        compression: of what is read; the window is over what it unpacks to.
        start, stop: part of the file; None: its end.
        advance: called with the number of bytes (of the file) of each read; may raise to stop.
        kind: of window, where nothing is compressed.
    """
    blob = _File(source, path) if isinstance(source, int) else source
    plain = _Plain(blob, path, start, blob.size if stop is None else stop, advance)
    if compression is not None:
        return Window(_Unpacked(plain, compression), path)
    return kind(plain, path, start)
