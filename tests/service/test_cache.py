"""The cache of a worker: filled while it serves, found again after a crash, never seen in what it makes."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

import feeder
from feeder.cache.segment import Segment
from feeder.cli import main, status
from feeder.wire.address import parse_address

pytest.importorskip("feeder.decode._kernel", reason="only the native decoder keeps planes")

RECORDS = 96
BATCH = 12
STREAM: dict[str, Any] = {"batch_size": BATCH, "image_size": 64, "seed": 5}
BUDGET = 64 << 20
KEPT = RECORDS - 3  # neither what is damaged nor what is no JPEG


def jpeg(number: int, size: tuple[int, int] | None = None) -> bytes:
    """A random picture of some 250 pixels, a fifth of a megabyte decoded, another for each number."""
    rng = np.random.default_rng(number)
    height, width = size or (int(side) for side in rng.integers(200, 320, 2))
    coarse = rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
    pixels = np.ascontiguousarray(coarse.repeat(4, 0).repeat(4, 1)[:height, :width])
    return bytes(simplejpeg.encode_jpeg(pixels, quality=85, colorsubsampling="444" if number % 3 else "420"))


@pytest.fixture(scope="module")
def images() -> list[bytes]:
    """Two of them damaged at places that some windows see and others don't, and one that is no JPEG."""
    found = [jpeg(number) for number in range(RECORDS)]
    found[7] = found[7][: len(found[7]) * 2 // 3]
    found[30] = found[30][: len(found[30]) // 2] + b"\xff\xd9"
    out = io.BytesIO()
    Image.fromarray(np.arange(120 * 90 * 3, dtype=np.uint8).reshape(90, 120, 3)).save(out, "PNG")
    found[60] = out.getvalue()
    return found


@pytest.fixture(scope="module")
def folder(
    make_shards: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, images: list[bytes]
) -> Path:
    return make_shards(tmp_path_factory.mktemp("cached") / "data", images)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def expected(folder: Path, start_workers: Any, digest_batches: Any) -> list[list[str]]:
    """Digests of the batches of four epochs, by a worker without a cache."""
    worker = start_workers(folder)
    found = [epoch(worker, digest_batches, number) for number in range(4)]
    assert not describe(worker).HasField("cache")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    return found


def epoch(worker: Any, digest_batches: Any, number: int) -> list[str]:
    """Digests of the batches of one epoch."""
    with feeder.connect(worker.address) as client:
        with client.stream("data", **STREAM, epochs=1) as stream:
            start = dataclasses.replace(stream.position, epoch=number)
        with client.stream("data", **STREAM, epochs=number + 1, start=start) as stream:
            found: list[str] = digest_batches(stream)
    assert len(found) == RECORDS // BATCH
    return found


def describe(worker: Any) -> Any:
    return status.describe(parse_address(worker.address))


def until(worker: Any, reached: Callable[[Any], bool]) -> Any:
    """Waits for something of the worker's cache."""
    deadline_s = time.monotonic() + 60
    while not reached(info := describe(worker).cache):
        assert time.monotonic() < deadline_s, info
        time.sleep(0.1)
    return info


def filled(worker: Any, records: int) -> Any:
    return until(worker, lambda cache: cache.bytes and cache.filled >= records)


def flags(place: Path, nbytes: int = BUDGET) -> tuple[str, ...]:
    return "--cache-bytes", str(nbytes), "--cache-dir", str(place)


def used(place: Path) -> int:
    """Bytes of a folder, as `du` counts them."""
    sizes: dict[int, int] = {}
    for folder, _, names in os.walk(place):  # which takes it well that folders go meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                status = os.stat(os.path.join(folder, name))
                sizes[status.st_ino] = max(status.st_size, 512 * status.st_blocks)
    return sum(sizes.values())


@contextmanager
def watched(place: Path, budget: int) -> Iterator[None]:
    """Looks at the size of a folder all the time."""
    most, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.002):
            most[0] = max(most[0], used(place))

    watcher = threading.Thread(target=look, name="watcher")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    assert 0 < most[0] <= budget


def test_batches_are_those_without_a_cache(
    folder: Path,
    place: Path,
    start_worker: Any,
    digest_batches: Any,
    expected: list[list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker = start_worker(folder, *flags(place))
    assert epoch(worker, digest_batches, 0) == expected[0]
    filled(worker, KEPT)
    before = describe(worker)
    assert [epoch(worker, digest_batches, number) for number in (1, 2, 3)] == expected[1:]
    after = describe(worker)
    assert after.cache.hits - before.cache.hits == 3 * KEPT
    assert after.cache.misses - before.cache.misses == 3 * (RECORDS - KEPT)
    assert after.cache.filled == KEPT
    assert after.counters.bad_records > 0
    assert after.counters.bytes_read - before.counters.bytes_read < before.counters.bytes_read

    assert main(["status", worker.address, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["cache"]
    assert told["hits"] == after.cache.hits
    assert told["budget_bytes"] == BUDGET
    assert main(["status", worker.address]) == 0
    assert f"  cache     {after.cache.hits:,} hits of " in capsys.readouterr().out


def test_a_restart_serves_from_the_start(
    folder: Path, place: Path, start_worker: Any, digest_batches: Any, expected: list[list[str]]
) -> None:
    first = start_worker(folder, *flags(place), "--warm")
    filled(first, KEPT)
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert "cache: warmed up: " in first.log.read_text()
    assert sorted(path.name for path in place.iterdir() if path.suffix != ".arrow") == ["lock", "users"]
    second = start_worker(folder, *flags(place))
    until(second, lambda cache: cache.segments > 0)
    assert epoch(second, digest_batches, 2) == expected[2]
    cache = describe(second).cache
    assert (cache.hits, cache.filled) == (KEPT, 0)


def test_two_workers_share(
    folder: Path, place: Path, start_worker: Any, digest_batches: Any, expected: list[list[str]]
) -> None:
    one = start_worker(folder, *flags(place), "--warm")
    other = start_worker(folder, *flags(place), "--warm")
    until(one, lambda cache: filled(other, 0) and cache.filled + describe(other).cache.filled == KEPT)
    for worker in (one, other):
        until(worker, lambda cache: cache.bytes == used(place) // 4096 * 4096 or cache.segments >= 1)
        assert epoch(worker, digest_batches, 1) == expected[1]
    third = start_worker(folder, *flags(place))
    assert epoch(third, digest_batches, 3) == expected[3]


def test_another_budget_is_refused(folder: Path, place: Path, start_worker: Any) -> None:
    start_worker(folder, *flags(place))
    with pytest.raises(AssertionError, match=f"at most {BUDGET} bytes here, not {2 * BUDGET}"):
        start_worker(folder, *flags(place, 2 * BUDGET))


@pytest.mark.parametrize("shards", [1, 6])
def test_half_a_cache_hits_half(
    shards: int,
    make_shards: Callable[..., Path],
    tmp_path: Path,
    place: Path,
    start_worker: Any,
    digest_batches: Any,
) -> None:
    alike = [jpeg(3 * number, (256, 256)) for number in range(RECORDS)]
    folder = make_shards(tmp_path / "clean", alike, shards=shards)
    whole = start_worker(folder, *flags(place), "--warm")
    nbytes = filled(whole, RECORDS).bytes
    whole.signal(signal.SIGTERM)
    assert whole.wait() == 0

    half = tmp_path / "half"
    budget = nbytes // 2 + (256 << 10)
    with watched(half, budget):
        worker = start_worker(folder, *flags(half, budget))
        epoch(worker, digest_batches, 0)
        until(worker, lambda cache: cache.full and cache.bytes)
        for number in (1, 2, 3):
            before = describe(worker).cache
            epoch(worker, digest_batches, number)
            after = describe(worker).cache
            assert after.hits - before.hits >= 0.49 * RECORDS
    assert "the budget of " in worker.log.read_text()


def test_damage_is_found_and_made_good(
    folder: Path, place: Path, start_worker: Any, digest_batches: Any, expected: list[list[str]]
) -> None:
    first = start_worker(folder, *flags(place), "--warm")
    filled(first, KEPT)
    first.kill()
    for path in place.glob("*.arrow"):
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 16
        path.chmod(0o600)
        path.write_bytes(content)
    second = start_worker(folder, *flags(place))
    assert epoch(second, digest_batches, 0) == expected[0]
    filled(second, KEPT)
    assert epoch(second, digest_batches, 1) == expected[1]
    assert describe(second).cache.dropped >= 1
    assert "dropped: its crc32c is" in second.log.read_text()


def test_an_idle_worker_lets_go_of_what_is_dropped(
    folder: Path,
    place: Path,
    start_worker: Any,
    digest_batches: Any,
    expected: list[list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker = start_worker(folder, *flags(place), "--warm")
    filled(worker, KEPT)
    until(worker, lambda cache: cache.filled == KEPT)
    assert epoch(worker, digest_batches, 1) == expected[1]
    assert describe(worker).cache.hits == KEPT
    assert main(["cache", "drop", "--cache-dir", str(place)]) == 0
    assert capsys.readouterr().out.endswith("freed, the rest when the workers let go\n")
    deadline_s = time.monotonic() + 60
    while list(place.rglob("*.arrow")):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert main(["cache", "ls", "--cache-dir", str(place)]) == 0
    assert capsys.readouterr().out.endswith("  no segments\n")
    assert main(["cache", "drop", "--cache-dir", str(place)]) == 0
    assert capsys.readouterr().out.endswith(": 0 segments dropped, 0 B freed\n")


def kills(
    count: int,
    folder: Path,
    place: Path,
    start_worker: Any,
    digest_batches: Any,
    expected: list[list[str]],
) -> None:
    """Kills a worker at random moments of filling; what it leaves is right, or goes."""
    random.seed(count)
    with watched(place, BUDGET):
        for number in range(count):
            worker = start_worker(folder, *flags(place), "--warm")
            time.sleep(random.uniform(0, 0.6))
            worker.kill()
            for path in place.glob("*.arrow"):
                Segment(path, path.name)
            if number % 4 == 3:  # from nothing again
                assert main(["cache", "drop", "--cache-dir", str(place)]) == 0
        worker = start_worker(folder, *flags(place))
        for number in range(3):
            assert epoch(worker, digest_batches, number) == expected[number]
        filled(worker, 0)
    assert describe(worker).cache.dropped == 0
    leftovers = {path.name for path in place.iterdir() if path.suffix != ".arrow"}
    assert leftovers == {"lock", "users"}
    assert len(list((place / "users").iterdir())) == 1


def test_kills(
    folder: Path, place: Path, start_worker: Any, digest_batches: Any, expected: list[list[str]]
) -> None:
    kills(4, folder, place, start_worker, digest_batches, expected)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_fifty_kills(
    folder: Path, place: Path, start_worker: Any, digest_batches: Any, expected: list[list[str]]
) -> None:
    kills(50, folder, place, start_worker, digest_batches, expected)


def test_without_the_kernel_there_is_no_cache(folder: Path, place: Path, start_worker: Any) -> None:
    worker = start_worker(folder, *flags(place), "--decoder", "portable")
    assert not describe(worker).HasField("cache")
    assert "no cache: only the native decoder can keep planes" in worker.log.read_text()


_SMALL = """
mount -t tmpfs -o size=12m tmpfs "$1" || exit 3
shift
exec "$@"
"""


def test_a_small_file_system_is_told_and_no_more(
    make_shards: Callable[..., Path], tmp_path: Path, digest_batches: Any
) -> None:
    may = subprocess.run(["unshare", "-rm", "true"], capture_output=True)
    if may.returncode:
        pytest.skip(f"no mounts in a user namespace here: {may.stderr.decode().strip()}")
    folder = make_shards(tmp_path / "clean", [jpeg(number) for number in range(RECORDS)])
    small = tmp_path / "small"
    small.mkdir()
    worker = SmallWorker(small, tmp_path / "worker.log", folder)
    try:
        until(worker, lambda cache: cache.full and cache.bytes)
        epoch(worker, digest_batches, 0)
        assert RECORDS // 2 < describe(worker).cache.hits < RECORDS
    finally:
        worker.process.send_signal(signal.SIGTERM)
        worker.process.wait(30)
        worker.process.stdout.close()
    assert worker.process.returncode == 0
    assert "give it more room (docker run --shm-size), or keep the cache elsewhere" in worker.log.read_text()


class SmallWorker:
    """A worker in a namespace of its own, where the folder of its cache is a file system of 12 MiB."""

    def __init__(self, small: Path, log: Path, folder: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "feeder", "worker", "--dataset", f"data={folder}", "--threads", "1"]
        command += ["--listen", "127.0.0.1:0", "--warm", *flags(small / "cache", 64 << 30)]
        root = Path(feeder.__file__).resolve().parent.parent
        with open(log, "ab") as stderr:
            self.process: Any = subprocess.Popen(
                ["unshare", "-rm", "sh", "-c", _SMALL, "small", str(small), *command],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONPATH": str(root)},
            )
        line = self.process.stdout.readline()
        assert line.startswith("feeder worker listening on "), log.read_text()
        self.address = line.split()[-1]
