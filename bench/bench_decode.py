"""The decode stage alone: encoded bytes in memory to cropped, resized, flipped batches of 64 in memory.

Every contestant gets the same files, windows and flips, runs in a process of its own on the same cores,
and is held against the oracle before it is timed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import contest, harness, tables
from bench.contestant import Contestant, ContestantFailed, exit_code
from bench.inputs import decode_input
from bench.oracle import Agreement

__all__ = ["compared", "run"]


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
    reference = contest.FEEDER[decoder]
    entries = [reference] if decoder == "portable" else list(contest.FEEDER.values())
    left_out: dict[str, ContestantFailed] = {}
    checks: dict[str, Agreement] = {}
    with contextlib.ExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        for entry in [*entries, *(contest.RIVALS if rivals else ())]:
            tables.progress(f"checking {entry.name}")
            try:
                contestant = stack.enter_context(contest.start(entry, cores))
                contest.load(contestant, data, size, threads)
                checks[entry.name] = contest.check(contestant, data, size)
            except ContestantFailed as error:
                if entry is reference:
                    raise
                left_out[entry.name] = error
            else:
                contestants[entry.name] = contestant
        results = harness.interleave(
            {
                name: functools.partial(contest.run_round, contestant)
                for name, contestant in contestants.items()
            },
            rounds,
            progress=tables.round_progress(rounds),
        )
        facts = {name: contestant.facts for name, contestant in contestants.items()}
    tables.progress("")

    head = harness.head_row(
        "decode",
        cores,
        ("numpy", "Pillow", "pillow-simd", "simplejpeg"),
        threads=threads,
        size=size,
        batch=contest.BATCH,
        rounds=rounds,
        **data.facts(),
    )
    ours, with_seek = results[reference.name], results.get(contest.FEEDER["seek"].name)
    rows = [
        harness.contestant_row(head["run"], name, ours, theirs, with_seek)
        | facts[name]
        | {"agreement": asdict(checks[name])}
        for name, theirs in results.items()
    ]
    rows += harness.left_out_rows(head["run"], left_out)
    summary = harness.summary_row(head["run"], compared(rows), reference.name)
    if as_json:
        harness.write_rows([head, *rows, summary])
    else:
        print(tables.decode_table(rows), *left_out.values(), *tables.summary_lines(summary), sep="\n")
    return exit_code(left_out)


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The comparisons that decide: with the fastest rival that antialiases, and with plain tf.data and DALI.

    Args:
        rows: of one run.

    Returns:
        comparison -> contestant and ratios (see harness.comparison); without those that had no contestant.
        Where feeder took part with seek points, each is there for them too.
    """
    rivals = [row for row in rows if row["kind"] == "contestant" and not contest.is_feeder(row["contestant"])]
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
            if "seek_times_faster" in nearest:
                found[f"{name}, with seek points"] = harness.comparison(nearest, "seek")
    return found
