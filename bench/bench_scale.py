"""How decoding scales: over threads, over the share of the image that the crop takes, over the image's size.

In each sweep one thing changes; everybody gets the same input, and those compared run in the same rounds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench import contest, harness, tables
from bench.contest import Entry
from bench.contestant import Contestant, ContestantFailed, exit_code
from bench.inputs import DecodeInput, decode_input, with_area, write_resized

__all__ = ["run"]

AREAS = (0.08, 0.2, 0.4, 0.6, 0.8, 1.0)
SIDES = (64, 128, 256, 512, 1024, 2048, 4096, 6325)
"""Square roots of numbers of pixels, up to 40 megapixels."""

ROUND_PIXELS = 25e6
"""Of all images of one size; small ones are more of them."""

CHECKED_IMAGES = 16

REDUCED = Entry("feeder (reduced)", None, "decode_feeder.py", "reduced")
COMPARED = ("OpenCV", "tf.data")
"""The fastest with antialias, and the fastest of all, in the decode bench."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Settings:
    """What all sweeps have in common; see `run`."""

    head: dict[str, Any]
    rounds: int
    size: int
    left_out: dict[tuple[str, str], ContestantFailed]
    """By contestant and where it was left out."""


def run(
    folder: Path,
    *,
    rivals: bool = False,
    as_json: bool = False,
    rounds: int = 5,
    images: int = 150,
    size: int = 224,
) -> int:
    """Measures and prints tables, or JSON lines: environment, contestants, what was left out, summary.

    Args:
        folder: holds the JPEGs.
        rivals: whether to run OpenCV and tf.data too.
        as_json: print rows instead of the tables.
        rounds: how many are kept.
        images: most files used.
        size: output height and width in pixels.

    Returns:
        0, or 1 where a contestant failed; one that is not installed did not fail.
    """
    data = decode_input(folder, images)
    cores = harness.choose_cores(len(os.sched_getaffinity(0)))
    head = harness.head_row(
        "scale",
        cores,
        ("numpy", "Pillow", "pillow-simd"),
        size=size,
        batch=contest.BATCH,
        rounds=rounds,
        **data.facts(),
    )
    settings = Settings(head, rounds, size, {})
    entries = [contest.FEEDER["native"], contest.FEEDER["seek"]]
    others = [entry for entry in contest.RIVALS if rivals and entry.name in COMPARED]
    rows = _over_threads(settings, [*entries, *others], data, len(cores))
    areas = ((area, with_area(data, area)) for area in AREAS)
    rows += _over_inputs(settings, "area", [*entries, *others], areas)
    rows += _over_inputs(settings, "size", [*entries, REDUCED, *others], _sizes(data))
    tables.progress("")
    rows += [
        {"kind": "left_out", "run": head["run"], "contestant": name, "reason": f"{where}: {error}"}
        for (name, where), error in settings.left_out.items()
    ]
    summary = harness.summary_row(head["run"], {})
    if as_json:
        harness.write_rows([head, *rows, summary])
    else:
        left_out = [row["reason"] for row in rows if row["kind"] == "left_out"]
        print(tables.scale_table(rows), *left_out, sep="\n")
    return exit_code(settings.left_out)


def _over_threads(
    settings: Settings, entries: Sequence[Entry], data: DecodeInput, most: int
) -> list[dict[str, Any]]:
    """1, 2, 4, ... and all cores, each pinned to as many; all of them in the same rounds."""
    counts = sorted({1 << power for power in range(most.bit_length())} | {most})
    with contextlib.ExitStack() as stack:
        contestants: dict[tuple[str, int], Contestant] = {}
        for entry in entries:
            with _leaving_out(settings, entry, "over threads"):
                own = {}
                for threads in counts:
                    tables.progress(f"checking {entry.name} on {threads}")
                    own[entry.name, threads] = one = stack.enter_context(
                        contest.start(entry, harness.choose_cores(threads))
                    )
                    contest.load(one, data, settings.size, threads)
                    contest.check(one, data, settings.size, images=CHECKED_IMAGES)
                contestants |= own
        results = _measure(settings, contestants, "over threads")
    rows = []
    for (name, threads), theirs in results.items():
        ours = results[contest.FEEDER["native"].name, threads]
        alone = results[name, counts[0]]
        rows.append(
            harness.contestant_row(settings.head["run"], name, ours, theirs)
            | {"sweep": "threads", "at": threads}
            | {"times_one_thread": harness.Spread.of(harness.ratios(theirs, alone)).rounded(3)}
            | contestants[name, threads].facts
        )
    return rows


def _over_inputs(
    settings: Settings, sweep: str, entries: Sequence[Entry], inputs: Iterator[tuple[float, DecodeInput]]
) -> list[dict[str, Any]]:
    """One thread on one input after the other; contestants live through all of them."""
    cores = harness.choose_cores(1)
    rows = []
    with contextlib.ExitStack() as stack:
        field: dict[str, Contestant] = {}
        for entry in entries:
            with _leaving_out(settings, entry, f"over {sweep}"):
                field[entry.name] = stack.enter_context(contest.start(entry, cores))
        for at, data in inputs:
            where = f"{sweep} {tables.SWEEPS[sweep][1](at)}"
            ready: dict[str, Contestant] = {}
            for entry in entries:
                if entry.name in field:
                    with _leaving_out(settings, entry, f"at {where}"):
                        tables.progress(f"checking {entry.name} at {where}")
                        contest.load(field[entry.name], data, settings.size, 1)
                        contest.check(field[entry.name], data, settings.size, images=CHECKED_IMAGES)
                        ready[entry.name] = field[entry.name]
            results = _measure(settings, ready, f"at {where}")
            ours = results[contest.FEEDER["native"].name]
            rows += [
                harness.contestant_row(settings.head["run"], name, ours, theirs)
                | {"sweep": sweep, "at": at}
                | data.facts()
                | field[name].facts
                for name, theirs in results.items()
            ]
    return rows


def _sizes(data: DecodeInput) -> Iterator[tuple[float, DecodeInput]]:
    """The images anew at each size, with as many of them as make the same number of pixels; at most 512."""
    for side in SIDES:
        with tempfile.TemporaryDirectory(prefix="feeder-bench-") as place:
            tables.progress(f"making images of {side} x {side} pixels")
            count = min(512, max(2, round(ROUND_PIXELS / side**2)))
            write_resized(data, side, count, Path(place))
            yield float(side**2), decode_input(Path(place), count)


def _measure(
    settings: Settings, contestants: Mapping[Key, Contestant], where: str
) -> dict[Key, list[harness.Round]]:
    return harness.interleave(
        {key: functools.partial(contest.run_round, one) for key, one in contestants.items()},
        settings.rounds,
        progress=lambda number, key: tables.progress(
            f"round {number + 1} of {settings.rounds} {where}: {contestants[key].name}"
        ),
    )


@contextlib.contextmanager
def _leaving_out(settings: Settings, entry: Entry, where: str) -> Iterator[None]:
    """One that fails is left out with its reason; feeder, which the others are compared with, is not."""
    try:
        yield
    except ContestantFailed as error:
        if entry is contest.FEEDER["native"]:
            raise
        settings.left_out[entry.name, where] = error
