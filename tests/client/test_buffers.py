"""Buffers as lists of events, and under every order of events that hypothesis finds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from feeder.client.buffers import MOST_RETIRED, Buffers, Write


def test_a_buffer_is_used_again_when_its_batch_is_gone() -> None:
    buffers = Buffers(1)
    assert buffers.take() == 0
    assert buffers.take() is None
    buffers.dropped(0)
    assert buffers.take() == 0


def test_a_buffer_whose_writer_did_not_answer_is_retired_until_it_does() -> None:
    buffers = Buffers(1)
    buffers.take()
    buffers.asked(7, Write("a", 0, 0))
    buffers.dropped(0)
    assert (buffers.take(), buffers.retired(), buffers.retired("a"), buffers.retired("b")) == (None, 1, 1, 0)
    assert buffers.confirmed("b", 7) is None
    assert buffers.retired() == 1
    assert buffers.confirmed("a", 7) == Write("a", 0, 0)
    assert buffers.confirmed("a", 7) is None
    assert (buffers.retired(), buffers.take()) == (0, 0)


def test_an_answer_before_the_batch_is_gone_frees_nothing() -> None:
    buffers = Buffers(1)
    buffers.take()
    buffers.asked(7, Write("a", 0, 0))
    buffers.confirmed("a", 7)
    assert buffers.take() is None
    buffers.dropped(0)
    assert buffers.take() == 0


def test_the_end_of_a_socket_confirms_all_that_its_worker_owes() -> None:
    buffers = Buffers(2)
    for number in (0, 1):
        buffers.take()
        buffers.asked(number, Write("a", number, 0))
    buffers.asked(2, Write("b", 1, 8))
    for number in (0, 1):
        buffers.dropped(number)
    assert buffers.owes("a")
    buffers.ended("a")
    assert not buffers.owes("a")
    assert (buffers.free, buffers.retired("b")) == (1, 1)


def test_no_two_workers_write_the_same_slots() -> None:
    buffers = Buffers(1)
    buffers.take()
    buffers.asked(1, Write("a", 0, 0))
    assert buffers.written(0, 0)
    assert not buffers.may_write(Write("b", 0, 0))
    assert buffers.may_write(Write("b", 0, 8))
    buffers.confirmed("a", 1)
    assert buffers.may_write(Write("b", 0, 0))


def test_a_worker_that_keeps_many_buffers_is_asked_into_none() -> None:
    buffers = Buffers(8)
    for number in range(MOST_RETIRED + 1):
        buffer = buffers.take()
        assert buffer is not None
        assert buffers.may_write(Write("a", buffer, 0))
        buffers.asked(number, Write("a", buffer, 0))
        buffers.dropped(buffer)
    buffer = buffers.take()
    assert buffer is not None
    assert not buffers.may_write(Write("a", buffer, 0))
    assert buffers.may_write(Write("b", buffer, 0))
    buffers.confirmed("a", 0)
    assert buffers.may_write(Write("a", buffer, 0))


class Machine(RuleBasedStateMachine):
    """Against a model that knows who writes where, and which batches live."""

    COUNT = 4

    def __init__(self) -> None:
        super().__init__()
        self.buffers = Buffers(self.COUNT)
        self.alive: set[int] = set()
        self.writes: dict[int, Write] = {}
        self.requests = 0

    @rule()
    def take(self) -> None:
        writing = {write.buffer for write in self.writes.values()}
        usable = set(range(self.COUNT)) - self.alive - writing
        number = self.buffers.take()
        assert (number in usable) if usable else number is None
        if number is not None:
            self.alive.add(number)

    @rule(data=st.data(), worker=st.sampled_from("ab"), slot=st.sampled_from((0, 8)))
    def ask(self, data: st.DataObject, worker: str, slot: int) -> None:
        if self.alive:
            write = Write(worker, data.draw(st.sampled_from(sorted(self.alive))), slot)
            same = any((w.buffer, w.slot) == (write.buffer, slot) for w in self.writes.values())
            assert not (same and self.buffers.may_write(write))
            if self.buffers.may_write(write):
                self.buffers.asked(self.requests, write)
                self.writes[self.requests] = write
                self.requests += 1

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.alive:
            number = data.draw(st.sampled_from(sorted(self.alive)))
            self.alive.remove(number)
            self.buffers.dropped(number)

    @rule(data=st.data(), worker=st.sampled_from("ab"))
    def answer(self, data: st.DataObject, worker: str) -> None:
        request = data.draw(st.integers(0, max(0, self.requests)))
        known = self.writes.get(request)
        mine = known is not None and known.worker == worker
        assert self.buffers.confirmed(worker, request) == (known if mine else None)
        if mine:
            del self.writes[request]

    @rule(worker=st.sampled_from("ab"))
    def end(self, worker: str) -> None:
        self.buffers.ended(worker)
        self.writes = {request: write for request, write in self.writes.items() if write.worker != worker}

    @invariant()
    def counts_agree(self) -> None:
        writing = {write.buffer for write in self.writes.values()}
        assert self.buffers.free == self.COUNT - len(self.alive | writing)
        assert self.buffers.retired() == len(writing - self.alive)
        for buffer in range(self.COUNT):
            for slot in (0, 8):
                expected = any((w.buffer, w.slot) == (buffer, slot) for w in self.writes.values())
                assert self.buffers.written(buffer, slot) == expected


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
