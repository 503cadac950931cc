"""The door of a worker: accepts connections, serves those that are for one Feed, hands the others to gRPC.

accept -> TLS -> opening -> one Feed:       a thread and a ServedCall
                         -> anything else:  bytes to and from the gRPC server, which listens behind it

The gRPC server has all methods, Feed too: a client that knows nothing of this may do on a connection what it
likes. TLS ends here, if it is spoken at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import ssl
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Sequence

import grpc

from feeder.errors import ConfigError
from feeder.wire.address import Address
from feeder.wire.channel import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, fit_buffers
from feeder.wire.context import Handler
from feeder.wire.frames import Head
from feeder.wire.opening import Opening, WithoutFirstAck, refusal
from feeder.wire.serve import LINGER_S, TICK_S, ServedCall
from feeder.wire.tls import TlsSocket
from feeder.worker.access import Caller
from feeder.worker.listen import bind, release
from feeder.worker.refusals import Refusals, why_no_handshake
from feeder.worker.relay import accepted, move, readable, receive, send, shake, tell

__all__ = ["OPENING_S", "OTHERS_CONNECTIONS", "SPARE_CONNECTIONS", "Front"]

log = logging.getLogger(__name__)

OPENING_S = 10.0
"""A connection that asks for nothing in so long goes to the gRPC server; one that is no HTTP/2 ends."""

HELLO_S = 3.0
"""One whose first byte has not come by then ends."""

HANDSHAKE_S = 5.0

SPARE_CONNECTIONS = 256
"""Connections beyond those of streams: for Describe, health, reflection, and streams that are refused."""

REFUSALS = 16
"""Connections that are told at a time that there are too many; more are closed without a word."""

REFUSAL_S = 1.0

OTHERS_CONNECTIONS = 128
"""Of the spare ones, those that one host alone does not get."""

CUT_S = 5.0
"""For the threads of calls that were cut."""

STALL_S = (KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS) / 1000
"""A peer that takes not one piece for so long is gone."""

_OPENING_PIECE_BYTES = 16 << 10
_TLS_RECORD = b"\x16\x03"
_PREFACE = b"PRI"


class Front:
    """Listens for a gRPC server, and serves one of its methods itself.

    Args:
        address: where to listen; port 0 lets the system choose.
        server: not started yet; it listens for nobody else.
        path: of the method that is served here, "/package.Service/Method".
        most: connections at a time.
        per_host: of them, those of one host that are for no stream yet, or for several; None: all.
        tls: what connections over TCP begin with; None: nothing.
        refusals: is told of those that are sent away.

    Attributes:
        address: with the port that was given.

    Raises:
        ConfigError: the address is in use, not ours, or not allowed.
    """

    def __init__(
        self,
        address: Address,
        server: grpc.Server,
        path: str,
        most: int,
        *,
        per_host: int | None = None,
        tls: ssl.SSLContext | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self._path = path
        self._most = most
        self._per_host = most if per_host is None else per_host
        self._tls = tls
        self._refusals = refusals or Refusals()
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
        self._hosts: Counter[str] = Counter()  # connections of each that are for no stream, or not yet
        self._callers: dict[str, Caller] = {}  # by the name that their calls' context has

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

    def change_tls(self, tls: ssl.SSLContext | None) -> None:
        """Connections from now on begin with this."""
        self._tls = tls

    def caller(self, peer: str) -> Caller:
        """Whose call it is, by the name that its context has."""
        return self._callers.get(peer) or Caller(peer)

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
        async for connection in accepted(listener):
            try:
                name, host = _name(connection), _host(connection)
            except OSError:  # it is gone already
                connection.close()
                continue
            if self._hosts[host] >= self._per_host > 0:
                self._turn_away(connection, name, "this worker takes no more connections of one host")
            elif self._places.acquire(blocking=False):
                self._hosts[host] += 1
                self._spawn(self._tasks, self._welcome(connection, name, host))
            else:
                reason = f"this worker takes at most {self._most} connections at a time"
                self._turn_away(connection, name, reason)

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _turn_away(self, connection: socket.socket, name: str, reason: str) -> None:
        self._refusals.note("busy", name, reason)
        if len(self._refusing) < REFUSALS:
            self._spawn(self._refusing, self._refuse(connection, reason))
        else:
            connection.close()

    async def _refuse(self, connection: socket.socket, reason: str) -> None:
        try:
            async with asyncio.timeout(REFUSAL_S):
                if self._tls is not None and connection.family != socket.AF_UNIX:
                    connection = await shake(connection, self._tls)
                await tell(connection, refusal(reason))
        except OSError:  # TimeoutError is one
            pass
        finally:
            connection.close()

    async def _welcome(self, connection: socket.socket, name: str, host: str) -> None:
        kept = False
        caller = Caller(name)
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    secure = await self._shake(connection, name, self._tls)
                    if secure is None:
                        return
                    connection = secure
                    caller = Caller(name, _common_name(secure))
            opening = Opening(self._path)
            behind = await self._hear(connection, opening)
            if opening.headers is not None:
                kept = self._begin(connection, opening, behind, caller)
            elif opening.received.startswith(_TLS_RECORD):
                self._refusals.note("tls", name, "it speaks TLS, and this worker was not told to: --tls-cert")
            else:
                await self._hand_over(connection, bytes(opening.received), caller)
        except TimeoutError:
            self._refusals.note("timeout", name, "it asked for nothing in time")
        except OSError as error:
            log.debug("a connection ended: %s", error)
        except Exception:
            log.exception("a connection is given up")
        finally:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
            if not kept:
                connection.close()
                self._places.release()

    async def _shake(self, connection: socket.socket, name: str, tls: ssl.SSLContext) -> ssl.SSLSocket | None:
        """The connection after its handshake; None where that failed, or nothing came."""
        async with asyncio.timeout(HANDSHAKE_S):
            async with asyncio.timeout(HELLO_S):
                await readable(connection)
            first = connection.recv(len(_PREFACE), socket.MSG_PEEK)
            if not first:
                return None  # who only looks whether somebody listens
            if first.startswith(_PREFACE):
                self._refusals.note("no_tls", name, "it speaks no TLS")
                await tell(connection, refusal("this worker speaks TLS: --tls-ca, Credentials(tls_ca=...)"))
                return None
            try:
                return await shake(connection, tls)
            except ssl.SSLError as error:
                reason, text = why_no_handshake(error)
                self._refusals.note(reason, name, text)
                return None

    async def _hear(self, connection: socket.socket, opening: Opening) -> list[tuple[Head, bytes]]:
        """Reads until the opening is decided, or has taken its time; then only HTTP/2 may go on."""
        behind: list[tuple[Head, bytes]] = []
        try:
            async with asyncio.timeout(OPENING_S):
                await send(connection, opening.greeting)
                while not opening.decided:
                    async with asyncio.timeout(None if opening.received else HELLO_S):
                        data = await receive(connection, _OPENING_PIECE_BYTES)
                    if not data:
                        raise ConnectionAbortedError("it ended before it asked for anything")
                    behind = opening.feed(data)
        except TimeoutError:
            if not opening.is_http2:
                raise
        return behind

    def _begin(
        self,
        connection: socket.socket,
        opening: Opening,
        behind: Sequence[tuple[Head, bytes]],
        caller: Caller,
    ) -> bool:
        """Gives the connection to a call, and the call to a thread."""
        fit_buffers(connection)
        if isinstance(connection, ssl.SSLSocket):
            call = ServedCall(TlsSocket(connection, TICK_S), opening, behind, caller.name)
        else:
            connection.setblocking(True)
            call = ServedCall(connection, opening, behind, caller.name)
        thread = threading.Thread(target=self._run, args=(call, caller), name="feeder-feed", daemon=True)
        with self._lock:
            self._calls[call] = thread
            if caller.certificate is not None:
                self._callers[caller.name] = caller
        try:
            thread.start()
        except BaseException:
            self._forget(call, caller)
            raise
        return True

    def _run(self, call: ServedCall, caller: Caller) -> None:
        try:
            call.run(self._handler)
        finally:
            self._forget(call, caller)
            call.close()
            self._places.release()

    def _forget(self, call: ServedCall, caller: Caller) -> None:
        with self._lock:
            del self._calls[call]
            self._callers.pop(caller.name, None)

    async def _hand_over(self, connection: socket.socket, received: bytes, caller: Caller) -> None:
        """Moves bytes between a client and the gRPC server until one ends its side, and a little longer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as behind:
            name = f"feeder-{secrets.token_hex(8)}"  # by which gRPC's calls tell whose they are
            behind.bind(f"\0{name}")
            await self._loop.sock_connect(behind, self._behind.path)
            self._callers[f"unix-abstract:{name}"] = caller
            without_ack = WithoutFirstAck()
            await self._loop.sock_sendall(behind, without_ack(received))
            ways = [
                self._loop.create_task(move(connection, behind, without_ack, STALL_S)),
                self._loop.create_task(move(behind, connection, bytes, STALL_S)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait(ways, timeout=LINGER_S)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                self._callers.pop(f"unix-abstract:{name}", None)


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


def _host(connection: socket.socket) -> str:
    return "" if connection.family == socket.AF_UNIX else str(connection.getpeername()[0])


def _common_name(connection: ssl.SSLSocket) -> str | None:
    """Of the certificate that the client showed; it was checked, or none was asked for."""
    subject: Sequence[Sequence[tuple[str, str]]] = (connection.getpeercert() or {}).get("subject", ())  # type: ignore[assignment]
    return next((value for part in subject for key, value in part if key == "commonName"), None)


def _join(threads: Sequence[threading.Thread], deadline_s: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
