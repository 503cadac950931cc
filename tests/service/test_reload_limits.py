"""Budgets and the level of the log that change under running streams: a real process, and `feeder reload`."""

from __future__ import annotations

import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

import feeder
from feeder.cache import Folder
from feeder.cli import main
from feeder.cli.status import describe
from feeder.figures import size
from feeder.wire.address import parse_address

pytest.importorskip("feeder.decode._kernel", reason="only the native decoder keeps planes")

DEADLINE_S = 60.0
RECORDS = 48
BATCH = 8
STEPS = RECORDS // BATCH
STREAM: dict[str, Any] = {
    "batch_size": BATCH,
    "image_size": 64,
    "seed": 5,
    "epochs": 8,
    "transport": "grpc",
    "prefetch_bytes": 1,
}
LARGE, SMALL = 64 << 20, 2 << 20
"""Budgets that hold all images, which take about 5 MB, and some."""


def jpeg(number: int) -> bytes:
    """A random picture of 256 x 256, a tenth of a megabyte decoded."""
    coarse = np.random.default_rng(number).integers(0, 256, (64, 64, 3), np.uint8)
    pixels = np.ascontiguousarray(coarse.repeat(4, 0).repeat(4, 1))
    return bytes(simplejpeg.encode_jpeg(pixels, quality=85, colorsubsampling="420"))


@pytest.fixture(scope="module")
def folder(make_shards: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("limits") / "shards", [jpeg(n) for n in range(RECORDS)])


class Setup:
    """A worker with a cache, and the file of its settings."""

    def __init__(self, place: Path, start: Callable[[Path], Any]) -> None:
        self._file = place / "feeder.toml"
        self.cache = place / "cache"
        self._settings = {"http": "127.0.0.1:0", "cache-dir": str(self.cache), "cache-bytes": str(LARGE)}
        self.write()
        self.worker = start(self._file)

    def write(self, **changes: str) -> None:
        """The settings of the start with changes, all of them texts."""
        settings = self._settings | {name.replace("_", "-"): value for name, value in changes.items()}
        lines = [f'{name} = "{value}"' for name, value in settings.items() if value]
        self._file.write_text("\n".join(["[worker]", *lines]))

    def reload(self, **changes: str) -> int:
        """The exit code of `feeder reload`."""
        self.write(**changes)
        return main(["reload", str(self.worker.process.pid)])

    def described(self) -> Any:
        return describe(parse_address(self.worker.address))

    def until(self, reached: Callable[[Any], object]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not reached(reply := self.described()):
            assert time.monotonic() < deadline_s, reply.cache
            time.sleep(0.05)

    def metrics(self) -> dict[str, float]:
        """Those without labels."""
        port = re.search(r"health at (http://\S+)", self.worker.log.read_text())
        assert port is not None
        with urllib.request.urlopen(f"{port[1]}/metrics", timeout=DEADLINE_S) as answer:
            found = re.findall(r"^(\w+) (\S+)$", answer.read().decode(), re.MULTILINE)
        return {name: float(value) for name, value in found}


@pytest.fixture(scope="module")
def started(folder: Path, start_workers: Any, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(
        tmp_path_factory.mktemp("started"), lambda config: start_workers(folder, "--config", str(config))
    )


@pytest.fixture
def setup(started: Setup, capsys: pytest.CaptureFixture[str]) -> Iterator[Setup]:
    """The worker that these tests share, with the settings of its start again after each."""
    yield started
    assert started.reload() == 0


@pytest.fixture(scope="module")
def expected(folder: Path, start_workers: Any, digest_batches: Any) -> list[str]:
    """Digests of the batches of a stream, by a worker that keeps nothing."""
    with feeder.connect(start_workers(folder).address) as client:
        found: list[str] = digest_batches(client.stream("data", **STREAM))
    return found


def test_budgets_change_while_an_epoch_runs(
    setup: Setup, expected: list[str], digest_batches: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """1. A stream takes an epoch, which fills the cache, and half of another; for a second one, which is
       behind, chunks are kept.
    2. Both budgets shrink: at once there is no more than they allow.
    3. After an epoch the budget of the cache grows, and the cache fills again.
    Result: all batches are those of a worker without caches."""
    with feeder.connect(setup.worker.address) as client:
        one, other = (client.stream("data", **STREAM) for _ in range(2))
        ahead, behind = iter(one), iter(other)
        found = digest_batches(islice(ahead, 1))
        found_behind = digest_batches(islice(behind, 1))
        found += digest_batches(islice(ahead, STEPS - 1))
        setup.until(lambda reply: reply.cache.filled == RECORDS and reply.cache.bytes > 2 * SMALL)
        found += digest_batches(islice(ahead, STEPS // 2))
        assert setup.described().kept_bytes

        assert setup.reload(cache_bytes=str(SMALL), share_bytes="0") == 0
        assert ": reloaded; changed: share-bytes, cache-bytes\n" in capsys.readouterr().out
        assert Folder(setup.cache).held() <= SMALL
        metrics = setup.metrics()
        assert metrics["feeder_cache_budget_bytes"] == SMALL
        assert metrics["feeder_cache_bytes"] <= SMALL
        assert metrics["feeder_kept_bytes"] == 0
        found += digest_batches(islice(ahead, STEPS))
        setup.until(lambda reply: reply.cache.full)
        assert Folder(setup.cache).used() <= SMALL

        assert setup.reload() == 0
        assert setup.metrics()["feeder_cache_budget_bytes"] == LARGE
        found += digest_batches(islice(ahead, STEPS))
        setup.until(lambda reply: reply.cache.bytes > SMALL)
        for stream, batches, iterator in ((one, found, ahead), (other, found_behind, behind)):
            batches += digest_batches(iterator)
            assert [worker.reconnects for worker in stream.stats().workers.values()] == [0]
    assert found == found_behind == expected
    log = setup.worker.log.read_text()
    assert f"cache: at most {size(SMALL)} in {setup.cache} from now on" in log
    assert "Traceback" not in log


def test_a_cache_that_warms_up_goes_on_with_it(tmp_path: Path, folder: Path, start_worker: Any) -> None:
    config = tmp_path / "feeder.toml"

    def write(nbytes: int) -> None:
        config.write_text(f"[worker]\ncache-bytes = {nbytes}\nwarm = true\n")

    write(SMALL)
    worker = start_worker(folder, "--config", str(config), "--cache-dir", str(tmp_path / "cache"))
    deadline_s = time.monotonic() + DEADLINE_S

    def until(reached: Callable[[Any], object]) -> None:
        while not reached(cache := describe(parse_address(worker.address)).cache):
            assert time.monotonic() < deadline_s, cache
            time.sleep(0.05)

    until(lambda cache: cache.full and cache.bytes)
    write(LARGE)
    assert main(["reload", str(worker.process.pid)]) == 0
    until(lambda cache: cache.filled == RECORDS)


def test_the_level_of_the_log_changes(
    setup: Setup, expected: list[str], digest_batches: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with feeder.connect(setup.worker.address) as client:
        stream = client.stream("data", **STREAM)
        batches = iter(stream)
        found = digest_batches(islice(batches, 1))
        for level, opened in (("error", 0), ("info", 1)):
            before = len(setup.worker.log.read_text())
            assert setup.reload(log_level=level) == 0
            assert ": reloaded; changed: log-level\n" in capsys.readouterr().out
            with client.stream("data", batch_size=BATCH, image_size=32) as another:
                next(another)
            log = setup.worker.log.read_text()[before:]
            assert log.count("reloaded; changed: log-level") == 1
            assert log.count(" opened: ") == opened
        found += digest_batches(batches)
    assert found == expected


WRONG = (
    ("cache_bytes", "many", "--cache-bytes: a size is bytes"),
    ("cache_bytes", "12kB", "a cache must have at least 1048576 bytes, got 12000: say"),
    ("share_bytes", "80%", "--share-bytes is a number of bytes"),
    ("log_level", "loud", "log-level must be one of debug, info, warning, error, got 'loud'"),
    ("drain_s", "-1", "--drain-s must be in"),
    ("tokens", "/nowhere/tokens", "/nowhere/tokens"),
)


@pytest.mark.parametrize(("name", "value", "reason"), WRONG)
def test_a_value_that_cannot_be_changes_nothing(
    setup: Setup, capsys: pytest.CaptureFixture[str], name: str, value: str, reason: str
) -> None:
    before = len(setup.worker.log.read_text())
    changes = {"cache_bytes": str(SMALL), "share_bytes": "0", "log_level": "error"} | {name: value}
    assert setup.reload(**changes) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"feeder: error: process {setup.worker.process.pid} goes on with the settings of")
    assert reason in said
    logged = setup.worker.log.read_text()[before:]
    assert f"reload refused, the settings of before stay: {said.partition('before: ')[2]}" in logged
    assert setup.metrics()["feeder_cache_budget_bytes"] == LARGE
    capsys.readouterr()
    assert setup.reload() == 0
    assert "changed" not in capsys.readouterr().out


def test_what_needs_a_restart_is_said_and_the_rest_taken(
    setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        "cache_bytes": str(SMALL),
        "cache_dir": str(tmp_path / "another"),
        "encoded_cache_bytes": "2MB",
        "http": "127.0.0.1:1",
        "log_format": "json",
    }
    assert setup.reload(**changes) == 0
    told = capsys.readouterr().out
    assert ": reloaded; changed: cache-bytes\n" in told
    restart = "a restart is needed for cache-dir, encoded-cache-bytes, http, log-format"
    assert f": {restart}\n" in told
    assert restart in setup.worker.log.read_text()
    assert not (tmp_path / "another").exists()
    assert setup.described().cache.budget_bytes == SMALL
    assert setup.reload(cache_bytes="", cache_dir="") == 0
    assert ": a restart is needed for cache-bytes, cache-dir\n" in capsys.readouterr().out
    assert setup.described().cache.budget_bytes == SMALL


def test_who_asks_a_worker_that_does_not_answer_is_told(
    setup: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.worker.signal(signal.SIGSTOP)
    try:
        assert main(["reload", str(setup.worker.process.pid), "--wait-s", "0.1"]) == 2
    finally:
        setup.worker.signal(signal.SIGCONT)
    assert "has not said in 0.1 s what became of it" in capsys.readouterr().err
    assert setup.reload() == 0
