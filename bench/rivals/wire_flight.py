"""Arrow Flight on loopback: the same batches by DoGet, a record batch each, taken as they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from protocol import BatchesReceived, arguments, serve, versions

VARIANTS = ("server", "consumer")

OPTIONS = [("grpc.http2.max_frame_size", (1 << 24) - 1), ("grpc.http2.lookahead_bytes", 64 << 20)]
"""Those of feeder's that help here, by a tenth; a Flight server takes none."""


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
        """`ticket` is the number of batches, in decimal."""
        batches = self._batches
        numbers = range(int(ticket.ticket))
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
        return {"note": "DoGet, one record batch a batch, large frames", "versions": versions("pyarrow")}

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """A new call for `count` batches."""
        address = f"grpc://127.0.0.1:{self.request['port']}"
        with flight.connect(address, generic_options=OPTIONS) as client:
            for chunk in client.do_get(flight.Ticket(str(count).encode())):
                pixels = chunk.data.column(0).buffers()[1]
                yield np.frombuffer(pixels, np.uint8, int(np.prod(self.shape))).reshape(self.shape)


if __name__ == "__main__":
    serve(Server() if arguments(__doc__ or "", VARIANTS).variant == "server" else Consumer())
