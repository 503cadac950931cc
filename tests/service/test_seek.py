"""Seek points of a worker: learned in its first epoch, used in the next, never seen in what it makes."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

import feeder
from feeder.cli import main
from feeder.cli.status import describe
from feeder.records.seek import HEADER_BYTES, SLOT_BYTES
from feeder.wire.address import parse_address

pytest.importorskip("feeder.decode._kernel", reason="only the native decoder has seek points")

RECORDS = 60
EPOCHS = 3
STREAM: dict[str, Any] = {"batch_size": 12, "image_size": 48, "seed": 5, "reduce": None}


def jpeg(number: int) -> bytes:
    """A random picture of some 200 pixels, another for each number."""
    rng = np.random.default_rng(number)
    height, width = (int(side) for side in rng.integers(150, 250, 2))
    coarse = rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
    pixels = np.ascontiguousarray(coarse.repeat(4, 0).repeat(4, 1)[:height, :width])
    return bytes(simplejpeg.encode_jpeg(pixels, quality=85, colorsubsampling="444" if number % 3 else "420"))


@pytest.fixture(scope="module")
def original(make_shards: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 60 records, three of them damaged."""
    images = [jpeg(number) for number in range(RECORDS)]
    images[7] = images[7][: len(images[7]) * 2 // 3]
    images[30] = images[30][: len(images[30]) // 2] + b"\xff\xd9"
    images[44] = images[44][:1500] + bytes(40) + images[44][1540:]
    return make_shards(tmp_path_factory.mktemp("original") / "data", images)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """The same shards for one test."""
    return Path(shutil.copytree(original, tmp_path / "data", ignore=shutil.ignore_patterns("*.feeder*")))


@pytest.fixture(scope="module")
def expected(original: Path, start_workers: Any, digest_batches: Any) -> list[str]:
    """Digests of the batches of three epochs, by a worker without seek points."""
    worker = start_workers(original, "--seek", "off")
    found = batches(worker, digest_batches)
    assert len(found) == EPOCHS * RECORDS // 12
    assert seek_counts(worker) == (0, 0, 0, 0, 0)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert not points_files(original)
    return found


def batches(worker: Any, digest_batches: Any, epochs: int = EPOCHS) -> list[str]:
    with feeder.connect(worker.address).stream("data", **STREAM, epochs=epochs) as stream:
        found: list[str] = digest_batches(stream)
        assert stream.ledger().totals.lost == 0
    return found


def seek_counts(worker: Any) -> tuple[int, ...]:
    """Used, learned, refused, torn, dropped."""
    counters = describe(parse_address(worker.address)).counters
    return (
        counters.seek_used,
        counters.seek_learned,
        counters.seek_refused,
        counters.seek_torn,
        counters.seek_dropped,
    )


def wait_learned(worker: Any) -> None:
    """Until the points of almost all records are on the disk, which takes a moment more than the batches."""
    deadline_s = time.monotonic() + 30
    while seek_counts(worker)[1] < RECORDS - 5:
        assert time.monotonic() < deadline_s, seek_counts(worker)
        time.sleep(0.02)


def points_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.feederseek"))


def stop(worker: Any) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_learned_in_the_first_epoch_used_in_the_second(
    folder: Path, start_worker: Any, expected: list[str], digest_batches: Any, capsys: Any
) -> None:
    worker = start_worker(folder)
    assert batches(worker, digest_batches, epochs=1) == expected[: RECORDS // 12]
    wait_learned(worker)
    used, _, *faults = seek_counts(worker)
    assert used == 0
    assert faults == [0, 0, 0]
    assert batches(worker, digest_batches) == expected
    used, _, *faults = seek_counts(worker)
    assert used >= EPOCHS * (RECORDS - 10)
    assert faults == [0, 0, 0]
    assert main(["status", worker.address]) == 0
    assert f"points used {used} times, learned " in capsys.readouterr().out
    stop(worker)
    again = start_worker(folder, "--seek", "use")
    assert batches(again, digest_batches) == expected
    used, learned, *faults = seek_counts(again)
    assert used >= EPOCHS * (RECORDS - 10)
    assert (learned, faults) == (0, [0, 0, 0])


def test_a_worker_that_is_killed_while_it_learns_leaves_nothing_wrong(
    folder: Path, start_worker: Any, expected: list[str], digest_batches: Any
) -> None:
    for _ in range(2):
        for path in points_files(folder):
            path.unlink()
        worker = start_worker(folder)
        with feeder.connect(worker.address).stream("data", **STREAM, epochs=EPOCHS) as stream:
            for _ in range(random.Random().randrange(1, 5)):
                next(stream)
            worker.kill()
        successor = start_worker(folder)
        assert batches(successor, digest_batches) == expected
        used, _, refused, torn, _ = seek_counts(successor)
        assert used > RECORDS
        assert (refused, torn) == (0, 0)
        stop(successor)


def test_two_workers_learn_into_one_folder(
    folder: Path, start_worker: Any, expected: list[str], digest_batches: Any
) -> None:
    """Each serves half of the lanes, and then everything, with what the other has learned."""
    workers = [start_worker(folder) for _ in range(2)]
    both = feeder.connect([worker.address for worker in workers])
    with both.stream("data", **STREAM, epochs=EPOCHS) as stream:
        assert digest_batches(stream) == expected
    for worker in workers:
        batches(worker, digest_batches)
        before, *_ = seek_counts(worker)
        assert batches(worker, digest_batches) == expected
        used, _, *faults = seek_counts(worker)
        assert used - before >= EPOCHS * (RECORDS - 10)
        assert faults == [0, 0, 0]


def test_damaged_files_are_noticed_and_learned_anew(
    folder: Path, start_worker: Any, expected: list[str], digest_batches: Any
) -> None:
    """One file is another shard's, one is cut, one has flipped bits."""
    assert main(["index", str(folder), "--seek"]) == 0
    first, second, third = points_files(folder)
    first.write_bytes(second.read_bytes())
    with open(second, "r+b") as file:
        file.truncate(HEADER_BYTES + 3 * SLOT_BYTES + 100)
    data = bytearray(third.read_bytes())
    for at in range(HEADER_BYTES + 60, len(data), SLOT_BYTES):
        data[at] ^= 4
    third.write_bytes(data)
    worker = start_worker(folder)
    assert batches(worker, digest_batches) == expected
    used, learned, refused, torn, dropped = seek_counts(worker)
    assert (refused, dropped) == (0, 0)
    assert torn >= RECORDS // 3 + 1  # a record may be read again before it is healed
    assert learned >= RECORDS - 10
    assert used > 0
    stop(worker)
    assert main(["index", str(folder), "--seek"]) == 0
    healed = start_worker(folder)
    assert batches(healed, digest_batches) == expected
    assert seek_counts(healed)[2:] == (0, 0, 0)


def test_index_seek_goes_on_where_it_was_killed(
    folder: Path, start_worker: Any, expected: list[str], digest_batches: Any, tmp_path: Path, capsys: Any
) -> None:
    command = [sys.executable, "-c", "from feeder.cli import main; raise SystemExit(main())", "index"]
    process = subprocess.Popen([*command, str(folder), "--seek", "--jobs", "1"], stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 60
    while not points_files(folder) and process.poll() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert main(["index", str(folder), "--seek", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["seek"]
    assert first["complete"] + first["partial"] + first["none"] + first["bad"] == RECORDS
    assert main(["index", str(folder), "--seek", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["seek"]
    assert again == first | {"learned": 0, "damaged": 0}
    worker = start_worker(folder, "--seek", "use")
    assert batches(worker, digest_batches) == expected
    assert seek_counts(worker)[0] >= EPOCHS * (RECORDS - 3)
