"""Bare TCP on loopback: two processes that do nothing but hand batches to sockets and take them out again.

What no protocol can beat that leaves the pixels to the system's TCP: no request, no frame, no check; one
system call a piece on each side, straight from ready memory, straight into the batch.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from protocol import BatchesReceived, arguments, serve, versions

from feeder.wire.channel import fit_buffers

VARIANTS = ("server", "consumer")
PIECES = 2
"""Of a batch, each a system call: as many as feeder has chunks."""


class Server:
    """Sends the batches of `path`, uint8 [n, B, H, W, 3], in turn to who connects and says how many."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Listens."""
        batches = np.load(request["path"])
        self._pieces = [piece.data for piece in batches.reshape(len(batches) * PIECES, -1)]
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        return {"port": self._listener.getsockname()[1]}

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                fit_buffers(connection)
                (count,) = struct.unpack("<q", connection.recv(8, socket.MSG_WAITALL))
                for number in range(count * PIECES):
                    connection.sendall(self._pieces[number % len(self._pieces)])


class Consumer(BatchesReceived):
    """Reads straight into batches."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keeps the request: port, shape of a batch, number of different batches."""
        self.prepare(request)
        return {"note": "no protocol: sendall and recv_into alone", "versions": versions()}

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """A new connection for `count` batches."""
        with socket.create_connection(("127.0.0.1", self.request["port"])) as connection:
            fit_buffers(connection)
            connection.sendall(struct.pack("<q", count))
            for number in range(count):
                batch = self.buffer(number)
                for piece in batch.reshape(PIECES, -1):
                    if connection.recv_into(piece.data, 0, socket.MSG_WAITALL) < piece.nbytes:
                        raise ConnectionError("the server is gone")
                yield batch


if __name__ == "__main__":
    serve(Server() if arguments(__doc__ or "", VARIANTS).variant == "server" else Consumer())
