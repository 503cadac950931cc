"""TCP links that are cut, slowed down, or go silent without an end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PIECE_BYTES = 4096


class _Connection:
    def __init__(self, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.writers = writers
        self.flowing = asyncio.Event()
        self.flowing.set()


class Proxy:
    """Stands between clients and one worker.

    Args:
        cut_after_bytes: each connection is cut after so many bytes of the worker's.

    Attributes:
        cuts: connections that were cut because of that.
        passed: bytes of the worker's that went over each connection, oldest first.
    """

    def __init__(self, address: str, cut_after_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.cuts = 0
        self.passed: list[int] = []
        self._worker = host, int(port)
        self._cut_after_bytes = cut_after_bytes
        self._pause_s = 0.0
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Resets all connections."""
        self._do(self._abort)

    def freeze(self) -> None:
        """Nothing passes any more on the connections of now, and neither side hears of it."""
        self._do(lambda: [connection.flowing.clear() for connection in self._connections])

    def slow(self, pause_s: float) -> None:
        """Every 4 KiB wait so long from now on."""
        self._do(lambda: setattr(self, "_pause_s", pause_s))

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, action: Callable[[], T]) -> T:
        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(10)

    def _abort(self) -> None:
        for connection in self._connections:
            connection.flowing.set()
            for writer in connection.writers:
                writer.transport.abort()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        self._abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_worker, to_worker = await asyncio.open_connection(*self._worker)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection((writer, to_worker))
        self._connections.add(connection)
        number = len(self.passed)
        self.passed.append(0)
        try:
            await asyncio.gather(
                self._pump(connection, reader, to_worker, None, None),
                self._pump(connection, from_worker, writer, self._cut_after_bytes, number),
            )
        finally:
            self._connections.discard(connection)
            for end in connection.writers:
                end.transport.abort()

    async def _pump(
        self,
        connection: _Connection,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        limit: int | None,
        number: int | None,
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await source.read(PIECE_BYTES):
                await asyncio.sleep(self._pause_s)
                await connection.flowing.wait()
                sink.write(data if limit is None else data[: limit - passed])
                await sink.drain()
                passed += len(data)
                if number is not None:
                    self.passed[number] = passed
                if limit is not None and passed >= limit:
                    self.cuts += 1
                    break
        # Each end that goes takes the other with it, once what it said before has passed.
        with contextlib.suppress(OSError):
            await sink.drain()
        sink.close()
