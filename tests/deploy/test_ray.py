"""`feeder ray` on a real Ray cluster of three nodes, all on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image
from ray_job import ARGUMENTS, digest

import feeder
from feeder.worker.access import new_token

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray here: pip install ray"),
]

HERE = Path(__file__).parent
TIMEOUT_S = 120.0
RECORDS = 120
EPOCHS = 30
MARK = "FEEDER_TEST_RAY_CLUSTER"
"""Variable that all processes of the cluster inherit."""


def wait_for(what: Callable[[], Any]) -> Any:
    """What it returns, once that is true."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (found := what()):
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.2)
    return found


class Talker:
    """A process that answers each line with a line."""

    def __init__(self, script: str, environ: dict[str, str], log: Path) -> None:
        with open(log, "wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, HERE / script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environ,
                text=True,
            )
        self.log = log

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        assert answer, self.log.read_text()[-4000:]
        return answer.strip()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Cluster:
    """The cluster, a job in it, and what is asked of both."""

    def __init__(self, folder: Path) -> None:
        self.temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short, for the names of Ray's sockets
        self.environ = os.environ | {
            MARK: self.temporary,
            "RAY_TMPDIR": self.temporary,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
        }
        self.cluster = Talker("ray_cluster.py", self.environ, folder / "cluster.log")
        self.job: Talker | None = None
        self.folder = folder

    def start(self) -> None:
        self.environ["RAY_ADDRESS"] = self.cluster.hear()
        self.job = Talker("ray_job.py", self.environ, self.folder / "job.log")

    def ask(self, line: str) -> Any:
        assert self.job is not None
        return json.loads(self.job.ask(line))

    def feeder(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "feeder", "ray", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=self.environ,
            timeout=TIMEOUT_S,
        )

    def ready(self, name: str, count: int) -> list[dict[str, Any]]:
        """The places, once so many workers are ready and no other is wanted."""

        def settled() -> list[dict[str, Any]]:
            status = self.ask(f"status {name}")
            states = [place["state"] for place in status["places"]]
            return status["places"] if states == ["ready"] * count and not status["draining"] else []

        return wait_for(settled)

    def workers(self) -> set[int]:
        """Processes that are workers, whoever started them."""
        return {process.pid for process in self.processes("-m", "feeder", "worker")}

    def processes(self, *command: str) -> list[psutil.Process]:
        """Those of the cluster whose command ends so."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                words = tuple(process.cmdline())  # of a zombie: none
                if (
                    process.environ().get(MARK) == self.temporary
                    and words[len(words) - len(command) :] == command
                ):
                    found.append(process)
        return found

    def close(self) -> None:
        if self.job is not None:
            self.job.close()
        self.cluster.close()
        for process in self.processes():
            process.kill()
        shutil.rmtree(self.temporary, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("ray"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of pictures of noise."""
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(5)
    for number in range(RECORDS):
        folder = root / f"class{number % 4}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (160, 180, 3), np.uint8)).save(folder / f"{number}.jpg")
    return root


@pytest.fixture(autouse=True)
def _no_leaks(cluster: Cluster) -> Iterator[None]:
    """In place of the guard of all tests, since the cluster's nodes come and go: no worker is left."""
    yield
    assert cluster.workers() == set()


@pytest.fixture
def name(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a deployment that ends with the test."""
    own: str = request.node.name[:40]
    yield own
    if cluster.workers():
        cluster.feeder("down", "--name", own)


def settings(data: Path, name: str, *more: str) -> list[str]:
    flags = ["--threads", "1", "--drain-s", "10", "--listen", "0.0.0.0:0", "--insecure"]
    return ["up", "--name", name, "--dataset", f"train={data}", *flags, *more]


def test_an_epoch_is_whole_while_nodes_die_and_join(cluster: Cluster, data: Path, name: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as free:
        port = free.getsockname()[1]
    # The nodes have one address here, so that workers which start at once want one port.
    done = cluster.feeder(*settings(data, name), "--listen", f"0.0.0.0:{port}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [place["restarts"] for place in cluster.ready(name, 3)] == [0, 0, 0]
    assert done.stdout.count(": ready, process ") == 3
    printed = cluster.feeder("address", "--name", name).stdout.strip().split(",")
    assert len(set(printed)) == 3
    with feeder.connect(printed[0]).stream("train", epochs=EPOCHS, **ARGUMENTS) as stream:
        undisturbed = [digest(batch) for batch in stream]

    assert cluster.ask(f"open {name} {EPOCHS} 2") == sorted(printed)
    cluster.ask("take 5")
    before = cluster.workers()
    cluster.cluster.ask("kill")
    cluster.ask("take 20")
    kept = cluster.ready(name, 2)
    wait_for(lambda: cluster.workers() == {place["pid"] for place in kept})  # the node took its worker along
    assert cluster.workers() < before

    cluster.cluster.ask("add")
    (new,) = {place["address"] for place in cluster.ready(name, 3)} - {place["address"] for place in kept}
    cluster.ask(f"until {new}")
    digests, totals = cluster.ask("rest")
    assert digests == undisturbed
    assert (totals["expected"], totals["delivered"]) == (EPOCHS * RECORDS, EPOCHS * RECORDS)
    assert (totals["lost"], totals["repeated"]) == (0, 0)

    assert cluster.feeder("down", "--name", name).returncode == 0
    assert cluster.workers() == set()


def test_who_asks_the_workers_shows_them_the_token_that_up_had(
    cluster: Cluster, data: Path, tmp_path: Path, name: str
) -> None:
    """The nodes themselves were started without one."""
    token, entry = new_token("jobs")
    for path, text in ((tmp_path / "jobs.token", token), (tmp_path / "tokens.toml", entry)):
        path.touch(0o600)
        path.write_text(text)
    flags = [flag for flag in settings(data, name, "--workers", "1") if flag != "--insecure"]
    cluster.environ["FEEDER_TOKEN_FILE"] = str(tmp_path / "jobs.token")
    try:
        done = cluster.feeder(*flags, "--tokens", str(tmp_path / "tokens.toml"))
    finally:
        del cluster.environ["FEEDER_TOKEN_FILE"]
    assert done.returncode == 0, done.stdout + done.stderr
    (place,) = cluster.ready(name, 1)  # by which it was asked once, at least
    os.kill(place["pid"], signal.SIGKILL)
    (place,) = wait_for(lambda: [one for one in cluster.ready(name, 1) if one["restarts"]])
    assert place["error"].startswith("killed by signal 9")
    assert "refused" not in place["error"]  # which ends with the last line that it logged
    assert cluster.feeder("down", "--name", name).returncode == 0


@pytest.mark.soak
def test_whoever_is_killed_takes_along_what_it_started_and_is_replaced(
    cluster: Cluster, data: Path, name: str
) -> None:
    done = cluster.feeder(*settings(data, name, "--workers", "1"))
    assert done.returncode == 0, done.stdout + done.stderr
    (worker,) = cluster.workers()

    def replaced(killed: int) -> int:
        wait_for(lambda: not psutil.pid_exists(killed))
        (place,) = wait_for(
            lambda: [place for place in cluster.ready(name, 1) if place["pid"] not in (0, killed)]
        )
        assert cluster.workers() == {place["pid"]}
        pid: int = place["pid"]
        return pid

    os.kill(worker, signal.SIGKILL)
    worker = replaced(worker)
    (place,) = cluster.ready(name, 1)
    assert place["restarts"] == 1
    assert place["error"].startswith("killed by signal 9")

    host = psutil.Process(worker).ppid()
    os.kill(host, signal.SIGKILL)
    worker = replaced(worker)

    for process in cluster.processes():
        if process.cmdline()[0].startswith("ray::Supervisor"):
            process.kill()
    wait_for(lambda: not psutil.pid_exists(worker))
    cluster.ready(name, 1)
    assert cluster.feeder("down", "--name", name).returncode == 0
    assert cluster.workers() == set()


@pytest.mark.soak
def test_demand_makes_more_workers_and_its_end_fewer(cluster: Cluster, data: Path, name: str) -> None:
    scale = ["--workers", "1-2", "--scale-out-after", "2", "--scale-in-after", "4"]
    done = cluster.feeder(*settings(data, name, *scale))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(cluster.workers()) == 1
    cluster.ask(f"open {name} 100000 16")
    cluster.ask("until_many 2")
    cluster.ready(name, 1)  # nobody takes any more
    wait_for(lambda: len(cluster.workers()) == 1)
    cluster.ask("close")
    assert cluster.feeder("down", "--name", name).returncode == 0


@pytest.mark.soak
def test_a_node_without_the_data_says_so(cluster: Cluster, tmp_path: Path, name: str) -> None:
    done = cluster.feeder(*settings(tmp_path / "none", name, "--workers", "1"))
    assert done.returncode == 1
    assert "ended with exit code 2" in done.stdout
    assert str(tmp_path / "none") in done.stdout
    assert f"`feeder ray down --name {name}` ends it" in done.stderr
    done = cluster.feeder("address", "--name", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no worker is ready" in done.stderr
    done = cluster.feeder("status", "--json", "--name", name)
    assert done.returncode == 1
    assert json.loads(done.stdout)["places"][0]["restarts"] >= 1
    assert "already" in cluster.feeder(*settings(tmp_path, name)).stderr
    assert cluster.feeder("down", "--name", name).returncode == 0
    gone = cluster.feeder("status", "--name", name)
    assert gone.returncode == 2
    assert f"no deployment '{name}'" in gone.stderr
