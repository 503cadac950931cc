"""The cost model against a simulation of rings, and the command that prints it."""

from __future__ import annotations

import json

import pytest

from feeder.cli import main
from feeder.trainer.grid import Grid
from feeder.trainer.traffic import Collective, costs


def _ring_reduce_scatter(replicas: int, elements: int) -> tuple[int, int]:
    """(steps, elements sent by each) until replica i has the whole sum of chunk i."""
    chunk = elements // replicas
    # held[i][c]: whose summands of chunk c are in the sum that replica i holds.
    held = [[{i} for _ in range(replicas)] for i in range(replicas)]
    steps = sent = 0
    while any(len(held[i][i]) < replicas for i in range(replicas)):
        moving = [held[i][(i - steps - 1) % replicas] for i in range(replicas)]
        for i in range(replicas):
            held[(i + 1) % replicas][(i - steps - 1) % replicas] |= moving[i]
        steps, sent = steps + 1, sent + chunk
    return steps, sent


@pytest.mark.parametrize("ring", [1, 2, 5, 8])
def test_a_ring_takes_the_steps_and_bytes_of_the_model(ring: int) -> None:
    steps, sent = _ring_reduce_scatter(ring, 40 * ring)
    for operation, times in (("reduce-scatter", 1), ("all-gather", 1), ("all-reduce", 2)):
        collective = Collective(0, operation, "x", ring, 4 * 40 * ring)
        assert (collective.steps, collective.sent_bytes) == (times * steps, times * 4 * sent)


def test_a_pod() -> None:
    one, two, sharded = costs(Grid(32, 32), 25_557_032)
    assert (one.steps, two.steps, sharded.steps) == (2046, 124, 124)
    for cost in (one, two, sharded):  # no sum can do with less than 2 (n - 1) / n of the payload
        assert cost.sent_bytes == pytest.approx(2 * 4 * 25_557_032 * 1023 / 1024, rel=1e-4)
    assert two.link_bytes == sharded.link_bytes == pytest.approx(one.link_bytes / 2, rel=1e-4)
    assert two.padded % (2 * 32 * 32) == 0
    assert 0 <= two.padded - 25_557_032 < 2 * 32 * 32


def test_a_line_gains_nothing() -> None:
    one, two, _ = costs(Grid(8, 1), 1000)
    assert one.steps == two.steps == 14


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "collectives", "--mesh", "32x32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sum of 25,557,032 gradients, float32, over a mesh of 32x32"
    assert [" ".join(line.split()) for line in lines if line.startswith(("| 1d", "| 2d "))][:2] == [
        "| 1d | 2,046 | 204,264,456 | 204,264,456 |",
        "| 2d | 124 | 204,272,640 | 102,136,320 |",
    ]


def test_command_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "collectives", "--mesh", "4x2", "--params", "1000", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["mesh"], report["params"]) == ("4x2", 1000)
    scheme = report["schemes"][1]
    assert (scheme["scheme"], scheme["steps"]) == ("2d", 8)
    assert scheme["steps"] == sum(step["steps"] for step in scheme["collectives"] if step["part"] == 0)


@pytest.mark.parametrize(
    "options", [["--mesh", "4y2"], ["--mesh", "0x2"], ["--mesh", "2x2", "--params", "0"]]
)
def test_command_errors(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "collectives", *options]) == 2
    assert "error: " in capsys.readouterr().err
