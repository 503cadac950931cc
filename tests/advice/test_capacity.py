"""What a rate takes of hosts: by hand, and how it moves."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.advice import capacity
from feeder.advice.capacity import COLUMNS, Costs, Demand, Forecast, Host, Resource, forecast
from feeder.errors import ConfigError

COSTS = Costs(
    worker_us={"plain": 1000.0, "seek": 600.0, "cached": 150.0},
    consumer_us=50.0,
    planes_bytes=500_000.0,
    source="by hand",
    cores=2,
    memory_bytes=8e9,
)
REMOTE = Demand(
    rate=100_000, hosts=10, records=1_000_000, mean_bytes=100_000, image_bytes=150_528, remote=True
)
FIXED_BYTES = (256 + 512 + 512 + 256) * 2**20 + 24_000_000
"""Of a worker: itself, freed memory, pixels, records asked for, and an index of a million records."""


def columns(demand: Demand, host: Host = Host()) -> dict[str, Forecast]:  # noqa: B008 (frozen)
    return {column.column: column for column in forecast(demand, COSTS, host)}


def test_a_plan_is_what_a_hand_computes() -> None:
    found = columns(REMOTE)
    assert list(found) == list(COLUMNS)
    # 10,000 images/s of each host.
    assert [found[name].need.cores for name in COLUMNS] == pytest.approx([10.0, 6.0, 1.5])
    assert [found[name].need.disk for name in COLUMNS] == pytest.approx([1e9, 1.01024e9, 0.0])
    assert [found[name].need.memory for name in COLUMNS] == pytest.approx(
        [FIXED_BYTES, FIXED_BYTES, FIXED_BYTES + 50e9]
    )
    for name in COLUMNS:
        assert found[name].need.network == pytest.approx(10_000 * 150_541 * 1538 / 1448)
        assert found[name].receive_cores == pytest.approx(5.0)
        assert (found[name].breaks, found[name].holds, found[name].hosts) == (None, True, 1)


def test_beside_its_trainer_a_worker_sends_nothing_and_the_client_takes_of_its_cores() -> None:
    found = columns(dataclasses.replace(REMOTE, remote=False))
    assert [found[name].need.cores for name in COLUMNS] == pytest.approx([10.5, 6.5, 2.0])
    assert {column.need.network for column in found.values()} == {0.0}


@pytest.mark.parametrize(
    ("host", "column", "breaks", "at", "hosts"),
    [
        # 8 cores make 8,000 images/s; 13 hosts have 104 cores for the 100 that are needed.
        (Host(cores=8), "plain", "cores", 80_000, 13),
        # 500 MB/s are 5,000 records/s.
        (Host(cores=8, disk=500e6), "plain", "disk", 50_000, 20),
        (Host(cores=8, disk=500e6), "cached", "cores", 8e6 / 150 * 10, 2),
        # 1 GB/s are 6,254 images/s with the framing.
        (Host(cores=8, disk=800e6, network=1e9), "plain", "network", 1e10 / (150_541 * 1538 / 1448), 16),
        # 500 GB of planes: 16 hosts have 34.4 GB for their part, as 31.25 of 32 do not fit beside a worker.
        (Host(cores=8, memory_bytes=32e9), "cached", "memory", 0.0, math.ceil(500e9 / (32e9 - FIXED_BYTES))),
    ],
)
def test_each_resource_can_be_the_first_to_break(
    host: Host, column: str, breaks: Resource, at: float, hosts: int
) -> None:
    found = columns(REMOTE, host)[column]
    assert found.breaks == breaks
    assert found.breaks_at == pytest.approx(at)
    assert found.holds == (at >= REMOTE.rate)
    assert found.hosts == hosts
    # So many hosts do it, and one less does not.
    assert columns(dataclasses.replace(REMOTE, hosts=hosts), host)[column].holds
    assert not columns(dataclasses.replace(REMOTE, hosts=hosts - 1), host)[column].holds


def test_no_number_of_hosts_has_room_where_a_worker_alone_takes_more() -> None:
    found = columns(REMOTE, Host(cores=8, memory_bytes=1e9))
    assert {(column.breaks, column.breaks_at, column.hosts) for column in found.values()} == {
        ("memory", 0.0, None)
    }


def test_what_just_fits_fits() -> None:
    exact = Host(cores=10.0, disk=1e9)
    found = columns(REMOTE, exact)["plain"]
    assert found.holds
    assert found.hosts == 10


def test_columns_without_costs_are_left_out() -> None:
    costs = dataclasses.replace(COSTS, worker_us={"plain": 1000.0, "cached": 150.0}, planes_bytes=None)
    assert [column.column for column in forecast(REMOTE, costs, Host())] == ["plain"]


@pytest.mark.parametrize("change", [{"rate": 0}, {"hosts": 0}, {"records": 0}, {"mean_bytes": math.inf}])
def test_demands_that_make_no_sense_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be more than 0"):
        dataclasses.replace(REMOTE, **change)
    with pytest.raises(ConfigError, match="cores of a host"):
        Host(cores=-1)


amounts = st.floats(1e3, 1e12)


@given(
    rate=st.floats(1, 1e8),
    hosts=st.integers(1, 10_000),
    host=st.builds(
        Host,
        cores=st.floats(0.5, 512),
        memory_bytes=st.none() | amounts,
        disk=st.none() | amounts,
        network=amounts,
    ),
    remote=st.booleans(),
)
def test_more_is_never_worse(rate: float, hosts: int, host: Host, remote: bool) -> None:
    demand = Demand(rate, hosts, 1_000_000, 100_000, 150_528, remote)
    richer = Host(
        cores=(host.cores or 0) * 2,
        memory_bytes=host.memory_bytes and host.memory_bytes * 2,
        disk=host.disk and host.disk * 2,
        network=(host.network or 0) * 2,
    )
    for now, faster, wider, rich in zip(
        forecast(demand, COSTS, host),
        forecast(dataclasses.replace(demand, rate=rate * 2), COSTS, host),
        forecast(dataclasses.replace(demand, hosts=hosts * 2), COSTS, host),
        forecast(demand, COSTS, richer),
        strict=True,
    ):
        many = math.inf
        # A higher rate takes more; more hosts, or larger ones, bear more.
        assert faster.need.cores >= now.need.cores
        assert faster.need.disk >= now.need.disk
        assert (faster.hosts or many) >= (now.hosts or many)
        assert wider.need.memory <= now.need.memory
        assert wider.breaks_at >= now.breaks_at
        assert rich.breaks_at >= now.breaks_at
        assert (rich.hosts or many) <= (now.hosts or many)
        # It holds up to where it breaks, and the number of hosts is the smallest that holds.
        assert now.holds == (rate <= now.breaks_at * (1 + 1e-8))
        if now.hosts is not None:
            assert now.holds == (hosts >= now.hosts)


def test_figures_of_the_worker_are_the_worker_s() -> None:
    from feeder.decode import SEEK_BYTES
    from feeder.worker import in_flight, memory, scheduler

    assert capacity.ALLOCATOR_BYTES == memory.ARENAS * memory.KEEP_BYTES
    assert capacity.PIXEL_BYTES == scheduler.BUDGET_BYTES
    assert capacity.AHEAD_BYTES == in_flight.AHEAD_BYTES
    assert 0.9 * SEEK_BYTES <= capacity.SEEK_BYTES <= 1.1 * SEEK_BYTES
