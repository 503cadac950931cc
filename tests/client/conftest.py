"""A worker made of a script: speaks the real protocol over a real gRPC server, and misbehaves as it is
told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import pytest

from feeder.order import Order
from feeder.wire import DESCRIBE, FEED, SERVICE
from feeder.wire.channel import SERVER_OPTIONS
from feeder.wire.codec import ChunkFrame, encode_reply, parse_request
from feeder.wire.messages import ChunkRequest, Open, Opened, SlotStatus
from feeder.wire.v1 import feeder_pb2 as pb

RECORDS = 40

#: What a worker answers to one request: a FeedReply, or None for silence.
Script = Callable[["ScriptedWorker", ChunkRequest], bytes | None]


class ScriptedWorker:
    """Serves "data", 40 records, at `address`, and answers requests with `script`."""

    opening: Open

    def __init__(self, script: Script | None = None, *, fingerprint: str = "f1", pixels: str = "p1") -> None:
        self.script = script or ScriptedWorker.chunk
        self.asked = 0
        self.openings = 0
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        self.max_outstanding = 4
        self.shift = 0  # added to the record numbers that it says it gives
        self._fingerprint, self._pixels = fingerprint, pixels
        self._pool = futures.ThreadPoolExecutor(8)
        self._start("127.0.0.1:0")

    def _start(self, address: str) -> None:
        self._server = grpc.server(self._pool, options=SERVER_OPTIONS)
        handlers = {
            DESCRIBE.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(
                self._describe, pb.DescribeRequest.FromString, pb.DescribeReply.SerializeToString
            ),
            FEED.rpartition("/")[2]: grpc.stream_stream_rpc_method_handler(self._feed),
        }
        self._server.add_registered_method_handlers(SERVICE, handlers)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(address)}"
        self._server.start()

    def _describe(self, request: Any, context: grpc.ServicerContext) -> pb.DescribeReply:
        return pb.DescribeReply(
            version="0",
            worker_id="scripted",
            decoder="none",
            pixel_fingerprint=self._pixels,
            datasets=[pb.DatasetInfo(name="data", records=RECORDS, fingerprint=self._fingerprint)],
        )

    def _feed(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        opening = parse_request(next(requests))
        assert isinstance(opening, Open)
        self.opening = opening
        if self.refuse is not None:
            context.abort(*self.refuse)
        self.openings += 1
        yield encode_reply(Opened("scripted", self.max_outstanding))
        for data in requests:
            request = parse_request(data)
            assert isinstance(request, ChunkRequest)
            self.asked += 1
            answer = self.script(self, request)
            if answer is not None:
                yield answer

    def chunk(self, request: ChunkRequest) -> bytes:
        """What a good worker answers: all values of an image are `record + 1`, its label is `record % 10`."""
        spec = self.opening.spec
        records = Order(spec, RECORDS).records(request.epoch, request.taken, np.array(request.slots))
        frame = ChunkFrame(request.id, len(records), spec.image_bytes)
        message = np.empty(frame.size, np.uint8)
        status = np.where(records < 0, SlotStatus.PADDING, SlotStatus.OWN)
        frame.fill(message, records + self.shift, np.where(records < 0, -1, records % 10), status)
        message[frame.pixels_at :] = np.repeat(records + 1, spec.image_bytes)
        return message.tobytes()

    def stop(self) -> None:
        """As if killed: all connections break."""
        self._server.stop(0).wait(5)

    def restart(self) -> None:
        """Comes back at the same address."""
        self._start(self.address)

    def close(self) -> None:
        self.stop()
        self._pool.shutdown()


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedWorker]]:
    """Makes scripted workers that are gone after the test."""
    workers: list[ScriptedWorker] = []

    def make(*args: Any, **kwargs: Any) -> ScriptedWorker:
        workers.append(ScriptedWorker(*args, **kwargs))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()
