"""How many threads, and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feeder.worker import cpus


def cgroups(tmp_path: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "own", tmp_path / "fs"


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/a/b\n", {"a/b/cpu.max": "200000 100000\n", "a/cpu.max": "300000 100000\n"}, 2.0),
        ("0::/of/the/host\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
        (
            "4:memory:/m\n3:cpu,cpuacct:/x\n0::/\n",
            {"cpu/x/cpu.cfs_quota_us": "250000", "cpu/x/cpu.cfs_period_us": "100000"},
            2.5,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_quota(tmp_path: Path, own: str, files: dict[str, str], quota: float | None) -> None:
    assert cpus.cpu_quota(*cgroups(tmp_path, own, files)) == quota


def test_quota_without_cgroups(tmp_path: Path) -> None:
    assert cpus.cpu_quota(tmp_path / "none", tmp_path) is None


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
