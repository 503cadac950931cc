"""Arrow Flight on loopback: the same batches by DoGet, a record batch each, taken as they come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from protocol import READY_BATCHES, BatchesReceived, arguments, counted, serve, versions

VARIANTS = ("server", "consumer")

OPTIONS = [
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
]
"""Those of feeder's that help here, by a tenth; a Flight server takes none. Clients of one address share a
connection without the last."""


class Flight(flight.FlightServerBase):  # type: ignore[misc]
    """Streams as many batches as the ticket says."""

    def __init__(self, batches: np.ndarray) -> None:
        super().__init__("grpc://127.0.0.1:0")
        kind = pa.binary(batches[0, 0].nbytes)
        self._batches = [
            pa.record_batch(
                [
                    pa.FixedSizeBinaryArray.from_buffers(kind, len(batch), [None, pa.py_buffer(batch)]),
                    pa.array(np.zeros(len(batch), np.int32)),
                ],
                names=["image", "label"],
            )
            for batch in batches
        ]

    def do_get(self, context: Any, ticket: Any) -> Any:
        """`ticket` has first, end and step of the batches' numbers, in decimal."""
        batches = self._batches
        numbers = range(*map(int, ticket.ticket.split()))
        return flight.GeneratorStream(
            batches[0].schema, (batches[number % len(batches)] for number in numbers)
        )


class Server:
    """A Flight server in threads of its own."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Serves the batches of `path`, uint8 [n, B, H, W, 3]."""
        self._flight = Flight(np.load(request["path"]))
        return {"port": self._flight.port}


class Consumer(BatchesReceived):
    """Views of what Flight received."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keeps the request: port, shape of a batch, number of different batches."""
        self.prepare(request)
        note = f"DoGet, {counted(request['connections'])}, one record batch a batch, large frames"
        return {"note": note, "versions": versions("pyarrow")}

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """New calls for `count` batches, on a connection each."""
        connections = self.request["connections"]
        if connections == 1:
            yield from self._get(range(count))
            return
        here: list[Queue[np.ndarray | None]] = [
            Queue(READY_BATCHES // connections) for _ in range(connections)
        ]
        threads = [
            threading.Thread(target=self._put, args=(range(first, count, connections), queue))
            for first, queue in enumerate(here)
        ]
        for thread in threads:
            thread.start()
        for number in range(count):
            batch = here[number % connections].get()
            if batch is None:
                raise ConnectionError("a call ended early")
            yield batch
        for thread in threads:
            thread.join()

    def _put(self, wanted: range, here: Queue[np.ndarray | None]) -> None:
        try:
            for batch in self._get(wanted):
                here.put(batch)
        finally:
            here.put(None)

    def _get(self, wanted: range) -> Iterator[np.ndarray]:
        address = f"grpc://127.0.0.1:{self.request['port']}"
        with flight.connect(address, generic_options=OPTIONS) as client:
            ticket = flight.Ticket(b"%d %d %d" % (wanted.start, wanted.stop, wanted.step))
            for chunk in client.do_get(ticket):
                pixels = chunk.data.column(0).buffers()[1]
                yield np.frombuffer(pixels, np.uint8, int(np.prod(self.shape))).reshape(self.shape)


if __name__ == "__main__":
    serve(Server() if arguments(__doc__ or "", VARIANTS).variant == "server" else Consumer())
