"""Bytes to and from sockets on an event loop, also of an SSLSocket, which asyncio's own functions refuse."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable

from feeder.wire.tls import shut

__all__ = ["accepted", "move", "readable", "receive", "send", "shake", "tell"]

log = logging.getLogger(__name__)

RETRY_S = 0.1

LOG_ACCEPT_S = 10.0
"""Between two lines of the log on connections that cannot be accepted."""

PIECE_BYTES = 256 << 10

BUSY_S = 0.01
"""Until OpenSSL is asked again, where it must write to read or the other way round: keys are renewed."""


async def accepted(listener: socket.socket) -> AsyncIterator[socket.socket]:
    """Connections as they come, which do not block. Unlike sock_accept this loses none where it is ended."""
    silent_until_s = 0.0
    while True:
        await readable(listener)  # each time, so that many that come at once do not keep others waiting
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # it has gone again
            continue
        except OSError as error:
            if time.monotonic() >= silent_until_s:
                log.warning("cannot accept connections: %s", error.strerror or error)
                silent_until_s = time.monotonic() + LOG_ACCEPT_S
            await asyncio.sleep(RETRY_S)  # such as too many open files, which the next round meets again
            continue
        connection.setblocking(False)
        yield connection


async def readable(connection: socket.socket) -> None:
    """Waits until something came; nothing is lost where this is ended by a deadline."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


async def receive(connection: socket.socket, size: int) -> bytes:
    """At least one byte, or none at the end. Unlike sock_recv this loses nothing where a deadline ends it."""
    while True:
        try:
            return connection.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError):
            await readable(connection)
        except ssl.SSLWantWriteError:
            await asyncio.sleep(BUSY_S)


async def send(connection: socket.socket, data: bytes) -> None:
    """Sends all of it."""
    if not isinstance(connection, ssl.SSLSocket):
        await asyncio.get_running_loop().sock_sendall(connection, data)
        return
    with memoryview(data) as view:
        sent = 0
        while sent < len(view):
            try:
                sent += connection.send(view[sent : sent + PIECE_BYTES])
            except ssl.SSLWantWriteError:
                await _writable(connection)
            except ssl.SSLWantReadError:
                await asyncio.sleep(BUSY_S)


async def tell(connection: socket.socket, data: bytes) -> None:
    """Sends the last that is said, and waits for the peer's end: closed with bytes unread, a connection may
    take along what was sent."""
    await send(connection, data)
    shut(connection, socket.SHUT_WR)
    while await receive(connection, PIECE_BYTES):
        pass


async def shake(connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Shakes hands as a server; the connection belongs to what is returned, or is closed.

    Raises:
        ssl.SSLError, OSError: it failed.
    """
    try:
        secure = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
    except BaseException:
        connection.close()
        raise
    try:
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                await readable(secure)
            except ssl.SSLWantWriteError:
                await _writable(secure)
            else:
                return secure
    except ssl.SSLError:
        await _let_read(secure)
        raise
    except BaseException:
        secure.close()
        raise


async def move(
    source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes], stall_s: float
) -> None:
    """Passes on what comes until it ends; a target that takes nothing for `stall_s` is gone."""
    loop = asyncio.get_running_loop()
    secure = isinstance(source, ssl.SSLSocket)
    while data := await (receive(source, PIECE_BYTES) if secure else loop.sock_recv(source, PIECE_BYTES)):
        async with asyncio.timeout(stall_s):
            await send(target, change(data))
    shut(target, socket.SHUT_WR)


async def _writable(connection: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(connection)


async def _let_read(secure: ssl.SSLSocket) -> None:
    """Ends a connection so that the peer can read the alert that tells it why: closed with bytes unread, it
    may not."""
    with secure, socket.socket(fileno=secure.detach()) as connection:
        connection.setblocking(False)
        try:
            connection.shutdown(socket.SHUT_WR)
            while await receive(connection, PIECE_BYTES):
                pass
        except OSError:
            pass  # it is gone already
