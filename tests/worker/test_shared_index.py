"""Workers that start together without an index, and share the making of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from feeder.records.sidecar import index_path

ROOT = Path(__file__).resolve().parents[2]
SHARDS = 12
DEADLINE_S = 90.0

# It has one thread, and waits before the shard after the first LIMIT ones until GO is there.
WORKER = """
import os, sys, time
limit, lease_s, go, *arguments = sys.argv[1:]
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from feeder.records import build, claims
claims.LEASE_S = float(lease_s)
real, done = build.build_index, []
def held(shard, *rest, **named):
    while len(done) >= int(limit) and not os.path.exists(go):
        time.sleep(0.01)
    done.append(shard)
    return real(shard, *rest, **named)
build.build_index = held
from feeder.cli import main
raise SystemExit(main(["worker", "--listen", "127.0.0.1:0", *arguments]))
"""

# A process of root that may not write where its folders' modes forbid it.
WITHOUT_CAPABILITY = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "feeder", "worker", "--listen", "127.0.0.1:0", *sys.argv[1:]])
"""


class Started:
    """A worker that starts; its log is read as it comes."""

    def __init__(self, program: str, arguments: Sequence[str]) -> None:
        self.log = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def built(self) -> int:
        """How many indexes it says that it has built."""
        found = re.search(r"indexing: done in .* s, (\d+) of \d+ shards here", self.log)
        return int(found[1]) if found else 0

    @property
    def fingerprint(self) -> str:
        found = re.search(r"fingerprint (\w+)", self.log)
        return found[1] if found else ""

    def serves(self) -> bool:
        assert self.process.poll() is None, self.log
        return "listening on" in self.log

    def wait(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(DEADLINE_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.log += line


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def start(*arguments: str | Path, program: str = WORKER) -> Started:
        started.append(Started(program, [str(argument) for argument in arguments]))
        return started[-1]

    yield start
    for worker in started:
        worker.end()


@pytest.fixture
def data(tmp_path: Path, shards: Path) -> Path:
    """A folder of 12 shards that have no index."""
    whole = (shards / "train" / "part-00000-of-00001").read_bytes()
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(SHARDS):
        (folder / f"train-{number:05d}-of-{SHARDS:05d}").write_bytes(whole)
    return folder


def until(reached: Callable[[], Any], *workers: Started) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline_s, [worker.log for worker in workers]
        time.sleep(0.02)


def test_three_split_the_shards(start: Callable[..., Started], data: Path, tmp_path: Path) -> None:
    indexes, go = tmp_path / "indexes", tmp_path / "go"
    workers = [start(0, 600, go, "--dataset", f"train={data}", "--index-dir", indexes) for _ in range(3)]
    until(lambda: len(list(indexes.glob(".*.claim"))) == 3, *workers)  # each is at a shard of its own
    go.touch()
    until(lambda: all(worker.serves() for worker in workers), *workers)
    assert sum(worker.built for worker in workers) == SHARDS
    assert all(worker.built >= 1 for worker in workers)
    assert len({worker.fingerprint for worker in workers}) == 1
    assert {path.name for path in indexes.glob("*.feederidx")} == {
        index_path(shard, indexes).name for shard in data.iterdir()
    }
    assert not list(indexes.glob(".*"))  # claims and half-written files are gone


def test_what_a_killed_worker_had_claimed_is_taken_over(
    start: Callable[..., Started], data: Path, tmp_path: Path
) -> None:
    indexes, go = tmp_path / "indexes", tmp_path / "go"
    arguments = ["--dataset", f"train={data}", "--index-dir", str(indexes)]
    victim = start(2, 5, go, *arguments)
    until(lambda: list(indexes.glob(".*.claim")) and len(list(indexes.glob("*.feederidx"))) == 2, victim)
    victim.process.send_signal(signal.SIGKILL)
    victim.wait()
    others = [start(SHARDS, 5, go, *arguments) for _ in range(2)]
    until(lambda: all(worker.serves() for worker in others), *others)
    assert sum(worker.built for worker in others) >= SHARDS - 2
    assert len({worker.fingerprint for worker in others}) == 1
    assert len(list(indexes.glob("*.feederidx"))) == SHARDS


def test_what_a_worker_had_claimed_that_is_told_to_end_is_free_at_once(
    start: Callable[..., Started], data: Path, tmp_path: Path
) -> None:
    indexes, go = tmp_path / "indexes", tmp_path / "go"
    arguments = ["--dataset", f"train={data}", "--index-dir", str(indexes)]
    ended = start(2, 600, go, *arguments)
    until(lambda: list(indexes.glob(".*.claim")) and len(list(indexes.glob("*.feederidx"))) == 2, ended)
    ended.process.send_signal(signal.SIGTERM)
    assert ended.wait() == -signal.SIGTERM
    assert list(indexes.glob(".*.claim")) == []
    other = start(SHARDS, 600, go, *arguments)
    until(other.serves, other)
    assert other.built == SHARDS - 2


def test_a_shard_that_cannot_be_indexed_ends_all(
    start: Callable[..., Started], data: Path, tmp_path: Path
) -> None:
    broken = data / f"train-00007-of-{SHARDS:05d}"
    broken.write_bytes(b"PAR1" + bytes(2000))  # the start of a Parquet file
    go = tmp_path / "go"
    workers = [
        start(0, 600, go, "--dataset", f"train={data}", "--index-dir", tmp_path / "indexes") for _ in range(2)
    ]
    go.touch()
    for worker in workers:
        assert worker.wait() == 2
        (line,) = [line for line in worker.log.splitlines() if line.startswith("feeder: error: ")]
        assert str(broken) in line


def test_nowhere_to_keep_an_index_is_one_line(start: Callable[..., Started], data: Path) -> None:
    data.chmod(0o555)
    try:
        worker = start("--dataset", f"train={data}", program=WITHOUT_CAPABILITY)
        assert worker.wait() == 2
    finally:
        data.chmod(0o755)
    (line,) = [line for line in worker.log.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert line.startswith(f"feeder: error: {data}: there are shards without an index")
    assert "run `feeder index`" in line
    assert "--index-dir" in line
    assert sorted(os.listdir(data)) == [f"train-{number:05d}-of-{SHARDS:05d}" for number in range(SHARDS)]
