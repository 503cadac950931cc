"""Files and sockets that a worker may have open."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from feeder.worker.access import Access
from feeder.worker.config import WorkerConfig
from feeder.worker.descriptors import allowed, needed, take_all
from feeder.worker.doubts import doubts


@pytest.fixture
def lower_soft_limit() -> Iterator[int]:
    """The soft limit is one below the hard one."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = limits[1] - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, limits[1]))
    yield lower
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_worker_takes_all_that_it_may_have(lower_soft_limit: int) -> None:
    assert allowed() == lower_soft_limit
    take_all()
    assert allowed() == lower_soft_limit + 1


def test_too_few_for_all_streams_are_doubted_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(limit: int) -> str:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
        return "\n".join(doubts(WorkerConfig({"a": ("/b",)}, max_streams=1000), Access(None)))

    assert needed(1000) == 8512
    assert said(8512) == said(resource.RLIM_INFINITY) == ""
    assert said(8511).startswith(
        "--max-streams 1000 may take 8,512 open files and sockets, and this process "
    )
    assert "may have 8,511:" in said(8511)
