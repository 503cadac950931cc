"""Bare TCP on loopback: two processes that do nothing but hand batches to sockets and take them out again.

What no protocol can beat that leaves the pixels to the system's TCP: no request, no frame, no check; one
system call a piece on each side, straight from ready memory, straight into the batch.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
from protocol import READY_BATCHES, BatchesReceived, arguments, counted, serve, versions

from feeder.wire.channel import fit_buffers

VARIANTS = ("server", "consumer")
PIECES = 2
"""Of a batch, each a system call: as many as feeder has chunks."""


class Server:
    """Sends the batches of `path`, uint8 [n, B, H, W, 3], in turn to who connects and says which pieces."""

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
            threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        with connection:
            fit_buffers(connection)
            wanted = struct.unpack("<3q", connection.recv(24, socket.MSG_WAITALL))
            for number in range(*wanted):
                connection.sendall(self._pieces[number % len(self._pieces)])


class Consumer(BatchesReceived):
    """Reads straight into batches."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keeps the request: port, shape of a batch, number of different batches, connections."""
        self.prepare(request)
        note = f"{counted(request['connections'])}, no protocol: sendall and recv_into alone"
        return {"note": note, "versions": versions()}

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """New connections for `count` batches, each for every so-manyth piece."""
        connections = self.request["connections"]
        here: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(connections)]
        room = [threading.Semaphore(READY_BATCHES * PIECES // connections) for _ in here]
        threads = [
            threading.Thread(
                target=self._receive, args=(range(k, count * PIECES, connections), here[k], room[k])
            )
            for k in range(connections)
        ]
        for thread in threads:
            thread.start()
        for number in range(count):
            pieces = range(number * PIECES, (number + 1) * PIECES)
            for piece in pieces:
                here[piece % connections].get()
            yield self.buffer(number)
            for piece in pieces:
                room[piece % connections].release()
        for thread in threads:
            thread.join()

    def _receive(self, wanted: range, here: SimpleQueue[None], room: threading.Semaphore) -> None:
        with socket.create_connection(("127.0.0.1", self.request["port"])) as connection:
            fit_buffers(connection)
            connection.sendall(struct.pack("<3q", wanted.start, wanted.stop, wanted.step))
            for number in wanted:
                room.acquire()
                piece = self.buffer(number // PIECES).reshape(PIECES, -1)[number % PIECES]
                if connection.recv_into(piece.data, 0, socket.MSG_WAITALL) < piece.nbytes:
                    raise ConnectionError("the server is gone")
                here.put(None)


if __name__ == "__main__":
    serve(Server() if arguments(__doc__ or "", VARIANTS).variant == "server" else Consumer())
