"""The life of a worker process: it starts, or says in one line why not; it drains; it leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from feeder.cli import main
from feeder.decode import Kind
from feeder.wire.address import parse_listen
from feeder.wire.messages import Chunk, Draining, Opened
from feeder.worker import daemon
from feeder.worker.listen import bind, release

ROOT = Path(__file__).resolve().parents[2]


def failed_start(*arguments: str) -> str:
    """Runs a worker that must not start; returns the one line that it says."""
    done = subprocess.run(
        [sys.executable, "-m", "feeder", "worker", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_it_starts_tells_its_address_and_ends_on_a_signal(start_worker: Callable[..., Any]) -> None:
    worker = start_worker()
    assert re.fullmatch(r"feeder worker listening on 127\.0\.0\.1:\d+\n", worker.ready_line)
    assert worker.describe().threads == 2
    assert worker.stop(signal.SIGINT) == 0
    text = "\n".join(worker.log)
    assert "data set train: 24 records in 1 shard, 0 bad" in text
    assert "on 2 threads: as --threads says" in text
    assert "no streams, ending" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("kind", "name", "warned"),
    [
        ("auto", "portable (simplejpeg, Pillow)", True),
        ("portable", "portable (simplejpeg, Pillow)", False),
        ("auto", "native (avx2)", False),
    ],
)
def test_a_missing_kernel_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: Kind, name: str, warned: bool
) -> None:
    monkeypatch.setattr(daemon, "open_decoder", lambda threads, kind: SimpleNamespace(name=name))
    assert daemon._open_decoder(1, kind).name == name
    assert ("install g++ and libjpeg-dev (make system)" in caplog.text) == warned


def test_port_in_use(start_worker: Callable[..., Any], shards: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = failed_start("--dataset", f"train={shards / 'train'}", "--listen", f"127.0.0.1:{port}")
    assert line.startswith(f"feeder: error: cannot listen on 127.0.0.1:{port}: another process listens")


def test_a_port_with_a_worker_on_it_is_in_use(start_worker: Callable[..., Any], shards: Path) -> None:
    address = start_worker().address
    line = failed_start("--dataset", f"bad={shards / 'bad'}", "--listen", address)
    assert line.startswith(f"feeder: error: cannot listen on {address}: another process listens")


def test_libraries_start_no_threads_of_their_own() -> None:
    """OpenBLAS would, one for each CPU; gRPC's and Arrow's, which have names, are few."""
    script = (
        "import os, time\n"
        "from feeder.cli import main\n"
        "main(['worker', '--dataset', 'x=/nowhere', '--listen', '127.0.0.1:0'])\n"
        "assert 'numpy' in __import__('sys').modules\n"
        "for _ in range(100):\n"  # a thread of gRPC's gives itself its name, and on a busy machine late
        "    tasks = os.listdir('/proc/self/task')\n"
        "    names = [open(f'/proc/self/task/{task}/comm').read() for task in tasks]\n"
        "    if (unnamed := names.count(open('/proc/self/comm').read())) == 1:\n"
        "        break\n"
        "    time.sleep(0.05)\n"
        "print(unnamed)\n"
    )
    unset = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=unset, cwd=ROOT, capture_output=True, timeout=60
    )
    assert done.stdout == b"1\n", done.stderr


@pytest.mark.parametrize(
    ("dataset", "listen", "message"),
    [
        ("nothing-*", "127.0.0.1:0", "nothing-*"),
        ("train", "unix:/no/such/folder/s", "there is no folder /no/such/folder"),
        ("train", "192.0.2.1:0", "cannot listen on 192.0.2.1:0"),
        ("train", "a..b:0", "cannot listen on a..b:0: no such host here"),
    ],
)
def test_what_cannot_work_is_one_line(shards: Path, dataset: str, listen: str, message: str) -> None:
    line = failed_start("--dataset", f"train={shards / dataset}", "--listen", listen, "--insecure")
    assert line.startswith("feeder: error: ")
    assert message in line


def test_no_usable_record_is_one_line(shards: Path) -> None:
    arguments = ["--dataset", f"train={shards / 'train'}", "--listen", "127.0.0.1:0", "--image-key", "other"]
    line = failed_start(*arguments, "--index-dir", str(shards.parent / "indexes"))
    assert "none of its 24 records can be used" in line
    assert "'other'" in line


def test_a_cache_that_cannot_be_leaves_no_folder(shards: Path, tmp_path: Path) -> None:
    pytest.importorskip("feeder.decode._kernel", reason="the cache is the native decoder's")
    arguments = ["--cache-bytes", "4096", "--cache-dir", str(tmp_path / "a" / "cache")]
    line = failed_start("--dataset", f"t={shards / 'train'}", "--listen", "127.0.0.1:0", *arguments)
    assert line == "feeder: error: a cache must have at least 1048576 bytes, got 4096: say 64GiB, or 80%"
    assert not (tmp_path / "a").exists()


def test_drain_answers_what_is_owed(start_worker: Callable[..., Any], open_feed: Callable[..., Any]) -> None:
    worker = start_worker()
    with worker.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        feed = open_feed(channel, image_size=512)
        assert isinstance(feed.reply(), Opened)
        for number in range(100):
            feed.ask(number, range(8))
        first = feed.reply()  # requests are being worked on
        worker.process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        refused = open_feed(channel)
        with pytest.raises(grpc.RpcError, match="draining") as caught:
            refused.replies()
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        replies = [first, *feed.replies()]
    assert sum(isinstance(reply, Draining) for reply in replies) == 1
    chunks = {reply.id for reply in replies if isinstance(reply, Chunk)}
    assert chunks == set(range(100))
    code, rest = worker.wait()
    assert (code, rest) == (0, "")


def stalled(worker: Any, channel: grpc.Channel, open_feed: Callable[..., Any]) -> Any:
    """A stream that is owed more than it fetches."""
    feed = open_feed(channel, image_size=1024)
    assert isinstance(feed.reply(), Opened)
    for number in range(100):
        feed.ask(number, range(8))
    deadline_s = time.monotonic() + 30
    while worker.describe().counters.read_s == 0:  # no request has come yet
        assert time.monotonic() < deadline_s, worker.log
    return feed


def test_drain_ends_at_its_deadline(start_worker: Callable[..., Any], open_feed: Callable[..., Any]) -> None:
    worker = start_worker("--drain-s", "0.5")
    with worker.channel() as channel:
        stalled(worker, channel, open_feed)
        assert worker.stop() == 1
    assert any("the deadline passed: cutting 1 stream" in line for line in worker.log)


def test_a_second_signal_forces(
    start_worker: Callable[..., Any],
    open_feed: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker = start_worker("--drain-s", "1000")
    with worker.channel() as channel:
        stalled(worker, channel, open_feed)
        worker.process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + 30
        while not worker.describe().draining:
            assert time.monotonic() < deadline_s, worker.log
        assert main(["reload", str(worker.process.pid)]) == 2
        assert capsys.readouterr().err.endswith("settings of before: the worker ends\n")
        assert worker.stop() == 1
    assert any("SIGTERM: cutting 1 stream" in line for line in worker.log)


def test_unix_socket(
    start_worker: Callable[..., Any], shards: Path, tmp_path: Path, open_feed: Callable[..., Any]
) -> None:
    path = tmp_path / "feeder.sock"
    worker = start_worker(listen=f"unix:{path}")
    assert worker.address == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with worker.channel() as channel:
        feed = open_feed(channel)
        assert isinstance(feed.reply(), Opened)
        feed.ask(1, [0, 1])
        assert isinstance(feed.reply(), Chunk)
    second = failed_start("--dataset", f"train={shards / 'train'}", "--listen", f"unix:{path}")
    assert "a live process listens there" in second
    worker.process.kill()
    worker.wait()
    assert path.exists()  # it had no time to clean up
    after = start_worker(listen=f"unix:{path}")
    assert after.describe().max_streams == 64
    assert after.stop() == 0
    assert not path.exists()
    path.write_text("precious")
    refused = failed_start("--dataset", f"train={shards / 'train'}", "--listen", f"unix:{path}")
    assert "a file that is no socket is there" in refused
    assert path.read_text() == "precious"


def test_a_socket_file_is_left_to_who_listens_there_now(tmp_path: Path) -> None:
    """Somebody removed the file, and another worker has its own in that place."""
    address = parse_listen(f"unix:{tmp_path}/feeder.sock")
    (first,), _ = bind(address)
    os.unlink(address.path)
    (second,), _ = bind(address)
    first.close()
    release(address)
    assert os.path.exists(address.path)
    second.close()
    release(address)
    assert not os.path.exists(address.path)
    release(address)


def test_affinity_sets_the_default(shards: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "feeder", "worker", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        ["taskset", "-c", str(cpu), *command, "--dataset", f"train={shards / 'train'}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    timer = threading.Timer(60, process.kill)
    timer.start()
    assert process.stdout is not None
    process.stdout.readline()
    timer.cancel()
    timer.join()
    process.terminate()
    _, log = process.communicate(timeout=30)
    assert " on 1 thread: " in log
