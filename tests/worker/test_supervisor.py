"""What a service manager of systemd's kind hears of a worker process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from PIL import Image

from feeder.worker.supervisor import Supervisor

TIMEOUT_S = 60.0


def test_nothing_is_said_where_nobody_listens(tmp_path: Path) -> None:
    quiet = Supervisor({})
    quiet.ready("")
    quiet.beat()
    assert quiet.beat_s is None
    gone = Supervisor({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "3000000"})
    assert gone.beat_s == 1.5
    gone.beat()  # a manager that is gone is no reason to end


def test_a_watchdog_of_another_process_is_not_ours(tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "s"), "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}
    assert Supervisor(environ).beat_s is None
    assert Supervisor(environ | {"WATCHDOG_PID": str(os.getpid())}).beat_s == 1.5
    assert Supervisor(environ | {"WATCHDOG_PID": str(os.getpid()), "WATCHDOG_USEC": "soon"}).beat_s is None


def test_a_worker_says_ready_beats_and_says_that_it_stops(tmp_path: Path) -> None:
    images = tmp_path / "images" / "class"
    images.mkdir(parents=True)
    Image.new("RGB", (32, 32)).save(images / "one.jpg")
    name = f"@feeder-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:])
        manager.settimeout(TIMEOUT_S)
        environ = os.environ | {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "200000"}
        command = ["worker", "--dataset", f"one={images.parent}", "--listen", "127.0.0.1:0", "--drain-s", "2"]
        with subprocess.Popen(
            [sys.executable, "-m", "feeder", *command],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                first = manager.recv(4096).decode().splitlines()
                assert first[0] == "READY=1"
                assert first[1].startswith("STATUS=serving at 127.0.0.1:")
                assert [manager.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
                process.send_signal(signal.SIGTERM)
                while (last := manager.recv(4096)) == b"WATCHDOG=1":
                    pass
                assert last.decode().splitlines()[:2] == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=17000000"]
                assert process.wait(TIMEOUT_S) == 0
            finally:
                process.kill()
