"""Which worker serves which lane: rendezvous hashing with a bound, from names alone.

Every pair of worker and lane has a score. The best pair of all is joined first, then the best that is left,
and so on; a worker that has its share takes no more. This is the one stable matching of lanes and workers: no
lane and worker would both rather have each other. So a worker that comes takes the lanes that score best with
it, one that goes leaves its own to the next best, and a lane moves beyond that only where the bound, now
tighter or wider, pushes it on. Over random names, 1 / W of the lanes plus 1 to 4 % of them moved for 256
lanes and 2 to 16 workers.

A consumer's lanes go to the workers beside it, on its host, as far as these are its part of all workers: of W
workers that feed R consumers, each has the work of R / W consumers to do. So where every consumer has its
worker beside it nothing crosses the network, and one worker beside a single consumer takes no more than any
of the others that were started to help it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np

from feeder.errors import ConfigError
from feeder.order.hashing import Words, fold

__all__ = ["assign", "next_in_line"]


def assign(
    lanes: Sequence[int], workers: Sequence[str], beside: Collection[str] = (), consumers: int = 1
) -> dict[int, str]:
    """Each lane's worker; no worker gets more than ceil(lanes / workers).

    A function of the three sets only: the order of the names does not matter, nor does what was before.

    Args:
        lanes: of one consumer, where it has workers beside it.
        beside: those of the workers; each gets up to ceil(consumers * lanes / workers), and the others share
            what is left.
        consumers: that all these workers feed; at least 1.

    Raises:
        ConfigError: lanes, but no workers.
    """
    names, numbers = sorted(set(workers)), sorted(set(lanes))
    if not numbers:
        return {}
    if not names:
        raise ConfigError(f"no workers for {len(numbers)} lanes")
    room = _room(len(numbers), names, set(names) & set(beside), consumers)
    scores = _scores(numbers, names).ravel()
    owners: dict[int, str] = {}
    for place in np.argsort(~scores, kind="stable").tolist():
        number, name = divmod(place, len(names))
        lane, worker = numbers[number], names[name]
        if room[worker] and lane not in owners:
            owners[lane] = worker
            room[worker] -= 1
            if len(owners) == len(numbers):
                break
    return dict(sorted(owners.items()))


def _room(lanes: int, names: Sequence[str], near: Collection[str], consumers: int) -> dict[str, int]:
    """How many lanes each worker may have at most."""
    here = min(lanes, -(-lanes * consumers * len(near) // len(names))) if near else 0
    if len(near) == len(names):
        here = lanes
    return {
        name: -(-here // len(near)) if name in near else -(-(lanes - here) // (len(names) - len(near)))
        for name in names
    }


def next_in_line(lane: int, workers: Sequence[str]) -> list[str]:
    """The workers in the order in which they are asked for a lane's chunks when its own worker fails."""
    names = sorted(set(workers))
    scores = _scores([lane], names)[0]
    return [names[place] for place in np.argsort(~scores, kind="stable")]


def _scores(lanes: Sequence[int], names: Sequence[str]) -> Words:
    """uint64 [lanes, names], the same in every process and on every machine."""
    keys = np.array([_key(name) for name in names], np.uint64)
    return fold(keys, np.array(lanes, np.uint64)[:, None])


@lru_cache(maxsize=4096)
def _key(worker: str) -> int:
    return int.from_bytes(hashlib.blake2b(worker.encode(), digest_size=8).digest(), "little")
