"""`feeder plan` by rate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from feeder.cli import main
from feeder.records.pack import pack
from feeder.records.synth import synth

DEADLINE_S = 60.0
RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
ROWS = [f"--from={RESULTS / f'{bench}-xeon-2core.jsonl'}" for bench in ("service", "cache", "wire")]


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


def test_the_rate_of_a_pod(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rate", "1.05e6", "--hosts", "128", *ROWS, "--cores", "96", "--memory", "340"]
    assert main(["plan", *arguments]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "1,050,000 images/s of 128 hosts, 8,203 of each; each with its trainer beside it\n"
    )
    assert "1,281,167 records of 110,000 bytes (ImageNet's training set)" in text
    assert main(["plan", "input", *arguments]) == 0
    assert capsys.readouterr().out == text


def test_the_first_to_break_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--rate", "1e5", "--hosts", "10", "--remote", *ROWS]
    for more, column, breaks in (
        (["--cores", "1"], 0, "cores"),
        (["--cores", "99", "--disk", "1000"], 1, "disk"),
        (["--cores", "99", "--network", "1"], 1, "network"),
        (["--cores", "99", "--memory", "4"], 2, "memory"),
    ):
        found = plan(capsys, *shared, *more)["columns"][column]
        assert (found["breaks"], found["holds"]) == (breaks, False)
        assert main(["plan", *shared, *more]) == 0
        text = capsys.readouterr().out
        assert f"{breaks} break" in text
        assert "e+0" not in text


def test_half_the_bytes_of_yuv420(capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--rate", "1e5", "--hosts", "10", "--remote", *ROWS]
    rgb, yuv420 = (plan(capsys, *shared, "--output", output) for output in ("rgb", "yuv420"))
    assert yuv420["demand"]["image_bytes"] * 2 == rgb["demand"]["image_bytes"] == 150_528
    assert "rgb" in yuv420["costs"]["notes"][0]


def test_this_machine_measured_with_pictures_and_their_index(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDER_CACHE_BYTES", "1")  # of another worker
    synth(tmp_path / "photos", images=12, classes=2)
    packed = pack(tmp_path / "photos", tmp_path / "shards", shards=2)
    found = plan(  # CPU time comes in ticks of 10 ms, and a busy machine gives few of them
        capsys,
        *("--rate", "1000", "--seconds", "1", "--image-size", "64"),
        *("--images", str(tmp_path / "photos"), "--dataset", str(tmp_path / "shards")),
    )
    assert found["demand"]["records"] == 12
    size = sum(path.stat().st_size for path in packed.shards) / 12
    assert 0.9 * size < found["demand"]["mean_bytes"] <= size
    assert f"12 images of {tmp_path / 'photos'}" in found["costs"]["source"]
    columns = {column["column"]: column for column in found["columns"]}
    assert set(columns) == {"plain", "seek", "cached"}
    assert all(column["need"]["cores"] > 0 for column in columns.values())
    assert found["costs"]["planes_bytes"] > size


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_workers_end_with_a_plan_that_is_cut(tmp_path: Path, number: signal.Signals) -> None:
    synth(tmp_path / "photos", images=4, classes=1)
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "feeder", "plan", "--rate", "1", "--seconds", "3600"]
    process = subprocess.Popen(
        [*command, "--images", str(tmp_path / "photos")],
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while not (workers := psutil.Process(process.pid).children()):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        process.send_signal(number)
        code = process.wait(DEADLINE_S)
    _, left = psutil.wait_procs(workers, DEADLINE_S)
    assert not left
    if number != signal.SIGKILL:
        assert code == 128 + number
        assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--rate"),
        (["--hosts", "3"], "--rate"),
        (["--rate", "0"], "above 0"),
        (["--rate", "1", "--from", "a", "--images", "b"], "not allowed with"),
    ],
)
def test_what_is_wrong_is_said(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said or (not arguments and "PLAN" in said)


def test_a_file_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rate", "1", "--from", "/no/such/file"]) == 2
    assert "cannot read rows" in capsys.readouterr().err
