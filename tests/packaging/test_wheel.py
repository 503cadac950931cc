"""What `pip install .` gives, with and without what the native kernel needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from feeder.records import RecordKeys
from feeder.records.example import encode_example
from feeder.records.formats import build_index
from feeder.records.tfrecord import frame

ROOT = Path(__file__).resolve().parents[2]
BUILD_INPUTS = ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "NOTICE", "feeder", "protos")


def _sources(folder: Path) -> Path:
    """A copy of what is built, without environments and what was built before."""
    source = folder / "source"
    source.mkdir()
    for name in BUILD_INPUTS:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(path, source / name)
    return source


def _build(folder: Path, **environment: str) -> tuple[Path, str]:
    """Builds a wheel from a copy of the sources; returns it and what the build printed."""
    source = _sources(folder)
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


def _index_a_shard(folder: Path, site: Path) -> str:
    """Whether the wheel builds an index natively; it is the one of here either way."""
    shard = folder / "shard"
    payloads = [
        encode_example({"image/encoded": b"J" * size, "image/class/label": 1}) for size in (9, 70_000, 5)
    ]
    shard.write_bytes(
        b"".join(header + one + footer for one in payloads for header, footer, _ in [frame(one)])
    )
    code = "from feeder.records import RecordKeys, scan\nfrom feeder.records.formats import build_index\n"
    code += (
        f"import pathlib; print(scan.NATIVE, build_index(pathlib.Path({str(shard)!r}), RecordKeys()).content)"
    )
    native, content = _run(site, code).split()
    assert content == build_index(shard, RecordKeys()).content
    return native


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
    assert _index_a_shard(tmp_path, site) == "False"


@pytest.mark.timeout(400)
def test_a_client_imports_nothing_that_reads_or_decodes(tmp_path: Path) -> None:
    # Compiled without optimisation, which is faster: here it counts what is in the wheel.
    wheel, printed = _build(
        tmp_path, SKBUILD_CMAKE_BUILD_TYPE="Debug", CMAKE_ARGS="-DCMAKE_CXX_FLAGS_DEBUG=-O0"
    )
    assert "WITHOUT its native kernel" not in printed
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    for module in ("feeder/decode/_kernel", "feeder/records/_frames"):
        assert any(name.startswith(module) and name.endswith(".so") for name in names)
    assert not [name for name in names if "/native/" in name]
    assert _index_a_shard(tmp_path, site) == "True"
    assert "feeder/py.typed" in names
    assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in names if "/licenses/" in name}
    assert {f"feeder/worker/page/{name}" for name in ("index.html", "page.css", "page.js")} <= set(names)
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

    # As on a machine that has Python and nothing else: no compiler, no index, and what feeder wants is there.
    venv = tmp_path / "venv"
    bare = {"PATH": str(venv / "bin"), "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True, env=bare)
    (own,) = venv.glob("lib/python*/site-packages")
    (own / "others.pth").write_text(f"{sysconfig.get_path('platlib')}\n{sysconfig.get_path('purelib')}\n")
    said = subprocess.run(
        [str(venv / "bin" / "feeder"), "--version"], check=True, env=bare, capture_output=True, text=True
    ).stdout
    assert re.fullmatch(r"feeder \d+\.\d+\.\d+, native kernel \(\w+\)\n", said)


@pytest.mark.timeout(400)
def test_the_source_distribution_has_what_a_build_needs(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--sdist",
            "--no-isolation",
            "--outdir",
            tmp_path,
            _sources(tmp_path),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (archive,) = tmp_path.glob("feeder-*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files", *BUILD_INPUTS], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    assert {name for name in tracked if "/fuzz/corpus/" not in name} <= names
