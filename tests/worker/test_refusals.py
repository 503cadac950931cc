"""What the log has of those who were sent away."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from feeder.worker.refusals import LOG_LINES, LOG_S, Refusals


def test_a_few_lines_for_each_reason_and_in_the_end_the_number_of_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr("feeder.worker.refusals.time", SimpleNamespace(monotonic=lambda: now.s))
    refusals = Refusals()
    for number in range(LOG_LINES + 7):
        refusals.note("no_token", f"ipv4:{number}", "it has no token")
    refusals.note("expired", "ipv4:9", "its certificate: too old")
    assert caplog.messages == [
        *(
            f"ipv4:{number}: refused, it has no token (1 since the last such line)"
            for number in range(LOG_LINES)
        ),
        "ipv4:9: refused, its certificate: too old (1 since the last such line)",
    ]
    caplog.clear()
    now.s += LOG_S
    refusals.note("no_token", "ipv4:1", "it has no token")
    assert caplog.messages == ["ipv4:1: refused, it has no token (8 since the last such line)"]
    for _ in range(LOG_LINES + 2):
        refusals.note("no_token", "ipv4:1", "it has no token")
    caplog.clear()
    refusals.log_rest()
    refusals.log_rest()
    assert caplog.messages == ["refused, no_token: 3 more since the last such line"]
    counts = refusals.counts()
    assert (counts["no_token"], counts["expired"], counts["busy"]) == (2 * LOG_LINES + 10, 1, 0)
