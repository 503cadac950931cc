"""Costs from rows of the bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feeder.advice.costs import costs_of_rows, read_rows
from feeder.errors import ConfigError

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


def head(bench: str, run: str, **more: Any) -> dict[str, Any]:
    row = {"kind": "environment", "bench": bench, "run": run, "cpu": "this", "cpus": 8, "commit": "abc"}
    return row | {"memory_gb": 16.0, "size": 224} | more


def contestant(run: str, name: str, cpu: float, consumer: float | None = None) -> dict[str, Any]:
    row = {"kind": "contestant", "run": run, "contestant": name, "cpu_us_per_image": {"median": cpu}}
    return row if consumer is None else row | {"consumer_cpu_us_per_image": {"median": consumer}}


SERVICE = [
    head("service", "s"),
    contestant("s", "feeder", 1100.0, 100.0),
    contestant("s", "feeder (seek points)", 800.0, 90.0),
    contestant("s", "feeder, same host", 1030.0, 40.0),
    contestant("s", "feeder, same host (seek points)", 700.0, 30.0),
]
CACHE = [
    head("cache", "c"),
    contestant("c", "feeder", 950.0),
    contestant("c", "feeder (100 % cached)", 100.0),
    {"kind": "memory", "run": "c", "files": "all", "reduction": 1, "bytes_per_image": 500_000},
    {"kind": "memory", "run": "c", "files": "all", "reduction": 2, "bytes_per_image": 150_000},
    {"kind": "memory", "run": "c", "files": "gray", "reduction": 1, "bytes_per_image": 200_000},
]
WIRE = [head("wire", "w"), contestant("w", "feeder", 70.0, 30.0)]
DECODE = [
    head("decode", "d"),
    contestant("d", "feeder", 900.0),
    contestant("d", "feeder (seek points)", 600.0),
]


def test_the_whole_service_is_believed_before_its_parts() -> None:
    costs, size = costs_of_rows([*DECODE, *WIRE, *CACHE, *SERVICE], remote=True)
    assert costs.worker_us == {"plain": 1000.0, "seek": 710.0, "cached": 140.0}
    assert (costs.consumer_us, costs.planes_bytes, costs.cores, costs.memory_bytes) == (100.0, 5e5, 8, 16e9)
    assert costs.notes == ()
    assert size == 224
    beside, _ = costs_of_rows([*DECODE, *WIRE, *CACHE, *SERVICE], remote=False)
    assert beside.worker_us == {"plain": 990.0, "seek": 670.0, "cached": 100.0}
    assert beside.consumer_us == 40.0


def test_a_service_from_its_cache_is_believed_before_parts_too() -> None:
    rows = [*CACHE, *WIRE, *SERVICE, contestant("s", "feeder (cached)", 260.0, 80.0)]
    assert costs_of_rows(rows, remote=True)[0].worker_us["cached"] == 180.0
    assert costs_of_rows(rows, remote=False)[0].worker_us["cached"] == 100.0


def test_parts_do_with_a_note_of_what_is_not_in_them() -> None:
    costs, _ = costs_of_rows([*DECODE, *WIRE], remote=True)
    assert costs.worker_us == {"plain": 940.0, "seek": 640.0}
    assert costs.consumer_us == 30.0
    assert [note.partition(";")[0] for note in costs.notes] == [
        "plain and seek: reading records is not in the CPU time"
    ]
    costs, _ = costs_of_rows(DECODE, remote=True)
    assert costs.worker_us == {"plain": 900.0, "seek": 600.0}
    assert len(costs.notes) == 3


def test_the_last_run_of_a_bench_counts() -> None:
    later = [head("decode", "later"), contestant("later", "feeder", 500.0)]
    costs, _ = costs_of_rows([*DECODE, *later], remote=False)
    assert costs.worker_us == {"plain": 500.0}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no run"),
        (WIRE, "do not say what making an image costs"),
        ([*DECODE, head("wire", "w", cpu="other")], "two machines"),
        ([*DECODE, head("wire", "w", size=96)], "two output sizes"),
        ([head("decode", "d"), contestant("d", "feeder", float("nan"))], "no median"),
        (
            [{key: value for key, value in head("decode", "d").items() if key != "cpu"}],
            "does not say its cpu",
        ),
    ],
)
def test_rows_that_say_too_little_are_refused(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        costs_of_rows(rows, remote=True)


def test_rows_of_a_service_over_the_network_alone_are_for_that() -> None:
    rows = [row for row in SERVICE if "same host" not in row.get("contestant", "")]
    assert costs_of_rows(rows, remote=True)[0].worker_us["plain"] > 0
    with pytest.raises(ConfigError, match="only what it costs over the network"):
        costs_of_rows(rows, remote=False)


def test_rows_of_another_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="at 224 pixels, not at 192"):
        costs_of_rows(DECODE, remote=True, size=192)


@pytest.mark.parametrize("content", ["not JSON", '{"kind": "environment"}', "[1]", "\xff"])
def test_files_of_something_else_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(f"{json.dumps(SERVICE[0])}\n\n{content}".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"rows.jsonl(, line 3|: cannot read)"):
        read_rows([path])
    with pytest.raises(ConfigError, match="cannot read"):
        read_rows([tmp_path / "missing"])


@pytest.mark.parametrize("remote", [True, False])
def test_committed_rows_do(remote: bool) -> None:
    rows = read_rows([RESULTS / f"{bench}-xeon-2core.jsonl" for bench in ("service", "cache", "wire")])
    costs, size = costs_of_rows(rows, remote=remote)
    assert size == 224
    assert costs.notes == ()
    assert (
        costs.worker_us["plain"] > costs.worker_us["seek"] > costs.worker_us["cached"] > costs.consumer_us > 0
    )
    assert costs.planes_bytes is not None
    assert costs.planes_bytes > 100_000
