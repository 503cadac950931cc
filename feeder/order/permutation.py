"""Keyed permutations of [0, n) with random access, for many keys and lengths at a time.

The domain is a grid of a columns and b rows with a * b just above n. A Feistel network over it adds a keyed
random function of the row to the column (modulo a), then one of the column to the row (modulo b), and so on;
each half round can be undone, so the whole is a bijection of the grid. A value that lands outside [0, n) goes
through again until it is inside ("cycle walking"): still a bijection, and rare, since the grid is hardly
larger than n."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from feeder.order.hashing import Words, draws

__all__ = ["HALF_ROUNDS", "Grid", "grid_of", "permute", "round_keys"]

HALF_ROUNDS = 10
"""Half rounds of the network."""

Grid = tuple[int, int]

_MULTIPLIER_1 = np.uint64(0xD6E8FEB86659FD93)
_MULTIPLIER_2 = np.uint64(0x9FB21C651E98DF25)
_S32 = np.uint64(32)
_COUNTERS = np.arange(HALF_ROUNDS, dtype=np.uint64)[:, None]


@lru_cache(maxsize=256)
def grid_of(n: int) -> Grid:
    """Columns and rows (a, b), a >= b, of a small grid with at least n cells, for n in [1, 2**40].

    a * b is even for n > 1: on a grid of two odd sides every half round is an even permutation, and half of
    all permutations would never come."""
    if not 1 <= n <= 2**40:
        raise ValueError(f"a permutation needs between 1 and 2**40 elements, got {n}")
    if n == 1:
        return 1, 1
    root = isqrt(n - 1) + 1
    best: Grid | None = None
    for a in range(root, root + root // 2 + 2):
        b = -(-n // a)
        if a * b % 2 == 0 and (best is None or a * b < best[0] * best[1]):
            best = a, b
            if a * b == n:
                break
        if a - root > 4096:
            break
    assert best is not None  # of two neighbouring a, one is even
    return best


def round_keys(keys: Words) -> Words:
    """uint64 [n] keys -> uint64 [HALF_ROUNDS, n], what `permute` takes."""
    return draws(keys[None, :], _COUNTERS)


def permute(
    offsets: NDArray[np.int64], lengths: NDArray[np.int64], columns: Words, rows: Words, keys: Words
) -> NDArray[np.int64]:
    """Where each offset goes under its own key.

    Args:
        offsets: int64 [n], each in [0, its length).
        lengths: int64 [n], at least 1.
        columns, rows: uint64 [n], `grid_of` each length.
        keys: uint64 [HALF_ROUNDS, n] from `round_keys`.

    Returns:
        int64 [n]; for one key and one length a permutation of [0, length).
    """
    values = _cross(offsets.astype(np.uint64), columns, rows, keys)
    limits = lengths.astype(np.uint64)
    outside = np.flatnonzero(values >= limits)
    while outside.size:
        again = _cross(values[outside], columns[outside], rows[outside], keys[:, outside])
        values[outside] = again
        outside = outside[again >= limits[outside]]
    return values.astype(np.int64)


def _cross(values: Words, columns: Words, rows: Words, keys: Words) -> Words:
    """One pass through the network."""
    row = values // columns
    column = values - row * columns
    for number in range(0, HALF_ROUNDS, 2):
        column += _below(row + keys[number], columns)
        column %= columns
        row += _below(column + keys[number + 1], rows)
        row %= rows
    row *= columns
    row += column
    return row


def _below(x: Words, limits: Words) -> Words:
    """A random-looking function of x into [0, limit), limit < 2**32; x is overwritten."""
    x *= _MULTIPLIER_1
    x ^= x >> _S32
    x *= _MULTIPLIER_2
    x >>= _S32
    x *= limits
    x >>= _S32
    return x
