"""What control groups say of memory and processor time, in both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeder.cgroup import cpu_quota, memory_limit


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
    assert cpu_quota(*cgroups(tmp_path, own, files)) == quota


def test_quota_without_cgroups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1000\n"}, 1000),
        ("0::/a\n", {"a/memory.max": "3000\n", "memory.max": "2000\n"}, 2000),
        ("0::/gone\n", {}, None),
        ("5:cpu:/x\n4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "77\n"}, 77),
        ("5:cpu:/x\n", {"cpu/x/memory.limit_in_bytes": "77\n"}, None),
    ],
)
def test_the_limit_of_the_cgroup(tmp_path: Path, own: str, files: dict[str, str], limit: int | None) -> None:
    assert memory_limit(*cgroups(tmp_path, own, files)) == limit


def test_without_cgroups_there_is_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "none", tmp_path) is None
