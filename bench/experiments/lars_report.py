"""Rows of bench.experiments.lars to a table and a plot; never trains.

    python -m bench.experiments.lars_report [--rows bench/results/lars/rows.jsonl]

Writes README.md and, where matplotlib is installed, lars.png beside the rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ARMS", "ROWS", "best", "main", "markdown"]

Row = Mapping[str, Any]

ROWS = Path(__file__).resolve().parent.parent / "results" / "lars" / "rows.jsonl"

ARMS = {
    "small": "momentum, small batch",
    "large-scaled": "momentum, large batch, rate scaled linearly",
    "large-tuned": "momentum, large batch, rate tuned",
    "large-lars": "LARS, large batch, eta tuned",
}
COLOURS = {"small": "#7a7f85", "large-scaled": "#b5566b", "large-tuned": "#e2a03f", "large-lars": "#1b7f79"}


def best(rows: Sequence[Row], arm: str) -> float:
    """The value with the highest accuracy on the validation split; of equals the smallest."""
    tuning = [row for row in rows if row["kind"] == "tuning" and row["arm"] == arm]
    return float(max(tuning, key=lambda row: (row["accuracy"], -row["value"]))["value"])


def markdown(rows: Sequence[Row]) -> str:
    """The page.

    Raises:
        ValueError: an arm has no final runs yet.
    """
    scale, machine = rows[0], rows[1]
    trained = round(scale["images"] * (1 - scale["holdout"]))
    steps = scale["epochs"] * (trained // scale["large"])
    changed = " with changes" if machine["dirty"] else ""
    lines = [
        "# LARS against momentum SGD at a large batch",
        "",
        "Made from [rows.jsonl](rows.jsonl) by `python -m bench.experiments.lars_report`, and those by"
        f" `make experiment-lars`. {machine['cpu']}, {machine['date'][:10]},"
        f" commit {machine['commit']}{changed}.",
        "",
        f"ResNet-{scale['depth']} of width {scale['width']} on about {trained:,} synthetic pictures"
        f" of {scale['classes']} classes, random crops of {scale['image_size']} pixels,"
        f" {scale['epochs']} epochs: batches of {scale['small']} and of {scale['large']} ({steps} steps)."
        " Warm-up over 5 % of the steps, then polynomial decay; momentum 0.9, weight decay 1e-4. Accuracy on"
        f" {scale['tested']:,} pictures of their own: mean of {len(scale['seeds'])} seeds, the lowest and the"
        " highest.",
        "",
        "![accuracy by arm, and what tuning saw](lars.png)",
        "",
        "| arm | tuned on validation | accuracy | lowest to highest | training loss |",
        "|---|---|--:|--:|--:|",
    ]
    for arm, title in ARMS.items():
        final = [row for row in rows if row["kind"] == "final" and row["arm"] == arm]
        if not final:
            raise ValueError(f"arm {arm!r} has no final runs: run `make experiment-lars` to its end")
        accuracy = [row["accuracy"] for row in final]
        losses = [row["train_loss"] for row in final if "train_loss" in row]
        name = "eta" if arm == "large-lars" else "rate"
        tuned = f"{name} {final[0]['value']:g}" + (" (not tuned)" if arm == "large-scaled" else "")
        diverged = len(final) - len(losses)
        loss = f"{statistics.mean(losses):.3f}" if losses else ""
        loss += f" ({diverged} diverged)" if diverged else ""
        lines.append(
            f"| {title} | {tuned} | {statistics.mean(accuracy):.1%} |"
            f" {min(accuracy):.1%} to {max(accuracy):.1%} | {loss} |"
        )
    lines += [
        "",
        f"Mean of LARS less that of the others, in points: {_gaps(rows)}.",
        "",
        "Accuracy on the validation split, one seed; these points are all that was tried:",
        "",
    ]
    for arm in ("small", "large-tuned", "large-lars"):
        tuning = [row for row in rows if row["kind"] == "tuning" and row["arm"] == arm]
        points = ", ".join(f"{row['value']:g}: {row['accuracy']:.1%}" for row in tuning)
        lines.append(f"- {ARMS[arm]} ({'eta' if arm == 'large-lars' else 'rate'}): {points}")
    lines.append(f"- the linear rule from each rate of the small batch, one seed: {_probes(rows)}")
    edges = [arm for arm in ("small", "large-tuned", "large-lars") if _at_the_edge(rows, arm)]
    if edges:
        names = ", ".join(ARMS[arm] for arm in edges)
        lines.append(f"- at the edge of its grid, so a wider one may find better: {names}")
    lines += [
        "",
        "What this shows and what not:",
        "",
        "- It shows how the four compare on this task, with this net, at this number of steps. It is no"
        " ImageNet: the pictures are drawn, classes differ in hue and shape, and the net is small.",
        "- Differences below the spread over seeds mean nothing, and with so few seeds the spread is rough.",
        f"- Tuning is one number an arm, one seed, {len(scale['rates'])} points. LARS keeps its global rate"
        f" ({scale['lars_rate']:g}), which batch-norm scales and biases move with; tuning it too might help"
        " LARS, as tuning warm-up or momentum might help SGD.",
        "- The scaled arm is the linear rule taken by its word, at a ratio of"
        f" {scale['large'] // scale['small']}; a longer warm-up is known to help it.",
        "",
    ]
    return "\n".join(lines)


def _probes(rows: Sequence[Row]) -> str:
    """What became of each rate of the small batch, scaled; some of them were in the grid of the tuned arm."""
    ratio = rows[0]["large"] / rows[0]["small"]
    return ", ".join(f"{rate:g} to {rate * ratio:g}: {accuracy:.1%}" for rate, accuracy in _scaled(rows))


def _scaled(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Rates of the small batch, and the validation accuracy of each, scaled, at the large one."""
    ratio = rows[0]["large"] / rows[0]["small"]
    tried = {
        row["value"]: row["accuracy"]
        for row in rows
        if row["kind"] == "probe" or (row["kind"] == "tuning" and row["arm"] == "large-tuned")
    }
    return [(rate, tried[rate * ratio]) for rate in rows[0]["rates"] if rate * ratio in tried]


def _gaps(rows: Sequence[Row]) -> str:
    means = {
        arm: statistics.mean(row["accuracy"] for row in rows if row["kind"] == "final" and row["arm"] == arm)
        for arm in ARMS
    }
    return "; ".join(
        f"{ARMS[arm]} {100 * (means['large-lars'] - mean):+.1f}"
        for arm, mean in means.items()
        if arm != "large-lars"
    )


def _at_the_edge(rows: Sequence[Row], arm: str) -> bool:
    values = [row["value"] for row in rows if row["kind"] == "tuning" and row["arm"] == arm]
    return best(rows, arm) in (min(values), max(values))


def draw(rows: Sequence[Row], path: Path) -> None:
    """Accuracy of each arm with every seed as a dot, and accuracy over what was tuned."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found]

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, (arm, title) in enumerate(ARMS.items()):
        accuracy = [row["accuracy"] for row in rows if row["kind"] == "final" and row["arm"] == arm]
        left.barh(place, statistics.mean(accuracy), color=COLOURS[arm], alpha=0.6)
        left.plot(accuracy, [place] * len(accuracy), "o", color="black", markersize=4)
        tuning = [row for row in rows if row["kind"] == "tuning" and row["arm"] == arm]
        if tuning:
            lowest = min(row["value"] for row in tuning)
            right.plot(
                [row["value"] / lowest for row in tuning],
                [row["accuracy"] for row in tuning],
                "o-",
                color=COLOURS[arm],
                label=f"{title}, from {lowest:g}",
            )
    if scaled := _scaled(rows):
        lowest = min(rows[0]["rates"])
        right.plot(
            [rate / lowest for rate, _ in scaled],
            [accuracy for _, accuracy in scaled],
            "o--",
            color=COLOURS["large-scaled"],
            label="each small rate scaled, large batch",
        )
    left.set(xlabel="accuracy on pictures of their own; dots: seeds", xlim=(0, 1))
    left.set_yticks(range(len(ARMS)), [title.replace(", ", ",\n") for title in ARMS.values()])
    left.invert_yaxis()
    right.set(xlabel="rate or eta, times the lowest of its grid", ylabel="validation accuracy", ylim=(0, 1))
    right.set_xscale("log", base=2)
    right.legend(frameon=False, fontsize=8, loc=(0.02, 0.5))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page and the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, default=ROWS)
    path: Path = parser.parse_args(arguments).rows
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        page = markdown(rows)
    except (OSError, ValueError, IndexError) as error:
        print(f"lars_report: error: {path}: {error}", file=sys.stderr)
        return 2
    (path.parent / "README.md").write_text(page)
    if importlib.util.find_spec("matplotlib") is None:
        print("lars_report: matplotlib is not installed, the plot is left as it is", file=sys.stderr)
    else:
        draw(rows, path.parent / "lars.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
