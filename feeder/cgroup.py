"""What the control groups of this process allow it: memory and processor time.

Reads both versions: "0::/path", memory.max and cpu.max (v2); "n:...memory...:/path", memory.limit_in_bytes
and cpu.cfs_quota_us (v1).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_quota", "memory_limit"]

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def memory_limit(own: Path = _OWN_CGROUPS, root: Path = _CGROUPS) -> int | None:
    """Bytes of memory that the cgroup of this process, and those above it, may use; None: no limit."""
    limits = []
    for folder, unified in _folders("memory", own, root):
        name = "memory.max" if unified else "memory.limit_in_bytes"
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def cpu_quota(own: Path = _OWN_CGROUPS, root: Path = _CGROUPS) -> float | None:
    """CPUs that the cgroup of this process, and those above it, may use; None without any limit."""
    quotas = []
    for folder, unified in _folders("cpu", own, root):
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            if unified:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if int(quota) > 0 and int(period) > 0:  # version 1 writes -1 for no limit
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _folders(controller: str, own: Path, root: Path) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's cgroup and of those above it, and whether they are of version 2."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        # In a container the path is often the host's, and only the root is mounted; what is missing has no
        # limit.
        folder = base / path.strip("/")
        for place in (folder, *folder.parents):
            yield place, not controllers
            if place == base:
                break
