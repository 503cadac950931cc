"""What a wanted rate takes of hosts, and what breaks first.

All of it is proportional, in the rate R (images a second), the hosts H that share it equally, and what one
image costs. Cores are taken to scale, as `feeder bench scale` measures them: two threads do 1.93 to 2.04
times what one does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from feeder.errors import ConfigError

__all__ = ["COLUMNS", "Column", "Costs", "Demand", "Forecast", "Host", "Need", "Resource", "forecast"]

Column: TypeAlias = Literal["plain", "seek", "cached"]
Resource: TypeAlias = Literal["cores", "memory", "disk", "network"]
COLUMNS: tuple[Column, ...] = get_args(Column)

PROCESS_BYTES = 256 << 20
"""Of an idle worker with its libraries; 120 to 200 MB were seen."""

ALLOCATOR_BYTES = 4 * (128 << 20)
"""The most that glibc keeps of what was freed (feeder.worker.memory: ARENAS x KEEP_BYTES)."""

PIXEL_BYTES = 512 << 20
"""The most that is made and waits to be sent (feeder.worker.scheduler: BUDGET_BYTES)."""

AHEAD_BYTES = 256 << 20
"""The most that was asked for from object stores (feeder.worker.pipeline: AHEAD_BYTES)."""

INDEX_BYTES = 24
"""Of a record in the index that every worker has of the whole data set (docs/operations.md: 16 to 24)."""

SEEK_BYTES = 1024
"""Of a record's seek points, read with it (docs/formats.md; feeder.decode.SEEK_BYTES)."""

SLOT_BYTES = 13
"""Of an image beside its pixels: record 8, label 4, status 1 (protos: Chunk)."""

FRAMING = 1538 / 1448
"""Bytes on an Ethernet of MTU 1500 over bytes of TCP: 1500 - 20 (IPv4) - 32 (TCP with timestamps) = 1448 in
each frame, which is 1500 + 14 (header) + 4 (check sum) + 8 (preamble) + 12 (gap) = 1538."""

EXACT = 1e-9
"""Relative; a need that is so little above a whole number of hosts is that number."""


@dataclass(frozen=True)
class Costs:
    """What one image costs.

    Attributes:
        worker_us: CPU time of the worker in microseconds, by column; those that weren't measured are missing.
        consumer_us: CPU time of the trainer's client in microseconds, to receive one.
        planes_bytes: of a decoded image in the cache; None: not known.
        source: where the figures come from, for people.
        cores: usable by what was measured.
        memory_bytes: of the machine that was measured.
        notes: what the figures leave out, for people.
    """

    worker_us: Mapping[Column, float]
    consumer_us: float
    planes_bytes: float | None
    source: str
    cores: int
    memory_bytes: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Demand:
    """What is wanted.

    Attributes:
        rate: R, images a second of all hosts together.
        hosts: H, that run a worker each.
        records: of the data set.
        mean_bytes: of a record as it is stored.
        image_bytes: of an image as it is sent (StreamSpec.image_bytes).
        remote: whether the trainers are other hosts, which batches are sent to; otherwise each host has its
            trainer beside its worker, which writes into the trainer's memory.
    """

    rate: float
    hosts: int
    records: int
    mean_bytes: float
    image_bytes: int
    remote: bool

    def __post_init__(self) -> None:
        for name in ("rate", "hosts", "records", "mean_bytes", "image_bytes"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} must be more than 0, got {value}")


@dataclass(frozen=True)
class Host:
    """What one host has; None: as much as is wanted.

    Attributes:
        cores: CPUs for the worker, and for the client where the trainer is on the same host.
        memory_bytes: for the worker and its cache.
        disk: bytes a second that storage gives.
        network: bytes a second that go out.
    """

    cores: float | None = None
    memory_bytes: float | None = None
    disk: float | None = None
    network: float | None = None

    def __post_init__(self) -> None:
        for name in ("cores", "memory_bytes", "disk", "network"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} of a host must be more than 0, got {value}")

    def has(self) -> dict[Resource, float]:
        """By resource, what is bounded."""
        values: dict[Resource, float | None] = {
            "cores": self.cores,
            "memory": self.memory_bytes,
            "disk": self.disk,
            "network": self.network,
        }
        return {resource: value for resource, value in values.items() if value is not None}


@dataclass(frozen=True)
class Need:
    """Of each of H hosts.

    Attributes:
        cores: busy.
        memory: bytes at most.
        disk: bytes a second that are read.
        network: bytes a second that go out, framing included.
    """

    cores: float
    memory: float
    disk: float
    network: float


@dataclass(frozen=True)
class Forecast:
    """One column.

    Attributes:
        column: data without seek points, with them, or all decoded in the cache, after the epoch that fills
            it.
        need: of each of the wanted hosts at the wanted rate.
        limits: by resource that the host bounds, images a second of all wanted hosts at which it is used up;
            0 where even standing still takes more.
        breaks: what is used up first as the rate grows; None: nothing is bounded.
        breaks_at: at how many images a second of all wanted hosts.
        holds: whether the wanted hosts do it.
        hosts_by: by resource, how many hosts have enough of it; None: no number has.
        hosts: the most of them; None: no number has.
        receive_cores: of all trainers together, for receiving.
    """

    column: Column
    need: Need
    limits: Mapping[Resource, float]
    breaks: Resource | None
    breaks_at: float
    holds: bool
    hosts_by: Mapping[Resource, int | None]
    hosts: int | None
    receive_cores: float


@dataclass(frozen=True)
class _Terms:
    """A host's need of one resource: fixed + data / H + an image's x R / H."""

    fixed: float
    data: float
    image: float

    def need(self, rate: float, hosts: int) -> float:
        return self.fixed + self.data / hosts + self.image * rate / hosts

    def rate(self, has: float, hosts: int) -> float:
        """The largest R with need(R, hosts) <= has."""
        left = has - self.fixed - self.data / hosts
        if left < 0:
            return 0.0
        return left * hosts / self.image if self.image else math.inf

    def hosts(self, has: float, rate: float) -> int | None:
        """The smallest H with need(rate, H) <= has."""
        shared = self.data + self.image * rate
        if has <= self.fixed:
            return None if shared or has < self.fixed else 1
        return max(1, math.ceil(shared / (has - self.fixed) * (1 - EXACT)))


def forecast(demand: Demand, costs: Costs, host: Host) -> list[Forecast]:
    """Works out each column that has costs; "cached" also needs to know what planes weigh.

    With c the CPU time of an image (the worker's, and the client's where it is on the same host), of each
    host:

        cores    c R / H
        memory   process + allocator + pixels in the making + records asked for ahead + index of all records
                 + planes of 1 / H of all records, if cached: a record is always asked of the same worker, see
                 feeder.order
        disk     (record + seek points) R / H; nothing if cached
        network  (pixels + 13) 1538 / 1448 R / H out, if remote
    """
    return [
        _column(column, demand, costs, host)
        for column in COLUMNS
        if column in costs.worker_us and (column != "cached" or costs.planes_bytes is not None)
    ]


def _column(column: Column, demand: Demand, costs: Costs, host: Host) -> Forecast:
    terms = _terms(column, demand, costs)
    has = host.has()
    limits = {resource: terms[resource].rate(value, demand.hosts) for resource, value in has.items()}
    breaks = min(limits, key=limits.__getitem__, default=None)
    breaks_at = math.inf if breaks is None else limits[breaks]
    hosts_by = {resource: terms[resource].hosts(value, demand.rate) for resource, value in has.items()}
    numbers = [number for number in hosts_by.values() if number is not None]
    return Forecast(
        column=column,
        need=Need(**{resource: term.need(demand.rate, demand.hosts) for resource, term in terms.items()}),
        limits=limits,
        breaks=breaks if breaks_at < math.inf else None,
        breaks_at=breaks_at,
        holds=demand.rate * (1 - EXACT) <= breaks_at,
        hosts_by=hosts_by,
        hosts=max(numbers, default=1) if len(numbers) == len(hosts_by) else None,
        receive_cores=demand.rate * costs.consumer_us / 1e6,
    )


def _terms(column: Column, demand: Demand, costs: Costs) -> dict[Resource, _Terms]:
    image_us = costs.worker_us[column] + (0.0 if demand.remote else costs.consumer_us)
    fixed = PROCESS_BYTES + ALLOCATOR_BYTES + PIXEL_BYTES + AHEAD_BYTES + INDEX_BYTES * demand.records
    planes = (costs.planes_bytes or 0.0) * demand.records if column == "cached" else 0.0
    read = {"plain": demand.mean_bytes, "seek": demand.mean_bytes + SEEK_BYTES, "cached": 0.0}[column]
    sent = (demand.image_bytes + SLOT_BYTES) * FRAMING if demand.remote else 0.0
    return {
        "cores": _Terms(0.0, 0.0, image_us / 1e6),
        "memory": _Terms(fixed, planes, 0.0),
        "disk": _Terms(0.0, 0.0, read),
        "network": _Terms(0.0, 0.0, sent),
    }
