"""The kernel's own inverse DCT against libjpeg, by a C++ program built for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Tools of this environment first, whether or not it is activated.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def run(*command: str) -> str:
    """Runs a command and returns what it printed; a failure shows it."""
    environment = os.environ | {"PATH": PATH}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "settings",
    [["-DCMAKE_BUILD_TYPE=Release"], ["-DCMAKE_BUILD_TYPE=Debug", "-DFEEDER_SANITIZE=ON"]],
    ids=["optimised", "sanitized"],
)
def test_every_byte_is_libjpegs(tmp_path, settings):
    cmake = shutil.which("cmake", path=PATH)
    if cmake is None or not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no cmake or no C++ compiler on the PATH: check_planes cannot be built")
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=PATH) else []
    run(cmake, "-S", str(ROOT), "-B", str(tmp_path), *generator, "-DFEEDER_CHECKS=ON", *settings)
    run(cmake, "--build", str(tmp_path), "--target", "check_planes", "--parallel", "2")
    assert "images as libjpeg has them at plain" in run(str(tmp_path / "check_planes"), "1")
