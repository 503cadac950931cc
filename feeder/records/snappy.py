"""Parts of a Snappy stream: how to unpack a value in it without all that comes before.

Snappy compresses blocks of 64 KiB on their own: nothing refers back to an earlier block (so do Google's
library and all that wrap it). The borders of the blocks can be found by walking over the elements, which are
few where the data are images; each run of blocks then unpacks alone. (snappy/format_description.txt.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feeder.records.stream import Window
from feeder.records.unpack import Garbled, unpack_page

__all__ = ["NotSeparable", "SnappyBlocks"]

BLOCK_BYTES = 1 << 16

_WORST_BLOCK_BYTES = 32 + BLOCK_BYTES + BLOCK_BYTES // 6
"""Longest that the library makes of a block (MaxCompressedLength)."""


class NotSeparable(Exception):
    """The stream was written by another rule: its blocks refer to one another, or have no common borders."""


class SnappyBlocks:
    """A Snappy stream that is unpacked from start to end, block by block.

    Args:
        window: over the stream and nothing more, at its start.
        unpacked: what the stream must unpack to, in bytes.

    Raises:
        Garbled: the stream is damaged.
        NotSeparable: see there.
    """

    def __init__(self, window: Window, unpacked: int) -> None:
        self._window = window
        self._total = unpacked
        stated = shift = 0
        while True:
            byte = self._byte()
            stated |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 or shift > 28:
                break
        if stated != unpacked:
            raise Garbled(f"says it unpacks to {stated} bytes, its page header says {unpacked}")
        self._borders = [window.position]  # stored offset of each block that was found, and behind the last
        self._pos = 0
        self._buffer = np.empty(0, np.uint8)  # unpacked bytes from _base on
        self._base = 0

    def left(self) -> int:
        """Bytes that are left."""
        return self._total - self._pos

    def take(self, count: int) -> npt.NDArray[np.uint8]:
        """The next bytes; valid until the next call."""
        if count > self.left():
            raise Garbled(f"ends {count - self.left()} bytes early")
        end = self._base + len(self._buffer)
        if self._pos + count > end:
            parts = [self._buffer[self._pos - self._base :]]
            while end < self._pos + count:
                parts.append(self._next(min(BLOCK_BYTES, self._total - end)))
                end += len(parts[-1])
            self._buffer = np.concatenate(parts)
            self._base = self._pos
        start = self._pos - self._base
        self._pos += count
        return self._buffer[start : start + count]

    def place(self, count: int) -> tuple[int, int, int, int]:
        """(offset, length, start, unpacked) of the bytes that were taken last.

        The first two are those of the blocks that hold them, `start` is their place in what those unpack to.
        """
        first = (self._pos - count) // BLOCK_BYTES
        last = (self._pos - 1) // BLOCK_BYTES
        offset = self._borders[first]
        unpacked = min((last + 1) * BLOCK_BYTES, self._total) - first * BLOCK_BYTES
        return offset, self._borders[last + 1] - offset, self._pos - count - first * BLOCK_BYTES, unpacked

    def _byte(self) -> int:
        if not self._window.have(1):
            raise Garbled("ends early")
        self._window.lo += 1
        return self._window.view[self._window.lo - 1]

    def _next(self, size: int) -> npt.NDArray[np.uint8]:
        """The next block, which unpacks to `size` bytes."""
        there = self._window.have(_WORST_BLOCK_BYTES)
        lo = self._window.lo
        stored = bytes(self._window.view[lo : lo + _walk(self._window.view[lo : lo + there], size)])
        self._window.lo += len(stored)
        self._borders.append(self._window.position)
        return np.frombuffer(unpack_page(stored, size, "SNAPPY"), np.uint8)


def _walk(data: memoryview, size: int) -> int:
    """How many of the bytes are the elements that unpack to exactly `size` bytes."""
    pos = done = 0
    try:
        while done < size:
            tag = data[pos]
            kind = tag & 3
            if kind == 0:
                count = tag >> 2
                pos += 1
                if count >= 60:
                    extra = count - 59
                    count = int.from_bytes(data[pos : pos + extra], "little")
                    pos += extra
                count += 1
                pos += count
            else:
                if kind == 1:
                    count = (tag >> 2 & 7) + 4
                    back = (tag & 0xE0) << 3 | data[pos + 1]
                    pos += 2
                elif kind == 2:
                    count = (tag >> 2) + 1
                    back = data[pos + 1] | data[pos + 2] << 8
                    pos += 3
                else:
                    count = (tag >> 2) + 1
                    back = int.from_bytes(data[pos + 1 : pos + 5], "little")
                    pos += 5
                if back > done:
                    raise NotSeparable
            done += count
    except IndexError:
        raise Garbled("ends early, or is longer than Snappy makes it") from None
    if done > size:
        raise NotSeparable
    if pos > len(data):
        raise Garbled("ends early")
    return pos
