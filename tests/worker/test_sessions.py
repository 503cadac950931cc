"""Places of streams and jobs."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import grpc
import pytest

from feeder.errors import Closed, ConfigError
from feeder.spec import StreamSpec
from feeder.wire.messages import Open
from feeder.wire.status import Refusal
from feeder.worker.sessions import UNSAID_CALLS, SessionRegistry, Ticket

SPEC = StreamSpec(dataset="d", global_batch=8, lanes=4)


def opening(session: str = "s", **changes: Any) -> Open:
    values = {"job": "j", "consumer_count": 2, "spec": SPEC} | changes
    return Open(session=session, fingerprint="f", pixel_fingerprint="p", **values)


def claimed(registry: SessionRegistry, message: Open) -> Ticket:
    ticket = registry.enter()
    registry.claim(ticket, message)
    return ticket


def test_one_stream_too_many_is_refused_by_name() -> None:
    registry = SessionRegistry(2)
    first, _ = claimed(registry, opening("a", job="")), claimed(registry, opening("b", job=""))
    third = registry.enter()
    with pytest.raises(Refusal, match="stream 3 refused: --max-streams is 2") as caught:
        registry.claim(third, opening("c", job=""))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    registry.leave(first)
    registry.leave(first)
    assert registry.live == 2
    registry.claim(third, opening("c", job=""))


def test_calls_that_do_not_say_what_they_are_are_few() -> None:
    registry = SessionRegistry(2)
    first, *_ = [registry.enter() for _ in range(2 + UNSAID_CALLS)]
    with pytest.raises(Refusal, match="--max-streams is 2") as caught:
        registry.enter()
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    registry.leave(first)
    registry.enter()


def test_a_consumer_of_a_job_has_one_live_session() -> None:
    registry = SessionRegistry(9)
    first = claimed(registry, opening("a"))
    claimed(registry, opening("b", consumer_index=1))
    with pytest.raises(Refusal, match="job 'j' has a live session of consumer 0 already") as caught:
        claimed(registry, opening("c"))
    assert caught.value.code is grpc.StatusCode.ALREADY_EXISTS
    claimed(registry, opening("c", job="other"))
    registry.leave(first)
    claimed(registry, opening("c"))


def test_a_session_that_comes_again_is_no_duplicate() -> None:
    registry = SessionRegistry(9)
    first = claimed(registry, opening("a"))
    again = claimed(registry, opening("a"))
    registry.leave(first)
    with pytest.raises(Refusal):
        claimed(registry, opening("b"))
    registry.leave(again)
    claimed(registry, opening("b"))


def test_streams_without_job_are_free() -> None:
    registry = SessionRegistry(9)
    for _ in range(3):
        claimed(registry, opening("a", job=""))
        claimed(registry, opening("b", job=""))


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"spec": dataclasses.replace(SPEC, seed=3)}, "seed: 0, 3"),
        ({"consumer_count": 4}, "consumer_count: 2, 4"),
    ],
)
def test_a_job_has_one_spec(changes: dict[str, Any], difference: str) -> None:
    registry = SessionRegistry(9)
    first = claimed(registry, opening("a"))
    with pytest.raises(ConfigError, match=difference):
        claimed(registry, opening("b", consumer_index=1, **changes))
    registry.leave(first)
    claimed(registry, opening("b", consumer_index=1, **changes))


def test_draining_refuses_and_waits() -> None:
    registry = SessionRegistry(9)
    ticket = registry.enter()
    registry.drain()
    assert registry.draining
    with pytest.raises(Refusal, match="draining") as caught:
        registry.enter()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert not registry.wait_idle(0)
    leaver = threading.Thread(target=registry.leave, args=(ticket,))
    leaver.start()
    assert registry.wait_idle(30)
    leaver.join()


@pytest.mark.parametrize("job", ["", "j"])
def test_a_stream_that_ended_claims_nothing(job: str) -> None:
    registry = SessionRegistry(9)
    ticket = registry.enter()
    registry.leave(ticket)
    with pytest.raises(Closed):
        registry.claim(ticket, opening("a", job=job))
    claimed(registry, opening("b"))


@pytest.mark.parametrize(("name", "called"), [("j", "job 'j'"), ("", "session 's'")])
def test_one_stream_of_a_job_too_many_is_refused_by_name(name: str, called: str) -> None:
    registry = SessionRegistry(8, 2)
    first = claimed(registry, opening(job=name))
    claimed(registry, opening(job=name))
    text = f"stream 3 of {called} refused: --max-streams-per-job is 2"
    refused = registry.enter()
    with pytest.raises(Refusal, match=text) as caught:
        registry.claim(refused, opening(job=name))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    registry.leave(refused)
    claimed(registry, opening("t", job="other"))
    registry.leave(first)
    third = claimed(registry, opening(job=name))
    with pytest.raises(Refusal, match=text):
        registry.claim(registry.enter(), opening(job=name))
    registry.leave(third)
