"""feeder's wire on loopback: the worker's front with ready chunks, the client's call into a batch."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
from protocol import BatchesReceived, arguments, serve, versions

from feeder.wire import FEED
from feeder.wire.address import Address
from feeder.wire.call import Call
from feeder.wire.channel import SERVER_OPTIONS
from feeder.wire.codec import CHUNK_START_BYTES, ChunkFrame, encode_request, parse_chunk_start, parse_request
from feeder.wire.credentials import Credentials
from feeder.wire.headers import CallFailed
from feeder.wire.messages import ChunkRequest
from feeder.wire.serve import CallContext, ServedCall
from feeder.wire.tls import client_context, server_context
from feeder.worker.front import Front

VARIANTS = ("server", "consumer")

CHUNK_IMAGES = 32
"""As many as feeder's client asks for at a time."""

CONNECTIONS = 4

READY_BATCHES = 4
"""Asked for ahead, as feeder's client does by default."""


class Server:
    """Answers chunk requests: the number of a request names the chunk, from 1."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Frames the chunks of all batches of `path`, uint8 [n, B, H, W, 3], once."""
        batches = np.load(request["path"])
        chunks = batches.reshape(-1, CHUNK_IMAGES, *batches.shape[2:])
        self._messages = [_framed(number, pixels) for number, pixels in enumerate(chunks, 1)]
        self._server = grpc.server(ThreadPoolExecutor(2), options=SERVER_OPTIONS)
        tls = None
        if "certificate" in request:
            tls = server_context(Path(request["certificate"]), None, None)
        self._front = Front(Address("tcp", "127.0.0.1", 0), self._server, FEED, CONNECTIONS, tls=tls)
        self._server.start()
        self._front.start(self._feed)
        return {"port": self._front.address.port}

    def _feed(self, requests: Iterator[bytes], context: CallContext) -> Generator[bytes]:
        numbers: SimpleQueue[int | None] = SimpleQueue()
        threading.Thread(target=_receive, args=(requests, context, numbers)).start()
        while (number := numbers.get()) is not None:
            yield self._messages[number - 1]


def _receive(requests: Iterator[bytes], context: CallContext, numbers: SimpleQueue[int | None]) -> None:
    """The thread that reads requests, as a worker has it too."""
    assert isinstance(context, ServedCall)
    try:
        for request in requests:
            asked = parse_request(request)
            assert isinstance(asked, ChunkRequest)
            numbers.put(asked.id)
    except CallFailed:
        pass  # the consumer has all that it wanted
    finally:
        numbers.put(None)
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
        """Keeps the request: port, shape of a batch, number of different batches."""
        self.prepare(request)
        note, used = "chunks of 32 images, client's own gRPC call", versions("grpcio", "h2")
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
        """A new call for `count` batches."""
        chunks = self.shape[0] // CHUNK_IMAGES
        address = Address("tcp", "127.0.0.1", self.request["port"])
        credentials = Credentials(tls_ca=self.request.get("certificate"))
        with Call(address, FEED, user_agent="feeder-bench", credentials=credentials) as call:
            asked = 0
            for number in range(count):
                while asked < min(count, number + READY_BATCHES):
                    first = asked % self.different * chunks + 1
                    requests = [
                        ChunkRequest(name, 0, 0, tuple(range(CHUNK_IMAGES)))
                        for name in range(first, first + chunks)
                    ]
                    call.send(*map(encode_request, requests))
                    asked += 1
                batch = self.buffer(number)
                for piece in range(chunks):
                    self._receive(call, memoryview(batch.reshape(chunks, -1)[piece]))
                yield batch

    def _receive(self, call: Call, place: memoryview) -> None:
        size = call.receive()
        assert size is not None
        chunk = parse_chunk_start(call.read(CHUNK_START_BYTES), size)
        assert chunk is not None
        here = chunk.pixels
        place[: len(here)] = here
        call.read_into(place[len(here) :])


if __name__ == "__main__":
    serve(Server() if arguments(__doc__ or "", VARIANTS).variant == "server" else Consumer())
