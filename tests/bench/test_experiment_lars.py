import dataclasses
import json

import pytest

from bench.experiments import lars_report
from bench.experiments.lars_report import ARMS, best, markdown

lars = pytest.importorskip("bench.experiments.lars", reason="JAX is not installed")


def rows(scale):
    """All runs of an experiment, made up: the second value of each grid is the best."""
    machine = {
        "kind": "environment",
        "cpu": "a CPU",
        "date": "2026-11-29T12:00",
        "commit": "c0ffee",
        "dirty": False,
    }
    made = [{"kind": "scale", **json.loads(json.dumps(dataclasses.asdict(scale)))}, machine]
    for arm, grid in lars.grids(scale).items():
        for place, value in enumerate(grid):
            accuracy = 0.9 if place == 1 else 0.5
            made.append({"kind": "tuning", "arm": arm, "value": value, "seed": 0, "accuracy": accuracy})
    tuned = {arm: grid[1] for arm, grid in lars.grids(scale).items()}
    tuned["large-scaled"] = tuned["small"] * scale.large / scale.small
    for seed in scale.seeds:
        for arm in ARMS:
            final = {
                "kind": "final",
                "arm": arm,
                "value": tuned[arm],
                "seed": seed,
                "accuracy": 0.8 + seed / 100,
            }
            made.append(final if arm == "large-scaled" else {**final, "train_loss": 0.25})
    for value in {rate * scale.large / scale.small for rate in scale.rates} - set(scale.large_rates):
        made.append({"kind": "probe", "arm": "large-scaled", "value": value, "seed": 0, "accuracy": 0.25})
    return made


def test_the_arms_differ_in_batch_and_rule_only():
    small, scaled, tuned, adapted = (
        dataclasses.asdict(lars.settings(lars.SCALE, arm, 0.5, seed=3)) for arm in ARMS
    )
    assert {name for name in small if small[name] != scaled[name]} == {"batch_size"}
    assert scaled == tuned
    assert {name for name in tuned if tuned[name] != adapted[name]} == {
        "optimizer",
        "lars_form",
        "rate",
        "trust",
    }
    assert (adapted["trust"], adapted["rate"]) == (0.5, lars.SCALE.lars_rate)


def test_budgets_are_equal_and_steps_are_enough():
    assert {len(grid) for grid in lars.grids(lars.SCALE).values()} == {5}
    trained = lars.SCALE.images * (1 - lars.SCALE.holdout)
    assert lars.settings(lars.SCALE, "large-lars", 0.1, 0).lengths(int(trained) // lars.SCALE.large)[0] >= 300
    assert len(lars.SCALE.seeds) >= 3


def test_what_is_done_is_not_done_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(lars.TINY)))
    before = path.read_text()
    lars.Experiment(lars.TINY, "no address", path).run()
    assert path.read_text() == before
    with pytest.raises(lars.ConfigError, match="holds runs of another scale"):
        lars.Experiment(lars.SCALE, "no address", path)


def test_best():
    made = rows(lars.SCALE)
    assert best(made, "small") == lars.SCALE.rates[1]
    even = [{"kind": "tuning", "arm": "small", "value": value, "accuracy": 0.5} for value in (0.2, 0.1)]
    assert best(even, "small") == 0.1


def test_page(tmp_path, capsys):
    page = markdown(rows(lars.SCALE))
    assert "| LARS, large batch, eta tuned | eta 0.008 | 82.0% | 81.0% to 83.0% | 0.250 |" in page
    assert "rate 1.6 (not tuned) | 82.0% | 81.0% to 83.0% |  (3 diverged) |" in page
    assert "at the edge of its grid" not in page
    assert "momentum, small batch +0.0; momentum, large batch, rate scaled linearly +0.0;" in page
    assert "one seed, 5 points." in page
    assert "0.0125 to 0.8: 50.0%, 0.025 to 1.6: 50.0%, 0.05 to 3.2: 25.0%, 0.1 to 6.4: 25.0%" in page
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(lars.TINY)))
    assert lars_report.main(["--rows", str(path)]) == 0
    assert "at the edge of its grid" in (tmp_path / "README.md").read_text()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(lars.TINY)[:-9]))
    assert lars_report.main(["--rows", str(path)]) == 2
    assert "arm 'small' has no final runs" in capsys.readouterr().err
