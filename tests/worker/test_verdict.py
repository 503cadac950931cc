"""What a worker tells who asked for a reload: to them alone, and of the reload that they asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import feeder
from feeder.errors import ConfigError
from feeder.worker.verdict import Asker, Verdict, telling

DEADLINE_S = 30.0
ROOT = Path(feeder.__file__).resolve().parent.parent

STRANGER = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
    connection.connect("\\0feeder-reload-" + sys.argv[1])
    connection.sendall(b'{"taken": true, "text": "all of it"}')
"""


def test_a_verdict_comes_to_who_asked() -> None:
    said = Verdict(False, "port “x”\n" * 50_000, "more")
    with Asker(os.getpid()) as asker, ThreadPoolExecutor(1) as pool:
        heard = pool.submit(asker.hear, DEADLINE_S)
        with telling() as tell:
            tell(said)
        assert heard.result() == said


def test_who_asks_later_hears_of_the_next_reload() -> None:
    with telling() as tell, Asker(os.getpid()) as asker:
        tell(Verdict(True, "what was read before"))
        with telling() as tell_next:
            tell_next(Verdict(True, "what was read since"))
        heard = asker.hear(DEADLINE_S)
        assert heard is not None
        assert heard.text == "what was read since"


def test_nobody_need_ask() -> None:
    with telling() as tell:
        tell(Verdict(True, "reloaded"))


def test_silence_has_an_end() -> None:
    with Asker(os.getpid()) as asker:
        assert asker.hear(0.05) is None
        with telling():
            assert asker.hear(0.05) is None


def test_a_process_that_ends_has_taken_nothing() -> None:
    with Asker(os.getpid()) as asker:
        with telling():
            pass
        heard = asker.hear(DEADLINE_S)
        assert heard is not None
        assert (heard.taken, heard.text) == (False, "its process has ended")


def test_one_asks_at_a_time() -> None:
    with Asker(os.getpid()), pytest.raises(ConfigError, match="another `feeder reload` waits for process"):
        Asker(os.getpid())


def test_a_stranger_is_not_heard() -> None:
    with Asker(os.getpid()) as asker:
        subprocess.run([sys.executable, "-c", STRANGER, str(os.getpid())], check=True, timeout=DEADLINE_S)
        called = threading.Event()

        def tell_late() -> None:
            with telling() as tell:
                called.wait(DEADLINE_S)
                tell(Verdict(False, "nothing"))

        with ThreadPoolExecutor(1) as pool:
            telling_late = pool.submit(tell_late)
            called.set()
            heard = asker.hear(DEADLINE_S)
            telling_late.result()
        assert heard == Verdict(False, "nothing")


def test_another_users_ear_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.worker.verdict.peer_uid", lambda connection: os.geteuid() + 1)
    with Asker(os.getpid()) as asker:
        with telling() as tell:
            tell(Verdict(True, "what is secret"))
        heard = asker.hear(DEADLINE_S)
        assert heard is not None
        assert heard.text == "its process has ended"
