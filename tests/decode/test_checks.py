"""The inner loops of every level against libjpeg and against each other, by C++ programs built for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "feeder" / "decode" / "native"
# Tools of this environment first, whether or not it is activated.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def run(*command: str) -> str:
    """Runs a command and returns what it printed; a failure shows it."""
    environment = os.environ | {"PATH": PATH}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(
    scope="module",
    params=[["-DCMAKE_BUILD_TYPE=Release"], ["-DCMAKE_BUILD_TYPE=Debug", "-DFEEDER_SANITIZE=ON"]],
    ids=["optimised", "sanitized"],
)
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with check_planes and check_levels."""
    cmake = shutil.which("cmake", path=PATH)
    if cmake is None or not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no cmake or no C++ compiler on the PATH: the checks cannot be built")
    folder = tmp_path_factory.mktemp("checks")
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=PATH) else []
    run(cmake, "-S", str(ROOT), "-B", str(folder), *generator, "-DFEEDER_CHECKS=ON", *request.param)
    run(cmake, "--build", str(folder), "--parallel", "2")
    return folder


def hashes(printed: str) -> dict[str, str]:
    """By level, from what check_levels printed."""
    return {name: " ".join(rest) for name, *rest in map(str.split, printed.splitlines())}


def test_every_sample_is_libjpegs(programs):
    assert "images as libjpeg has them at plain" in run(str(programs / "check_planes"), "1")


def test_every_level_of_every_machine_gives_the_same_bytes(programs, tmp_path):
    here = hashes(run(str(programs / "check_levels")))
    assert len(set(here.values())) == 1, here
    compiler, emulator = "aarch64-linux-gnu-g++", shutil.which("qemu-aarch64-static")
    if shutil.which(compiler) is None or emulator is None:
        pytest.skip(f"{', '.join(here)} are alike; no {compiler} and qemu-aarch64-static to run neon")
    sources = [NATIVE / name for name in ("sink.cpp", "weights.cpp")]
    sources += [
        ROOT / "tests/decode/check_levels.cpp",
        *NATIVE.glob("resample*.cpp"),
        *NATIVE.glob("planes_*.cpp"),
    ]
    program = str(tmp_path / "check_levels")
    options = [
        "-std=c++17",
        "-O3",
        "-ffp-contract=off",
        "-static",
        "-Wall",
        "-Wextra",
        "-Wconversion",
        "-Werror",
    ]
    run(compiler, *options, f"-I{NATIVE}", *map(str, sources), "-o", program)
    there = hashes(run(emulator, program))
    assert list(there) == ["plain", "neon"]
    assert set(there.values()) == set(here.values())
