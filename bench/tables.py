"""Rows of results as text; needs nothing but the standard library, so that reports can be made anywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = [
    "SWEEPS",
    "by_speed",
    "cache_table",
    "decode_table",
    "parts_table",
    "progress",
    "scale_table",
    "service_table",
    "summary_lines",
    "wire_table",
]

Row = Mapping[str, Any]

SWEEPS: dict[str, tuple[str, Callable[[float], str]]] = {
    "threads": ("decode threads", lambda at: f"{at:.0f}"),
    "area": ("crop, share of the image", lambda at: f"{100 * at:.0f} %"),
    "size": ("pixels of the image", lambda at: f"{at / 1e6:.3g} million" if at >= 1e6 else f"{at:,.0f}"),
}
"""Sweep -> what is changed, and how one value of it reads."""


def decode_table(rows: Sequence[Row]) -> str:
    """A markdown table of the contestants of one decode run, fastest first."""
    ratios = {"feeder is": "feeder_times_faster", "by CPU time": "feeder_times_less_cpu"}
    if all("seek_times_faster" in row for row in by_speed(rows)):
        ratios |= {"with seek points": "seek_times_faster", "by CPU": "seek_times_less_cpu"}
    return _table(
        ("contestant", "antialias", "windows", "images/s", "quartiles", "CPU us/image", *ratios, "off by"),
        [
            (
                row["contestant"],
                "yes" if row["antialias"] else "no",
                row["windows"],
                f"{row['images_per_s']['median']:,.0f}",
                f"{row['images_per_s']['low']:,.0f} to {row['images_per_s']['high']:,.0f}",
                f"{row['cpu_us_per_image']['median']:,.0f}",
                *(f"{row[ratio]['median']:.2f} x" for ratio in ratios.values()),
                f"{row['agreement']['mean_abs']:.2f}",
            )
            for row in by_speed(rows)
        ],
    )


def cache_table(rows: Sequence[Row]) -> str:
    """Markdown tables of one cache run: contestants, fastest first; indexing; what planes weigh."""
    index = [row for row in rows if row["kind"] == "index"]
    memory = [row for row in rows if row["kind"] == "memory"]
    return "\n\n".join(
        [
            decode_table(rows),
            _table(
                (
                    "one shard, from the page cache",
                    "records",
                    "MB/s",
                    "quartiles",
                    "of a plain read",
                    "of one with as many threads",
                    "CPU us/record",
                ),
                [
                    (
                        row["what"],
                        f"{row['records']:,}" if "records" in row else "",  # not in older runs
                        f"{row['mb_per_s']['median']:,.0f}",
                        f"{row['mb_per_s']['low']:,.0f} to {row['mb_per_s']['high']:,.0f}",
                        f"{100 * row['of_plain_read']['median']:.0f} %",
                        f"{100 * row['of_read_alike']['median']:.0f} %" if "of_read_alike" in row else "",
                        f"{row['cpu_us_per_image']['median']:,.0f}",
                    )
                    for row in index
                ],
            ),
            _table(
                ("planes of files", "at", "images", "kB/image", "kB/image encoded"),
                [
                    (
                        row["files"],
                        f"1/{row['reduction']}",
                        str(row["images"]),
                        f"{row['bytes_per_image'] / 1e3:,.0f}",
                        f"{row['encoded_bytes_per_image'] / 1e3:,.0f}",
                    )
                    for row in memory
                ],
            ),
        ]
    )


def parts_table(rows: Sequence[Row]) -> str:
    """A markdown table of what an image costs by part, without and with seek points."""
    parts: dict[str, dict[bool, Row]] = {}
    for row in rows:
        if row["kind"] == "part":
            parts.setdefault(row["part"], {})[row["seek"]] = row
    counted = any("instructions_per_image" in row for row in rows)
    ways = ("without seek points", "with seek points")
    header = ["part", *(f"CPU us/image {way}" for way in ways)]
    if counted:
        header += [f"instructions {way}" for way in ways]

    def line(part: str, row: Mapping[bool, Row]) -> list[str]:
        both = [row[False], row[True]]
        costs = [one["cpu_us_per_image"] for one in both]
        cells = [
            part,
            *(f"{cost['median']:,.0f} ({cost['low']:,.0f} to {cost['high']:,.0f})" for cost in costs),
        ]
        return cells + ([f"{one['instructions_per_image']:,}" for one in both] if counted else [])

    return _table(header, [line(part, row) for part, row in parts.items()])


def scale_table(rows: Sequence[Row]) -> str:
    """Markdown tables of images a second, one a sweep, contestants side by side."""
    sweeps: dict[str, dict[float, dict[str, Row]]] = {}
    for row in rows:
        if row["kind"] == "contestant":
            sweeps.setdefault(row["sweep"], {}).setdefault(row["at"], {})[row["contestant"]] = row
    return "\n\n".join(_sweep_table(sweep, points) for sweep, points in sweeps.items())


def _sweep_table(sweep: str, points: Mapping[float, Mapping[str, Row]]) -> str:
    names = list(dict.fromkeys(name for row in points.values() for name in row))

    def cell(row: Row | None) -> str:
        if row is None:
            return "-"
        middle = row["images_per_s"]["median"]
        rate = f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"
        if sweep == "threads":
            return f"{rate} ({row['times_one_thread']['median']:.2f} x one thread)"
        return f"{rate} ({row['feeder_times_faster']['median']:.2f} x)"

    return _table(
        (SWEEPS[sweep][0], *names),
        [(SWEEPS[sweep][1](at), *(cell(row.get(name)) for name in names)) for at, row in points.items()],
    )


def service_table(rows: Sequence[Row]) -> str:
    """A markdown table of the contestants of one service run, fastest first."""
    return _table(
        (
            "contestant",
            "antialias",
            "images/s",
            "quartiles",
            "CPU us/image",
            "of it consumer",
            "client copies B/image",
            "feeder is",
            "by CPU time",
        ),
        [
            (
                row["contestant"],
                "yes" if row["antialias"] else "no",
                f"{row['images_per_s']['median']:,.0f}",
                f"{row['images_per_s']['low']:,.0f} to {row['images_per_s']['high']:,.0f}",
                f"{row['cpu_us_per_image']['median']:,.0f}",
                f"{row['consumer_cpu_us_per_image']['median']:,.0f}",
                f"{row['copied_bytes_per_image']:,}" if "copied_bytes_per_image" in row else "-",
                f"{row['feeder_times_faster']['median']:.2f} x",
                f"{row['feeder_times_less_cpu']['median']:.2f} x",
            )
            for row in by_speed(rows)
        ],
    )


def wire_table(rows: Sequence[Row]) -> str:
    """A markdown table of the contestants of one wire run, fastest first."""
    return _table(
        (
            "contestant",
            "GB/s",
            "quartiles",
            "images/s",
            "CPU us/image",
            "of it consumer",
            "feeder is",
            "by CPU time",
        ),
        [
            (
                row["contestant"],
                f"{row['gigabytes_per_s']['median']:.2f}",
                f"{row['gigabytes_per_s']['low']:.2f} to {row['gigabytes_per_s']['high']:.2f}",
                f"{row['images_per_s']['median']:,.0f}",
                f"{row['cpu_us_per_image']['median']:,.0f}",
                f"{row['consumer_cpu_us_per_image']['median']:,.0f}",
                f"{row['feeder_times_faster']['median']:.2f} x",
                f"{row['feeder_times_less_cpu']['median']:.2f} x",
            )
            for row in by_speed(rows)
        ],
    )


def jobs_table(rows: Sequence[Row]) -> str:
    """A markdown table of one job and of two at once; rates are of all jobs together."""
    return _table(
        ("jobs", "images/s of all", "quartiles", "CPU us/image", "one job is"),
        [
            (
                row["contestant"],
                f"{row['images_per_s']['median']:,.0f}",
                f"{row['images_per_s']['low']:,.0f} to {row['images_per_s']['high']:,.0f}",
                f"{row['cpu_us_per_image']['median']:,.0f}",
                f"{row['feeder_times_faster']['median']:.2f} x",
            )
            for row in rows
        ],
    )


def summary_lines(summary: Row) -> list[str]:
    """What the last row of a run says, one sentence a comparison."""
    return [
        f"{name}: feeder is {ratio['ratio']:.2f} times as fast as {ratio['contestant']} (from"
        f" {ratio['min']:.2f} to {ratio['max']:.2f}), {ratio['by_cpu']:.2f} times by CPU time"
        for name, ratio in summary["compared"].items()
    ]


def progress(text: str) -> None:
    """One line on a terminal's stderr that the next one overwrites; "" clears it. Elsewhere nothing."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def round_progress(rounds: int, done: int = 0) -> Callable[[int, str], None]:
    """Tells in which of some rounds who runs, after those that are `done`; for harness.interleave."""
    return lambda number, name: progress(f"round {done + number + 1} of {rounds}: {name}")


def by_speed(rows: Sequence[Row]) -> list[Row]:
    """The contestants among rows, fastest first."""
    contestants = [row for row in rows if row["kind"] == "contestant"]
    return sorted(contestants, key=lambda row: -float(row["images_per_s"]["median"]))


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, so that the source reads as well as the page."""
    widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([row(header), rule, *map(row, lines)])
