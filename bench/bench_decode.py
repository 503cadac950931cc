"""The decode stage alone: encoded bytes in memory to cropped, resized, flipped batches of 64 in memory.

Every contestant gets the same files, windows and flips, runs in a process of its own on the same cores,
and is held against the oracle before it is timed.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import harness, tables
from bench.contestant import Contestant, ContestantFailed, NotInstalled, rival
from bench.inputs import DecodeInput, decode_input
from bench.oracle import Agreement, agreement, expected

__all__ = ["run"]

BATCH = 64
CHECKED_IMAGES = 128
MOST_MEAN_ABS = 3.0
"""Levels. Another DCT or rounding, or a box for a triangle, stays under 1.5; a wrong window gives over 10."""


@dataclass(frozen=True)
class Entry:
    """Who takes part: the environment in .venv/rivals (None: this one), the script and its variant."""

    name: str
    folder: str | None
    script: str
    variant: str | None = None


FEEDER = {kind: Entry(f"feeder {kind}", None, "decode_feeder.py", kind) for kind in ("native", "portable")}

RIVALS = (
    Entry("tf.data", "tfdata", "decode_tfdata.py", "plain"),
    Entry("tf.data, antialias", "tfdata", "decode_tfdata.py", "antialias"),
    Entry("DALI", "dali", "decode_dali.py", "plain"),
    Entry("DALI, antialias", "dali", "decode_dali.py", "antialias"),
    Entry("OpenCV", "opencv", "decode_opencv.py"),
    Entry("torchvision", "torchvision", "decode_torchvision.py"),
    Entry("Pillow", "pillow", "decode_pillow.py", "Pillow"),
    Entry("pillow-simd", "pillow_simd", "decode_pillow.py", "pillow-simd"),
    Entry("simplejpeg + pillow-simd", "pillow_simd", "decode_simplejpeg.py"),
)


def run(
    folder: Path,
    *,
    decoder: str = "native",
    rivals: bool = False,
    as_json: bool = False,
    rounds: int = 7,
    images: int = 600,
    size: int = 224,
    threads: int = 1,
) -> int:
    """Measures and prints a table, or JSON lines: environment, contestants, what was left out, summary.

    Args:
        folder: holds the JPEGs.
        decoder: "native" or "portable": which of feeder's the others are compared with.
        rivals: whether to run the other libraries too.
        as_json: print rows instead of the table.
        rounds: how many are kept.
        images: most files used.
        size: output height and width in pixels.
        threads: decode threads, and cores that contestants are pinned to.

    Returns:
        0, or 1 where a contestant failed; one that is not installed did not fail.
    """
    cores = harness.choose_cores(threads)
    data = decode_input(folder, images)
    reference = FEEDER[decoder]
    entries = [reference] if decoder == "portable" else list(FEEDER.values())
    left_out: dict[str, ContestantFailed] = {}
    checks: dict[str, Agreement] = {}
    with contextlib.ExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        for entry in [*entries, *(RIVALS if rivals else ())]:
            tables.progress(f"checking {entry.name}")
            try:
                contestant = stack.enter_context(_start(entry, cores, data, size, threads))
                checks[entry.name] = _check(contestant, data, size)
            except ContestantFailed as error:
                if entry is reference:
                    raise
                left_out[entry.name] = error
            else:
                contestants[entry.name] = contestant
        results = harness.interleave(
            {name: functools.partial(_round, contestant) for name, contestant in contestants.items()},
            rounds,
            progress=lambda number, name: tables.progress(f"round {number + 1} of {rounds}: {name}"),
        )
        facts = {name: contestant.facts for name, contestant in contestants.items()}
    tables.progress("")

    head = harness.environment(cores, harness.installed("numpy", "Pillow", "pillow-simd", "simplejpeg"))
    head |= {
        "bench": "decode",
        "run": uuid.uuid4().hex[:12],
        "threads": threads,
        "size": size,
        "batch": BATCH,
        "rounds": rounds,
        "images": len(data.files),
        "skipped": data.skipped,
        "mean_pixels": round(data.pixels),
        "mean_window_pixels": round(data.window_pixels),
        "mean_bytes": round(data.nbytes / len(data.files)),
    }
    ours = results[reference.name]
    rows = [
        harness.contestant_row(head["run"], name, ours, theirs)
        | facts[name]
        | {"agreement": asdict(checks[name])}
        for name, theirs in results.items()
    ]
    rows += [
        {"kind": "left_out", "run": head["run"], "contestant": name, "reason": str(error)}
        for name, error in left_out.items()
    ]
    summary = {
        "kind": "summary",
        "run": head["run"],
        "feeder": reference.name,
        "compared": compared(rows),
    }
    if as_json:
        harness.write_rows([head, *rows, summary])
    else:
        print(tables.decode_table(rows), *left_out.values(), *tables.summary_lines(summary), sep="\n")
    return 1 if any(not isinstance(error, NotInstalled) for error in left_out.values()) else 0


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The comparisons that decide: with the fastest rival that antialiases, and with plain tf.data and DALI.

    Args:
        rows: of one run.

    Returns:
        comparison -> contestant and ratios (see harness.comparison); without those that had no contestant.
    """
    rivals = [
        row for row in rows if row["kind"] == "contestant" and not row["contestant"].startswith("feeder ")
    ]
    groups = {
        "fastest antialiased rival": [row for row in rivals if row["antialias"]],
        "tf.data without antialias": [row for row in rivals if row["contestant"] == "tf.data"],
        "DALI without antialias": [row for row in rivals if row["contestant"] == "DALI"],
    }
    found = {}
    for name, group in groups.items():
        if group:
            nearest = min(group, key=lambda row: float(row["feeder_times_faster"]["median"]))
            found[name] = harness.comparison(nearest)
    return found


def _start(entry: Entry, cores: Sequence[int], data: DecodeInput, size: int, threads: int) -> Contestant:
    flags = ["--cores", ",".join(map(str, cores))]
    if entry.variant is not None:
        flags += ["--variant", entry.variant]
    contestant = rival(entry.name, entry.folder, entry.script, *flags)
    try:
        contestant.load(
            files=[str(path.resolve()) for path in data.files],
            windows=data.windows.tolist(),
            flips=data.flips.tolist(),
            size=size,
            batch=BATCH,
            threads=threads,
        )
    except ContestantFailed:
        contestant.close()
        raise
    return contestant


def _check(contestant: Contestant, data: DecodeInput, size: int) -> Agreement:
    count = min(CHECKED_IMAGES, len(data.files))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outputs.npy"
        contestant.ask("outputs", path=str(path), count=count)
        outputs = np.load(path)
    wanted = _oracle(data, count, size, bool(contestant.facts["antialias"]))
    try:
        found = agreement(outputs, wanted)
    except ValueError as error:
        raise ContestantFailed(f"{contestant.name}: {error}") from error
    if found.mean_abs > MOST_MEAN_ABS:
        raise ContestantFailed(
            f"{contestant.name}: its output is {found.mean_abs} levels off the oracle's on average, at most"
            f" {MOST_MEAN_ABS} can be another kernel: it does another job"
        )
    return found


@functools.lru_cache(maxsize=2)
def _oracle(data: DecodeInput, count: int, size: int, antialias: bool) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return expected(
        [path.read_bytes() for path in data.files[:count]],
        data.windows[:count].astype(np.int64),
        data.flips[:count],
        size,
        antialias=antialias,
    )


def _round(contestant: Contestant) -> harness.Round:
    return harness.Round(**contestant.ask("round"))
