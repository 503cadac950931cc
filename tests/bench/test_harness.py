import json
import os
from io import StringIO

import pytest

from bench import harness
from bench.harness import Round, Spread
from feeder.errors import ConfigError


def test_the_quartiles_include_the_ends():
    assert Spread.of([3.0, 1.0, 2.0, 5.0, 4.0]) == Spread(median=3.0, low=2.0, high=4.0, min=1.0, max=5.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0)
    assert Spread.of([1.0, 2.0]).rounded(1) == {
        "median": 1.5,
        "low": 1.2,
        "high": 1.8,
        "min": 1.0,
        "max": 2.0,
    }


def test_everybody_runs_once_a_round_and_is_first_in_turn():
    ran: list[str] = []
    told: list[tuple[int, str]] = []

    def contestant(name):
        def run():
            ran.append(name)
            return Round(seconds=float(len(ran)), cpu_seconds=1.0, images=10)

        return run

    kept = harness.interleave(
        {name: contestant(name) for name in "abc"},
        4,
        progress=lambda number, name: told.append((number, name)),
    )
    rounds = ["".join(ran[start : start + 3]) for start in range(0, len(ran), 3)]
    assert rounds == ["cab", "abc", "bca", "cab", "abc"]
    assert [number for number, _ in told] == [-1] * 3 + [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert [name for _, name in told] == ran
    # The warm-up round is thrown away: its seconds were 1, 2 and 3.
    assert {name: [one.seconds for one in rounds] for name, rounds in kept.items()} == {
        "a": [4.0, 9.0, 11.0, 13.0],
        "b": [5.0, 7.0, 12.0, 14.0],
        "c": [6.0, 8.0, 10.0, 15.0],
    }


def test_ratios_compare_rates_within_a_round_and_not_medians():
    ours = [Round(1.0, 1.0, 100), Round(10.0, 1.0, 100)]
    theirs = [Round(2.0, 3.0, 100), Round(30.0, 3.0, 100)]
    assert harness.ratios(ours, theirs) == pytest.approx([2.0, 3.0])
    row = harness.contestant_row("run", "other", ours, theirs)
    assert row["feeder_times_faster"]["median"] == 2.5
    assert row["feeder_times_less_cpu"]["median"] == 3.0
    assert row["cpu_us_per_image"]["median"] == 30_000
    assert row["seconds"] == [2.0, 30.0]
    assert harness.comparison(row) == {
        "contestant": "other",
        "ratio": 2.5,
        "min": 2.0,
        "max": 3.0,
        "by_cpu": 3.0,
    }


def test_contestants_that_made_other_numbers_of_images_compare_by_rate():
    assert harness.ratios([Round(1.0, 1.0, 200)], [Round(1.0, 1.0, 100)]) == [2.0]


def test_cores_are_ones_that_may_be_used():
    allowed = sorted(os.sched_getaffinity(0))
    assert harness.choose_cores(1) == allowed[-1:]
    with pytest.raises(
        ConfigError, match=f"{len(allowed) + 1} cores are asked for, {len(allowed)} can be used"
    ):
        harness.choose_cores(len(allowed) + 1)


def test_the_environment_row_says_what_figures_depend_on():
    row = harness.environment([0], harness.installed("numpy", "no-such-distribution"))
    out = StringIO()
    harness.write_rows([row], out)
    read = json.loads(out.getvalue())
    assert read["kind"] == "environment"
    assert list(read["versions"]) == ["numpy"]
    assert read["cpu"]
    assert read["cores_used"] == [0]
    assert {"date", "commit", "dirty", "load_average", "python", "cpus", "kernel"} <= set(read)
