"""grpc.aio on loopback: the chunks of feeder's wire, with grpcio's asyncio on both sides, with feeder's gRPC
settings or gRPC's own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import grpc
import numpy as np
from protocol import BatchesReceived, arguments, counted, serve, versions

from feeder.wire.channel import CLIENT_OPTIONS, SERVER_OPTIONS

VARIANTS = ("server", "consumer")
METHOD = "/bench.Wire/Feed"
CHUNK_IMAGES = 32
"""As many as feeder's client asks for at a time."""

DEFAULTS = (("grpc.max_receive_message_length", -1),)
"""Without it, no message of more than 4 MiB is taken."""

OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Channels to one address share a connection otherwise."""


class Server:
    """An asyncio server on a loop in a thread of its own."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Serves the batches of `path`, uint8 [n, B, H, W, 3], in chunks; `tuned`: with feeder's settings."""
        self._options = SERVER_OPTIONS if request["tuned"] else DEFAULTS
        batches = np.load(request["path"])
        self._chunks = [chunk.tobytes() for chunk in batches.reshape(-1, CHUNK_IMAGES, *batches.shape[2:])]
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return {"port": asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()}

    async def _start(self) -> int:
        self._server = grpc.aio.server(options=self._options)
        service, name = METHOD.strip("/").split("/")
        feed = grpc.stream_stream_rpc_method_handler(self._feed)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {name: feed})])
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def _feed(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            for number in range(*map(int, request.split())):
                yield self._chunks[number % len(self._chunks)]


class Consumer(BatchesReceived):
    """Copies each chunk to its place in a batch."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keeps the request: port, shape of a batch, number of different batches, connections; tuned, as the
        server's."""
        self.prepare(request)
        settings = "feeder's gRPC settings" if request["tuned"] else "gRPC's own settings"
        note = f"chunks of 32 images, {counted(request['connections'])}, {settings}"
        return {"note": note, "versions": versions("grpcio")}

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """A new call for `count` batches."""
        loop = asyncio.new_event_loop()
        received = self._receive(count)
        try:
            while (batch := loop.run_until_complete(anext(received, None))) is not None:
                yield batch
        finally:
            loop.run_until_complete(received.aclose())
            loop.close()

    async def _receive(self, count: int) -> Any:
        chunks, connections = self.shape[0] // CHUNK_IMAGES, self.request["connections"]
        target = f"127.0.0.1:{self.request['port']}"
        options = (CLIENT_OPTIONS if self.request["tuned"] else DEFAULTS) + OWN_CONNECTION
        async with contextlib.AsyncExitStack() as stack:
            calls = []
            for first in range(connections):
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(target, options=options))
                wanted = iter([b"%d %d %d" % (first, count * chunks, connections)])
                calls.append(channel.stream_stream(METHOD)(wanted))
            for number in range(count):
                batch = self.buffer(number)
                await asyncio.gather(
                    *(self._fill(calls, number * chunks, batch, first) for first in range(connections))
                )
                yield batch

    async def _fill(self, calls: Sequence[Any], begin: int, batch: np.ndarray, first: int) -> None:
        """The chunks of a batch that come on one connection; `begin` is the number of its first chunk."""
        places = batch.reshape(batch.shape[0] // CHUNK_IMAGES, -1)
        for number, place in enumerate(places, begin):
            if number % len(calls) == first:
                place[:] = np.frombuffer(await calls[first].read(), np.uint8)


if __name__ == "__main__":
    serve(Server() if arguments(__doc__ or "", VARIANTS).variant == "server" else Consumer())
