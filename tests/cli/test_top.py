"""`feeder top`: one frame for scripts, the live view in a terminal, and the terminal afterwards."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from feeder.cli import main, status, top
from feeder.wire import SERVICE
from feeder.wire.address import parse_address
from feeder.wire.credentials import Credentials
from feeder.wire.v1 import feeder_pb2 as pb

pytest.importorskip("rich", reason="no rich here: pip install '.[top]'")

DEADLINE_S = 30.0
HOSTILE = "[red]job[/red]\x1b[2J"


def described() -> pb.DescribeReply:
    stream = pb.StreamInfo(job=HOSTILE, session="s", consumer_count=1, images=10)
    stream.report.steps = 3
    stream.report.step_s, stream.report.wait_s = time.monotonic(), time.monotonic() / 1000
    stream.spec.MergeFrom(pb.Spec(dataset="photos", global_batch=8, lanes=8))
    nameless = pb.StreamInfo(session="0123456789", consumer_count=1, spec=stream.spec)
    return pb.DescribeReply(
        version="1.2.3",
        worker_id="w",
        live_streams=1,
        max_streams=64,
        streams=[stream, nameless],
        uptime_s=time.monotonic(),
        stages=[pb.StageInfo(name="make", chunks=1, total_s=0.5)],
        quarantine=[pb.BadRecordInfo(dataset="photos", shard=HOSTILE, index=7, reason="empty")],
    )


@pytest.fixture
def address() -> Iterator[str]:
    """Of a service that describes itself."""
    pool = futures.ThreadPoolExecutor(2)
    server = grpc.server(pool)
    method = grpc.unary_unary_rpc_method_handler(
        lambda request, context: described(),
        request_deserializer=pb.DescribeRequest.FromString,
        response_serializer=pb.DescribeReply.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Describe": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()
    pool.shutdown()


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_one_frame_fits_and_shows_names_as_they_are(
    address: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["top", address, "--once"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= columns for line in out.splitlines())
    assert "\x1b" not in out
    shown = ["serving", "feeder 1.2.3", "make", "photos", "waits under 1 %", "under 1 % waiting", " <1 % "]
    if columns > 80:
        shown += ["[red]job[/red]", "session 01234567"]
    for text in shown:
        assert text in re.sub(r"[\s│]+", " ", out)


def test_no_columns_are_as_if_nothing_was_said_of_them(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert main(["top", address, "--once"]) == 0
    assert "serving" in capsys.readouterr().out


def test_a_worker_that_is_silent_is_named_beside_one_that_answers(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["top", f"{address},127.0.0.1:1", "--once"]) == 1
    first, *_ = out = capsys.readouterr().out.splitlines()
    assert address in first
    assert "127.0.0.1:1" in first  # side by side
    assert "serving" in "".join(out)
    assert "does not answer" in re.sub(r"[\s│]+", " ", "".join(out))


def test_without_a_terminal_it_says_what_to_do(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", address]) == 2
    assert "--once" in capsys.readouterr().err


def test_a_worker_that_is_silent_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "STATUS_TIMEOUT_S", 1000 * DEADLINE_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        worker = top._Watched(parse_address(f"127.0.0.1:{silent.getsockname()[1]}"), Credentials())
        with worker, silent.accept()[0]:
            pass
        worker._thread.join(DEADLINE_S)
        assert not worker._thread.is_alive()


@pytest.mark.parametrize("ending", ["q", "interrupt"])
def test_it_ends_when_told_and_leaves_the_terminal_as_it_was(address: str, ending: str) -> None:
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        before = termios.tcgetattr(theirs)
        process = subprocess.Popen(
            [sys.executable, "-m", "feeder", "top", address],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        try:
            shown = read_until(ours, b"serving")
            if ending == "q":
                os.write(ours, b"q")
            else:
                process.send_signal(signal.SIGINT)
            shown += read_until(ours, b"\x1b[?1049l")
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            process.wait()
        assert b"\x1b[?1049h" in shown  # on a screen of its own
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(terminal: int, wanted: bytes) -> bytes:
    seen = b""
    deadline_s = time.monotonic() + DEADLINE_S
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline_s - time.monotonic()))
        assert ready, seen
        seen += os.read(terminal, 65536)
    return seen
