from __future__ import annotations

from math import factorial, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.order.hashing import Purpose, fold, key_of
from feeder.order.permutation import SMALL, grid_of, permutation_table, permute, round_keys


def many_keys(count: int, seed: int = 0) -> NDArray[np.uint64]:
    return fold(key_of(Purpose.PERMUTATION, seed), np.arange(count, dtype=np.uint64))


def network(n: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """int64 [keys, n]: the permutation of [0, n) by each key, through the Feistel network."""
    columns, rows = grid_of(n)
    offsets = np.tile(np.arange(n, dtype=np.uint64), len(keys))
    full = np.full(offsets.shape, n, np.uint64)
    a, b = (np.full(offsets.shape, side, np.uint64) for side in (columns, rows))
    moved = permute(offsets, full, a, b, np.repeat(round_keys(keys), n, axis=1))
    return moved.reshape(len(keys), n).astype(np.int64)


def excess(counts: NDArray[np.int64], cells: int) -> float:
    """Chi-squared of counts over cells that should be equal, in standard deviations from its mean."""
    expected = counts.sum() / cells
    squared = ((counts - expected) ** 2 / expected).sum() + (cells - len(counts)) * expected
    return float((squared - (cells - 1)) / sqrt(2 * (cells - 1)))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3000), st.integers(0, 2**63 - 1))
def test_network_is_a_bijection_of_any_length(n: int, seed: int) -> None:
    assert np.array_equal(np.sort(network(n, many_keys(1, seed))[0]), np.arange(n))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, SMALL), min_size=1, max_size=9), st.integers(0, 2**63 - 1))
def test_table_holds_a_permutation_of_each_length(lengths: list[int], seed: int) -> None:
    table = permutation_table(many_keys(len(lengths), seed), np.array(lengths, np.uint64))
    for row, length in zip(table, lengths, strict=True):
        assert sorted(row[:length].tolist()) == list(range(length))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 2**40))
def test_grid_is_even_and_hardly_larger_than_asked(n: int) -> None:
    columns, rows = grid_of(n)
    assert columns >= rows >= 1
    assert columns * rows % 2 == 0
    assert n <= columns * rows <= n + 2 * sqrt(n) + 2


@pytest.mark.parametrize("n", [0, -1, 2**40 + 1])
def test_grid_refuses_what_it_cannot_span(n: int) -> None:
    with pytest.raises(ValueError, match="between 1 and"):
        grid_of(n)


@pytest.mark.parametrize("n", range(1, 9))
def test_tiny_permutations_are_uniform_over_all_orders(n: int) -> None:
    """Over many keys each of the n! orders comes equally often."""
    keys = many_keys(max(20_000, 5 * factorial(n)), seed=n)
    orders = permutation_table(keys, np.full(keys.shape, n, np.uint64)).astype(np.int64)
    _, counts = np.unique(orders @ (n ** np.arange(n)), return_counts=True)
    assert n == 1 or abs(excess(counts, factorial(n))) < 5


@pytest.mark.parametrize("n", [SMALL + 1, 1000])
def test_network_moves_places_and_pairs_uniformly(n: int) -> None:
    moved = network(n, many_keys(400, seed=n))
    for place in (0, 1, n // 2, n - 1):
        assert abs(excess(np.bincount(moved[:, place] * 20 // n, minlength=20), 20)) < 5
    for lag in (1, 2, 16, n // 2):
        distances = (np.roll(moved, -lag, axis=1) - moved) % n
        assert abs(excess(np.bincount(distances.ravel(), minlength=n)[1:], n - 1)) < 6
    fixed = (moved == np.arange(n)).sum(axis=1)
    assert abs(fixed.mean() - 1) < 5 / sqrt(len(moved))


def test_keys_that_differ_by_one_give_unrelated_orders() -> None:
    first, second = network(5004, np.array([2**63, 2**63 + 1], np.uint64))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / sqrt(5004)
    assert (first == second).sum() < 10


def test_lengths_and_keys_may_differ_by_element() -> None:
    lengths = [300, 301, 4096, 1]
    keys = many_keys(len(lengths))
    alone = [network(n, keys[i : i + 1])[0, n // 3] for i, n in enumerate(lengths)]
    grids = np.array([grid_of(n) for n in lengths], np.uint64)
    offsets = np.array([n // 3 for n in lengths], np.uint64)
    together = permute(offsets, np.array(lengths, np.uint64), grids[:, 0], grids[:, 1], round_keys(keys))
    assert together.tolist() == alone
