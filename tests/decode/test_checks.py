"""The inner loops of every level against libjpeg and against each other, by C++ programs built for it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "feeder" / "decode" / "native"
BUILDS = ROOT / "build" / "checks"
# Tools of this environment first, whether or not it is activated.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


pytestmark = pytest.mark.timeout(700)  # two builds


def run(*command: str, given: str = "", timeout_s: float = 300) -> str:
    """Runs a command and returns what it printed; a failure shows it."""
    environment = os.environ | {"PATH": PATH}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        input=given,
        timeout=timeout_s,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(name: str, programs: Iterable[str], *options: str) -> Path:
    """The folder with these programs, which only what changed is built of anew."""
    cmake = shutil.which("cmake", path=PATH)
    if cmake is None or not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no cmake or no C++ compiler on the PATH: the checks cannot be built")
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=PATH) else []
    BUILDS.mkdir(parents=True, exist_ok=True)
    folder = BUILDS / name
    with open(BUILDS / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        cache = folder / "CMakeCache.txt"
        if cache.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text():
            shutil.rmtree(folder)  # it came here with a copy of the tree
        run(cmake, "-S", str(ROOT), "-B", str(folder), *generator, "-DFEEDER_CHECKS=ON", *options)
        run(cmake, "--build", str(folder), "--parallel", "2", "--target", *programs)
    return folder


@pytest.fixture(scope="module")
def optimised() -> Path:
    programs = ("check_planes", "check_levels")
    return build("optimised", programs, "-DCMAKE_BUILD_TYPE=Release")


@pytest.fixture(scope="module")
def sanitized() -> Path:
    """With AddressSanitizer and UndefinedBehaviorSanitizer: a finding ends a program with an error."""
    # The fewest optimisations with which they are no burden.
    options = ("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g", "-DFEEDER_SANITIZE=ON")
    programs = ("check_planes", "check_levels", "check_files")
    return build("sanitized", programs, *options)


@pytest.fixture(params=["optimised", "sanitized"])
def programs(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


def hashes(printed: str) -> dict[str, str]:
    """By level, from what check_levels printed."""
    return {name: " ".join(rest) for name, *rest in map(str.split, printed.splitlines())}


def test_every_sample_is_libjpegs(programs):
    assert "images as libjpeg has them at plain" in run(str(programs / "check_planes"), "1")


def check_files(programs: Path, files: Iterable[Path], timeout_s: float = 300) -> dict[Path, tuple[str, int]]:
    """How decoding the whole of each ended, and how many windows gave pixels."""
    given = "".join(f"{path}\n" for path in files)
    printed = run(str(programs / "check_files"), given=given, timeout_s=timeout_s).splitlines()
    lines = [line.split("\t") for line in printed]
    return {Path(path): (status, int(decoded)) for status, decoded, path in lines}


def test_every_odd_image_takes_every_way(sanitized, corpus):
    """The sanitizers find nothing, and what comes is what has to come."""
    images = corpus.of("images")
    found = check_files(sanitized, [image.path for image in images])
    assert list(found) == [image.path for image in images]
    for image in images:
        status, decoded = found[image.path]
        good = image.expect["kind"] == "decodes" and status != "other"  # which is none of the kernel's
        assert not good or (status == "ok" and decoded > 4), image.name
        assert status != "ok" or image.expect["kind"] in ("decodes", "decodes_or_clear_error"), image.name
        assert status in ("ok", "damaged", "other"), image.name
    assert sum(status == "ok" for status, _ in found.values()) > len(images) / 2


@pytest.mark.parametrize("every", [150, pytest.param(1, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_real_images_take_every_way(sanitized, imagenet_sample, every):
    files = sorted(imagenet_sample.glob("*.JPEG"))[::every]
    found = check_files(sanitized, files, timeout_s=300 if every > 1 else 3000)
    assert list(found) == files
    assert all(status == "ok" and decoded > 4 for status, decoded in found.values())


@pytest.fixture(scope="module")
def neon(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hashes by level of the other architecture; none where it cannot be had here."""
    compiler, emulator = "aarch64-linux-gnu-g++", shutil.which("qemu-aarch64-static")
    if shutil.which(compiler) is None or emulator is None:
        return {}
    sources = [NATIVE / name for name in ("sink.cpp", "weights.cpp")]
    sources += [
        ROOT / "tests/decode/check_levels.cpp",
        *NATIVE.glob("resample*.cpp"),
        *NATIVE.glob("planes_*.cpp"),
    ]
    program = str(tmp_path_factory.mktemp("neon") / "check_levels")
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
    return hashes(run(emulator, program))


def test_every_level_of_every_machine_gives_the_same_bytes(programs, neon):
    here = hashes(run(str(programs / "check_levels")))
    assert len(set(here.values())) == 1, here
    if not neon:
        pytest.skip(
            f"{', '.join(here)} are alike; no aarch64-linux-gnu-g++ and qemu-aarch64-static to run neon"
        )
    assert list(neon) == ["plain", "neon"]
    assert set(neon.values()) == set(here.values())
