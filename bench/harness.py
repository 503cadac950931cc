"""How feeder measures: a warm-up round, then rounds in which every contestant runs once, in turning order.

A machine drifts (clock, neighbours, page cache) by more than what is measured, but slowly: contestants of one
round see the same machine. So the figure to trust is the ratio within each round, and its median over the
rounds.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO, TypeVar

from feeder.errors import ConfigError

__all__ = [
    "Round",
    "Spread",
    "choose_cores",
    "comparison",
    "contestant_row",
    "environment",
    "head_row",
    "installed",
    "interleave",
    "left_out_rows",
    "ratios",
    "summary_row",
    "write_rows",
]

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Round:
    """What one contestant did in one round.

    Attributes:
        seconds: wall time.
        cpu_seconds: of all its threads and processes meanwhile; what to look at on a busy machine.
        images: how many it made.
    """

    seconds: float
    cpu_seconds: float
    images: int

    @property
    def images_per_s(self) -> float:
        """Images a second of wall time."""
        return self.images / self.seconds

    @property
    def cpu_us_per_image(self) -> float:
        """Microseconds of CPU time an image."""
        return 1e6 * self.cpu_seconds / self.images


AnyRound = TypeVar("AnyRound", bound=Round)
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """The middle of some figures and how far they lie apart."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value; the quartiles include the ends, so one value is its own quartiles."""
        low, median, high = (
            statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        )
        return cls(median=median, low=low, high=high, min=min(values), max=max(values))

    def rounded(self, digits: int) -> dict[str, float]:
        """For a row of results."""
        return {name: round(value, digits) for name, value in asdict(self).items()}


def interleave(
    contestants: Mapping[Key, Callable[[], AnyRound]],
    rounds: int,
    *,
    warm_up: int = 1,
    progress: Callable[[int, Key], None] = lambda number, name: None,
) -> dict[Key, list[AnyRound]]:
    """Runs every contestant once a round, first another one each time.

    Args:
        contestants: name -> runs one round.
        rounds: how many are kept, at least 1.
        warm_up: how many come before and are thrown away (numbered from -warm_up to -1).
        progress: is told the round's number and who runs next.

    Returns:
        name -> its rounds, in the order of `contestants`.
    """
    names = list(contestants)
    kept: dict[Key, list[AnyRound]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            progress(number, name)
            result = contestants[name]()
            if number >= 0:
                kept[name].append(result)
    return kept


def ratios(ours: Sequence[Round], theirs: Sequence[Round]) -> list[float]:
    """How many times their images a second ours are, round by round."""
    return [one.images_per_s / other.images_per_s for one, other in zip(ours, theirs, strict=True)]


def contestant_row(
    run: str,
    name: str,
    ours: Sequence[Round],
    theirs: Sequence[Round],
    with_seek: Sequence[Round] | None = None,
    more: Mapping[str, Sequence[Round]] | None = None,
) -> dict[str, Any]:
    """The measured part of one contestant's row.

    Args:
        run: which run it belongs to.
        name: of the contestant.
        ours: rounds of feeder, which the row is compared with.
        theirs: rounds of the contestant (or of feeder itself: then the ratio is 1).
        with_seek: rounds of feeder with seek points; where there are some, the row is compared with them too.
        more: further rounds of feeder to compare with, by what their ratios are called.
    """
    row: dict[str, Any] = {
        "kind": "contestant",
        "run": run,
        "contestant": name,
        "images_per_s": Spread.of([one.images_per_s for one in theirs]).rounded(1),
        "cpu_us_per_image": Spread.of([one.cpu_us_per_image for one in theirs]).rounded(1),
        "seconds": [round(one.seconds, 4) for one in theirs],
    }
    for prefix, reference in (("feeder", ours), ("seek", with_seek), *(more or {}).items()):
        if reference is not None:
            row[f"{prefix}_times_faster"] = Spread.of(ratios(reference, theirs)).rounded(3)
            row[f"{prefix}_times_less_cpu"] = Spread.of(
                [
                    other.cpu_us_per_image / one.cpu_us_per_image
                    for one, other in zip(reference, theirs, strict=True)
                ]
            ).rounded(3)
    return row


def comparison(row: Mapping[str, Any], prefix: str = "feeder") -> dict[str, Any]:
    """What a summary says of one contestant: feeder's speed over its speed, and its CPU time over feeder's.

    Args:
        row: of the contestant.
        prefix: what the ratios are called: "seek" for feeder with seek points (see `contestant_row`).
    """
    ratio = row[f"{prefix}_times_faster"]
    return {
        "contestant": row["contestant"],
        "ratio": ratio["median"],
        "min": ratio["min"],
        "max": ratio["max"],
        "by_cpu": row[f"{prefix}_times_less_cpu"]["median"],
    }


def choose_cores(count: int) -> list[int]:
    """The last `count` CPUs that this process may run on; the first one tends to serve interrupts.

    Raises:
        ConfigError: there are fewer.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise ConfigError(f"{count} cores are asked for, {len(allowed)} can be used")
    return allowed[-count:]


def installed(*distributions: str) -> dict[str, str]:
    """Versions of those that this environment has."""
    versions = {}
    for name in distributions:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def environment(cores: Sequence[int], versions: Mapping[str, str]) -> dict[str, Any]:
    """What the figures depend on besides the code: a row of its own at the head of a run.

    Args:
        cores: numbers of the CPUs that contestants run on.
        versions: of the libraries in this process.
    """
    return {
        "kind": "environment",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "dirty": bool(
            _git("status", "--porcelain", "--", "feeder", "bench", ":!bench/results", ":!bench/*.md")
        ),
        "cpu": _cpu_model(),
        "cpu_features": _cpu_features(),
        "cpus": os.cpu_count(),
        "cores_used": list(cores),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "versions": dict(versions),
    }


def head_row(
    bench: str, cores: Sequence[int], distributions: Sequence[str], **settings: Any
) -> dict[str, Any]:
    """The row at the head of a run.

    Args:
        bench: which of the benchmarks it is.
        cores: numbers of the CPUs that contestants run on.
        distributions: whose versions are of interest.
        settings: what the run was asked for, and its input.
    """
    head = environment(cores, installed(*distributions))
    return head | {"bench": bench, "run": uuid.uuid4().hex[:12]} | settings


def left_out_rows(run: str, left_out: Mapping[str, Exception]) -> list[dict[str, Any]]:
    """A row for each contestant that could not take part, with the reason."""
    return [
        {"kind": "left_out", "run": run, "contestant": name, "reason": str(error)}
        for name, error in left_out.items()
    ]


def summary_row(
    run: str, compared: Mapping[str, Mapping[str, Any]], feeder: str | None = None
) -> dict[str, Any]:
    """The last row of a run.

    Args:
        run: which.
        compared: comparison -> contestant and ratios (see `comparison`).
        feeder: which of feeder's contestants the others are compared with, where they are.
    """
    named = {} if feeder is None else {"feeder": feeder}
    return {"kind": "summary", "run": run, **named, "compared": dict(compared)}


def write_rows(rows: Sequence[Mapping[str, Any]], out: TextIO | None = None) -> None:
    """One JSON object a line, to stdout unless told otherwise."""
    for row in rows:
        print(json.dumps(row), file=out)


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _cpuinfo(*keys: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return value.strip()
    return ""


def _cpu_model() -> str:
    family, model = _cpuinfo("cpu family"), _cpuinfo("model")
    name = _cpuinfo("model name") or platform.processor() or platform.machine()
    # A hypervisor may hide the marketing name; family and model still tell one core design from another.
    return f"{name} (family {family}, model {model})" if family else name


def _cpu_features() -> list[str]:
    present = set(_cpuinfo("flags", "Features").split())
    return [name for name in ("avx2", "avx512bw", "avx512vbmi", "asimd") if name in present]
