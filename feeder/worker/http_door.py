"""The door of the HTTP side: how many connections there are, of whom, and for how long.

Whoever holds connections open and says nothing, or asks and takes no answer, must not keep probes out: a
worker whose probes fail is killed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence

from aiohttp.web_protocol import RequestHandler

from feeder.worker.refusals import Refusals, why_no_handshake
from feeder.worker.relay import accepted, readable, tell

__all__ = ["MAX_CONNECTIONS", "MAX_PER_HOST", "HttpDoor"]

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""At a time, of a few scrapers and probes; one more is answered 503 and closed."""

MAX_PER_HOST = 48
"""Of them, those of one host."""

HELLO_S = 10.0
"""One whose first byte has not come by then ends."""

HANDSHAKE_S = 5.0

STALL_S = 15.0
"""One that asks for nothing, or takes nothing of an answer, for so long is cut."""

CHECK_S = 0.25
"""Between two looks at that."""

REFUSALS = 16
"""Connections that are told at a time why they are refused; more are closed without a word."""

REFUSAL_S = 1.0

_TLS_RECORD = b"\x16"


def _answer(status: str, text: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
    return f"{head}Connection: close\r\n\r\n{text}".encode()


_BUSY = _answer("503 Service Unavailable", "too many connections\n")
_PLAIN = _answer("400 Bad Request", "this port speaks TLS: https://\n")


class HttpDoor:
    """Takes connections on the event loop that it was made on, until it is closed.

    Args:
        listeners: do not block; they belong to this.
        serve: makes the protocol of a connection.
        tls: what connections begin with; None: nothing.
        refusals: is told of those that are sent away.

    Attributes:
        tls: may be changed for connections from then on, from any thread.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        serve: Callable[[], RequestHandler],
        tls: ssl.SSLContext | None,
        refusals: Refusals,
    ) -> None:
        self._listeners = listeners
        self._serve = serve
        self.tls = tls
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self._hosts: Counter[str] = Counter()  # connections of each
        self._until_s: dict[RequestHandler, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing: set[asyncio.Task[None]] = set()
        self._accepting = [self._loop.create_task(self._accept(listener)) for listener in listeners]

    def working(self, handler: RequestHandler) -> None:
        """A request has come, and its answer is being made, which may take its time."""
        self._allow(handler, math.inf)

    def answering(self, handler: RequestHandler) -> None:
        """The answer is sent from now on."""
        self._allow(handler, self._loop.time() + STALL_S)

    async def close(self) -> None:
        """Takes no more connections; those that are served are left to who serves them."""
        await _cancel(self._accepting)  # first, so that all others have begun: they close their connections
        await _cancel([*self._tasks, *self._refusing])
        for listener in self._listeners:
            listener.close()

    def _allow(self, handler: RequestHandler, until_s: float) -> None:
        if handler in self._until_s:  # what makes an answer may outlive the connection
            self._until_s[handler] = until_s

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        async for connection in accepted(listener):
            try:
                host, port, *_ = connection.getpeername()
            except OSError:  # it is gone already
                connection.close()
                continue
            name = f"http:{host}:{port}"
            if self._hosts.total() < MAX_CONNECTIONS and self._hosts[host] < MAX_PER_HOST:
                self._hosts[host] += 1
                self._spawn(self._tasks, self._keep(connection, name, host))
                continue
            self._refusals.note("busy", name, "the HTTP port takes no more connections")
            if len(self._refusing) < REFUSALS and self.tls is None:
                self._spawn(self._refusing, self._refuse(connection, _BUSY))
            else:
                connection.close()

    async def _refuse(self, connection: socket.socket, answer: bytes) -> None:
        with connection:
            try:
                async with asyncio.timeout(REFUSAL_S):
                    await tell(connection, answer)
            except OSError:  # TimeoutError is one
                pass

    async def _keep(self, connection: socket.socket, name: str, host: str) -> None:
        """Sees a connection from its first byte to its end."""
        try:
            handler = await self._welcome(connection, name)
            if handler is not None:
                await self._watch(handler, name)
        except TimeoutError:
            self._refusals.note("timeout", name, "it asked for nothing in time")
        except ssl.SSLError as error:
            reason, text = why_no_handshake(error)
            self._refusals.note(reason, name, text)
        except OSError as error:
            log.debug("an HTTP connection ended: %s", error)
        except Exception:
            log.exception("an HTTP connection is given up")
        finally:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]

    async def _welcome(self, connection: socket.socket, name: str) -> RequestHandler | None:
        """Who serves the connection; None where it ended, or one side speaks TLS and the other does not."""
        try:
            async with asyncio.timeout(HELLO_S):
                await readable(connection)
            first = connection.recv(len(_TLS_RECORD), socket.MSG_PEEK)
        except BaseException:
            connection.close()
            raise
        tls = self.tls
        if not first:
            connection.close()
        elif tls is None and first == _TLS_RECORD:
            connection.close()
            self._refusals.note("tls", name, "it speaks TLS, and this worker was not told to: --tls-cert")
        elif tls is not None and first != _TLS_RECORD:
            self._refusals.note("no_tls", name, "it speaks no TLS")
            await self._refuse(connection, _PLAIN)
        else:
            handler = self._serve()
            timeout_s = None if tls is None else HANDSHAKE_S
            # Before it serves: a request that comes with the end of the handshake is told of at once.
            self._until_s[handler] = self._loop.time() + STALL_S
            try:
                made = self._loop.create_task(
                    self._loop.connect_accepted_socket(
                        lambda: handler, connection, ssl=tls, ssl_handshake_timeout=timeout_s
                    )
                )
                # Without a handshake a request may be answered by now: close() leaves that connection alone.
                await (made if tls is not None else asyncio.shield(made))
            except BaseException as error:
                del self._until_s[handler]
                if isinstance(error, ConnectionAbortedError):  # as event loops call a handshake's timeout
                    raise TimeoutError from None
                raise
            return handler
        return None

    async def _watch(self, handler: RequestHandler, name: str) -> None:
        try:
            while handler.transport is not None:
                if self._loop.time() >= self._until_s[handler]:
                    self._until_s[handler] = math.inf
                    self._refusals.note("timeout", name, "it asked for nothing, or took no answer, in time")
                    handler.transport.abort()
                await asyncio.sleep(CHECK_S)
        finally:
            del self._until_s[handler]


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
