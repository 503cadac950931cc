import json

import pytest

from bench import bench_parts, contestant, tables
from bench.harness import Round


def test_parts_are_differences_within_a_round():
    def rounds(*us):
        return [Round(seconds=1.0, cpu_seconds=one * 1e-6, images=1) for one in us]

    results = {"entropy": rounds(10, 20, 30), "planes": rounds(15, 26, 37), "pixels": rounds(16, 28, 40)}
    counts = {"entropy": 100.0, "planes": 160.0, "pixels": 200.0}
    costs = {
        part: bench_parts._cost(part, False, results, counts) for part in bench_parts.PARTS if part != "read"
    }
    assert {part: cost["cpu_us_per_image"]["median"] for part, cost in costs.items()} == {
        "entropy": 20.0,
        "IDCT": 6.0,
        "resample and colour": 2.0,
        "decode": 28.0,
    }
    assert {part: cost["instructions_per_image"] for part, cost in costs.items()} == {
        "entropy": 100,
        "IDCT": 60,
        "resample and colour": 40,
        "decode": 200,
    }
    assert "instructions_per_image" not in bench_parts._cost("IDCT", False, results, {})


def test_rows_of_a_run(imagenet_sample, capsys):
    assert bench_parts.run(imagenet_sample, as_json=True, rounds=1, images=8, size=32) == 0
    head, *rows, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (head["bench"], head["images"], head["threads"]) == ("parts", 8, 1)
    assert [(row["part"], row["seek"]) for row in rows] == [
        (part, seek) for part in bench_parts.PARTS for seek in (False, True)
    ]
    assert all(row["run"] == head["run"] for row in [*rows, summary])
    cost = {(row["part"], row["seek"]): row["cpu_us_per_image"]["median"] for row in rows}
    for seek in (False, True):  # of one round, whatever it took
        parts = sum(cost[part, seek] for part in ("entropy", "IDCT", "resample and colour"))
        assert parts == pytest.approx(cost["decode", seek], abs=0.3)
        assert cost["decode", seek] > 0
    table = tables.parts_table(rows)
    assert "| IDCT " in table
    assert "instructions" not in table


def test_instructions_without_valgrind(imagenet_sample, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bench_parts.ConfigError, match="needs valgrind: apt-get install valgrind"):
        bench_parts.run(imagenet_sample, instructions=True)


def test_the_sum_of_a_dump(tmp_path):
    dump = tmp_path / "callgrind.1"
    dump.write_text("version: 1\nevents: Ir\nfn=(1) main\n1 5\nsummary: 1234\n\ntotals: 99\n")
    assert bench_parts._sum(dump) == 1234
    dump.write_text("version: 1\n")
    with pytest.raises(contestant.ContestantFailed, match=r"callgrind\.1 says no sum"):
        bench_parts._sum(dump)
