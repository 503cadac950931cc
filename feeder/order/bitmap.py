"""A set of small whole numbers, one bit each."""

from __future__ import annotations

from collections.abc import Sequence
from operator import and_
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.order.lanes import Int64s

__all__ = ["Bitmap", "Bits", "bits_of"]

Bits: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Some of a Bitmap's: the bytes that they are in, and where in each. A loop over some dozens of them costs
less than NumPy, whose code is in no cache when a batch comes."""

_MASKS = np.left_shift(1, np.arange(8)).astype(np.uint8)


def bits_of(numbers: Int64s) -> Bits:
    """Those of int64 [n] numbers."""
    places, masks = _bits_of(numbers)
    return places.tolist(), masks.tolist()


def _bits_of(numbers: Int64s) -> tuple[Int64s, NDArray[np.uint8]]:
    return numbers >> 3, _MASKS[numbers & 7]


class Bitmap:
    """A subset of [0, size) in size / 8 bytes."""

    def __init__(self, size: int) -> None:
        """The empty subset."""
        self._bytes = bytearray(-(-size // 8))
        self._bits = np.frombuffer(self._bytes, np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes that the bits take."""
        return self._bits.nbytes

    def add(self, numbers: Int64s) -> NDArray[np.bool_]:
        """Adds int64 [n] numbers; bool [n] says which were new (of equal numbers, the first)."""
        places, masks = _bits_of(numbers)
        new: NDArray[np.bool_] = (self._bits[places] & masks) == 0
        if len(set(numbers.tolist())) < numbers.size:
            first = np.zeros(numbers.shape, np.bool_)
            first[np.unique(numbers, return_index=True)[1]] = True
            new &= first
        np.bitwise_or.at(self._bits, places, masks)
        return new

    def has_any(self, bits: Bits) -> bool:
        """Whether one of the numbers of these bits is in the set."""
        places, masks = bits
        return any(map(and_, map(self._bytes.__getitem__, places), masks))

    def set(self, bits: Bits) -> None:
        """Adds the numbers of these bits."""
        held = self._bytes
        for place, mask in zip(*bits, strict=True):
            held[place] |= mask

    def reset(self, bits: Bits) -> None:
        """Removes them."""
        held = self._bytes
        for place, mask in zip(*bits, strict=True):
            held[place] &= ~mask

    def clear(self, start: int, stop: int) -> None:
        """Removes all numbers in [start, stop)."""
        if start >= stop:
            return
        first, last = start >> 3, (stop - 1) >> 3
        keep_first = (1 << (start & 7)) - 1
        keep_last = 0xFF & ~((2 << ((stop - 1) & 7)) - 1)
        if first == last:
            self._bits[first] &= keep_first | keep_last
            return
        self._bits[first] &= keep_first
        self._bits[first + 1 : last] = 0
        self._bits[last] &= keep_last

    def saved(self, numbers: Int64s | None = None) -> tuple[Int64s | slice, NDArray[np.uint8]]:
        """What `restore` takes after changes to these numbers, or to any."""
        places = slice(None) if numbers is None else numbers >> 3
        return places, self._bits[places].copy()

    def restore(self, saved: tuple[Int64s | slice, NDArray[np.uint8]]) -> None:
        """Takes back all changes since."""
        places, bits = saved
        self._bits[places] = bits

    def __len__(self) -> int:
        return int(np.unpackbits(self._bits).sum())
