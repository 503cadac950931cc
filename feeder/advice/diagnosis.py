"""What holds a training up, decided from what workers and consumers did between two looks.

A client asks for what it has room for, and a worker makes nothing else. So the limit is where chunks pile
up in front of a stage that is always at work, and what lies behind it waits. For each job, in this order:

1. Its consumer that waits most for input counts: in a synchronous training all others wait for it, in their
   step. It waits less than WAITS of its time: the **trainer** is the limit.
2. Of the workers that serve it the one that gives nothing though it owes chunks counts, or else the one that
   holds most: shares are equal, so all wait for it. What a worker does for other jobs is not told apart.
3. More than one chunk is made and not yet in the socket, and more than are being read and made: what is
   behind the worker is the limit. The **client**, where its threads that receive are busy for LANDS of
   their time, or its memory is written into; otherwise the **wire**.
4. A chunk is being made for BUSY of the time, and others wait for that, or at least reading takes no
   longer: **decode** is the limit. Unless there is a cache that is full and in which fewer than HITS of the
   images were found: then it is the **cache**, since more of it would spare the decoding.
5. A chunk is being read for READS of the time: **storage**. It is also named where the worker gives nothing:
   the connection to the client may hang as well, but that would be found out and cut.
6. Otherwise the worker waits for requests. Where the client has room for less than PREFETCH batches, its
   threads that receive are busy, or its memory is written into, it is the **client** that asks too late.
   With room enough, what it asked for is under way: the **wire**.

Where a client says nothing of itself (it is not feeder's), the first step is left out, and in the last one
nobody can tell a client from its **trainer**, which is named as the likelier of the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

from feeder.advice.watched import STAGES, Consumer, Work

__all__ = ["Finding", "Limit", "diagnose"]

Limit: TypeAlias = Literal["storage", "decode", "cache", "wire", "client", "trainer"]

WAITS = 0.05
"""Share of its time that a trainer may wait for input and be the limit itself: no more could be gained."""

BUSY, READS = 0.75, 0.5
"""Chunks in the stage at a time, on average. A chunk is spread over all threads that decode, so one is enough
to keep them busy."""

LANDS = 0.6
"""Share of the time that receiving threads use a core. They take turns with the system's side of the socket:
a whole core is seldom reached."""

HITS = 0.9
PREFETCH = 4
"""Batches that a stream has room for by default."""

UNEQUAL = 3.0
"""A worker that holds so many times as many chunks as the median of the others, which is less than one, is
slower than they are: all are asked for as much, and they rest."""

SLOW_WIRE = 40e6
"""Bytes a second below which compression pays (see feeder.Client.stream)."""

MOST_WAITING = 0.9
"""Above this the trainer's own speed is not known well enough to say how many workers would do for it."""


@dataclass(frozen=True)
class Finding:
    """What limits one job.

    Attributes:
        job: its name, or its session where it has none.
        limit: the stage.
        consumer: which consumer it shows at, such as "0 of 8 (10.0.0.3:4711)".
        worker: which worker it shows at; "" where the trainer is the limit.
        why: the figures, one sentence each.
        lift: what would lift it, the most useful first.
        slow: workers that are slower than the others.
    """

    job: str
    limit: Limit
    consumer: str
    worker: str
    why: tuple[str, ...]
    lift: tuple[str, ...]
    slow: tuple[str, ...] = ()


def diagnose(works: Mapping[str, Work], consumers: Sequence[Consumer]) -> list[Finding]:
    """A finding for each job; none where nothing is running.

    Args:
        works: by address.
        consumers: sorted by job, each with at least one worker of `works`.
    """
    return [
        _job(job, works, list(members))
        for job, members in groupby(consumers, key=lambda consumer: consumer.job)
    ]


def _job(job: str, works: Mapping[str, Work], members: Sequence[Consumer]) -> Finding:
    consumer = max(members, key=lambda member: -1.0 if member.waiting is None else member.waiting)
    served = [works[address] for address in sorted({name for member in members for name in member.workers})]
    worker = max(served, key=lambda one: (one.still, one.at_work))
    limit = _limit(consumer, worker)
    slow = () if limit == "trainer" else _slow(served)
    why = [_fares(consumer, members)]
    if limit != "trainer" or consumer.waiting is None:
        why += _figures(limit, consumer, worker)
    if slow:
        why.append(f"{' and '.join(slow)} held up the others, which waited for requests")
    return Finding(
        job=job,
        limit=limit,
        consumer=f"{consumer.index} of {consumer.count} ({consumer.peer})",
        worker="" if limit == "trainer" else worker.address,
        why=tuple(why),
        lift=tuple(_lift(limit, consumer, worker, len(served), slow)),
        slow=slow,
    )


def _limit(consumer: Consumer, worker: Work) -> Limit:
    if consumer.waiting is not None and consumer.waiting < WAITS:
        return "trainer"
    read, ready, make, send = (worker.held.get(stage, 0.0) for stage in STAGES[1:])
    lands = consumer.arena or consumer.landing >= LANDS
    if send >= max(1.0, read + ready + make):
        return "client" if lands else "wire"
    if worker.making >= BUSY and (ready >= READS or make >= read):
        full = worker.caches and worker.cache_full
        return "cache" if full and _hits(worker) < HITS else "decode"
    if read >= READS or worker.still:
        return "storage"
    if consumer.waiting is None:
        return "trainer"
    return "client" if lands or consumer.prefetch < PREFETCH else "wire"


def _slow(served: Sequence[Work]) -> tuple[str, ...]:
    """Those that give nothing, if others do; or that hold chunks while the median of the others rests."""
    still = [one.address for one in served if one.still]
    if still:
        return tuple(still) if len(still) < len(served) else ()
    slow = []
    for one in served:
        others = sorted(other.at_work for other in served if other is not one)
        typical = others[len(others) // 2] if others else math.inf
        if typical < 1.0 <= one.at_work and one.at_work >= UNEQUAL * typical:
            slow.append(one.address)
    return tuple(slow)


def _hits(worker: Work) -> float:
    asked = worker.cache_hits + worker.cache_misses
    return worker.cache_hits / asked if asked else 0.0


def _fares(consumer: Consumer, members: Sequence[Consumer]) -> str:
    if consumer.waiting is None:
        return "the client says nothing of itself: whether its trainer waits is not known"
    spent_s = (consumer.step_s or 0.0) + consumer.wait_s
    most = " (the one that waits most)" if len(members) > 1 else ""
    rate = consumer.images / spent_s
    return (
        f"consumer {consumer.index}{most} waited for input {consumer.waiting:.1%} of its time, at "
        f"{rate:,.0f} images/s; {consumer.ready} of {consumer.prefetch} batches are ready"
    )


def _figures(limit: Limit, consumer: Consumer, worker: Work) -> list[str]:
    held = ", ".join(f"{stage} {worker.held.get(stage, 0.0):.2g}" for stage in worker.held)
    why = [
        f"{worker.address} delivered {worker.images_per_s:,.0f} images/s with {worker.threads} "
        f"thread{'s' * (worker.threads != 1)}; chunks at a time: {held}"
    ]
    if limit == "storage":
        stores = (
            f" by {worker.store_requests / worker.seconds:,.1f} requests/s" if worker.store_requests else ""
        )
        why.append(
            f"it read {worker.bytes_read / worker.seconds / 1e6:,.3g} MB/s{stores}, "
            f"{worker.storage_retries:,} of them tried again"
        )
    if limit in ("decode", "cache") and worker.images:
        # They are counted when they are decoded, images when they are sent.
        why.append(
            f"{min(1.0, worker.seek_used / worker.images):.0%} of the images were decoded from seek points"
        )
    if limit in ("decode", "cache") and worker.caches:
        full = "is full" if worker.cache_full else "is not full yet"
        why.append(
            f"{_hits(worker):.0%} of the images were in its cache, which {full} at "
            f"{worker.cache_bytes / 1e9:,.3g} GB"
        )
    if limit in ("wire", "client"):
        why.append(f"the threads that receive used {consumer.landing:.0%} of a core each")
    return why


def _lift(limit: Limit, consumer: Consumer, worker: Work, workers: int, slow: Sequence[str]) -> list[str]:
    if limit == "trainer":
        return ["nothing here: batches are ready before they are wanted; fewer workers or cores may do"]
    first = [f"look at {' and '.join(slow)} first: the others wait for it"] if slow else []
    if limit == "storage":
        return first + _lift_storage(worker)
    if limit in ("decode", "cache"):
        return first + _lift_decode(limit, consumer, worker, workers)
    if limit == "wire":
        return first + _lift_wire(consumer, worker)
    if consumer.landing >= LANDS:
        return [
            *first,
            "more workers: the client has a thread that receives for each",
            "a worker on the same host, which writes into the client's memory; no compression",
        ]
    return [*first, _prefetch(consumer)]


def _lift_storage(worker: Work) -> list[str]:
    lift = []
    if worker.still:
        lift.append("nothing moved at all: see whether the storage hangs, or the connection to the client")
    if worker.store_requests:
        lift.append("keep records near (--encoded-cache-bytes) or decoded images (--cache-bytes)")
        lift.append("more workers, which ask at the same time; larger prefetch_bytes at the client")
    else:
        lift.append("faster storage, or shards on a disk of the worker's own")
        lift.append("keep decoded images: --cache-bytes; more workers, if each has storage of its own")
    return lift


def _lift_decode(limit: Limit, consumer: Consumer, worker: Work, workers: int) -> list[str]:
    lift = []
    if limit == "cache":
        missed = f"{1 - _hits(worker):.0%} of the images"
        lift.append(f"more --cache-bytes: {missed} were decoded because they did not fit")
    lift.append(_more(consumer, workers))
    if worker.seek_used < 0.5 * (worker.images - worker.cache_hits):
        lift.append("seek points: `feeder index --seek`; --seek learn, the default, from the next epoch on")
    if not worker.caches:
        lift.append("keep decoded images: --cache-bytes")
    elif not worker.cache_full:
        lift.append("wait: the cache is filling (--warm fills it sooner)")
    if consumer.prefetch and consumer.prefetch < PREFETCH:
        lift.append(_prefetch(consumer))
    return lift


def _lift_wire(consumer: Consumer, worker: Work) -> list[str]:
    lift = []
    if consumer.output == "rgb":
        lift.append("output='yuv420': half the bytes")
    if worker.bytes_sent / worker.seconds < SLOW_WIRE:
        lift.append("compression='auto', which pays below 40 MB/s")
    lift.append("a faster network, or workers on the trainers' hosts")
    lift.append("larger prefetch_bytes, where the network is far rather than narrow")
    return lift


def _prefetch(consumer: Consumer) -> str:
    room = f"{consumer.prefetch} batch{'es' * (consumer.prefetch != 1)}"
    return f"more prefetch: there is room for {room}; without prefetch_bytes it is {PREFETCH} or more"


def _more(consumer: Consumer, workers: int) -> str:
    """How many workers would keep the trainer busy: it takes 1 / (1 - waiting) times what it gets."""
    waiting = consumer.waiting
    if waiting is None or waiting > MOST_WAITING:
        return "more cores or workers: as fast as it goes, the trainer hardly does anything but wait"
    more = math.ceil(workers * waiting / (1 - waiting))
    like = f"worker{'s' * (more != 1)} like {'this one' if workers == 1 else 'these'}"
    times = f"{1 / (1 - waiting):.2g} times what it gets"
    return f"{more} more {like}, or as many more cores: the trainer takes {times}"
