"""What signals do to a worker's process, at each time of its life."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.worker.signals import RELOAD, Inbox, ended_at_once, hang_ups_noted
from feeder.worker.supervisor import Supervisor


@pytest.fixture
def ended() -> Iterator[list[int]]:
    """SIGHUPs that would have ended the process."""
    got: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: got.append(number))
    try:
        yield got
    finally:
        signal.signal(signal.SIGHUP, before)


def test_no_hang_up_ends_a_worker_that_starts_serves_or_ends(ended: list[int]) -> None:
    with hang_ups_noted() as noted:
        with ended_at_once():
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert noted == [signal.SIGHUP] * 2
        with Inbox(Supervisor()) as inbox:
            signal.raise_signal(signal.SIGHUP)
            assert inbox.get(30.0) == RELOAD
            assert inbox.get(0.0) is None
        signal.raise_signal(signal.SIGHUP)
    assert ended == []
    signal.raise_signal(signal.SIGHUP)
    assert ended == [signal.SIGHUP]


def test_a_hang_up_that_was_blocked_is_noted(ended: list[int]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        signal.raise_signal(signal.SIGHUP)
        with hang_ups_noted() as noted:
            assert noted == [signal.SIGHUP]
            assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    assert ended == []


def test_who_supervises_hears_from_it_however_often_signals_come(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30.0)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": str(3600 * 10**6)}
        with Inbox(Supervisor(environ)) as inbox:
            inbox.post(signal.SIGHUP)
            assert inbox.get() == RELOAD
        assert manager.recv(100) == b"WATCHDOG=1"
