from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from feeder.records import claims
from feeder.records.claims import LEASE_S, Claim, Claims


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "made"


def age(target: Path, seconds: float) -> None:
    """Makes the claim look untouched for that long."""
    claim = target.with_name(".made.claim")
    now = os.stat(claim).st_mtime
    os.utime(claim, (now - seconds, now - seconds))


def test_one_holds_it_until_it_is_left(target: Path) -> None:
    mine, other = Claims(target.parent), Claims(target.parent)
    held = mine.take(target)
    assert held is not None
    with held:
        assert other.take(target) is None
        assert mine.take(target) is None
        assert other.holder(target).endswith(f":{os.getpid()}")
        assert other.take(target.with_name("another")) is not None
    assert mine.holder(target) == ""
    again = other.take(target)
    assert again is not None
    with again:
        pass
    assert [path.name for path in target.parent.iterdir()] == [".another.claim"]


@pytest.mark.parametrize("direction", [1, -1])
def test_a_claim_left_alone_for_a_lease_is_taken_over(target: Path, direction: int) -> None:
    """Or whose time is to come, which a clock that was set back leaves behind."""
    dead = Claims(target.parent).take(target)
    assert dead is not None
    age(target, 5 * direction)
    assert Claims(target.parent).take(target) is None
    age(target, (LEASE_S + 5) * direction)
    taken = Claims(target.parent).take(target)
    assert taken is not None
    with taken:
        with dead:  # it was only asleep: it leaves the other's alone
            pass
        assert Claims(target.parent).take(target) is None
    assert list(target.parent.iterdir()) == []


def test_beats_keep_it(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEATS", 1e9)
    held = Claims(target.parent).take(target)
    assert held is not None
    with held:
        age(target, LEASE_S + 5)
        held.beat()
        assert Claims(target.parent).take(target) is None


def test_the_clock_of_this_host_plays_no_part(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Claims(target.parent).take(target)
    assert held is not None
    with held:
        for wrong_s in (-1e6, 1e6):
            now_s = time.time() + wrong_s
            monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
            assert Claims(target.parent).take(target) is None


def test_of_many_at_once_one_gets_it(target: Path) -> None:
    for stale in (False, True):
        if stale:
            assert Claims(target.parent).take(target) is not None  # and it is never left
            age(target, LEASE_S + 5)
        start, taken = threading.Barrier(8), list[Claim]()

        def ask(start: threading.Barrier = start, taken: list[Claim] = taken) -> None:
            start.wait(30)
            claim = Claims(target.parent).take(target)
            if claim is not None:
                taken.append(claim)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(taken) == 1
        with taken[0]:
            pass
    assert list(target.parent.iterdir()) == []


def test_a_link_in_place_of_a_claim_is_an_error(target: Path) -> None:
    shared = Claims(target.parent)
    target.with_name(f".{target.name}.claim").symlink_to(target.with_name("missing"))
    with pytest.raises(OSError, match="symbolic link"):
        shared.take(target)


def test_all_that_a_process_holds_is_left_at_once_and_nothing_of_others(target: Path) -> None:
    mine, other = Claims(target.parent), target.with_name(".other.claim")
    other.write_bytes(b"host:1 another's")
    held = [mine.take(target), mine.take(target.with_name("second"))]
    claims.leave_all()
    assert list(target.parent.iterdir()) == [other]
    another = mine.take(target)
    assert another is not None
    for claim in held:
        assert claim is not None
        with claim:
            pass
    assert mine.take(target) is None
    with another:
        pass
