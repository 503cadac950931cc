"""Bad records: each logged once, never too often, the newest kept."""

from __future__ import annotations

import logging

import pytest

from feeder.wire.messages import BadRecordInfo
from feeder.worker import quarantine
from feeder.worker.quarantine import KEPT, LOG_BURST, LOG_PERIOD_S, Quarantine


def bad(record: int, dataset: str = "d") -> BadRecordInfo:
    return BadRecordInfo(dataset, record, "shard-0", record, "crc")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, quarantine.__name__)
    return caplog


def test_each_record_is_logged_once(log: pytest.LogCaptureFixture) -> None:
    found = Quarantine(lambda: 0.0)
    for _ in range(3):
        found.add([bad(1), bad(2), bad(1, "e")])
    assert log.messages == [
        "bad record: d: shard-0: record 1: crc",
        "bad record: d: shard-0: record 2: crc",
        "bad record: e: shard-0: record 1: crc",
    ]
    assert found.newest() == [bad(1, "e"), bad(2), bad(1)]


def test_the_log_is_not_flooded(log: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    found = Quarantine(lambda: now_s)
    found.add(bad(record) for record in range(1000))
    assert len(log.messages) == LOG_BURST
    now_s = LOG_PERIOD_S
    found.add([bad(1000), bad(1001)])
    assert log.messages[LOG_BURST:] == [
        f"bad record: d: shard-0: record 1000: crc (and {1000 - LOG_BURST} more since the last line)",
        "bad record: d: shard-0: record 1001: crc",
    ]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "REMEMBERED", 500)
    found = Quarantine(lambda: 0.0)
    found.add(bad(record) for record in range(2000))
    assert found.newest() == [bad(record) for record in range(1999, 1999 - KEPT, -1)]
    assert len(found._seen) == 500
