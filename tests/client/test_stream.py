"""Streams over scripted workers: what a user sees when workers answer, refuse, disagree, fail or vanish."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import logging
import pickle
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

import feeder
from feeder.client import engine, trouble
from feeder.errors import (
    BadRecord,
    Closed,
    ConfigError,
    PositionMismatch,
    ProtocolError,
    Refused,
    StorageError,
    WorkersDisagree,
    WorkerUnavailable,
)
from feeder.order import Order
from feeder.wire.codec import encode_reply
from feeder.wire.messages import BadRecordInfo, ChunkRequest, Draining, Failed, FailureKind

RECORDS = 40
TINY: dict[str, Any] = {"batch_size": 8, "image_size": 4}
Make = Callable[..., Any]


def records_of(batch: feeder.Batch) -> list[int]:
    """What a scripted worker put into each slot; -1 for padding."""
    assert (batch.images == batch.images[:, :1, :1, :1]).all()
    return [int(value) - 1 for value in batch.images[:, 0, 0, 0]]


def until(stream: feeder.Stream, condition: Callable[[], bool]) -> None:
    """Takes batches, all of them right, until something is true."""
    while not condition():
        at = stream.position
        assert records_of(next(stream)) == expected(stream, at.epoch, at.taken, range(8))


def expected(stream: feeder.Stream, epoch: int, taken: int, slots: range) -> list[int]:
    spec = stream.position.spec
    return Order(spec, RECORDS).records(epoch, taken, np.arange(slots.start, slots.stop)).tolist()


def test_batches_hold_what_the_order_says(scripted: Make) -> None:
    a, b = scripted(), scripted()
    with feeder.connect([a.address, b.address]).stream("data", **TINY, epochs=2) as stream:
        assert len(stream) == 10
        for number, batch in enumerate(stream):
            epoch, step = divmod(number, 5)
            records = expected(stream, epoch, step * stream.position.spec.per_lane, range(8))
            assert records_of(batch) == records
            assert batch.labels.tolist() == [record % 10 for record in records]
            assert batch.mask.all()
            assert (batch.images.dtype, batch.labels.dtype, batch.mask.dtype) == (np.uint8, np.int32, bool)
            assert batch.images.flags.owndata
            assert batch.images.flags.writeable
        assert number == 9
        with pytest.raises(StopIteration):
            next(stream)
        totals = stream.ledger().totals
        assert (totals.expected, totals.delivered, totals.lost, totals.repeated) == (80, 80, 0, 0)
        assert [epoch for epoch, _ in stream.ledger().finished] == [0, 1]


def test_all_workers_are_asked(scripted: Make) -> None:
    workers = [scripted() for _ in range(3)]
    with feeder.connect([worker.address for worker in workers]).stream("data", **TINY) as stream:
        until(stream, lambda: all(worker.asked for worker in workers))


def test_what_can_be_pickled_and_copied(scripted: Make) -> None:
    client = feeder.connect(scripted().address)
    with client.stream("data", **TINY) as stream:
        batch = next(stream)
        ledger = pickle.loads(pickle.dumps(stream.ledger()))
        assert repr(ledger) == repr(stream.ledger())
        assert pickle.loads(pickle.dumps(batch)).position == batch.position
        for one, reason in ((client, "call feeder.connect where it is used"), (stream, "with start= the")):
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=reason):
                    copied(one)
        assert next(stream).mask.all()


def test_a_name_of_a_job_has_an_end(scripted: Make) -> None:
    with pytest.raises(ConfigError, match="job has at most 256 characters, got 'xxx"):
        feeder.connect(scripted().address).stream("data", **TINY, job="x" * 257)


def test_an_endless_stream_has_no_length(scripted: Make) -> None:
    with feeder.connect(scripted().address) as client:
        with pytest.raises(TypeError, match="endless"):
            len(client.stream("data", **TINY))
        assert len(client.stream("data", **TINY, augment="eval")) == 5
        assert len(client.stream("data", batch_size=7, image_size=4, augment="eval")) == 6
        assert len(client.stream("data", batch_size=7, image_size=4, epochs=3)) == 15


def test_evaluation_pads_and_masks(scripted: Make) -> None:
    client = feeder.connect(scripted().address)
    seen: list[int] = []
    for consumer in range(3):
        with client.stream(
            "data", batch_size=3, image_size=4, augment="eval", consumer_index=consumer, consumer_count=3
        ) as stream:
            batches = list(stream)
        assert len(batches) == 5
        for batch in batches:
            records = np.array(records_of(batch))
            assert ((records >= 0) == batch.mask).all()
            assert (batch.labels[~batch.mask] == -1).all()
            seen += records[batch.mask].tolist()
    assert sorted(seen) == list(range(RECORDS))


def test_a_position_counts_what_was_handed_out(scripted: Make) -> None:
    client = feeder.connect(scripted().address)
    with client.stream("data", **TINY, epochs=2) as stream:
        all_records = [records_of(batch) for batch in stream]
    with client.stream("data", **TINY, epochs=2) as stream:
        for _ in range(3):
            batch = next(stream)
        assert batch.position == stream.position
        saved = stream.state_dict()
    with client.stream("data", **TINY, epochs=2, start=saved) as stream:
        assert len(stream) == 7
        assert [records_of(batch) for batch in stream] == all_records[3:]
    with client.stream("data", **TINY, epochs=2) as stream:
        for _ in range(6):
            next(stream)
        stream.load_state_dict(saved)
        assert stream.stats().batches == 0
        assert [records_of(batch) for batch in stream] == all_records[3:]


def test_a_position_of_another_stream_is_refused(scripted: Make) -> None:
    client = feeder.connect(scripted().address)
    saved = client.stream("data", **TINY).state_dict()
    with pytest.raises(PositionMismatch, match="seed: 0, 5"):
        client.stream("data", **TINY, seed=5, start=saved)
    with pytest.raises(PositionMismatch, match="global_batch"):
        client.stream("data", batch_size=4, image_size=4, start=saved)
    with pytest.raises(PositionMismatch, match="seed"):
        client.stream("data", **TINY, seed=5).load_state_dict(saved)
    other = feeder.connect(scripted(fingerprint="f2").address)
    with pytest.raises(PositionMismatch, match="fingerprint"):
        other.stream("data", **TINY, start=saved)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"consumer_index": 2, "consumer_count": 2}, r"consumer_index must be in \[0, 2\), got 2"),
        ({"epochs": 0}, "epochs"),
        ({"transport": "pigeon"}, "unknown"),
        ({"prefetch_bytes": 0}, "prefetch_bytes"),
        ({"stall_timeout_s": 0}, "stall_timeout_s"),
        ({"stall_timeout_s": float("inf")}, "stall_timeout_s .* got inf"),
        ({"stall_timeout_s": 1e10}, "stall_timeout_s"),
        ({"stall_timeout_s": None}, "stall_timeout_s .* got None"),
        ({"batch_size": 8.0}, "batch_size must be an integer, got 8.0"),
        ({"batch_size": None}, "batch_size must be an integer, got None"),
        ({"batch_size": 2**20 + 1}, "global batch must be in"),
        ({"batch_size": 2**20, "image_size": 224}, "has 147.0 GiB, at most 16 are possible"),
        ({"seed": "1"}, "seed must be an integer, got '1'"),
        ({"epochs": True}, "epochs must be an integer, got True"),
        ({"image_size": "4"}, "image_size"),
        ({"reduce": 2.5}, "reduce must be an integer"),
        ({"shuffle": 1}, "shuffle must be True or False, got 1"),
        ({"antialias": "no"}, "antialias"),
        ({"augment": ["train"]}, "augment must be text"),
        ({"job": 3}, "job must be text, got 3"),
        ({"job": "\ud800"}, "job must be text"),
        ({"transport": None}, "transport must be text"),
        ({"start": 3}, "start must be a position"),
        ({"batch_size": 41}, "do not fill one global batch"),
        ({"sampler": "dice"}, "sampler"),
        ({"start": {}}, "position"),
    ],
)
def test_wrong_arguments_say_what_came(scripted: Make, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        feeder.connect(scripted().address).stream("data", **{**TINY, **arguments})


def test_numpy_integers_are_integers(scripted: Make) -> None:
    arguments: dict[str, Any] = {
        "batch_size": np.int64(8),
        "image_size": np.uint8(4),
        "seed": np.int32(3),
        "epochs": np.int16(1),
    }
    with feeder.connect(scripted().address).stream("data", **arguments) as stream:
        assert len(list(stream)) == 5
        assert json.loads(json.dumps(stream.state_dict()))["spec"]["seed"] == 3


@pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), 0, -1, None, "1", 1e10])
def test_a_timeout_is_a_time_span(timeout_s: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s must be more than 0"):
        feeder.connect("127.0.0.1:1", timeout_s=timeout_s)


def test_a_data_set_that_nobody_serves(scripted: Make) -> None:
    with pytest.raises(Refused, match=r"no worker serves 'other'; .* serves data"):
        feeder.connect(scripted().address).stream("other", **TINY)


def test_no_worker_at_all() -> None:
    with pytest.raises(
        WorkerUnavailable, match=r"no worker answered within 0.5 s: .*127.0.0.1:9 .*start one"
    ):
        feeder.connect("127.0.0.1:9", timeout_s=0.5)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_thousand_tries_at_a_closed_port_leave_nothing() -> None:
    with socket.socket() as closed:  # bound and never listening: nobody else takes the port meanwhile
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        process = psutil.Process()

        def tries(count: int) -> tuple[int, int, int]:
            for _ in range(count):
                with pytest.raises(WorkerUnavailable):
                    feeder.connect(address, timeout_s=0.05)
            return process.num_fds(), process.num_threads(), process.memory_info().rss

        fds, threads, rss = tries(100)
        fds_after, threads_after, rss_after = tries(1000)
    assert fds_after <= fds + 8
    assert threads_after <= threads + 16  # gRPC's pool of native threads breathes
    assert rss_after <= rss + (32 << 20)


def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(WorkerUnavailable, match="does not resolve"):
        feeder.connect("dns:no-such-host.invalid:1", timeout_s=0.5)


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_a_name_that_cannot_be(host: str) -> None:
    with pytest.raises(WorkerUnavailable, match="does not resolve"):
        feeder.connect(f"dns:{host}:1", timeout_s=1)


def test_an_interrupt_ends_connect_and_what_it_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing

        def interrupt() -> None:
            while "feeder-describe" not in {thread.name for thread in threading.enumerate()}:
                time.sleep(0.01)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            feeder.connect(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=100)
        thread.join()


def test_a_dns_name_stands_for_its_addresses(scripted: Make) -> None:
    port = scripted().address.rpartition(":")[2]
    client = feeder.connect(f"dns:localhost:{port}")
    assert f"127.0.0.1:{port}" in client.workers


def test_a_worker_that_does_not_answer_is_left_out_and_joins_later(
    scripted: Make, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = scripted(), scripted()
    b.stop()
    with caplog.at_level(logging.WARNING):
        client = feeder.connect([a.address, b.address], timeout_s=5)
        assert f"worker {b.address} does not answer (connection refused); not there yet" in caplog.text
        with client.stream("data", **TINY) as stream:
            next(stream)
            b.restart()
            until(stream, lambda: stream.stats().workers[b.address].images > 0)
    assert caplog.text.count(b.address) == 2  # it is named once, and when it comes
    assert f"worker {b.address} is there now" in caplog.text


def test_a_worker_that_is_lost_and_comes_back_is_named_twice(
    scripted: Make, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = scripted(), scripted()
    with (
        caplog.at_level(logging.WARNING),
        feeder.connect([a.address, b.address]).stream("data", **TINY) as stream,
    ):
        until(stream, lambda: stream.stats().workers[b.address].images > 0)
        b.stop()
        until(stream, lambda: "connection refused" in stream.stats().workers[b.address].error)
        b.restart()
        until(stream, lambda: stream.stats().workers[b.address].reconnects == 1)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.startswith(f"worker {b.address}") for line in lines] == [True, True]
    assert lines[0].endswith("; keeps trying")
    assert lines[1] == f"worker {b.address} is back"


@pytest.mark.parametrize("ends", [True, False])
def test_workers_of_a_stream_that_is_over_are_closed(scripted: Make, ends: bool) -> None:
    a, b = scripted(), scripted()
    b.stop()
    stream = feeder.connect([a.address, b.address]).stream("data", **TINY, epochs=1 if ends else None)
    next(stream)
    if ends:
        assert len(list(stream)) == 4
    else:
        stream.close()
    stats = stream.stats().workers
    assert (stats[a.address].state, stats[a.address].error) == ("closed", "")
    assert (stats[b.address].state, bool(stats[b.address].error)) == ("down", True)


def test_workers_with_other_data_or_pixels_are_refused(scripted: Make) -> None:
    a, b, c = scripted(), scripted(fingerprint="f2"), scripted(pixels="p2")
    with pytest.raises(WorkersDisagree, match=f"{a.address}.* f1, {b.address}.* f2"):
        feeder.connect([a.address, b.address]).stream("data", **TINY)
    with pytest.raises(WorkersDisagree, match=f"{a.address}.* p1, {c.address}.* p2"):
        feeder.connect([a.address, c.address]).stream("data", **TINY)


def test_a_worker_that_comes_back_with_other_data_is_left_out(scripted: Make) -> None:
    a, b = scripted(), scripted()
    with feeder.connect([a.address, b.address]).stream("data", **TINY) as stream:
        next(stream)
        b.stop()
        b._fingerprint = "f2"
        b.restart()
        until(stream, lambda: "different data" in stream.stats().workers[b.address].error)
        assert stream.stats().workers[b.address].state == "down"


def test_if_all_workers_come_back_with_other_data_the_stream_says_so(
    scripted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble, "REFUSAL_GRACE_S", 0.2)
    a = scripted()
    with feeder.connect(a.address).stream("data", **TINY) as stream:
        next(stream)
        a.stop()
        a._fingerprint = "f2"
        a.restart()
        with pytest.raises(WorkersDisagree, match="f2"):
            for _ in stream:
                pass


def test_a_refusal_is_the_streams_error(scripted: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "REFUSAL_GRACE_S", 0.2)
    a, b = scripted(), scripted()
    a.refuse = b.refuse = (grpc.StatusCode.RESOURCE_EXHAUSTED, "--max-streams allows no more")
    client = feeder.connect([a.address, b.address])
    with client.stream("data", **TINY) as stream, pytest.raises(Refused, match="--max-streams"):
        next(stream)
    b.refuse = None  # one is enough
    with client.stream("data", **TINY) as stream:
        next(stream)
    b.refuse = (grpc.StatusCode.ALREADY_EXISTS, "job x, consumer 0 is live")
    a.refuse = None  # but a duplicate is one, whoever notices it
    with client.stream("data", **TINY, job="x") as stream, pytest.raises(Refused, match="consumer 0 is live"):
        for _ in stream:
            pass


def test_a_refusal_that_passes_is_waited_for(scripted: Make) -> None:
    a = scripted()
    a.refuse = (grpc.StatusCode.ALREADY_EXISTS, "job x, consumer 0 is live")
    timer = threading.Timer(0.5, lambda: setattr(a, "refuse", None))
    timer.start()
    with feeder.connect(a.address).stream("data", **TINY, job="x") as stream:
        next(stream)
    timer.join()


def failing(kind: FailureKind, message: str, bad: BadRecordInfo | None = None, times: int = 1 << 30) -> Any:
    count = iter(range(times))

    def script(worker: Any, request: ChunkRequest) -> bytes:
        if next(count, None) is None:
            return bytes(worker.chunk(request))
        return encode_reply(Failed(request.id, kind, message, bad))

    return script


def test_a_bad_record_is_named(scripted: Make) -> None:
    bad = BadRecordInfo("data", 7, "train-00000", 7, "empty")
    a = scripted(failing(FailureKind.BAD_RECORD, "", bad))
    with feeder.connect(a.address).stream("data", **TINY, on_bad="fail") as stream:
        for _ in range(2):
            with pytest.raises(BadRecord, match="train-00000: record 7: empty"):
                next(stream)


def test_a_storage_error_is_another_workers_turn(scripted: Make) -> None:
    a, b = scripted(failing(FailureKind.STORAGE, "disk gone")), scripted()
    with feeder.connect([a.address, b.address]).stream("data", **TINY) as stream:
        until(stream, lambda: stream.stats().workers[a.address].failovers > 3)


def test_a_storage_error_that_passes_is_not_seen(scripted: Make) -> None:
    a = scripted(failing(FailureKind.STORAGE, "disk gone", times=2))
    with feeder.connect(a.address).stream("data", **TINY, epochs=1) as stream:
        assert len(list(stream)) == 5


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FailureKind.STORAGE, StorageError),
        (FailureKind.INTERNAL, feeder.errors.ServiceError),
        (FailureKind.UNSPECIFIED, feeder.errors.ServiceError),
        (FailureKind.INVALID, ProtocolError),
    ],
)
def test_a_failure_of_all_workers_is_the_streams(
    scripted: Make, kind: FailureKind, error: type[Exception]
) -> None:
    a, b = scripted(failing(kind, "no luck")), scripted(failing(kind, "no luck"))
    with (
        feeder.connect([a.address, b.address]).stream("data", **TINY) as stream,
        pytest.raises(error, match="no luck"),
    ):
        next(stream)


def test_an_answer_of_the_wrong_size_is_asked_elsewhere(scripted: Make) -> None:
    def short(worker: Any, request: ChunkRequest) -> bytes:
        return bytes(worker.chunk(ChunkRequest(request.id, request.epoch, request.taken, request.slots[:1])))

    a, b = scripted(short), scripted()
    with feeder.connect([a.address, b.address]).stream("data", **TINY) as stream:
        until(stream, lambda: "asked for were" in stream.stats().workers[a.address].error)


@pytest.mark.parametrize("place", ["feeder.order.Ledger.account", "feeder.client.engine.Engine.release"])
def test_an_interrupt_does_not_shift_the_batches(
    scripted: Make, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with feeder.connect(scripted().address).stream("data", **TINY, epochs=2) as stream:
        next(stream)
        with monkeypatch.context() as patch:
            patch.setattr(place, interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
        until(stream, lambda: stream.position.epoch == 2)
        with pytest.raises(StopIteration):
            next(stream)
        assert stream.ledger().totals.delivered == 80


class Interrupt:
    """A KeyboardInterrupt at the n-th call that the client makes on this thread, if it makes so many: calls
    are where Python looks for signals."""

    def __init__(self, call: int) -> None:
        self._left = call

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    @property
    def came(self) -> bool:
        return self._left <= 0

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if "/feeder/client/" not in frame.f_code.co_filename:
            return None
        self._left -= 1
        return self._first_line if self._left == 0 else None

    def _first_line(self, frame: FrameType, event: str, _: Any) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_at_any_call_costs_no_batch(scripted: Make) -> None:
    client = feeder.connect(scripted().address)
    gc.collect()  # else an interrupt may come within what a collection calls, where Python ignores it aloud
    gc.disable()
    with (
        contextlib.ExitStack() as after,
        client.stream("data", **TINY, epochs=200, prefetch_bytes=1, stall_timeout_s=20) as stream,
    ):
        after.callback(gc.enable)
        call, interrupts, whole = 0, 0, 0
        while whole < 3:  # batches without one: they take fewer calls
            call += 1
            at = stream.position
            interrupt = Interrupt(call)
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                next(stream)
            interrupts += interrupt.came
            whole = 0 if interrupt.came else whole + 1
            if stream.position == at:
                assert records_of(next(stream)) == expected(stream, at.epoch, at.taken, range(8))
        assert interrupts > 10
        totals = stream.ledger().totals
        handed_out = stream.position.steps_before(Order(stream.position.spec, RECORDS)) * 8
        assert (totals.lost, totals.repeated, totals.delivered) == (0, 0, handed_out)


def test_a_position_is_set_between_two_batches(scripted: Make) -> None:
    """Two threads: one iterates, one sets the position again and again."""
    with feeder.connect(scripted().address).stream("data", **TINY) as stream:
        saved = stream.state_dict()
        wrong = []

        def iterate() -> None:
            for _ in range(20):
                batch = next(stream)
                epoch, at = batch.position.epoch, batch.position.taken - batch.position.spec.per_lane
                if at >= 0 and records_of(batch) != expected(stream, epoch, at, range(8)):
                    wrong.append((epoch, at))

        thread = threading.Thread(target=iterate)
        thread.start()
        while thread.is_alive():
            stream.load_state_dict(saved)
            thread.join(0.05)
        assert not wrong


def test_other_records_than_asked_for_are_the_end_of_the_stream(scripted: Make) -> None:
    def first_step(worker: Any, request: ChunkRequest) -> bytes:
        return bytes(worker.chunk(ChunkRequest(request.id, request.epoch, 0, request.slots)))

    with feeder.connect(scripted(first_step).address).stream("data", **TINY) as stream:
        good = next(stream)
        with pytest.raises(ProtocolError, match="came for record"):
            next(stream)
        assert stream.position == good.position
        with pytest.raises(Closed):
            next(stream)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_ours_is_an_error_and_not_a_hang(scripted: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def note(*_: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(engine.Assembly, "note", note)
    stream = feeder.connect(scripted().address).stream("data", **TINY)
    with stream, pytest.raises(feeder.errors.ServiceError, match="died of a fault in feeder"):
        next(stream)


def test_bytes_that_are_no_reply_end_the_connection_not_the_stream(scripted: Make) -> None:
    a, b = scripted(lambda worker, request: b"\xff\xff"), scripted()
    with feeder.connect([a.address, b.address]).stream("data", **TINY) as stream:
        until(stream, lambda: "no FeedReply" in stream.stats().workers[a.address].error)


def test_a_silent_worker_is_passed_by(scripted: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SUSPECT_AFTER_S", 0.3)
    a, b = scripted(lambda worker, request: None), scripted()
    with feeder.connect([a.address, b.address]).stream("data", **TINY) as stream:
        until(stream, lambda: stream.stats().workers[a.address].state == "suspect")
        next(stream)


def test_a_silent_worker_is_passed_by_before_the_stream_gives_up(scripted: Make) -> None:
    a, b = scripted(lambda worker, request: None), scripted()
    with feeder.connect([a.address, b.address]).stream("data", **TINY, stall_timeout_s=6) as stream:
        until(stream, lambda: stream.stats().workers[a.address].state == "suspect")


class HaltingProxy:
    """Passes on what a worker says until 100,000 bytes of a connection, and the rest once `go` is set."""

    def __init__(self, target: str) -> None:
        self.go = threading.Event()
        self.halted = threading.Event()
        host, port = target.split(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                worker = socket.create_connection(self._target)
                for pair in ((client, worker, False), (worker, client, True)):
                    self._threads.append(threading.Thread(target=self._pass, args=pair))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, sink: socket.socket, halts: bool) -> None:
        passed = 0
        with source, contextlib.suppress(OSError):
            while data := source.recv(50_000):
                sink.sendall(data)
                passed += len(data)
                if halts and passed >= 100_000:
                    self.halted.set()
                    self.go.wait(20)
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.go.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


def test_a_worker_that_halts_within_a_chunk_writes_to_no_batch_that_was_handed_out(
    scripted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SUSPECT_AFTER_S", 0.3)
    a, b = scripted(), scripted()
    proxy = HaltingProxy(a.address)
    try:
        client = feeder.connect([proxy.address, b.address])
        with client.stream("data", batch_size=8, image_size=128) as stream:
            batch = next(stream)
            assert proxy.halted.is_set()
            assert stream.stats().workers[proxy.address].images == 0
            assert records_of(batch) == expected(stream, 0, 0, range(8))
            batch.images[:] = 77  # they are the consumer's own
            proxy.go.set()
            until(stream, lambda: stream.stats().workers[proxy.address].images > 0)
            assert (batch.images == 77).all()
    finally:
        proxy.close()


def test_if_nothing_comes_the_stream_says_so_and_can_go_on(scripted: Make) -> None:
    a = scripted(lambda worker, request: None)
    with feeder.connect(a.address).stream("data", **TINY, stall_timeout_s=0.5) as stream:
        with pytest.raises(WorkerUnavailable, match=r"nothing of .* came for 0.5 s: .*owes \d chunks"):
            next(stream)
        a.stop()
        with pytest.raises(WorkerUnavailable, match=f"worker {a.address} does not answer"):
            next(stream)
        a.script = type(a).chunk
        a.restart()
        for _ in range(20):
            try:
                next(stream)
                break
            except WorkerUnavailable:
                continue
        else:
            pytest.fail("the stream did not recover")


def test_a_worker_that_drains_hands_over(scripted: Make) -> None:
    def drain(worker: Any, request: ChunkRequest) -> bytes:
        return encode_reply(Draining())

    a, b = scripted(drain), scripted()
    a.max_outstanding = 1
    with feeder.connect([a.address, b.address]).stream("data", **TINY, stall_timeout_s=0.5) as stream:
        until(stream, lambda: stream.position.epoch == 2)  # what it owes is asked from the other
        assert stream.stats().workers[a.address].state == "draining"
        assert a.asked == 1


def test_no_more_is_asked_than_there_is_room_for(scripted: Make) -> None:
    a = scripted()
    a.max_outstanding = 100
    with feeder.connect(a.address).stream("data", **TINY, prefetch_bytes=2 * 8 * 48) as stream:
        next(stream)
        time.sleep(0.3)
        assert a.asked == 3  # the one that was taken and two that are ready
        assert stream.stats().workers[a.address].outstanding == 0


def test_closed_is_closed(scripted: Make) -> None:
    client = feeder.connect(scripted().address)
    stream = client.stream("data", **TINY)
    next(stream)
    client.close()
    client.close()
    with pytest.raises(Closed, match="closed"):
        next(stream)
    with pytest.raises(Closed, match="closed"):
        stream.load_state_dict(stream.state_dict())
    with pytest.raises(Closed, match="closed"):
        client.stream("data", **TINY)
    stream.close()


def test_close_from_another_thread_wakes_the_consumer(scripted: Make) -> None:
    stream = feeder.connect(scripted(lambda worker, request: None).address).stream("data", **TINY)
    timer = threading.Timer(0.3, stream.close)
    timer.start()
    with pytest.raises(Closed):
        next(stream)
    timer.join()


def test_a_dropped_stream_gives_its_threads_back(scripted: Make) -> None:
    client = feeder.connect(scripted().address)
    before = threading.active_count()
    stream = client.stream("data", **TINY)
    next(stream)
    gone = weakref.ref(stream)
    assert threading.active_count() > before
    del stream
    gc.collect()
    assert gone() is None
    deadline = time.monotonic() + 5
    while any(thread.name.startswith("feeder-") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stream_that_failed_can_be_collected(scripted: Make) -> None:
    a = scripted(failing(FailureKind.INVALID, "no luck"))
    stream = feeder.connect(a.address).stream("data", **TINY)
    with pytest.raises(ProtocolError):
        next(stream)
    gone = weakref.ref(stream)
    del stream
    gc.collect()
    assert gone() is None


def test_two_threads_may_share_a_stream(scripted: Make) -> None:
    with feeder.connect(scripted().address).stream("data", **TINY, epochs=4) as stream:
        counts = [0, 0]

        def consume(number: int) -> None:
            for _ in stream:
                counts[number] += 1

        threads = [threading.Thread(target=consume, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sum(counts) == 20


def test_stats_add_up(scripted: Make) -> None:
    a = scripted()
    with feeder.connect(a.address).stream("data", **TINY, epochs=1) as stream:
        list(stream)
        stats = stream.stats()
        assert (stats.batches, stats.images, stats.transport) == (5, 40, "grpc")
        assert stats.received_bytes == 40 * 48
        assert stats.wait_s > 0
        worker = stats.workers[a.address]
        assert (worker.images, worker.chunks, worker.reconnects, worker.failovers) == (40, 5, 0, 0)
