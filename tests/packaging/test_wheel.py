"""What `pip install .` gives, with and without what the native kernel needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_INPUTS = ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "feeder")


def _build(folder: Path, **environment: str) -> tuple[Path, str]:
    """Builds a wheel from a copy of the sources; returns it and what the build printed."""
    source = folder / "source"
    source.mkdir()
    for name in BUILD_INPUTS:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(path, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder / "wheels"), str(source)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    (wheel,) = (folder / "wheels").glob("feeder-*.whl")
    return wheel, done.stdout


def _run(site: Path, code: str) -> str:
    """Runs code in a fresh interpreter that sees the unpacked wheel, not the editable install."""
    paths = [str(site), sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=site,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(400)
def test_without_a_compiler_the_wheel_is_pure_says_so_and_decodes(tmp_path: Path) -> None:
    missing = str(tmp_path / "no-such-compiler")
    wheel, printed = _build(tmp_path, CC=missing, CXX=missing)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "WITHOUT its native kernel" in printed
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so") or "/native/" in name]
        archive.extractall(site)
    name = _run(site, "from feeder.decode import open_decoder; d = open_decoder(1); print(d.name); d.close()")
    assert name.startswith("portable")


@pytest.mark.timeout(400)
def test_a_client_imports_nothing_that_reads_or_decodes(tmp_path: Path) -> None:
    wheel, printed = _build(tmp_path)
    assert "WITHOUT its native kernel" not in printed
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    assert any(name.startswith("feeder/decode/_kernel") and name.endswith(".so") for name in names)
    assert "feeder/py.typed" in names
    loaded = _run(site, "import feeder, sys; feeder.connect; print(*sorted(sys.modules))").split()
    forbidden = (
        "feeder.decode",
        "feeder.records",
        "feeder.batch",
        "feeder.worker",
        "PIL",
        "simplejpeg",
        "pyarrow",
        "jax",
        "torch",
    )
    assert not [module for module in loaded if module.startswith(forbidden)]
