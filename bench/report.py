"""Committed rows to tables and plots; never measures.

    python -m bench.report [--results bench/results]

Reads each *.jsonl of the folder and writes README.md and one PNG a file there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import plots
from bench.tables import (
    by_speed,
    cache_table,
    decode_table,
    parts_table,
    scale_table,
    service_table,
    summary_lines,
    wire_table,
)

__all__ = ["Run", "main", "markdown", "newest_run"]

Row = Mapping[str, Any]

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Page:
    """How runs of one bench are shown: heading, settings in words, table, plot."""

    title: str
    settings: str
    table: Callable[[Sequence[Row]], str]
    plot: Callable[[Sequence[Row], str, Path], None]


_FILES = (
    "{images} files, on average {kilopixels:.0f}k pixels and {kilobytes:.0f} kB, windows of"
    " {window_kilopixels:.0f}k pixels; "
)
_ROUNDS = "median of {rounds} interleaved rounds"

PAGES = {
    "decode": Page(
        "Decode: JPEG bytes in memory to cropped, resized, flipped batches in memory",
        _FILES + "{size} pixels, batches of {batch}, {threads}, " + _ROUNDS,
        decode_table,
        plots.bars,
    ),
    "parts": Page(
        "Parts: what an image costs",
        _FILES + "{size} pixels, {threads}, {decoder}, " + _ROUNDS,
        parts_table,
        plots.parts,
    ),
    "cache": Page(
        "Cache: epochs that find a part of their images decoded",
        _FILES + "{size} pixels, batches of {batch}, {threads}, " + _ROUNDS + '; "feeder is": all cached',
        cache_table,
        plots.cached,
    ),
    "scale": Page(
        "Scale: over threads, crop area and image size",
        _FILES + "{size} pixels, batches of {batch}, " + _ROUNDS,
        scale_table,
        plots.curves,
    ),
    "service": Page(
        "Service: one worker and one client, each a process, over TCP loopback",
        "{size} pixels, batches of {batch}, {threads}, " + _ROUNDS + " of {batches} batches",
        service_table,
        plots.bars,
    ),
    "wire": Page(
        "Wire: ready batches from one process to another over TCP loopback",
        "{size} pixels, batches of {batch}, " + _ROUNDS + " of {batches} batches",
        wire_table,
        plots.bars,
    ),
}
"""By bench, in the order of the page."""

MEASURED = ("contestant", "part", "index", "memory")
"""Kinds of rows that tables and plots are made of."""

_HEADER = """\
# Results

Made from the rows beside it by `make report`; how they were measured is in [../README.md](../README.md).
Rates of different machines, or of different runs, do not compare: the column "feeder is" does, it is the
median of ratios within single rounds.
"""


@dataclass(frozen=True)
class Run:
    """One run: its head row (environment and settings), what was measured, who was left out, the summary."""

    name: str
    head: dict[str, Any]
    rows: list[dict[str, Any]]
    left_out: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def page(self) -> Page:
        """How it is shown."""
        return PAGES[self.head["bench"]]


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
    measured = [row for kind in MEASURED for row in kinds.get(kind, [])]
    if len(kinds.get("environment", [])) != 1 or not measured:
        raise ValueError(f"{path}: run {rows[-1]['run']} has no environment row or nothing measured")
    return Run(
        path.stem,
        kinds["environment"][0],
        measured,
        kinds.get("left_out", []),
        kinds["summary"][0],
    )


def markdown(run: Run) -> str:
    """The section of one run: settings, table, comparisons, versions."""
    head = run.head
    lines = [
        f"## {run.page.title}, on {head['cpu']}",
        "",
        f"{head['cpu']}, {_count(len(head['cores_used']), 'core')} of {head['cpus']}, {head['date'][:10]},"
        f" commit {head['commit']}{' with changes' if head['dirty'] else ''}, load average"
        f" {head['load_average']} at the end. {run.page.settings.format_map(_words(head))}.",
        "",
        f"![{run.name}]({run.name}.png)",
        "",
        run.page.table(run.rows),
        "",
    ]
    notes = [f"- {line}" for line in summary_lines(run.summary)]
    notes += [f"- left out: {row['reason']}" for row in run.left_out]
    lines += [*notes, ""] if notes else []
    # One that ran many times did the same each time.
    each = {row["contestant"]: row for row in by_speed(run.rows)}
    if each:
        lines += ["What each is:", ""]
        lines += [f"- {name}: {row['note']} ({_versions(row)})" for name, row in each.items()]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes README.md and the plots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    folder: Path = parser.parse_args(arguments).results
    try:
        runs = [newest_run(path) for path in sorted(folder.glob("*.jsonl"))]
        runs.sort(key=lambda run: list(PAGES).index(run.head["bench"]))
    except ValueError as error:
        print(f"report: error: {error}", file=sys.stderr)
        return 2
    if not runs:
        print(f"report: error: {folder} holds no *.jsonl; see bench/README.md", file=sys.stderr)
        return 2
    (folder / "README.md").write_text("\n".join([_HEADER, *map(markdown, runs)]))
    if importlib.util.find_spec("matplotlib") is None:
        print("report: matplotlib is not installed, plots are left as they are", file=sys.stderr)
        return 0
    for run in runs:
        run.page.plot(run.rows, run.page.title, folder / f"{run.name}.png")
    return 0


def _words(head: Mapping[str, Any]) -> dict[str, Any]:
    """What a page's settings may name, of runs whose head row has it."""
    words = dict(head)
    if "threads" in head:
        words["threads"] = _count(head["threads"], "decode thread")
    if "mean_pixels" in head:
        words["kilopixels"], words["window_kilopixels"], words["kilobytes"] = (
            head[key] / 1e3 for key in ("mean_pixels", "mean_window_pixels", "mean_bytes")
        )
    return words


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _versions(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in row["versions"].items())


if __name__ == "__main__":
    sys.exit(main())
