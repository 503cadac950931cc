"""Random numbers that are a function of what they are for: 64-bit mixing and counter-based draws.

A key is folded from words one after another (seed, epoch, record, ...), each behind a full mix of those
before it, so that no sum or swap of words gives the same key: seed 1 in epoch 0 has nothing to do with seed 0
in epoch 1. A draw is a function of (key, counter) and needs no state. Only integer arithmetic modulo 2**64 is
used, so that every machine gets the same bits.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["Purpose", "Words", "draws", "fold", "key_of", "mix", "steps_of"]

Words = NDArray[np.uint64]

# Weyl increment and the two multipliers of the SplitMix64 finaliser in Stafford's variant 13: Steele, Lea,
# Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 16.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


class Purpose(IntEnum):
    """What a key is used for; keys of different purposes are unrelated. A value is never used anew."""

    PERMUTATION = 1
    WINDOW = 2


def mix(words: Words) -> Words:
    """A bijection of [0, 2**64), any shape: each input bit flips each output bit about half the time."""
    z = words ^ (words >> _S30)
    z *= _MULTIPLIER_1
    z ^= z >> _S27
    z *= _MULTIPLIER_2
    z ^= z >> _S31
    return z


def fold(keys: Words, words: Words) -> Words:
    """The keys that take in one more word each; for one key a bijection of the word. Shapes broadcast."""
    return mix(keys ^ words)


@lru_cache(maxsize=64)
def key_of(purpose: Purpose, *words: int) -> Words:
    """The key (uint64 [1], read-only) of a purpose and words in [0, 2**64), taken in one after another."""
    key = mix(np.array([purpose], np.uint64))
    for word in words:
        key = fold(key, np.array([word], np.uint64))
    key.flags.writeable = False
    return key


def steps_of(count: int) -> Words:
    """What `draws` takes for the counters 0..count-1, uint64 [count]."""
    return np.arange(1, count + 1, dtype=np.uint64) * _INCREMENT


def draws(keys: Words, steps: Words) -> Words:
    """Independent 64-bit numbers (SplitMix64) for keys and `steps_of(count)`; shapes broadcast."""
    return mix(keys + steps)
