"""Without a compiler the build gives a wheel without the kernel, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_no_compiler_gives_a_pure_wheel(tmp_path):
    pytest.importorskip("scikit_build_core")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-v"]
    built = subprocess.run(
        [
            *command,
            "--config-settings",
            f"build-dir={tmp_path / 'build'}",
            "--wheel-dir",
            str(tmp_path),
            str(ROOT),
        ],
        capture_output=True,
        text=True,
        timeout=110,
        env=os.environ | {"CXX": "/bin/false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WITHOUT its native kernel" in built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = archive.namelist()
    assert not [name for name in names if name.endswith(".so") or "/native/" in name]
    program = "import feeder.decode as d; print(d.open_decoder(1).name.split()[0], d.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        check=True,
    )
    kind, place = ran.stdout.split()
    if str(tmp_path) in place:  # an editable installation beside it takes precedence
        assert kind == "portable"
