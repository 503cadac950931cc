"""Plots of a run's rows, as PNG.

matplotlib brings Pillow with it, which must not come near an environment that measures: it has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.tables import SWEEPS, by_speed

__all__ = ["bars", "cached", "curves", "parts"]

Row = Mapping[str, Any]

OURS, THEIRS = "#1b7f79", "#b9c2cc"
PARTS = ("#8fb9d8", "#1b7f79", "#e2a03f", "#b5566b")
LINES = {
    "feeder": ("#1b7f79", "o-"),
    "feeder (seek points)": ("#0d3f6e", "o-"),
    "feeder (reduced)": ("#7fc6c0", "o--"),
}
OTHERS = (("#b5566b", "s-"), ("#e2a03f", "s-"), ("#7a7f85", "s-"))


def bars(rows: Sequence[Row], title: str, path: Path) -> None:
    """Bars of images a second with their quartiles, fastest first."""
    pyplot = _pyplot()
    from matplotlib.patches import Patch  # type: ignore[import-not-found]

    rows = by_speed(rows)[::-1]
    rates = [row["images_per_s"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.36 * len(rows)), layout="constrained")
    drawn = axes.barh(
        [row["contestant"] for row in rows],
        [rate["median"] for rate in rates],
        color=[OURS if row["contestant"].startswith("feeder") else THEIRS for row in rows],
        xerr=[
            [rate["median"] - rate["low"] for rate in rates],
            [rate["high"] - rate["median"] for rate in rates],
        ],
        error_kw={"elinewidth": 1, "ecolor": "#444444"},
    )
    for bar, row in zip(drawn, rows, strict=True):
        if not row.get("antialias", True):
            bar.set(hatch="///", edgecolor="white")
    handles = [Patch(color=OURS, label="feeder"), Patch(color=THEIRS, label="others")]
    if not all(row.get("antialias", True) for row in rows):
        handles.append(Patch(facecolor=THEIRS, edgecolor="white", hatch="///", label="without antialias"))
    axes.legend(handles=handles, loc="lower right", frameon=False)
    axes.set_xlabel("images a second; lines: quartiles")
    axes.set_title(title, fontsize=10, loc="left")
    _save(figure, axes, path)


def cached(rows: Sequence[Row], title: str, path: Path) -> None:
    """Images a second over the share of images that are cached; who has no share is a level line."""
    pyplot = _pyplot()
    contestants = by_speed(rows)
    curve = sorted((row for row in contestants if "cached" in row), key=lambda row: float(row["cached"]))
    others = [row for row in contestants if "cached" not in row]
    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    rates = [row["images_per_s"] for row in curve]
    axes.errorbar(
        [100 * row["cached"] for row in curve],
        [rate["median"] for rate in rates],
        yerr=[
            [rate["median"] - rate["low"] for rate in rates],
            [rate["high"] - rate["median"] for rate in rates],
        ],
        fmt="o-",
        color=OURS,
        markersize=4,
        label="feeder",
    )
    colours = iter([colour for colour, _ in OTHERS] * len(others))
    ours = {name: colour for name, (colour, _) in LINES.items()}
    for row in others:
        name = row["contestant"]
        colour = ours.get(name, "#7fc6c0") if name.startswith("feeder") else next(colours)
        axes.axhline(row["images_per_s"]["median"], color=colour, linestyle="--", linewidth=1, label=name)
    axes.set(
        yscale="log",
        xlabel="images that are cached, %",
        ylabel="images a second, one thread; lines: quartiles",
    )
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(title, fontsize=10, loc="left")
    _save(figure, axes, path)


def parts(rows: Sequence[Row], title: str, path: Path) -> None:
    """Two stacked bars of microseconds an image, without and with seek points."""
    pyplot = _pyplot()
    names = [name for name in dict.fromkeys(row["part"] for row in rows) if name != "decode"]
    ways = {"without seek points": False, "with seek points": True}
    cost = {(row["part"], row["seek"]): max(0.0, row["cpu_us_per_image"]["median"]) for row in rows}
    figure, axes = pyplot.subplots(figsize=(8, 2.3), layout="constrained")
    for way, seek in reversed(ways.items()):
        left = 0.0
        for name, colour in zip(names, PARTS, strict=True):
            width = cost[name, seek]
            axes.barh([way], [width], left=[left], color=colour, label=None if seek else name)
            if width > 25:
                axes.text(left + width / 2, way, f"{width:.0f}", ha="center", va="center", fontsize=9)
            left += width
        axes.text(left, way, f"  {left:.0f}", va="center", fontsize=9, weight="bold")
    axes.margins(x=0.08)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=len(names), frameon=False)
    axes.set_xlabel("microseconds of CPU time an image")
    axes.set_title(title, fontsize=10, loc="left")
    _save(figure, axes, path)


def curves(rows: Sequence[Row], title: str, path: Path) -> None:
    """One panel a sweep: images a second of each contestant, or, over the size, pixels a second."""
    pyplot = _pyplot()
    sweeps = list(dict.fromkeys(row["sweep"] for row in rows))
    others = [name for name in dict.fromkeys(row["contestant"] for row in rows) if name not in LINES]
    styles = LINES | dict(zip(others, OTHERS, strict=False))
    figure, panels = pyplot.subplots(1, len(sweeps), figsize=(12, 3.8), layout="constrained", squeeze=False)
    for sweep, axes in zip(sweeps, panels[0], strict=True):
        for name, (colour, style) in styles.items():
            line = [row for row in rows if row["sweep"] == sweep and row["contestant"] == name]
            if line:
                axes.plot(
                    [row["at"] for row in line],
                    [
                        row["images_per_s"]["median"] * (row["at"] / 1e6 if sweep == "size" else 1)
                        for row in line
                    ],
                    style,
                    color=colour,
                    markersize=4,
                    label=name,
                )
        if sweep == "size":
            axes.set(xscale="log", ylabel="million source pixels a second")
        else:
            axes.set(ylabel="images a second")
        axes.set(ylim=(0, None), xlabel=SWEEPS[sweep][0])
        if sweep == "threads":
            axes.set_xticks(sorted({row["at"] for row in rows if row["sweep"] == sweep}))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][-1].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    _write(figure, path)


def _pyplot() -> Any:
    import matplotlib  # type: ignore[import-not-found]

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    _write(figure, path)


def _write(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=120, metadata={"Software": None})
    _pyplot().close(figure)
