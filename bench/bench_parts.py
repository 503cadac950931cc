"""What an image costs by part: read, entropy, IDCT, resample and colour; with and without seek points.

A pass over all images ends after one stage or the next; the difference between two passes of a round is what
the stage between them costs. CPU time of one thread, on the files and windows of the decode bench.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import harness, tables
from bench.contestant import REPLY_DEADLINE_S, SCRIPTS, Contestant, ContestantFailed, rival
from bench.inputs import DecodeInput, decode_input
from feeder.errors import ConfigError

__all__ = ["PARTS", "run"]

NAME = "feeder parts"
SCRIPT = "parts_feeder.py"
SHARDS = 4

PARTS = {
    "read": ("read", None),
    "entropy": ("entropy", None),
    "IDCT": ("planes", "entropy"),
    "resample and colour": ("pixels", "planes"),
    "decode": ("pixels", None),
}
"""Part -> the stage that a pass ends after, and the one that it has in common with the part before."""

COUNTED_IMAGES = 100
"""Instructions are counted of fewer, evenly spread files."""

CALLGRIND_DEADLINE_S = 1800.0
"""Everything takes about 50 times as long there."""


@dataclass(frozen=True)
class Pass:
    """A pass over all images: where it ends, and whether with seek points."""

    stop: str
    seek: bool

    def __str__(self) -> str:
        return f"{self.stop}{', seek points' if self.seek else ''}"


PASSES = [Pass(stop, seek) for stop in ("read", "entropy", "planes", "pixels") for seek in (False, True)]


def run(
    folder: Path,
    *,
    instructions: bool = False,
    as_json: bool = False,
    rounds: int = 7,
    images: int = 600,
    size: int = 224,
) -> int:
    """Measures and prints a table, or JSON lines: environment, parts, summary.

    Args:
        folder: holds the JPEGs.
        instructions: count instructions too, once, under callgrind; takes minutes.
        as_json: print rows instead of the table.
        rounds: how many are kept.
        images: most files used.
        size: output height and width in pixels.

    Returns:
        0.

    Raises:
        ConfigError: instructions are asked for, and valgrind is not installed.
        ContestantFailed: feeder's process failed.
    """
    if instructions and shutil.which("valgrind") is None:
        raise ConfigError("--instructions needs valgrind: apt-get install valgrind")
    cores = harness.choose_cores(1)
    data = decode_input(folder, images)
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as place:
        shards = _shards(data, Path(place))
        with rival(NAME, None, SCRIPT, "--cores", str(cores[0])) as stages:
            _load(stages, data, shards, size)
            results = harness.interleave(
                {str(one): functools.partial(_round, stages, one) for one in PASSES},
                rounds,
                progress=tables.round_progress(rounds),
            )
    counted = decode_input(folder, min(images, COUNTED_IMAGES)) if instructions else None
    counts = {} if counted is None else _instructions(counted, size, cores[0])
    tables.progress("")

    head = harness.head_row(
        "parts",
        cores,
        ("numpy", "google-crc32c"),
        threads=1,
        size=size,
        rounds=rounds,
        decoder=stages.facts["decoder"],
        **data.facts(),
    )
    if counted is not None:
        head["counted_images"] = len(counted.files)
    rows = [
        {"kind": "part", "run": head["run"], "part": part, "seek": seek, **_cost(part, seek, results, counts)}
        for part in PARTS
        for seek in (False, True)
    ]
    summary = harness.summary_row(head["run"], {})
    if as_json:
        harness.write_rows([head, *rows, summary])
    else:
        print(tables.parts_table(rows))
    return 0


def _cost(
    part: str, seek: bool, results: Mapping[str, Sequence[harness.Round]], counts: Mapping[str, float]
) -> dict[str, Any]:
    """What one part costs: of each round the pass up to it less the pass before."""
    stop, before = PARTS[part]
    until = str(Pass(stop, seek))
    costs = [one.cpu_us_per_image for one in results[until]]
    count = counts.get(until)
    if before is not None:
        less = str(Pass(before, seek))
        costs = [cost - one.cpu_us_per_image for cost, one in zip(costs, results[less], strict=True)]
        count = None if count is None else count - counts[less]
    spread = {"cpu_us_per_image": harness.Spread.of(costs).rounded(1)}
    return spread if count is None else spread | {"instructions_per_image": round(count)}


def _shards(data: DecodeInput, place: Path) -> list[str]:
    """Packs the files as they are, and learns their seek points as `feeder index --seek` does."""
    from feeder.cli.learn import learn
    from feeder.records import Dataset
    from feeder.records.pack import pack

    photos = place / "photos" / "all"
    photos.mkdir(parents=True)
    for index, path in enumerate(data.files):
        (photos / f"{index:05d}.jpg").symlink_to(path.resolve())
    tables.progress("packing")
    pack(photos.parent, place / "shards", shards=SHARDS, seed=0)
    with Dataset.open("parts", [str(place / "shards")], seek="learn") as dataset:
        tables.progress("learning seek points")
        learn(dataset)
        return [str(shard.path) for shard in dataset.shards]


def _load(
    stages: Contestant,
    data: DecodeInput,
    shards: Sequence[str],
    size: int,
    deadline_s: float = REPLY_DEADLINE_S,
) -> None:
    stages.load(
        deadline_s=deadline_s,
        shards=list(shards),
        files=[str(path.resolve()) for path in data.files],
        windows=data.windows.tolist(),
        flips=data.flips.tolist(),
        size=size,
    )


def _round(stages: Contestant, one: Pass, deadline_s: float = REPLY_DEADLINE_S) -> harness.Round:
    return harness.Round(**stages.ask("round", deadline_s=deadline_s, stop=one.stop, seek=one.seek))


def _instructions(data: DecodeInput, size: int, core: int) -> dict[str, float]:
    """Instructions an image of each pass, counted once: they hardly vary."""
    counts = {}
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as place:
        shards = _shards(data, Path(place))
        out = Path(place) / "callgrind"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--quiet"]
        command += [sys.executable, str(SCRIPTS / SCRIPT), "--cores", str(core)]
        with Contestant(NAME, command) as stages:
            tables.progress("callgrind: loading")
            _load(stages, data, shards, size, deadline_s=CALLGRIND_DEADLINE_S)
            for number, one in enumerate(PASSES, 1):
                tables.progress(f"callgrind: {one}")
                _control("--zero", stages.pid)
                images = _round(stages, one, CALLGRIND_DEADLINE_S).images
                _control("--dump", stages.pid)
                counts[str(one)] = _sum(out.with_name(f"{out.name}.{number}")) / images
    return counts


def _control(command: str, pid: int) -> None:
    done = subprocess.run(
        ["callgrind_control", command, str(pid)], capture_output=True, text=True, timeout=CALLGRIND_DEADLINE_S
    )
    if done.returncode != 0:
        raise ContestantFailed(f"callgrind_control {command}: {done.stderr.strip() or done.stdout.strip()}")


def _sum(dump: Path) -> int:
    """Instructions since the counters were set to zero."""
    for line in dump.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "summary":
            return int(value)
    raise ContestantFailed(f"callgrind: {dump.name} says no sum")
