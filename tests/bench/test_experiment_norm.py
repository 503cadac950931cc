import dataclasses
import json

import pytest

norm = pytest.importorskip("bench.experiments.norm", reason="JAX is not installed")


def rows(scale):
    """All runs of an experiment, made up: the last rate is the best."""
    head = {"kind": "scale", "mesh": "4x2", "batch": 16, **json.loads(json.dumps(dataclasses.asdict(scale)))}
    machine = {
        "kind": "environment",
        "cpu": "a CPU",
        "date": "2026-11-29T12:00",
        "commit": "c0ffee",
        "dirty": False,
    }
    tuning = [
        {"kind": "tuning", "span": span, "rate": rate, "seed": 0, "accuracy": rate}
        for span in norm.SPANS
        for rate in scale.rates
    ]
    final = [
        {
            "kind": "final",
            "span": span,
            "rate": scale.rates[-1],
            "seed": seed,
            "accuracy": (span + seed) / 100,
            "train_loss": 0.25,
        }
        for seed in scale.seeds
        for span in norm.SPANS
    ]
    return [head, machine, *tuning, *final]


def test_runs_differ_in_the_span_only_and_the_mesh_can_be_cut_that_way():
    runs = [dataclasses.asdict(norm.settings(norm.FULL, span, 0.1, seed=3)) for span in norm.SPANS]
    assert {name for name in runs[0] for run in runs if run[name] != runs[0][name]} == {"norm_span"}
    assert [norm.MESH.group(norm.BATCH, span) for span in norm.SPANS] == [1, 2, 8]


def test_what_is_done_is_not_done_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(norm.SMALL)))
    before = path.read_text()
    assert norm.run(norm.SMALL, "no address", path) == rows(norm.SMALL)
    assert path.read_text() == before
    with pytest.raises(norm.ConfigError, match="holds runs of another scale"):
        norm.run(norm.FULL, "no address", path)


def test_page():
    page = norm.markdown(rows(norm.FULL))
    assert (
        "| 2 samples              |        1 |  0.1 |     4.0% |      3.0% to 5.0% |         0.250 |" in page
    )
    assert "batch 16 on 4x2 simulated replicas; accuracy on 1,000 pictures" in page
