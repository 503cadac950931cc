"""Committed rows to tables and plots; never measures.

    python -m bench.report [--results bench/results]

Reads each *.jsonl of the folder and writes README.md and one PNG a file there. matplotlib brings Pillow with
it, which must not come near an environment that measures: give this one its own. Without it the plots are
left as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tables import by_speed, decode_table, service_table, summary_lines

__all__ = ["Run", "main", "markdown", "newest_run"]

RESULTS = Path(__file__).resolve().parent / "results"
TABLES = {"decode": decode_table, "service": service_table}
TITLES = {
    "decode": "Decode: JPEG bytes in memory to cropped, resized, flipped batches in memory",
    "service": "Service: one worker and one client, each a process, over TCP loopback",
}

_HEADER = """\
# Results

Made from the rows beside it by `make report`; how they were measured is in [../README.md](../README.md).
Rates of different machines, or of different runs, do not compare: the column "feeder is" does, it is the
median of ratios within single rounds.
"""


@dataclass(frozen=True)
class Run:
    """One run: its head row (environment and settings), contestants, who was left out, and the summary."""

    name: str
    head: dict[str, Any]
    contestants: list[dict[str, Any]]
    left_out: list[dict[str, Any]]
    summary: dict[str, Any]


def newest_run(path: Path) -> Run:
    """The last run that a file of rows holds.

    Raises:
        ValueError: the file holds no whole run; the message names it.
    """
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: line {number} is not JSON: {error}") from error
    if not rows or rows[-1].get("kind") != "summary":
        raise ValueError(f"{path}: does not end with a summary row; measure again with --json")
    run = [row for row in rows if row["run"] == rows[-1]["run"]]
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in run:
        kinds.setdefault(row["kind"], []).append(row)
    if len(kinds.get("environment", [])) != 1 or "contestant" not in kinds:
        raise ValueError(f"{path}: run {rows[-1]['run']} has no environment row or no contestant")
    return Run(
        path.stem,
        kinds["environment"][0],
        kinds["contestant"],
        kinds.get("left_out", []),
        kinds["summary"][0],
    )


def markdown(run: Run) -> str:
    """The section of one run: settings, table, comparisons, versions."""
    head = run.head
    settings = (
        f"{head['size']} pixels, batches of {head['batch']}, {_count(head['threads'], 'decode thread')},"
        f" median of {head['rounds']} interleaved rounds"
    )
    if head["bench"] == "decode":
        settings = (
            f"{head['images']} files, on average {head['mean_pixels'] / 1e3:.0f}k pixels and"
            f" {head['mean_bytes'] / 1e3:.0f} kB, windows of {head['mean_window_pixels'] / 1e3:.0f}k pixels; "
        ) + settings
    else:
        settings += f" of {head['batches']} batches"
    lines = [
        f"## {TITLES[head['bench']]}",
        "",
        f"{head['cpu']}, {_count(len(head['cores_used']), 'core')} of {head['cpus']}, {head['date'][:10]},"
        f" commit {head['commit']}{' with changes' if head['dirty'] else ''}, load average"
        f" {head['load_average']} at the end. {settings}.",
        "",
        f"![{run.name}]({run.name}.png)",
        "",
        TABLES[head["bench"]](run.contestants),
        "",
        *(f"- {line}" for line in summary_lines(run.summary)),
        *(f"- left out: {row['reason']}" for row in run.left_out),
        "",
        "What each is:",
        "",
        *(f"- {row['contestant']}: {row['note']} ({_versions(row)})" for row in by_speed(run.contestants)),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes README.md and the plots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    folder: Path = parser.parse_args(arguments).results
    try:
        runs = [newest_run(path) for path in sorted(folder.glob("*.jsonl"))]
    except ValueError as error:
        print(f"report: error: {error}", file=sys.stderr)
        return 2
    if not runs:
        print(f"report: error: {folder} holds no *.jsonl; see bench/README.md", file=sys.stderr)
        return 2
    (folder / "README.md").write_text("\n".join([_HEADER, *map(markdown, runs)]))
    for run in runs:
        if not plot(run, folder / f"{run.name}.png"):
            print("report: matplotlib is not installed, plots are left as they are", file=sys.stderr)
            break
    return 0


def plot(run: Run, path: Path) -> bool:
    """Bars of images a second with their quartiles; False where matplotlib is missing."""
    try:
        import matplotlib  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch  # type: ignore[import-not-found]

    rows = by_speed(run.contestants)[::-1]
    rates = [row["images_per_s"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.36 * len(rows)), layout="constrained")
    ours, theirs = "#1b7f79", "#b9c2cc"
    bars = axes.barh(
        [row["contestant"] for row in rows],
        [rate["median"] for rate in rates],
        color=[ours if row["contestant"].startswith("feeder") else theirs for row in rows],
        xerr=[
            [rate["median"] - rate["low"] for rate in rates],
            [rate["high"] - rate["median"] for rate in rates],
        ],
        error_kw={"elinewidth": 1, "ecolor": "#444444"},
    )
    for bar, row in zip(bars, rows, strict=True):
        if not row["antialias"]:
            bar.set(hatch="///", edgecolor="white")
    axes.legend(
        handles=[
            Patch(color=ours, label="feeder"),
            Patch(color=theirs, label="others"),
            Patch(facecolor=theirs, edgecolor="white", hatch="///", label="without antialias"),
        ],
        loc="lower right",
        frameon=False,
    )
    axes.set_xlabel(f"images a second, {_count(run.head['threads'], 'decode thread')}; lines: quartiles")
    axes.set_title(TITLES[run.head["bench"]], fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return True


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _versions(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in row["versions"].items())


if __name__ == "__main__":
    sys.exit(main())
