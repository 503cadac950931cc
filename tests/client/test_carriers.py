"""Further connections of a stream, where a worker or a network does what it should not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

import feeder
from feeder.client import carriers as carriers_module
from feeder.client import trouble
from feeder.client.carriers import Carriers
from feeder.client.link import Link
from feeder.errors import ProtocolError
from feeder.wire.address import Address
from feeder.wire.call import Call
from feeder.wire.codec import encode_reply
from feeder.wire.headers import CallFailed
from feeder.wire.messages import Opened

TINY: dict[str, Any] = {"batch_size": 8, "image_size": 4}
DEADLINE_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def carrying() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("feeder-carry")]


@pytest.fixture
def endless() -> Iterator[Address]:
    """A server whose calls say one thing, and end only if their client ends them."""
    over = threading.Event()

    def feed(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"taken"
        over.wait(DEADLINE_S)

    with futures.ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        handlers = {"Feed": grpc.stream_stream_rpc_method_handler(feed)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield Address("tcp", "127.0.0.1", port)
        over.set()
        server.stop(0).wait(5)


def test_one_that_does_not_end_with_the_first_is_ended(
    endless: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriers_module, "END_S", 0.05)

    def dial() -> Call:
        return Call(endless, "/test/Feed", user_agent="test")

    def receive(call: Call) -> None:
        assert call.receive() is None

    carriers = Carriers(dial, receive, "feeder-carry-test")

    def stream() -> None:
        with dial() as first, carriers.beside(first):
            carriers.start(b"key", 2)
            until(lambda: carriers.count == 2)

    thread = threading.Thread(target=stream, daemon=True)
    thread.start()
    thread.join(DEADLINE_S / 2)
    assert not thread.is_alive()
    carriers.join(DEADLINE_S)
    assert not carrying()


def test_a_stream_that_is_closed_leaves_no_thread_that_dials(
    scripted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a worker is stopped, so that nobody answers a handshake."""
    worker = scripted()
    worker.join = b"0123456789abcdef"
    dials, dial, answered = [0], Link._dial, threading.Event()

    def slow(link: Link) -> Call:
        dials[0] += 1
        if dials[0] == 1:
            return dial(link)
        answered.wait(DEADLINE_S)
        raise CallFailed(grpc.StatusCode.UNAVAILABLE, "timed out")

    monkeypatch.setattr(Link, "_dial", slow)
    with feeder.connect(worker.address).stream("data", **TINY, connections=3) as stream:
        next(stream)
        until(lambda: len(carrying()) == 2)
        timer = threading.Timer(0.3, answered.set)
        timer.start()
    assert not carrying()
    timer.join()


def test_a_worker_that_says_twice_that_the_stream_is_open(
    scripted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it would be dialled anew."""
    monkeypatch.setattr(trouble, "REFUSAL_GRACE_S", 0.0)
    worker = scripted(lambda worker, request: encode_reply(Opened("scripted", 4, False)))
    client = feeder.connect(worker.address)
    with (
        client.stream("data", **TINY, stall_timeout_s=10) as stream,
        pytest.raises(ProtocolError, match="says twice that the stream is open"),
    ):
        next(stream)
