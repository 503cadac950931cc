"""What an image costs, from rows of `feeder bench decode`, `service`, `cache` and `wire` (--json)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feeder.advice.capacity import Column, Costs
from feeder.errors import ConfigError

__all__ = ["costs_of_rows", "read_rows"]

_MADE: dict[Column, tuple[str, str]] = {
    "plain": ("feeder", "decode"),
    "seek": ("feeder (seek points)", "decode"),
    "cached": ("feeder (100 % cached)", "cache"),
}
"""Who makes what each column needs, and the bench that is asked first; the other of the two may have it."""

_SERVED: dict[bool, dict[Column, str]] = {
    True: {"plain": "feeder", "seek": "feeder (seek points)", "cached": "feeder (cached)"},
    False: {
        "plain": "feeder, same host",
        "seek": "feeder, same host (seek points)",
        "cached": "feeder, same host (cached)",
    },
}
"""Contestants of the service by whether they are remote."""


def read_rows(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows of some files, one JSON object a line.

    Raises:
        ConfigError: a file has something else, or cannot be read.
    """
    rows = []
    for path in paths:
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{path}: cannot read rows of feeder bench: {reason}") from None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or "kind" not in row or "run" not in row:
                raise ConfigError(
                    f"{path}, line {number}: no row of `feeder bench decode/service/cache/wire --json`: "
                    f"{line[:60]!r}"
                )
            rows.append(row)
    return rows


def costs_of_rows(
    rows: Sequence[Mapping[str, Any]], *, remote: bool, size: int | None = None
) -> tuple[Costs, int]:
    """What the last run of each bench in the rows says, and for what output size in pixels.

    Whole workers (service) are believed before parts. What service has no row of is what decode or cache
    takes to make an image, and what wire takes to send one. All are medians of CPU time, which hold better on
    a busy machine than images a second do.

    Args:
        rows: as read_rows gives them.
        remote: whether batches are sent to other hosts, or written into memory of the same one.
        size: output height and width that it must be for; None: whatever the rows are for.

    Raises:
        ConfigError: rows of two machines or sizes, of another size than wanted, or none that says what making
            an image costs.
    """
    runs = _last_runs(rows)
    heads = [head for head, _ in runs.values()]
    for name, what in (("cpu", "machines"), ("size", "output sizes")):
        values = sorted({str(head.get(name)) for head in heads})
        if len(values) > 1:
            raise ConfigError(f"the rows are of two {what}, {' and '.join(values)}: plan from one at a time")
    if not heads:
        raise ConfigError("the rows hold no run of feeder bench decode, service, cache or wire")
    head = heads[0]
    if size is not None and head["size"] != size:
        raise ConfigError(f"the rows were measured at {head['size']} pixels, not at {size}: measure that")

    notes: list[str] = []
    worker_us: dict[Column, float] = {}
    consumer_us = 0.0
    served = _contestants(runs, "service")
    wire = _contestants(runs, "wire").get("feeder")
    for column, name in _SERVED[remote].items():
        if name in served:
            worker_us[column] = _us(served[name], "cpu") - _us(served[name], "consumer_cpu")
            consumer_us = consumer_us or _us(served[name], "consumer_cpu")
    sending_us = 0.0
    if remote and wire is not None:
        sending_us = _us(wire, "cpu") - _us(wire, "consumer_cpu")
        consumer_us = consumer_us or _us(wire, "consumer_cpu")
    parts = []
    for column, (name, first) in _MADE.items():
        if column in worker_us:
            continue
        for bench in (first, "cache", "decode"):
            if (row := _contestants(runs, bench).get(name)) is not None:
                worker_us[column] = _us(row, "cpu") + sending_us
                parts.append(column)
                break
    if not worker_us:
        beside = not remote and not served.keys().isdisjoint(_SERVED[True].values())
        raise ConfigError(
            "the rows do not say what making an image costs"
            + (
                " beside the trainer, only what it costs over the network: measure service anew, or plan "
                "with --remote"
                if beside
                else ": give those of decode or service"
            )
        )
    if reading := [column for column in parts if column != "cached"]:
        notes.append(
            f"{' and '.join(reading)}: reading records is not in the CPU time; rows of service have it"
        )
    if parts and remote and wire is None:
        notes.append(f"{' and '.join(parts)}: sending is not in the CPU time; rows of wire have it")
    if not consumer_us:
        notes.append("what receiving costs the trainer is not known; rows of service have it")
    planes = [row for _, found in runs.values() for row in found if _is_planes(row)]
    if "cached" in worker_us and not planes:
        notes.append("cached: the rows do not say what decoded images weigh")
    return (
        Costs(
            worker_us=worker_us,
            consumer_us=consumer_us,
            planes_bytes=float(planes[-1]["bytes_per_image"]) if planes else None,
            source=f"{', '.join(runs)} on {head['cpu']}, commit {head['commit']}",
            cores=int(head["cpus"]),
            memory_bytes=float(head["memory_gb"]) * 1e9,
            notes=tuple(notes),
        ),
        int(head["size"]),
    )


_Runs = dict[str, tuple[Mapping[str, Any], list[Mapping[str, Any]]]]


def _last_runs(rows: Sequence[Mapping[str, Any]]) -> _Runs:
    """By bench, the head of its last run and the other rows of it."""
    heads = {
        str(row["bench"]): row
        for row in rows
        if row["kind"] == "environment" and row.get("bench") in ("decode", "service", "cache", "wire")
    }
    for head in heads.values():
        missing = {"cpu", "cpus", "memory_gb", "commit", "size"} - head.keys()
        if missing:
            raise ConfigError(f"the head of run {head['run']} does not say its {', '.join(sorted(missing))}")
    return {
        bench: (head, [row for row in rows if row["run"] == head["run"] and row is not head])
        for bench, head in heads.items()
    }


def _contestants(runs: _Runs, bench: str) -> dict[str, Mapping[str, Any]]:
    _, rows = runs.get(bench, ({}, []))
    return {str(row.get("contestant")): row for row in rows if row["kind"] == "contestant"}


def _is_planes(row: Mapping[str, Any]) -> bool:
    # A training stream's smallest windows need planes at full scale.
    return row["kind"] == "memory" and row.get("files") == "all" and row.get("reduction") == 1


def _us(row: Mapping[str, Any], what: str) -> float:
    try:
        value = float(row[f"{what}_us_per_image"]["median"])
    except (KeyError, TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(
            f"the row of {row.get('contestant')!r} in run {row['run']} has no median of {what}_us_per_image"
        )
    return value
