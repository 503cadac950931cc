"""The door of a worker: accepts connections, serves those that are for one Feed, hands the others to gRPC.

accept -> opening -> one Feed:       a thread and a ServedCall
                  -> anything else:  bytes to and from the gRPC server, which listens behind it

The gRPC server has all methods, Feed too: a client that knows nothing of this may do on a connection what it
likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Sequence

import grpc
from h2.events import Event

from feeder.errors import ConfigError
from feeder.wire.address import Address
from feeder.wire.channel import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, fit_buffers
from feeder.wire.opening import Opening, WithoutFirstAck, refusal
from feeder.wire.serve import LINGER_S, Handler, ServedCall
from feeder.worker.listen import bind, release

__all__ = ["OPENING_S", "SPARE_CONNECTIONS", "Front"]

log = logging.getLogger(__name__)

OPENING_S = 10.0
"""A connection that asks for nothing in so long goes to the gRPC server; one that is no HTTP/2 ends."""

SPARE_CONNECTIONS = 256
"""Connections beyond one a stream: for Describe, health, reflection, and streams that are refused."""

REFUSALS = 16
"""Connections that are told at a time that there are too many; more are closed without a word."""

REFUSAL_S = 1.0

LOG_REFUSED_S = 10.0
"""Between two lines of the log on connections that were too many."""

CUT_S = 5.0
"""For the threads of calls that were cut."""

RETRY_S = 0.1

STALL_S = (KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS) / 1000
"""A peer that takes not one piece for so long is gone."""

_OPENING_PIECE_BYTES = 16 << 10
_PIECE_BYTES = 256 << 10


class Front:
    """Listens for a gRPC server, and serves one of its methods itself.

    Args:
        address: where to listen; port 0 lets the system choose.
        server: not started yet; it listens for nobody else.
        path: of the method that is served here, "/package.Service/Method".
        most: connections at a time.

    Attributes:
        address: with the port that was given.

    Raises:
        ConfigError: the address is in use, not ours, or not allowed.
    """

    def __init__(self, address: Address, server: grpc.Server, path: str, most: int) -> None:
        self._path = path
        self._most = most
        self._listeners, self.address = bind(address)
        try:
            self._behind = _Behind(server)
        except BaseException:
            self._close_listeners()
            raise
        self._handler: Handler
        self._thread: threading.Thread | None = None
        self._places = threading.Semaphore(most)  # of connections
        self._lock = threading.Lock()
        self._calls: dict[ServedCall, threading.Thread] = {}
        self._grace_s = 0.0
        # For the thread, but that the event is set from outside.
        self._loop: asyncio.AbstractEventLoop
        self._closing: asyncio.Event
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing: set[asyncio.Task[None]] = set()
        self._refused, self._log_refused_s = 0, 0.0

    def start(self, handler: Handler) -> None:
        """Takes connections from now on; the gRPC server was started.

        Args:
            handler: of the method that is served here.
        """
        self._handler = handler
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = runner.get_loop()  # here, so that start() fails where it cannot be made
        self._closing = asyncio.Event()
        thread = threading.Thread(target=self._run_loop, args=(runner,), name="feeder-front", daemon=True)
        thread.start()
        self._thread = thread

    def cut(self) -> None:
        """Ends all calls that are served here, at once."""
        with self._lock:
            for call in self._calls:
                call.cancel()

    def close(self, grace_s: float) -> None:
        """Takes no more connections, and ends those that there are after `grace_s` seconds."""
        deadline_s = time.monotonic() + grace_s
        if self._thread is not None:
            self._grace_s = grace_s
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
            self._thread = None
        self._close_listeners()
        with self._lock:
            threads = list(self._calls.values())
        _join(threads, deadline_s)
        self.cut()
        _join(threads, time.monotonic() + CUT_S)
        self._behind.close()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._listeners:
            release(self.address)
        self._listeners.clear()

    # On the thread.

    def _run_loop(self, runner: asyncio.Runner) -> None:
        with runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        accepting = [self._loop.create_task(self._accept(listener)) for listener in self._listeners]
        await self._closing.wait()
        for task in accepting:
            task.cancel()
        await asyncio.wait(accepting)
        self._close_listeners()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace_s)  # those that are left, the runner cancels

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error.strerror or error)
                await asyncio.sleep(RETRY_S)  # such as too many open files, which the next round meets again
                continue
            connection.setblocking(False)
            if self._places.acquire(blocking=False):
                self._spawn(self._tasks, self._welcome(connection))
            elif len(self._refusing) < REFUSALS:
                self._spawn(self._refusing, self._refuse(connection))
            else:
                connection.close()

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _refuse(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(REFUSAL_S):
                reason = f"this worker takes at most {self._most} connections at a time"
                self._log_refused(connection, reason)
                await self._loop.sock_sendall(connection, refusal(reason))
                connection.shutdown(socket.SHUT_WR)
                while await self._loop.sock_recv(connection, _OPENING_PIECE_BYTES):
                    pass  # what is closed unread takes along what was sent

    def _log_refused(self, connection: socket.socket, reason: str) -> None:
        """Not each: gRPC's clients come again at once."""
        self._refused += 1
        if time.monotonic() >= self._log_refused_s:
            log.info(
                "%s: refused, %s (%d since the last such line)", _name(connection), reason, self._refused
            )
            self._refused, self._log_refused_s = 0, time.monotonic() + LOG_REFUSED_S

    async def _welcome(self, connection: socket.socket) -> None:
        kept = False
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opening = Opening(self._path)
            events = await self._hear(connection, opening)
            if opening.headers is not None:
                kept = self._begin(connection, opening, events)
            else:
                await self._hand_over(connection, bytes(opening.received))
        except OSError as error:
            log.debug("a connection ended: %s", error)
        except Exception:
            log.exception("a connection is given up")
        finally:
            if not kept:
                connection.close()
                self._places.release()

    async def _hear(self, connection: socket.socket, opening: Opening) -> list[Event]:
        """Reads until the opening is decided, or has taken its time; then only HTTP/2 may go on."""
        events: list[Event] = []
        try:
            async with asyncio.timeout(OPENING_S):
                await self._loop.sock_sendall(connection, opening.greeting)
                while not opening.decided:
                    # Not sock_recv: ended by the deadline, it may have bytes already, which would be lost.
                    await self._readable(connection)
                    try:
                        data = connection.recv(_OPENING_PIECE_BYTES)
                    except BlockingIOError:
                        continue
                    if not data:
                        raise ConnectionAbortedError("it ended before it asked for anything")
                    events = opening.feed(data)
        except TimeoutError:
            if not opening.is_http2:
                raise
        return events

    async def _readable(self, connection: socket.socket) -> None:
        ready = asyncio.Event()
        self._loop.add_reader(connection, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(connection)

    def _begin(self, connection: socket.socket, opening: Opening, events: Sequence[Event]) -> bool:
        """Gives the connection to a call, and the call to a thread."""
        peer = _name(connection)
        fit_buffers(connection)
        connection.setblocking(True)
        call = ServedCall(connection, opening, events, peer)
        thread = threading.Thread(target=self._run, args=(call,), name="feeder-feed", daemon=True)
        with self._lock:
            self._calls[call] = thread
        try:
            thread.start()
        except BaseException:
            with self._lock:
                del self._calls[call]
            raise
        return True

    def _run(self, call: ServedCall) -> None:
        try:
            call.run(self._handler)
        finally:
            with self._lock:
                del self._calls[call]
            call.close()
            self._places.release()

    async def _hand_over(self, connection: socket.socket, received: bytes) -> None:
        """Moves bytes between a client and the gRPC server until one ends its side, and a little longer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as behind:
            await self._loop.sock_connect(behind, self._behind.path)
            without_ack = WithoutFirstAck()
            await self._loop.sock_sendall(behind, without_ack(received))
            ways = [
                self._loop.create_task(self._move(connection, behind, without_ack)),
                self._loop.create_task(self._move(behind, connection, bytes)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait(ways, timeout=LINGER_S)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _move(
        self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]
    ) -> None:
        while data := await self._loop.sock_recv(source, _PIECE_BYTES):
            async with asyncio.timeout(STALL_S):
                await self._loop.sock_sendall(target, change(data))
        target.shutdown(socket.SHUT_WR)


class _Behind:
    """The socket of a gRPC server that only this process can connect to. Its name is gone as soon as the
    server listens, so that nothing is left whatever the process dies of.

    Attributes:
        path: where this process connects to it.
    """

    def __init__(self, server: grpc.Server) -> None:
        self._fds: list[int] = []
        reasons = []
        for place in (None, "/dev/shm"):  # a service may be allowed to write into the latter alone
            try:
                self.path = self._listen(server, place)
            except (OSError, RuntimeError) as error:
                self.close()
                reasons.append(str(error))
            else:
                return
        raise ConfigError(f"no place for a socket: {'; '.join(reasons)}; set TMPDIR to a folder to write to")

    def _listen(self, server: grpc.Server, place: str | None) -> str:
        with tempfile.TemporaryDirectory(prefix="feeder-", dir=place) as folder:  # for this user alone
            # Relative to a descriptor: a path may have 107 bytes, and TMPDIR more.
            self._fds.append(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            server.add_insecure_port(f"unix:/proc/self/fd/{self._fds[0]}/grpc")
            self._fds.append(os.open(f"{folder}/grpc", os.O_PATH | os.O_CLOEXEC))
        return f"/proc/self/fd/{self._fds[1]}"

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


def _name(connection: socket.socket) -> str:
    """Of the peer, as gRPC names it."""
    if connection.family == socket.AF_UNIX:
        return "unix:"
    host, port, *_ = connection.getpeername()
    return f"ipv6:[{host}]:{port}" if connection.family == socket.AF_INET6 else f"ipv4:{host}:{port}"


def _join(threads: Sequence[threading.Thread], deadline_s: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
