"""feeder's wire on loopback: the worker's front with ready chunks, the client's call into a batch."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
from protocol import READY_BATCHES, BatchesReceived, arguments, counted, serve, versions

from feeder.client.carriers import Carriers
from feeder.spec import StreamSpec
from feeder.wire import FEED
from feeder.wire.address import Address
from feeder.wire.call import Call
from feeder.wire.channel import SERVER_OPTIONS
from feeder.wire.codec import (
    CHUNK_START_BYTES,
    ChunkFrame,
    encode_reply,
    encode_request,
    parse_chunk_start,
    parse_reply,
    parse_request,
)
from feeder.wire.context import CallContext
from feeder.wire.credentials import Credentials
from feeder.wire.headers import CallFailed
from feeder.wire.messages import ChunkRequest, Join, Open, Opened
from feeder.wire.serve import ServedCall
from feeder.wire.tls import client_context, server_context
from feeder.worker.front import Front
from feeder.worker.joins import Joins
from feeder.worker.stream import Answer, Stream

VARIANTS = ("server", "consumer")

CHUNK_IMAGES = 32
"""As many as feeder's client asks for at a time."""

NOBODY = ""
"""The name of the token of all calls here: there is none."""

CALLS = 16
"""At a time: more than there are."""

OPEN_DEADLINE_S = 10.0


class Server:
    """Answers chunk requests: the number of a request names the chunk, from 1."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Frames the chunks of all batches of `path`, uint8 [n, B, H, W, 3], once."""
        batches = np.load(request["path"])
        chunks = batches.reshape(-1, CHUNK_IMAGES, *batches.shape[2:])
        self._messages = [_framed(number, pixels) for number, pixels in enumerate(chunks, 1)]
        self._joins = Joins(CALLS)
        self._server = grpc.server(ThreadPoolExecutor(2), options=SERVER_OPTIONS)
        tls = None
        if "certificate" in request:
            tls = server_context(Path(request["certificate"]), None, None)
        self._front = Front(Address("tcp", "127.0.0.1", 0), self._server, FEED, CALLS, tls=tls)
        self._server.start()
        self._front.start(self._feed)
        return {"port": self._front.address.port}

    def _feed(self, requests: Iterator[bytes], context: CallContext) -> Generator[bytes]:
        stream = Stream(0)
        context.add_callback(stream.close)
        threading.Thread(target=self._receive, args=(requests, context, stream)).start()
        stream.wait_opened(OPEN_DEADLINE_S)
        key = self._joins.offer(stream, NOBODY) if stream.of is stream else b""
        yield encode_reply(Opened("bench", 2 * READY_BATCHES, join=key))
        while (answer := stream.of.next(lambda: True)) is not None:
            yield answer.data
            stream.of.sent()
        self._joins.forget(stream)

    def _receive(self, requests: Iterator[bytes], context: CallContext, stream: Stream) -> None:
        """The thread that reads requests, as a worker has it too."""
        assert isinstance(context, ServedCall)
        try:
            for data in requests:
                request = parse_request(data)
                if isinstance(request, ChunkRequest):
                    stream.put(Answer(self._messages[request.id - 1]))
                elif isinstance(request, Join):
                    stream.opened(of=self._joins.join(request.key, stream, NOBODY, context.cancel))
                else:
                    stream.opened()
        except CallFailed:
            pass  # the consumer has all that it wanted
        finally:
            stream.close()
            context.hear_out()


def _framed(number: int, pixels: np.ndarray) -> bytes:
    count = len(pixels)
    frame = ChunkFrame(number, count, pixels[0].nbytes)
    message = np.empty(frame.size, np.uint8)
    frame.fill(message, np.arange(count), np.zeros(count, np.int32), np.zeros(count, np.uint8))
    message[frame.pixels_at :] = pixels.reshape(-1)
    return message.tobytes()


class Consumer(BatchesReceived):
    """Keeps READY_BATCHES asked for, and reads each chunk to its place in a batch."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keeps the request: port, shape of a batch, number of different batches, connections."""
        self.prepare(request)
        note = f"chunks of 32 images, {counted(request['connections'])} of feeder's own gRPC"
        used = versions("grpcio", "h2")
        if "certificate" in request:
            note, used = f"{note}, {self._cipher()}", used | {"openssl": ssl.OPENSSL_VERSION}
        return {"note": note, "versions": used}

    def _cipher(self) -> str:
        """What a connection agrees on."""
        context = client_context(self.request["certificate"], None, None)
        place = ("127.0.0.1", self.request["port"])
        with context.wrap_socket(socket.create_connection(place), server_hostname=place[0]) as secure:
            return f"{secure.version()} {(secure.cipher() or ('',))[0]}"

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """A new call for `count` batches, and others that carry a part of its answers."""
        self._chunks = self.shape[0] // CHUNK_IMAGES
        self._lock = threading.Lock()
        self._coming: dict[int, tuple[np.ndarray, int]] = {}  # by the number of a chunk: its batch, and where
        self._missing: dict[int, int] = {}
        self._complete: SimpleQueue[int] = SimpleQueue()
        self._carriers = Carriers(self._dial, self._receive, "feeder-bench")
        ready: set[int] = set()
        asked = 0
        with self._dial() as call:
            call.send(
                encode_request(
                    Open("bench", StreamSpec("bench", global_batch=self.shape[0], lanes=1), "", "")
                )
            )
            receiver = threading.Thread(target=self._run, args=(call,))
            receiver.start()
            self._await_connections()
            for number in range(count):
                while asked < min(count, number + READY_BATCHES):
                    call.send(*self._ask(asked))
                    asked += 1
                while number not in ready:
                    ready.add(self._complete.get())
                yield self.buffer(number)
            call.cancel()
            receiver.join()

    def _await_connections(self) -> None:
        end_s = time.monotonic() + OPEN_DEADLINE_S
        while self._carriers.count < self.request["connections"] - 1:
            if time.monotonic() > end_s:
                raise ConnectionError("the server took fewer connections than it was asked to")
            time.sleep(0.001)

    def _dial(self) -> Call:
        address = Address("tcp", "127.0.0.1", self.request["port"])
        credentials = Credentials(tls_ca=self.request.get("certificate"))
        return Call(address, FEED, user_agent="feeder-bench", credentials=credentials)

    def _ask(self, batch: int) -> list[bytes]:
        first = batch % self.different * self._chunks + 1
        place = self.buffer(batch).reshape(self._chunks, -1)
        with self._lock:
            self._missing[batch] = self._chunks
            for piece in range(self._chunks):
                self._coming[first + piece] = place[piece], batch
        slots = tuple(range(CHUNK_IMAGES))
        return [
            encode_request(ChunkRequest(name, 0, 0, slots)) for name in range(first, first + self._chunks)
        ]

    def _run(self, call: Call) -> None:
        with contextlib.suppress(CallFailed), self._carriers.beside(call):  # it is cancelled in the end
            size = call.receive()
            assert size is not None
            opened = parse_reply(call.read(size))
            assert isinstance(opened, Opened)
            self._carriers.start(opened.join, self.request["connections"] - 1)
            self._receive(call)

    def _receive(self, call: Call) -> None:
        while (size := call.receive()) is not None:
            chunk = parse_chunk_start(call.read(CHUNK_START_BYTES), size)
            assert chunk is not None
            with self._lock:
                array, batch = self._coming.pop(chunk.id)
            place, here = memoryview(array), chunk.pixels
            place[: len(here)] = here
            call.read_into(place[len(here) :])
            with self._lock:
                self._missing[batch] -= 1
                complete = not self._missing[batch]
            if complete:
                self._complete.put(batch)


if __name__ == "__main__":
    serve(Server() if arguments(__doc__ or "", VARIANTS).variant == "server" else Consumer())
