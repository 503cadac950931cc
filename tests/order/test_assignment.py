from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.order import assign, next_in_line

names = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=12, unique=True)


def random_workers(count: int, source: random.Random) -> list[str]:
    return [f"10.{source.randrange(256)}.{source.randrange(256)}.1:{port}" for port in range(count)]


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 100), names)
def test_every_lane_has_a_worker_and_no_worker_more_than_its_share(count: int, workers: list[str]) -> None:
    owners = assign(range(count), workers)
    assert list(owners) == list(range(count))
    assert max(Counter(owners.values()).values(), default=0) <= -(-count // len(workers))


@settings(deadline=None, max_examples=40)
@given(names, st.randoms())
def test_only_the_sets_of_lanes_and_workers_matter(workers: list[str], source: random.Random) -> None:
    lanes = list(range(24))
    expected = assign(lanes, workers)
    source.shuffle(workers)
    source.shuffle(lanes)
    assert assign(lanes + lanes, workers + workers[:1]) == expected


@pytest.mark.parametrize(("lanes", "workers"), [(256, 2), (256, 4), (256, 8), (256, 16), (64, 4)])
def test_about_one_in_w_lanes_moves_when_a_worker_comes_or_goes(lanes: int, workers: int) -> None:
    """W workers and one more, over many sets of names: 1 / (W + 1) of the lanes must move.

    The bound adds a few lanes: where random shares differ, what is above the bound goes elsewhere, about
    sqrt(lanes) / 2 lanes in all.
    """
    source = random.Random(5)
    moved = []
    for _ in range(40):
        names = random_workers(workers + 1, source)
        fewer, more = assign(range(lanes), names[:-1]), assign(range(lanes), names)
        moved.append(sum(fewer[lane] != more[lane] for lane in range(lanes)))
    ideal = lanes / (workers + 1)
    assert ideal - 1 <= sum(moved) / len(moved) <= ideal + 0.75 * lanes**0.5
    assert max(moved) <= ideal + 1.5 * lanes**0.5


def test_next_in_line_is_every_worker_once_and_does_not_depend_on_the_others() -> None:
    workers = [f"worker-{number}:7000" for number in range(9)]
    for lane in range(50):
        line = next_in_line(lane, workers)
        assert sorted(line) == workers
        assert next_in_line(lane, workers[::-1]) == line
        gone = line[0]
        assert next_in_line(lane, [name for name in workers if name != gone]) == line[1:]
    first = Counter(next_in_line(lane, workers)[0] for lane in range(900))
    assert max(first.values()) < 150


def test_lanes_without_workers_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no workers for 4 lanes"):
        assign(range(4), [])
    assert assign([], []) == {}
    assert next_in_line(0, []) == []


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 100), names, st.integers(1, 8), st.data())
def test_workers_beside_a_consumer_get_their_part_of_all_workers(
    count: int, workers: list[str], consumers: int, data: st.DataObject
) -> None:
    beside = data.draw(st.sets(st.sampled_from(workers)))
    owners = assign(range(count), workers, beside, consumers)
    assert list(owners) == list(range(count))
    shares = Counter(owners.values())
    here = sum(shares[name] for name in beside)
    assert here <= count
    if len(beside) * consumers >= len(workers) and beside:
        assert here == count
        assert max(shares.values()) <= -(-count // len(beside))
    else:
        most = -(-count * consumers // len(workers))
        assert all(shares[name] <= most for name in beside)
        far = set(workers) - beside
        assert all(shares[name] <= -(-count // len(far)) for name in far)


def test_one_worker_beside_the_only_consumer_gets_no_more_than_the_others() -> None:
    workers = [f"worker-{number}:7000" for number in range(4)]
    owners = assign(range(64), workers, workers[:1], 1)
    assert Counter(owners.values()) == dict.fromkeys(workers, 16)
    assert owners == assign(range(64), workers)


def test_a_consumer_whose_worker_beside_it_is_gone_is_served_by_all_others() -> None:
    workers = [f"worker-{number}:7000" for number in range(4)]
    assert set(assign(range(64), workers, workers[:1], 4).values()) == {workers[0]}
    assert Counter(assign(range(63), workers[1:], (), 4).values()) == dict.fromkeys(workers[1:], 21)
