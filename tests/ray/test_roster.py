"""Which workers are started, given up and started again, as lists of events."""

from __future__ import annotations

from typing import Any

import pytest

from feeder.errors import ConfigError
from feeder.ray.deployment import Deployment
from feeder.ray.roster import BACKOFF_S, MAX_BACKOFF_S, SHRINK_STEPS, Place, Roster, Scale
from feeder.wire.address import parse_listen


def keys(places: list[Place]) -> list[str]:
    return [place.key for place in places]


def ready(place: Place, needed: float = 0.0) -> None:
    place.state, place.address, place.needed = "ready", f"host-{place.key}:1", needed


def test_one_on_each_node_as_nodes_come_and_go() -> None:
    roster = Roster(None)
    start, given_up = roster.plan(["a", "b"], 0)
    assert (keys(start), given_up) == (["a", "b"], [])
    assert all(place.bound and place.state == "starting" for place in start)
    assert roster.plan(["a", "b"], 1) == ([], [])
    start, given_up = roster.plan(["b", "c"], 2)
    assert (keys(start), keys(given_up)) == (["c"], ["a"])
    assert roster.wanted == 2


def test_a_number_of_them_is_bound_to_no_node() -> None:
    roster = Roster(Scale(3, 3, 60, 600))
    start, _ = roster.plan([], 0)
    assert keys(start) == ["0", "1", "2"]
    assert not any(place.bound for place in start)
    ready(start[0], 50.0)
    assert roster.plan([], 100) == ([], [])


def test_one_that_was_ready_starts_again_soon_and_one_that_never_is_ever_later() -> None:
    roster = Roster(None)
    ((place,), _) = roster.plan(["a"], 0)
    ready(place)
    roster.lost(place, "killed by signal 9", 10)
    assert (place.state, place.address, place.restarts) == ("waiting", "", 1)
    assert roster.plan(["a"], 10 + BACKOFF_S / 2) == ([], [])
    assert roster.plan(["a"], 10 + BACKOFF_S) == ([place], [])
    now_s = 20.0
    for failures in range(1, 12):
        roster.lost(place, "ended with exit code 2: no shard", now_s)
        wait_s = min(MAX_BACKOFF_S, BACKOFF_S * 2**failures)
        assert roster.plan(["a"], now_s + wait_s - 0.1) == ([], [])
        now_s += wait_s
        assert roster.plan(["a"], now_s) == ([place], [])
    assert place.error == "ended with exit code 2: no shard"


def test_demand_grows_at_once_to_what_is_needed_and_no_further_before_it_is_measured_anew() -> None:
    scale = Scale(1, 8, 60, 600)
    scale.update(1.09, True, 0)  # within the tolerance
    assert scale.wanted == 1
    scale.update(1.33, True, 1)
    assert scale.wanted == 2
    scale.update(2.66, True, 30)  # still of the time with one
    assert scale.wanted == 2
    scale.update(2.66, False, 61)  # the second is not there yet
    assert scale.wanted == 2
    scale.update(20.0, True, 62)
    assert scale.wanted == 8


def test_demand_shrinks_by_one_after_another_and_only_when_it_was_low_for_long() -> None:
    scale = Scale(1, 8, 60, 600)
    scale.update(6.0, True, 0)
    assert scale.wanted == 6
    for now_s in range(1, 600):
        scale.update(0.5, True, now_s)
    assert scale.wanted == 6
    scale.update(3.8, True, 600)  # a short need of four, remembered
    scale.update(0.5, True, 601)
    assert scale.wanted == 5
    seen = []
    for now_s in range(602, 1500):
        before = scale.wanted
        scale.update(0.5, True, now_s)
        if scale.wanted < before:
            seen.append((now_s, scale.wanted))
    step_s = 600 // SHRINK_STEPS
    # Down to the four that were needed at 600, until that is 600 s ago.
    assert seen[0] == (601 + step_s, 4)
    assert [wanted for _, wanted in seen] == [4, 3, 2, 1]
    assert seen[1][0] > 1199
    assert seen[2][0] == seen[1][0] + step_s


def test_the_roster_scales_by_the_sum_of_those_that_are_ready() -> None:
    roster = Roster(Scale(2, 4, 10, 100))
    start, _ = roster.plan([], 0)
    ready(start[0], 1.33)
    assert roster.plan([], 1) == ([], [])  # one is not ready
    ready(start[1], 1.33)
    start, given_up = roster.plan([], 2)
    assert (keys(start), given_up, roster.wanted) == (["2"], [], 3)
    for place in roster.places.values():
        ready(place, 0.1)
    for now_s in range(3, 103):
        assert roster.plan([], now_s) == ([], [])
    start, given_up = roster.plan([], 103)
    assert (start, keys(given_up)) == ([], ["2"])
    for now_s in range(104, 500):
        assert roster.plan([], now_s) == ([], [])


def deployment(**settings: Any) -> Deployment:
    return Deployment(
        **{
            "environment": {},
            "folder": "/",
            "listen": parse_listen("0.0.0.0:0"),
            "http": None,
            "drain_s": 1.0,
            **settings,
        }
    )


def test_a_node_is_one_with_what_a_worker_takes() -> None:
    wanted = deployment(num_cpus=2, resources={"data": 1.0})
    assert wanted.fits({"Alive": True, "Resources": {"CPU": 2.0, "data": 1.0}})
    assert not wanted.fits({"Alive": True, "Resources": {"CPU": 2.0}})
    assert not wanted.fits({"Alive": True, "Resources": {"CPU": 1.0, "data": 1.0}})
    assert not wanted.fits({"Alive": False, "Resources": {"CPU": 2.0, "data": 1.0}})
    assert deployment().fits({"Alive": True, "Resources": {}})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"listen": parse_listen("unix:/tmp/s")}, "--listen"),
        ({"workers": (0, 3)}, "--workers"),
        ({"workers": (4, 3)}, "--workers"),
        ({"num_cpus": -1}, "--num-cpus"),
        ({"resources": {"data": 0.0}}, "--resource data"),
        ({"resources": {"data": float("nan")}}, "--resource data"),
        ({"out_s": 0.5}, "--scale-out-after"),
        ({"in_s": 1e9}, "--scale-in-after"),
    ],
)
def test_what_cannot_be_is_refused_by_its_option(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        deployment(**settings)
