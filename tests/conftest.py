"""Fixtures and guards that every test shares."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parent / "odd"))

from odd_corpus import Corpus, made, read

# What a test asserts never depends on how busy the machine is.
settings.register_profile("feeder", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("feeder")

ROOT = Path(__file__).resolve().parent.parent
LEAK_DEADLINE_S = 5.0

# A shell ignores SIGINT for what it starts in the background, and so would all processes of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # so does nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Where workers make their side sockets: not where those of this user's own are, and with a short path.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="feeder-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)


def _folder(variable: str, default: str) -> Path:
    folder = Path(os.environ.get(variable, ROOT.parent / "shared" / default))
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: set {variable} to run this test")
    return folder


@pytest.fixture(scope="session")
def imagenet_sample() -> Path:
    """Folder of real ImageNet JPEGs, one file a class; the test is skipped where it is missing."""
    return _folder("FEEDER_SAMPLE", "imagenet-sample")


@pytest.fixture(scope="session")
def odd_files() -> Path:
    """Folder of crafted inputs with manifest.json; the test is skipped where it is missing."""
    return _folder("FEEDER_ODD_FILES", "odd-files")


@pytest.fixture(scope="session")
def _made_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return made(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="session", params=["made", "folder"])
def corpus(request: pytest.FixtureRequest) -> Corpus:
    """Odd and damaged inputs with what has to come of them: made by tests/odd, then those of a folder."""
    if request.param == "folder":
        return read(request.getfixturevalue("odd_files"))
    found: Corpus = request.getfixturevalue("_made_corpus")
    return found


class S3Server:
    """A process with an S3 server that can be told to answer badly (see s3_server.py)."""

    USER, SECRET = "AKIAFEEDERTEST", "very/secret+key"

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "s3_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "AWS_ACCESS_KEY_ID": "server", "AWS_SECRET_ACCESS_KEY": "server"},
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def url(self, path: str, user: str = USER, secret: str = SECRET) -> str:
        """Of an object or pattern, with everything in it that it takes to read it."""
        secret = secret.replace("/", "%2F").replace("+", "%2B")
        return f"s3://{user}:{secret}@{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def put(self, key: str, data: bytes) -> None:
        """Makes an object, and its bucket."""
        from pyarrow import fs

        store = fs.S3FileSystem(
            access_key="server",
            secret_key="server",
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        store.create_dir(key.split("/")[0])
        with store.open_output_stream(key) as out:
            out.write(data)

    def faults(self, **settings: Any) -> None:
        """What goes wrong from now on; nothing if nothing is said. Counts start anew."""
        self._ask("/-/faults", "PUT", json.dumps(settings))

    def seen(self) -> Any:
        """What was asked since."""
        return json.loads(self._ask("/-/faults", "GET"))

    def check_users(self, on: bool) -> None:
        """Whether only known users may do anything; there are none."""
        self._ask("/moto-api/reset-auth", "POST", "0" if on else "inf")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def _ask(self, path: str, method: str, body: str | None = None) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else body.encode(),
            {"Content-Type": "text/plain"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            data: bytes = answer.read()
        return data


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The server, which tests share: each has a bucket of its own."""
    pytest.importorskip("moto", reason="no S3 server here: pip install 'moto[server]'")
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def s3(s3_server: S3Server) -> Iterator[S3Server]:
    """The server in good health, also after the test."""
    s3_server.faults()
    yield s3_server
    s3_server.faults()


# One process runs a file from its start to its end: these take longest, and the suite would wait for one that
# begins late.
_BEGIN_WITH = (
    "trainer/test_train.py",
    "decode/test_checks.py",
    "deploy/test_ray.py",
    "trainer/test_mesh_run.py",
    "trainer/test_parallel.py",
    "service/test_cache.py",
    "packaging/test_wheel.py",
    "deploy/test_commands.py",
    "faults/test_schedules.py",
    "service/test_object_store.py",
    "service/test_doctor.py",
    "service/test_seek.py",
    "faults/test_workers_lost.py",
    "bench/test_experiment_wait.py",
    "bench/test_bench_service.py",
    "trainer/test_step.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the longest files to the front."""
    place = {ROOT / "tests" / name: number for number, name in enumerate(_BEGIN_WITH)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """Keeps what is there by now, libraries above all, out of the garbage collections of tests."""
    gc.collect()
    gc.freeze()


# Pools of libraries that live as long as the process; none of them is ours.
_LIBRARY_THREADS = ("ThreadPoolExecutor-", "fsspecIO", "jax", "orbax", "metadata_store", "pymp", "tqdm")


def _our_threads() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.name.startswith(_LIBRARY_THREADS)
    }


def _segments() -> set[str]:
    try:
        return {name for name in os.listdir("/dev/shm") if "feeder" in name}
    except FileNotFoundError:
        return set()


def _held_elsewhere(names: set[str]) -> set[str]:
    """Those that a process which is none of ours has mapped, or that have its number in their name: tests may
    run beside each other."""
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    others = set(psutil.pids()) - ours
    owners = {name: re.match(r"feeder-bench-(\d+)-", name) for name in names}
    held = {name for name, owner in owners.items() if owner and int(owner[1]) in others}
    for pid in others:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:  # it is gone, or another user's
            continue
        held |= {name for name in names if f"/dev/shm/{name}" in maps}
    return held


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Undoes what a `feeder worker` in this process did to logging: it would go on to write to a stderr that
    is the test's own, and closed after it."""
    root, ours = logging.getLogger(), logging.getLogger("feeder")
    handlers, levels, hook = root.handlers[:], (root.level, ours.level), threading.excepthook
    yield
    threading.excepthook = hook
    logging.captureWarnings(False)
    for handler in root.handlers[:]:
        if handler not in handlers and type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def _lives(child: psutil.Process) -> bool:
    try:
        return bool(child.is_running() and child.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it ended in between
        return False


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fails a test that leaves a thread, a child process or a shared-memory segment behind."""
    threads, segments = _our_threads(), _segments()
    children = set(psutil.Process().children(recursive=True))
    yield
    deadline = time.monotonic() + LEAK_DEADLINE_S
    while True:
        left_threads = _our_threads() - threads
        left_children = {
            child for child in set(psutil.Process().children(recursive=True)) - children if _lives(child)
        }
        left_segments = _segments() - segments
        left_segments -= _held_elsewhere(left_segments) if left_segments else set()
        if not (left_threads or left_children or left_segments):
            return
        if time.monotonic() > deadline:
            break
        gc.collect()
        time.sleep(0.02)
    pytest.fail(
        f"left behind: threads {[thread.name for thread in left_threads]}, "
        f"processes {list(left_children)}, segments {sorted(left_segments)}"
    )
