"""How many threads, and why."""

from __future__ import annotations

import os

import pytest

from feeder.worker import cpus


@pytest.mark.parametrize(
    ("affinity", "total", "quota", "threads", "reason"),
    [
        (8, 8, None, 8, "one for each CPU"),
        (2, 8, None, 2, "the CPU affinity mask has 2 of 8 CPUs"),
        (8, 8, 1.5, 2, "the cgroup's quota of 1.5 CPUs, rounded up"),
        (1, 8, 1.5, 1, "the CPU affinity mask has 1 of 8 CPUs"),
        (8, 8, 0.2, 1, "the cgroup's quota of 0.2 CPUs, rounded up"),
    ],
)
def test_default(
    monkeypatch: pytest.MonkeyPatch, affinity: int, total: int, quota: float | None, threads: int, reason: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr(os, "cpu_count", lambda: total)
    monkeypatch.setattr(cpus, "cpu_quota", lambda: quota)
    assert cpus.decode_threads() == (threads, reason)
    assert cpus.decode_threads(5) == (5, "as --threads says")
