"""Which worker serves which lane: rendezvous hashing with a bound, from names alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["assign", "next_in_line"]


def assign(lanes: Sequence[int], workers: Sequence[str]) -> dict[int, str]:
    """Each lane's worker; no worker gets more than ceil(lanes / workers).

    A function of the two sets only: order and repetition of the names don't matter, nor does what was before.

    Raises:
        ValueError: lanes, but no workers.
    """
    names = sorted(set(workers))
    numbers = sorted(set(lanes))
    if not numbers:
        return {}
    if not names:
        raise ValueError(f"no workers for {len(numbers)} lanes")
    room = dict.fromkeys(names, -(-len(numbers) // len(names)))
    ranked = sorted(((score(lane, name), lane, name) for name in names for lane in numbers), reverse=True)
    owners: dict[int, str] = {}
    for _, lane, name in ranked:
        if lane not in owners and room[name]:
            owners[lane] = name
            room[name] -= 1
    return dict(sorted(owners.items()))


def next_in_line(lane: int, workers: Sequence[str]) -> list[str]:
    """The workers in the order in which they are asked for a lane's chunks when its own worker fails."""
    return sorted(set(workers), key=lambda name: (-score(lane, name), name))


@lru_cache(maxsize=1 << 16)
def score(lane: int, worker: str) -> int:
    """A number in [0, 2**64) of the pair, the same in every process and on every machine."""
    digest = hashlib.blake2b(worker.encode(), digest_size=8, salt=lane.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little")
