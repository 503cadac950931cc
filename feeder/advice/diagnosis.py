"""What holds a training up, by one rule that the status page, `feeder top` and `feeder doctor` share.

A client asks for what it has room for, and a worker makes nothing else. So the limit is where chunks pile
up in front of a stage that is always at work, and what lies behind it waits. For each job, in this order:

1. Its consumer that waits most for input counts: in a synchronous training all others wait for it, in their
   step. It waits less than WAITS of its time: the **trainer** is the limit.
2. Of the workers that serve it the one that gives it nothing though it owes chunks counts, or else the one
   that holds most: shares are equal, so all wait for it.
3. Sending waits for PACED of the time as the rate of the client's **token** wants it.
4. A chunk of this consumer is made and not yet in the socket for BUSY of the time, and more such chunks than
   are being read and made for it (its share of what the worker does): what is behind the worker is the
   limit. The **client**, where its threads that receive are busy for LANDS of their time, or its memory is
   written into; otherwise the **wire**.
5. A chunk is being made for BUSY of the time, and others wait for that, or at least reading takes no
   longer: **decode** is the limit. Unless there is a cache that is full and in which fewer than HITS of the
   images were found: then it is the **cache**, since more of it would spare the decoding.
6. A chunk is being read for READS of the time: **storage**.
7. Otherwise the worker waits for requests. Where the client takes batches from workers that were not looked
   at, the limit is **elsewhere**. Where it has room for less than PREFETCH batches, its threads that receive
   are busy, or its memory is written into, it is the **client** that asks too late. With room enough, what
   it asked for is under way: the **wire**.

Where a client says nothing of itself (it is not feeder's), the first step is left out, and in the last one
nobody can tell a client from its **trainer**, which is named as the likelier of the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

from feeder.advice.watched import Consumer, Part, Work
from feeder.figures import number, share, size

__all__ = ["Finding", "Limit", "Verdict", "diagnose", "verdicts"]

Limit: TypeAlias = Literal["storage", "decode", "cache", "wire", "client", "token", "trainer", "elsewhere"]

WAITS = 0.05
"""Share of its time that a trainer may wait for input and be the limit itself: no more could be gained."""

BUSY, READS, PACED = 0.75, 0.5, 0.5
"""Chunks in the stage at a time, on average. A chunk is spread over all threads that decode, so one is enough
to keep them busy. Sending also waits for the network, so it hardly waits for its rate all the time."""

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

NOBODY = "Nobody is connected: this worker waits for a trainer."
UNSEEN = "Whoever is connected is not for this token to see: one with sees-all may."

_SAYS: dict[Limit, str] = {
    "storage": "Storage is the limit",
    "decode": "Decoding is the limit",
    "cache": "The cache is the limit, which is full and too small",
    "wire": "The wire is the limit, between worker and trainer",
    "client": "The client is the limit, which receives or asks too late",
    "token": "The token is the limit, whose rate is reached",
    "trainer": "The trainer is the limit, as it should be",
    "elsewhere": "The limit is not at this worker, which waits for requests",
}


@dataclass(frozen=True)
class Finding:
    """What limits one job.

    Attributes:
        job: its name, or its session where it has none.
        limit: the stage.
        sentence: that says so, for those who have room for one.
        consumer: which consumer it shows at, such as "0 of 8 (10.0.0.3:4711)".
        waiting: share of its time that it waited for input, in [0, 1]; None: not known.
        worker: which worker it shows at; "" where it shows at none.
        why: the figures, one sentence each.
        lift: what would lift it, the most useful first.
        slow: workers that are slower than the others.
    """

    job: str
    limit: Limit
    sentence: str
    consumer: str
    waiting: float | None
    worker: str
    why: tuple[str, ...]
    lift: tuple[str, ...]
    slow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the jobs of a worker have in common.

    Attributes:
        limit: of these jobs; "nobody": there are none.
        jobs: by name, the one that waits most first.
        sentence: of that one.
    """

    limit: Limit | Literal["nobody"]
    jobs: tuple[str, ...]
    sentence: str


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


def verdicts(findings: Sequence[Finding], streams: int = 0) -> list[Verdict]:
    """One for each limit that was found, that of the job that waits most first; never none.

    Args:
        streams: how many there are, also such that the findings cannot be of.
    """
    found: dict[Limit, list[Finding]] = {}
    for finding in sorted(findings, key=_waits, reverse=True):
        found.setdefault(finding.limit, []).append(finding)
    return [
        Verdict(limit, tuple(one.job for one in those), those[0].sentence) for limit, those in found.items()
    ] or [Verdict("nobody", (), UNSEEN if streams else NOBODY)]


def _job(job: str, works: Mapping[str, Work], members: Sequence[Consumer]) -> Finding:
    consumer = max(members, key=_waits)
    parts = consumer.parts
    held = {name: works[name].held("read", "ready", "make") + part.unsent for name, part in parts.items()}
    worker = works[max(parts, key=lambda name: (parts[name].still, held[name]))]
    limit = _limit(consumer, worker)
    at_worker = limit not in ("trainer", "elsewhere")
    slow = _slow(parts, held) if at_worker else ()
    why = [_fares(consumer, members)]
    if at_worker or consumer.waiting is None:
        why += _figures(limit, consumer, worker)
    if slow:
        why.append(f"{' and '.join(slow)} held up the others, which waited for requests")
    lift = _lift(limit, consumer, worker, slow)
    stream = consumer.stream
    return Finding(
        job=job,
        limit=limit,
        sentence=_sentence(limit, consumer, lift[0]),
        consumer=f"{stream.consumer_index} of {stream.consumer_count} ({stream.peer})",
        waiting=consumer.waiting,
        worker=worker.address if at_worker else "",
        why=tuple(why),
        lift=tuple(lift),
        slow=slow,
    )


def _limit(consumer: Consumer, worker: Work) -> Limit:
    part = consumer.parts[worker.address]
    if consumer.waiting is not None and consumer.waiting < WAITS:
        return "trainer"
    if part.paced >= PACED:
        return "token"
    read, ready, make = worker.held("read"), worker.held("ready"), worker.held("make")
    its = part.chunks / max(1, worker.did.chunks)
    lands = consumer.arena or consumer.landing >= LANDS
    if part.unsent >= max(BUSY, its * (read + ready + make)):
        return "client" if lands else "wire"
    if worker.making >= BUSY and (ready >= READS or make >= read):
        full = worker.cache is not None and worker.cache.full
        return "cache" if full and (worker.hits or 0.0) < HITS else "decode"
    if read >= READS:
        return "storage"
    if consumer.told is None:
        return "trainer"
    if consumer.told.workers > len(consumer.parts):
        return "elsewhere"
    return "client" if lands or consumer.told.prefetch < PREFETCH else "wire"


def _slow(parts: Mapping[str, Part], held: Mapping[str, float]) -> tuple[str, ...]:
    """Those that give nothing, if others do; or that hold chunks while the median of the others rests."""
    still = [name for name, part in parts.items() if part.still]
    if still:
        return tuple(still) if len(still) < len(parts) else ()
    slow = []
    for name in parts:
        others = sorted(held[other] for other in parts if other != name)
        typical = others[len(others) // 2] if others else math.inf
        if typical < 1.0 <= held[name] and held[name] >= UNEQUAL * typical:
            slow.append(name)
    return tuple(slow)


def _waits(one: Consumer | Finding) -> float:
    """To find who waits most; those that do not say come last."""
    return -1.0 if one.waiting is None else one.waiting


def _sentence(limit: Limit, consumer: Consumer, lift: str) -> str:
    if consumer.waiting is None:
        said = f"{_SAYS[limit]}, as far as one can see: the client does not say whether its trainer waits."
    else:
        who = "it" if limit == "trainer" else "the trainer"
        said = f"{_SAYS[limit]}: {who} waits {share(consumer.waiting)} of its time."
    return said if limit == "trainer" else f"{said} What would help: {lift}."


def _fares(consumer: Consumer, members: Sequence[Consumer]) -> str:
    told = consumer.told
    if told is None:
        return "the client says nothing of itself: whether its trainer waits is not known"
    most = " (the one that waits most)" if len(members) > 1 else ""
    seconds = told.step_s + told.wait_s
    return (
        f"consumer {consumer.stream.consumer_index}{most} waited for input {share(told.wait_s / seconds)} of "
        f"its time, at {told.images / seconds:,.0f} images/s; {told.ready} of {told.prefetch} batches are "
        "ready"
    )


def _figures(limit: Limit, consumer: Consumer, worker: Work) -> list[str]:
    part, did = consumer.parts[worker.address], worker.did
    others = f", {part.images_s:,.0f} of them to this consumer" if part.chunks < did.chunks else ""
    held = ", ".join(f"{stage.name} {number(stage.held, 2)}" for stage in worker.stages)
    why = [
        f"{worker.address} delivered {worker.images_s:,.0f} images/s with {worker.threads} "
        f"thread{'s' * (worker.threads != 1)}{others}; chunks at a time: {held}"
    ]
    if limit == "storage":
        stores = f" by {did.store_requests / worker.seconds:,.1f} requests/s" if did.store_requests else ""
        why.append(
            f"it read {size(did.bytes_read / worker.seconds)}/s{stores}, "
            f"{did.storage_retries:,} of them tried again"
        )
    if limit in ("decode", "cache") and did.images:
        # They are counted when they are decoded, images when they are sent.
        why.append(
            f"{share(min(1.0, did.seek_used / did.images))} of the images were decoded from seek points"
        )
    if limit in ("decode", "cache") and worker.cache is not None:
        full = "is full" if worker.cache.full else "is not full yet"
        why.append(
            f"{share(worker.hits or 0.0)} of the images were in its cache, which {full}: it has "
            f"{size(worker.cache.bytes)} of {size(worker.cache.budget_bytes)}"
        )
    if limit in ("wire", "client"):
        why.append(
            f"{number(part.unsent, 2)} of this consumer's chunks at a time were made and not yet in the "
            f"socket; the threads that receive used {share(consumer.landing)} of a core each"
        )
    if limit == "token":
        why.append(f"sending waited {share(part.paced)} of the time for its token's turn")
    return why


def _lift(limit: Limit, consumer: Consumer, worker: Work, slow: Sequence[str]) -> list[str]:
    if limit == "trainer":
        return ["nothing here: batches are ready before they are wanted; fewer workers or cores may do"]
    if limit == "elsewhere":
        return ["look at all workers that the client uses: `feeder doctor` with all their addresses"]
    first = [f"look at {' and '.join(slow)} first: the others wait for it"] if slow else []
    if limit == "token":
        return [*first, "a higher images-per-s of the token in the workers' --tokens; it counts at SIGHUP"]
    if limit == "storage":
        return first + _lift_storage(consumer.parts[worker.address], worker)
    if limit in ("decode", "cache"):
        return first + _lift_decode(limit, consumer, worker)
    if limit == "wire":
        return first + _lift_wire(consumer, worker)
    if consumer.landing >= LANDS:
        return [
            *first,
            "more workers: the client has a thread that receives for each",
            "a worker on the same host, which writes into the client's memory; no compression",
        ]
    if consumer.told is not None and consumer.told.prefetch >= PREFETCH:
        return [*first, "less work in threads of the trainer's own process: those that receive wait for it"]
    return [*first, _prefetch(consumer)]


def _lift_storage(part: Part, worker: Work) -> list[str]:
    lift = []
    if part.still:
        lift.append("nothing came at all: see whether the storage hangs")
    if worker.did.store_requests:
        lift.append("keep records near (--encoded-cache-bytes) or decoded images (--cache-bytes)")
        lift.append("more workers, which ask at the same time; larger prefetch_bytes at the client")
    else:
        lift.append("faster storage, or shards on a disk of the worker's own")
        lift.append("keep decoded images: --cache-bytes; more workers, if each has storage of its own")
    return lift


def _lift_decode(limit: Limit, consumer: Consumer, worker: Work) -> list[str]:
    lift = []
    if limit == "cache":
        missed = f"{share(1 - (worker.hits or 0.0))} of the images"
        lift.append(f"more --cache-bytes: {missed} were decoded because they did not fit")
    lift.append(_more(consumer))
    cached = 0 if worker.cache is None else worker.cache.hits
    if worker.did.seek_used < 0.5 * (worker.did.images - cached):
        lift.append("seek points: `feeder index --seek`; --seek learn, the default, from the next epoch on")
    if worker.cache is None:
        lift.append("keep decoded images: --cache-bytes")
    elif not worker.cache.full:
        lift.append("wait: the cache is filling (--warm fills it sooner)")
    if consumer.told is not None and consumer.told.prefetch < PREFETCH:
        lift.append(_prefetch(consumer))
    return lift


def _lift_wire(consumer: Consumer, worker: Work) -> list[str]:
    lift = []
    if consumer.stream.spec.output == "rgb":
        lift.append("output='yuv420': half the bytes")
    if worker.did.bytes_sent / worker.seconds < SLOW_WIRE:
        lift.append("compression='auto', which pays below 40 MB/s")
    lift.append("a faster network, or workers on the trainers' hosts")
    lift.append("larger prefetch_bytes, where the network is far rather than narrow")
    return lift


def _prefetch(consumer: Consumer) -> str:
    batches = 0 if consumer.told is None else consumer.told.prefetch
    room = f"{batches} batch{'es' * (batches != 1)}"
    return f"more prefetch: there is room for {room}; without prefetch_bytes it is {PREFETCH} or more"


def _more(consumer: Consumer) -> str:
    """How many workers would keep the trainer busy: it takes 1 / (1 - waiting) times what it gets."""
    waiting, workers = consumer.waiting, len(consumer.parts)
    if waiting is None or waiting > MOST_WAITING:
        return "more cores or workers: as fast as it goes, the trainer hardly does anything but wait"
    more = math.ceil(workers * waiting / (1 - waiting))
    like = f"worker{'s' * (more != 1)} like {'this one' if workers == 1 else 'these'}"
    times = f"{number(1 / (1 - waiting), 2)} times what it gets"
    return f"{more} more {like}, or as many more cores: the trainer takes {times}"
