"""How many threads this process should decode with."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["cpu_quota", "decode_threads"]

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def decode_threads(asked: int | None = None) -> tuple[int, str]:
    """The number of decode threads and why: what was asked for, else min(affinity, ceil(cgroup quota))."""
    if asked is not None:
        return asked, "as --threads says"
    affinity = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    if quota is not None and math.ceil(quota) < affinity:
        return max(1, math.ceil(quota)), f"the cgroup's quota of {quota:g} CPUs, rounded up"
    total = os.cpu_count() or affinity
    if affinity < total:
        return affinity, f"the CPU affinity mask has {affinity} of {total} CPUs"
    return affinity, "one for each CPU"


def cpu_quota(own: Path = _OWN_CGROUPS, root: Path = _CGROUPS) -> float | None:
    """CPUs that the cgroup of this process, and those above it, may use; None without any limit.

    Reads both versions: "0::/path" and cpu.max (v2), "n:...cpu...:/path" and cpu.cfs_quota_us (v1).
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, read = root, _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = root / "cpu", _quota_v1
        else:
            continue
        # In a container the path is often the host's, and only the root is mounted; what is missing has no
        # limit.
        folder = base / path.strip("/")
        for place in (folder, *folder.parents):
            quota = read(place)
            if quota is not None:
                quotas.append(quota)
            if place == base:
                break
    return min(quotas, default=None)


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
