"""How many threads this process should decode with."""

from __future__ import annotations

import math
import os

from feeder.cgroup import cpu_quota

__all__ = ["decode_threads"]


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
