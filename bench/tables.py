"""Rows of results as text; needs nothing but the standard library, so that reports can be made anywhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["by_speed", "decode_table", "progress", "service_table", "summary_lines"]

Row = Mapping[str, Any]


def decode_table(rows: Sequence[Row]) -> str:
    """A markdown table of the contestants of one decode run, fastest first."""
    return _table(
        (
            "contestant",
            "antialias",
            "windows",
            "images/s",
            "quartiles",
            "CPU us/image",
            "feeder is",
            "by CPU time",
            "off by",
        ),
        [
            (
                row["contestant"],
                "yes" if row["antialias"] else "no",
                row["windows"],
                f"{row['images_per_s']['median']:,.0f}",
                f"{row['images_per_s']['low']:,.0f} to {row['images_per_s']['high']:,.0f}",
                f"{row['cpu_us_per_image']['median']:,.0f}",
                f"{row['feeder_times_faster']['median']:.2f} x",
                f"{row['feeder_times_less_cpu']['median']:.2f} x",
                f"{row['agreement']['mean_abs']:.2f}",
            )
            for row in by_speed(rows)
        ],
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
                f"{row['feeder_times_faster']['median']:.2f} x",
                f"{row['feeder_times_less_cpu']['median']:.2f} x",
            )
            for row in by_speed(rows)
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
