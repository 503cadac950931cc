"""Keyed permutations of [0, n), for many keys and lengths at a time.

Up to SMALL elements, a permutation is a table: the elements sorted by a keyed 64-bit number each, so that all
n! permutations are equally likely. A Feistel network would not do there: with halves of two or three values
it takes dozens of rounds to come near.

Above that the domain is a grid of a columns and b rows with a * b just above n. A Feistel network over it
adds a keyed random function of the row to the column (modulo a), then one of the column to the row (modulo
b), and so on; each half round can be undone, so the whole is a bijection of the grid. A value that lands
outside [0, n) goes through again until it is inside ("cycle walking"): still a bijection, and rare, since the
grid is hardly larger than n.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from feeder.order.hashing import Words, draws, steps_of

__all__ = ["HALF_ROUNDS", "SMALL", "Grid", "grid_of", "permutation_table", "permute", "round_keys"]

SMALL = 256
"""Longest permutation that is made as a table: 256 lanes of it are 128 KiB, made in milliseconds an epoch."""

HALF_ROUNDS = 8
"""Half rounds of the network. Two elements of one row keep their distance with probability b**-4 beside the
fair 1/n: an excess of 0.4 % at n = 257, less above.
"""

Grid = tuple[int, int]

# The multipliers of the degski64 and rrmxmx mixers: odd, and without structure.
_MULTIPLIER_1 = np.uint64(0xD6E8FEB86659FD93)
_MULTIPLIER_2 = np.uint64(0x9FB21C651E98DF25)
_S32 = np.uint64(32)
_STEPS = steps_of(HALF_ROUNDS)[:, None]


@lru_cache(maxsize=256)
def grid_of(n: int) -> Grid:
    """Columns and rows (a, b), a >= b, of a small grid with at least n cells, for n in [1, 2**40].

    a * b is even for n > 1: on a grid of two odd sides every half round is an even permutation, and half of
    all permutations would never come.
    """
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


def permutation_table(keys: Words, lengths: Words) -> NDArray[np.uint16]:
    """Whole permutations, uint16 [n, longest]: row i maps [0, lengths[i]) by keys[i]; the rest of it is void.

    Args:
        keys: uint64 [n].
        lengths: uint64 [n], at most SMALL.
    """
    longest = int(lengths.max(initial=0))
    numbers = draws(keys[:, None], steps_of(longest))
    numbers[np.arange(longest, dtype=np.uint64) >= lengths[:, None]] = np.iinfo(np.uint64).max
    return numbers.argsort(axis=1, kind="stable").astype(np.uint16)


def round_keys(keys: Words) -> Words:
    """uint64 [n] keys -> uint64 [HALF_ROUNDS, n], what `permute` takes."""
    return draws(keys, _STEPS)


def permute(offsets: Words, lengths: Words, columns: Words, rows: Words, keys: Words) -> Words:
    """Where each offset goes under its own key.

    Args:
        offsets: uint64 [n], each in [0, its length).
        lengths: uint64 [n], at least 1.
        columns, rows: uint64 [n], `grid_of` each length.
        keys: uint64 [HALF_ROUNDS, n] from `round_keys`.

    Returns:
        uint64 [n]; for one key and one length a permutation of [0, length).
    """
    values = _cross(offsets, columns, rows, keys)
    outside = (values >= lengths).nonzero()[0]
    while outside.size:
        again = _cross(values[outside], columns[outside], rows[outside], keys[:, outside])
        values[outside] = again
        outside = outside[again >= lengths[outside]]
    return values


def _cross(values: Words, columns: Words, rows: Words, keys: Words) -> Words:
    """One pass through the network."""
    row, column = np.divmod(values, columns)
    for number in range(0, HALF_ROUNDS, 2):
        column = _half_round(row, column, keys[number], columns)
        row = _half_round(column, row, keys[number + 1], rows)
    row *= columns
    row += column
    return row


def _half_round(x: Words, y: Words, key: Words, limits: Words) -> Words:
    """y plus a keyed random-looking function of x, modulo the limits of y (below 2**32)."""
    z = x + key
    z *= _MULTIPLIER_1
    z ^= z >> _S32
    z *= _MULTIPLIER_2
    z >>= _S32
    z += y
    z %= limits
    return z
