"""A worker made of a script: speaks the real protocol over a real gRPC server, and misbehaves as it is
told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from feeder.order import Order
from feeder.wire import DESCRIBE, FEED, SERVICE
from feeder.wire.channel import SERVER_OPTIONS
from feeder.wire.codec import ChunkFrame, encode_placed, encode_reply, parse_request
from feeder.wire.messages import ChunkRequest, ClientReport, Compression, Open, Opened, SlotStatus
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.arenas import Arena, Arenas

RECORDS = 40

#: What a worker answers to one request: a FeedReply, or None for silence.
Script = Callable[["ScriptedWorker", ChunkRequest], bytes | None]


class ScriptedWorker:
    """Serves "data", 40 records, at `address`, and answers requests with `script`; with a folder for a side
    socket it takes arenas, too."""

    opening: Open

    def __init__(
        self,
        script: Script | None = None,
        *,
        fingerprint: str = "f1",
        pixels: str = "p1",
        side: Path | None = None,
        compressions: Sequence[Compression] = (),
    ) -> None:
        self.script = script or ScriptedWorker.answer
        self.asked = 0
        self.takes_reports = False
        self.join = b""  # key of further connections
        self.reports: list[ClientReport] = []
        self.openings = 0
        self.arenas = None if side is None else Arenas(side, 8, 1 << 30)
        self.arena: Arena | None = None
        self.destinations = 0  # requests that named one
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        self.max_outstanding = 4
        self.shift = 0  # added to the record numbers that it says it gives
        self._fingerprint, self._pixels = fingerprint, pixels
        self._compressions = tuple(compressions)
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
            side_socket="" if self.arenas is None else self.arenas.path,
        )

    def _feed(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        opening = parse_request(next(requests))
        assert isinstance(opening, Open)
        self.opening = opening
        if self.refuse is not None:
            context.abort(*self.refuse)
        self.openings += 1
        arena = self.arena = None if self.arenas is None else self.arenas.claim(opening.arena)
        try:
            yield encode_reply(
                Opened(
                    "scripted",
                    self.max_outstanding,
                    arena is not None,
                    self._compressions,
                    self.takes_reports,
                    self.join,
                )
            )
            for data in requests:
                request = parse_request(data)
                if isinstance(request, ClientReport):
                    assert self.takes_reports
                    self.reports.append(request)
                    continue
                assert isinstance(request, ChunkRequest)
                self.asked += 1
                self.destinations += request.destination is not None
                answer = self.script(self, request)
                if answer is not None:
                    yield answer
        finally:
            if arena is not None:
                arena.end()

    def answer(self, request: ChunkRequest) -> bytes:
        """What a good worker answers: all values of an image are `record + 1`, its label is `record % 10`."""
        return self.chunk(request) if request.destination is None else self.placed(request)

    def write(self, request: ChunkRequest, values: Any) -> None:
        """Fills the images of a request's destination with one value each."""
        assert self.arena is not None
        self.arena.check(request, self.opening.spec.image_bytes)
        target = self.arena.begin(request, self.opening.spec.image_shape)
        if target is not None:
            places = slice(None) if target.places is None else target.places
            target.out[places] = np.reshape(values, (-1, *[1] * (target.out.ndim - 1)))
            self.arena.written()

    def placed(self, request: ChunkRequest) -> bytes:
        """The answer where a request has a destination."""
        records = Order(self.opening.spec, RECORDS).records(
            request.epoch, request.taken, np.array(request.slots)
        )
        self.write(request, records + 1)
        status = np.where(records < 0, SlotStatus.PADDING, SlotStatus.OWN).astype(np.uint8)
        labels = np.where(records < 0, -1, records % 10).astype(np.int32)
        return encode_placed(request.id, records + self.shift, labels, status, ())

    def chunk(self, request: ChunkRequest) -> bytes:
        """The answer with pixels in it."""
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
        if self.arenas is not None:
            self.arenas.close()


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
