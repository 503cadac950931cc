"""What the cache of decoded planes is worth: epochs that find nothing, some, or all of their images in it.

One thread, the same files and windows for everybody, as in the decode bench. The batches of all that feeder
makes must be the same, bit for bit. Beside it, in the same rounds: how fast shards are indexed, and how fast
they can be read at all; and what planes weigh.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench import contest, harness, tables
from bench.contest import Entry
from bench.contestant import Contestant, ContestantFailed, exit_code, rival
from bench.inputs import DecodeInput, decode_input, subsamplings
from bench.oracle import Agreement

__all__ = ["compared", "run"]

CACHED = Entry("feeder (100 % cached)", None, "cache_feeder.py", "100")
SHARES = {
    contest.FEEDER["native"]: 0.0,
    Entry("feeder (25 % cached)", None, "cache_feeder.py", "25"): 0.25,
    Entry("feeder (50 % cached)", None, "cache_feeder.py", "50"): 0.5,
    Entry("feeder (75 % cached)", None, "cache_feeder.py", "75"): 0.75,
    CACHED: 1.0,
}
"""Of the images that are in the cache; the others are decoded without seek points."""

COLD = Entry("feeder (cold)", None, "cache_feeder.py", "cold")
COMPARED = ("OpenCV", "torchvision", "simplejpeg + pillow-simd")
"""The fastest that antialias."""

INDEXING = {
    "feeder index, two threads": ("index", 2),
    "feeder index": ("index", 1),
    "plain read, two threads": ("read", 2),
    "plain read": ("read", 1),
}
"""What passes over a shard, and in how many threads."""

INDEX_RECORDS = 10_000
"""Of that shard, which holds the files over and over; fewer where it would take more than half of the
memory or disk that is free."""

REDUCTIONS = (1, 2)
WEIGHED_IMAGES = 16
"""Decoded to planes in one call."""


def run(
    folder: Path,
    *,
    rivals: bool = False,
    as_json: bool = False,
    rounds: int = 7,
    images: int = 600,
    size: int = 224,
) -> int:
    """Measures and prints tables, or JSON lines: environment, contestants, index, memory, left out, summary.

    Args:
        folder: holds the JPEGs.
        rivals: whether to run the fastest of the other libraries too.
        as_json: print rows instead of the tables.
        rounds: how many are kept.
        images: most files used.
        size: output height and width in pixels.

    Returns:
        0, or 1 where a contestant failed; one that is not installed did not fail.
    """
    cores = harness.choose_cores(1)
    data = decode_input(folder, images)
    others = [entry for entry in contest.RIVALS if rivals and entry.name in COMPARED]
    left_out: dict[str, ContestantFailed] = {}
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-")))
        contestants: dict[str, Contestant] = {}
        checks: dict[str, Agreement] = {}
        for entry in [*SHARES, contest.FEEDER["seek"], COLD, *others]:
            tables.progress(f"checking {entry.name}")
            try:
                one = stack.enter_context(contest.start(entry, cores))
                contest.load(one, data, size, 1)
                checks[entry.name] = contest.check(one, data, size)
            except ContestantFailed as error:
                if entry not in others:
                    raise
                left_out[entry.name] = error
            else:
                contestants[entry.name] = one
        _check_same([one for name, one in contestants.items() if contest.is_feeder(name)], data, place)
        tables.progress("packing")
        shard, records = _pack(data, place)
        shard_bytes = shard.stat().st_size
        readers = {name: _reader(name, shard, stack) for name in INDEXING}
        turns: dict[str, Callable[[], harness.Round]] = {
            name: functools.partial(contest.run_round, one) for name, one in contestants.items()
        }
        for name, reader in readers.items():
            turns[name] = functools.partial(_read_round, reader, records)
        results = harness.interleave(
            turns,
            rounds,
            progress=tables.round_progress(rounds),
        )
        facts = {name: one.facts for name, one in (contestants | readers).items()}
    tables.progress("weighing planes")
    memory = _weigh(data)
    tables.progress("")

    head = harness.head_row(
        "cache",
        cores,
        ("numpy", "pyarrow", "Pillow"),
        threads=1,
        size=size,
        batch=contest.BATCH,
        rounds=rounds,
        **data.facts(),
    )
    shares = {entry.name: share for entry, share in SHARES.items()}
    rows = [
        harness.contestant_row(head["run"], name, results[CACHED.name], results[name])
        | facts[name]
        | {"agreement": asdict(checks[name])}
        | ({"cached": shares[name]} if name in shares else {})
        for name in contestants
    ]
    rows += _index_rows(
        head["run"],
        {name: results[name] for name in INDEXING},
        {name: facts[name] for name in INDEXING},
        shard_bytes,
    )
    rows += [{"kind": "memory", "run": head["run"]} | one for one in memory]
    rows += harness.left_out_rows(head["run"], left_out)
    summary = harness.summary_row(head["run"], compared(rows), CACHED.name)
    if as_json:
        harness.write_rows([head, *rows, summary])
    else:
        print(tables.cache_table(rows), *left_out.values(), *tables.summary_lines(summary), sep="\n")
    return exit_code(left_out)


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The comparisons that decide: what is wholly cached with the fastest rival, and with what is not cached.

    Args:
        rows: of one run.

    Returns:
        comparison -> contestant and ratios (see harness.comparison); without those that had no contestant.
    """
    measured = [row for row in rows if row["kind"] == "contestant"]
    groups = {
        "all cached, fastest antialiased rival": [
            row for row in measured if not contest.is_feeder(row["contestant"])
        ],
        "all cached, nothing cached": [
            row for row in measured if row["contestant"] == contest.FEEDER["native"].name
        ],
        "all cached, nothing cached but seek points": [
            row for row in measured if row["contestant"] == contest.FEEDER["seek"].name
        ],
    }
    return {
        name: harness.comparison(min(group, key=lambda row: float(row["feeder_times_faster"]["median"])))
        for name, group in groups.items()
        if group
    }


def _check_same(contestants: Sequence[Contestant], data: DecodeInput, place: Path) -> None:
    """That all images of all of them are those of the first, bit for bit."""
    wanted = None
    for one in contestants:
        tables.progress(f"comparing {one.name}")
        path = place / "outputs.npy"
        one.ask("outputs", path=str(path), count=len(data.files))
        images = np.load(path)
        if wanted is None:
            wanted = images
        elif not np.array_equal(images, wanted):
            raise ContestantFailed(f"{one.name}: its images are not those of {contestants[0].name}")


def _pack(data: DecodeInput, place: Path) -> tuple[Path, int]:
    """A shard of the files, over and over, in `place`, and how many records it has."""
    from feeder.records.pack import pack

    (memory,) = re.findall(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    free = min(int(memory) << 10, shutil.disk_usage(place).free)
    records = max(1, min(INDEX_RECORDS, int(free / 2 / (data.nbytes / len(data.files)))))
    source = place / "files" / "one"
    source.mkdir(parents=True)
    for number in range(records):
        (source / f"{number:06d}.jpg").symlink_to(data.files[number % len(data.files)].resolve())
    packed = pack(source.parent, place / "shards", shards=1)
    return packed.shards[0], records


def _reader(name: str, shard: Path, stack: contextlib.ExitStack) -> Contestant:
    variant, threads = INDEXING[name]
    cores = ",".join(map(str, harness.choose_cores(min(threads, len(os.sched_getaffinity(0))))))
    one = stack.enter_context(rival(name, None, "index_feeder.py", "--cores", cores, "--variant", variant))
    one.load(shard=str(shard), threads=threads)
    return one


def _read_round(reader: Contestant, records: int) -> harness.Round:
    return harness.Round(**reader.ask("round", images=records))


def _index_rows(
    run_name: str,
    results: Mapping[str, Sequence[harness.Round]],
    facts: Mapping[str, dict[str, Any]],
    shard_bytes: int,
) -> list[dict[str, Any]]:
    reads = {INDEXING[name][1]: theirs for name, theirs in results.items() if INDEXING[name][0] == "read"}
    return [
        {
            "kind": "index",
            "run": run_name,
            "what": name,
            "records": theirs[0].images,
            "bytes": shard_bytes,
            "mb_per_s": harness.Spread.of([shard_bytes / one.seconds / 1e6 for one in theirs]).rounded(1),
            "cpu_us_per_image": harness.Spread.of([one.cpu_us_per_image for one in theirs]).rounded(1),
            "of_plain_read": harness.Spread.of(harness.ratios(theirs, reads[1])).rounded(3),
            "of_read_alike": harness.Spread.of(harness.ratios(theirs, reads[INDEXING[name][1]])).rounded(3),
        }
        | facts[name]
        for name, theirs in results.items()
    ]


def _weigh(data: DecodeInput) -> list[dict[str, Any]]:
    """What planes weigh, at full scale and at half of it, by the files' chroma sampling."""
    from feeder.decode import open_decoder

    count = len(data.files)
    samplings = np.array(subsamplings(data.files))
    weights = {reduction: np.zeros(count, np.int64) for reduction in REDUCTIONS}
    decoder = open_decoder(1, "native")
    try:
        for first in range(0, count, WEIGHED_IMAGES):
            images = [path.read_bytes() for path in data.files[first : first + WEIGHED_IMAGES]]
            for reduction, weight in weights.items():
                kept = decoder.keep(images, np.full(len(images), reduction, np.uint8))
                weight[first : first + WEIGHED_IMAGES] = [len(planes or b"") for planes in kept]
    finally:
        decoder.close()
    encoded = np.array([path.stat().st_size for path in data.files])
    rows = []
    for sampling in ("all", *sorted(set(samplings.tolist()))):
        those = np.flatnonzero(((samplings == sampling) | (sampling == "all")) & (weights[1] > 0))
        rows += [
            {
                "files": sampling,
                "reduction": reduction,
                "images": len(those),
                "bytes_per_image": round(float(weight[those].mean())),
                "encoded_bytes_per_image": round(float(encoded[those].mean())),
            }
            for reduction, weight in weights.items()
            if len(those)
        ]
    return rows
