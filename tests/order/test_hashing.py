from __future__ import annotations

import numpy as np
import pytest

from feeder.order.hashing import Purpose, draws, fold, key_of, mix, steps_of

MASK = 2**64 - 1


def scalar_mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def test_draws_are_splitmix64() -> None:
    """The first numbers of SplitMix64 from state 1234567, as published with Java's and Rosetta Code's
    versions.
    """
    numbers = draws(np.array([1234567], np.uint64), steps_of(5))
    assert numbers.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**63 - 1, 2**64 - 1])
def test_mix_agrees_with_plain_integers(word: int) -> None:
    assert int(mix(np.array([word], np.uint64))[0]) == scalar_mix(word)


def test_key_of_is_fold_after_fold() -> None:
    key = scalar_mix(Purpose.WINDOW)
    for word in (2**63 - 1, 7, 0):
        key = scalar_mix(key ^ word)
    assert int(key_of(Purpose.WINDOW, 2**63 - 1, 7, 0)[0]) == key
    folded = fold(key_of(Purpose.WINDOW, 2**63 - 1), np.array([7], np.uint64))
    assert int(fold(folded, np.array([0], np.uint64))[0]) == key


def test_seed_epoch_and_purpose_never_alias() -> None:
    """Small and huge seeds, in any epoch and for any purpose: all keys differ, sums and swaps included."""
    seeds = [*range(20), *range(2**63 - 20, 2**63), *(1 << bit for bit in range(6, 63))]
    epochs = [*range(20), *(1 << bit for bit in range(6, 62, 3))]
    keys = {int(key_of(purpose, seed, epoch)[0]) for purpose in Purpose for seed in seeds for epoch in epochs}
    assert len(keys) == len(Purpose) * len(seeds) * len(epochs)


def test_each_input_bit_flips_half_of_the_output_bits() -> None:
    words = fold(key_of(Purpose.WINDOW, 3), np.arange(2000, dtype=np.uint64))
    for bit in range(64):
        changed = mix(words) ^ mix(words ^ np.uint64(1 << bit))
        share = np.unpackbits(changed.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert np.abs(share - 0.5).max() < 0.06  # more than five standard deviations
