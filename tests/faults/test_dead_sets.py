"""Where no worker is to be had: one error that says so, in time, whatever silence there is."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import feeder
from feeder.errors import WorkerUnavailable

TIMEOUT_S = 1.5


@pytest.fixture
def refused() -> Iterator[list[str]]:
    """Ports where nobody listens; they are bound, so that nobody comes meanwhile."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        yield [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


@pytest.fixture
def mute() -> Iterator[list[str]]:
    """Connections are made, and nothing is ever said."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        yield [f"127.0.0.1:{one.getsockname()[1]}" for one in listeners]


@pytest.fixture
def black_hole() -> Iterator[list[str]]:
    """Who connects gets no answer at all: the kernel drops what comes to a full backlog."""
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(3):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            addresses.append(f"127.0.0.1:{listener.getsockname()[1]}")
        yield addresses


@pytest.mark.parametrize("kind", ["refused", "mute", "black_hole"])
def test_connecting_ends_with_one_error_that_names_each(kind: str, request: pytest.FixtureRequest) -> None:
    addresses = request.getfixturevalue(kind)
    with pytest.raises(WorkerUnavailable) as error:
        feeder.connect(addresses, timeout_s=TIMEOUT_S)
    text = str(error.value)
    assert text.startswith("no worker answered within 1.5 s: ")
    for address in addresses:
        assert text.count(address) == 1
    assert "start one with `feeder worker" in text


def test_a_stream_that_lost_all_ends_each_wait_with_one_error(
    shards: Any, start_worker: Any, refused: list[str], mute: list[str], black_hole: list[str]
) -> None:
    worker = start_worker(shards)
    addresses = [worker.address, refused[0], mute[0], black_hole[0]]
    client = feeder.connect(addresses, timeout_s=TIMEOUT_S)
    assert list(client.workers) == [worker.address]
    with client.stream(
        "data", batch_size=12, image_size=32, prefetch_bytes=1, stall_timeout_s=TIMEOUT_S
    ) as stream:
        first = next(stream)
        worker.kill()
        for _ in range(2):  # the next call waits again
            with pytest.raises(
                WorkerUnavailable, match=r"nothing of data set 'data' came for 1\.5 s"
            ) as error:
                for _ in stream:
                    pass
            for address in addresses:
                assert str(error.value).count(address) == 1
            assert "start the workers again" in str(error.value)
        assert stream.position.taken >= first.position.taken
