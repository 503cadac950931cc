"""How many bytes the cache may take: what was asked for, within the folder's file system and the cgroup."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from feeder.cgroup import memory_limit
from feeder.errors import ConfigError

__all__ = ["Size", "check_budget", "parse_size", "resolve"]

LEAST_BUDGET = 1 << 20
"""Bytes."""

_UNITS = {
    unit: 1000**power if len(unit) < 3 else 1024**power
    for power, pair in enumerate((("B",), ("kB", "KiB"), ("MB", "MiB"), ("GB", "GiB"), ("TB", "TiB")))
    for unit in pair
}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[a-zA-Z]+)?", re.ASCII)

_TMPFS = "tmpfs"


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes, or a percentage of what there is."""

    nbytes: int | None
    percent: float | None


def parse_size(text: str) -> Size:
    """Reads "64GiB", "500MB", a plain number of bytes, or "80%".

    Raises:
        ConfigError: it is none of them, nothing, or more than 100 %.
    """
    match = _FORM.fullmatch(text.strip())
    if match is not None:
        number, unit = float(match[1]), match[2] or "B"
        if unit == "%" and 0 < number <= 100:
            return Size(None, number)
        if unit in _UNITS and number * _UNITS[unit] >= 1:
            return Size(int(number * _UNITS[unit]), None)
    raise ConfigError(f"a size is bytes, such as 64GiB or 500MB, or a share, such as 80%; got {text!r}")


def resolve(size: Size, folder: Path) -> tuple[int, str]:
    """Bytes that a cache in `folder` may take, and a note where that is less than was asked for, or "".

    A percentage is of the file system, or of the cgroup's memory where the folder is in memory and that is
    less. So many bytes are taken as they are, unless there is not so much at all. The folder need not be
    there: then it is where its parents are.
    """
    status = os.statvfs(next(place for place in (folder, *folder.absolute().parents) if place.exists()))
    room, whose = status.f_blocks * status.f_frsize, f"{folder} is on a file system of"
    limit = memory_limit() if _in_memory(folder) else None
    if limit is not None and limit < room:
        room, whose = limit, "the memory limit of the cgroup is"
    if size.percent is not None:
        return int(room * size.percent / 100), ""
    assert size.nbytes is not None
    if size.nbytes > room:
        return room, f"{whose} {room} bytes, which is less than the {size.nbytes} that the cache may take"
    return size.nbytes, ""


def check_budget(nbytes: int) -> None:
    """Raises ConfigError for a budget in which no segment has room."""
    if nbytes < LEAST_BUDGET:
        raise ConfigError(f"a cache must have at least {LEAST_BUDGET} bytes, got {nbytes}: say 64GiB, or 80%")


def _in_memory(folder: Path) -> bool:
    """Whether a folder is on tmpfs, as /proc says."""
    best, kind = -1, ""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    real = os.path.realpath(folder)
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        if len(point) >= best and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind = len(point), rest.split()[0]
    return kind == _TMPFS
