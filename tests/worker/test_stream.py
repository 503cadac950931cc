"""The hand-over between a call's threads."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from feeder.errors import Closed, ProtocolError, Refused
from feeder.worker.access import Pace
from feeder.worker.pipeline import Pipeline
from feeder.worker.quarantine import Quarantine
from feeder.worker.stream import Answer, Stream


def test_answers_come_in_order_and_then_the_end() -> None:
    stream = Stream(1)
    stream.put(Answer(b"a"))
    stream.put(Answer(b"b"))
    stream.finish()
    for data in (b"a", b"b"):
        assert stream.next(lambda: False) == Answer(data)
        stream.sent()
    assert stream.next(lambda: False) is None


def test_a_finished_stream_waits_for_what_is_owed() -> None:
    stream = Stream(1)
    stream.finish()
    late = threading.Timer(0.05, stream.put, [Answer(b"late")])
    late.start()
    assert stream.next(lambda: True) == Answer(b"late")
    late.join()


def test_several_post_at_a_time_but_never_past_what_waits() -> None:
    stream, sent = Stream(1), list[bytes]()

    def post(data: bytes) -> bool:
        sent.append(data)
        return data != b"full"

    assert not stream.claim()  # nobody said how
    stream.posts(post, Pace(None))
    assert stream.claim()
    assert stream.claim()
    assert stream.unsent == 2
    stream.post(b"b")
    assert stream.claim()
    stream.post(b"full")
    assert not stream.claim()
    stream.post(b"c")
    assert sent == [b"b", b"full", b"c"]
    stream.finish()
    assert stream.next(lambda: False) == Answer(b"full")
    assert not stream.claim()  # it is not with the socket yet
    stream.sent()
    assert stream.claim()
    stream.post(b"d")
    assert stream.next(lambda: False) is None
    limited = Stream(2)
    limited.posts(post, Pace(1e9))
    assert not limited.claim()


def test_requests_that_came_during_the_wait_are_owed() -> None:
    """The end of the client's side may follow its requests before the waiting thread hears of either."""
    stream, owed = Stream(1), threading.Event()

    def client() -> None:
        owed.set()
        stream.finish()
        stream.put(Answer(b"a"))

    stream.put(Answer(b"first"))
    assert stream.next(owed.is_set) == Answer(b"first")
    thread = threading.Timer(0.05, client)
    thread.start()
    assert stream.next(owed.is_set) == Answer(b"a")
    thread.join()


def test_what_is_unsent_is_counted_until_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr("feeder.worker.stream.time", SimpleNamespace(perf_counter=lambda: now.s))
    stream = Stream(1)
    stream.put(Answer(b"a"))
    now.s += 1
    stream.put(Answer(b"b"))
    now.s += 1  # two wait
    assert (stream.unsent, stream.spent) == (2, (3.0, 0.0))
    assert stream.next(lambda: True) == Answer(b"a")
    now.s += 1  # one waits, and one is being sent
    assert (stream.unsent, stream.spent.unsent_s) == (2, 5.0)
    stream.sent()
    assert stream.next(lambda: True) == Answer(b"b")
    now.s += 1
    stream.sent()
    stream.finish()
    assert stream.next(lambda: False) is None
    now.s += 1
    assert (stream.unsent, stream.spent.unsent_s) == (0, 6.0)


def test_several_senders_get_each_answer_once_and_all_end() -> None:
    stream, owed, got = Stream(1), set(range(200)), []

    def send() -> None:
        while (answer := stream.next(lambda: bool(owed))) is not None:
            got.append(int(answer.data))
            owed.discard(int(answer.data))
            stream.sent()

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(200):
        stream.put(Answer(b"%d" % number))
    stream.finish()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(got) == list(range(200))
    assert stream.unsent == 0


def test_a_call_that_carries_answers_of_another_ends_with_it() -> None:
    first, second = Stream(1), Stream(2)
    second.opened(of=first)
    assert second.wait_opened(60) is False
    assert second.of is first
    second.close()
    with pytest.raises(Closed, match="another connection, which carried answers of this stream, ended"):
        first.next(lambda: True)


def test_a_call_that_carried_all_answers_of_another_ends_without_harm() -> None:
    first, second = Stream(1), Stream(2)
    second.opened(of=first)
    first.finish()
    assert first.next(lambda: False) is None
    second.close()
    assert first.next(lambda: False) is None


def test_none_ends_before_all_answers_are_with_the_sockets() -> None:
    stream, ended = Stream(1), threading.Event()

    def send() -> None:
        assert stream.next(lambda: False) is None
        ended.set()

    stream.put(Answer(b"large"))
    assert stream.next(lambda: True) == Answer(b"large")
    stream.finish()
    thread = threading.Thread(target=send)
    thread.start()
    assert not ended.wait(0.05)
    stream.sent()
    thread.join(60)
    assert ended.is_set()


def test_answers_that_come_after_the_end_are_not_kept() -> None:
    stream = Stream(1)
    stream.close()
    stream.put(Answer(b"late"))
    assert stream.unsent == 0
    assert stream.next(lambda: True) is None


def test_an_error_comes_before_answers() -> None:
    stream = Stream(1)
    stream.put(Answer(b"a"))
    stream.fail(Refused("first"))
    stream.fail(Refused("second"))
    with pytest.raises(Refused, match="first"):
        stream.next(lambda: True)


def test_close_ends_every_wait() -> None:
    stream = Stream(1)
    stream.put(Answer(b"dropped"))
    stream.close()
    assert stream.closed
    assert stream.next(lambda: True) is None
    with pytest.raises(Closed):
        stream.wait_opened(60)


def test_waiting_for_open() -> None:
    stream = Stream(1)
    with pytest.raises(ProtocolError, match=r"nothing came within 0\.01 s"):
        stream.wait_opened(0.01)
    opener = threading.Timer(0.01, stream.opened)
    opener.start()
    stream.wait_opened(60)
    opener.join()
    ended = Stream(2)
    ended.finish()
    with pytest.raises(ProtocolError, match="the client ended its side"):
        ended.wait_opened(60)
    refused = Stream(3)
    refused.fail(Refused("no"))
    with pytest.raises(Refused, match="no"):
        refused.wait_opened(60)


def test_a_call_that_ended_before_it_was_open_stays_ended() -> None:
    pipeline, stream, maker = Pipeline(1, 1, Quarantine()), Stream(1), Any
    try:
        stream.close()
        pipeline.open(stream, maker, "job", range(8))  # type: ignore[arg-type]  # it is not looked at
        pipeline.drain()
        assert stream.next(lambda: False) is None
    finally:
        pipeline.close()
