"""Binds sockets to the address that a worker listens on, and says what is wrong where that fails."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from typing import Any

from feeder.errors import ConfigError
from feeder.wire.address import Address

__all__ = ["bind", "is_abandoned", "listen_unix", "release"]

BACKLOG = 128
"""Connections that wait to be accepted, such as those that come while shards are indexed."""


def bind(address: Address) -> tuple[list[socket.socket], Address]:
    """Sockets that listen on an address, one for each place that its host's name stands for, and the address
    with the port that was given. They do not block.

    Raises:
        ConfigError: the address is in use, not ours, or not allowed.
    """
    if address.kind == "unix":
        return [_bind_unix(address)], address
    try:
        places = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {address}: no such host here ({reason})") from None
    port = address.port
    listeners: list[socket.socket] = []
    missing = None
    for family, kind, protocol, _, place in places:
        try:
            # "::" stands for IPv4 too; of a name that stands for both, each has its own socket.
            only = family == socket.AF_INET6 and len(places) > 1
            listeners.append(_listening(family, kind, protocol, (place[0], port, *place[2:]), only))
        except OSError as error:
            refusal = ConfigError(f"cannot listen on {address}: {_reason(error, port)}")
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                missing = missing or refusal  # such as ::1 of "localhost" where there is no IPv6
                continue
            for listener in listeners:
                listener.close()
            raise refusal from None
        port = listeners[-1].getsockname()[1]  # where the system chooses, all get what the first got
    if missing is not None and not listeners:
        raise missing
    return listeners, Address("tcp", address.host, port)


def _listening(family: int, kind: int, protocol: int, place: tuple[Any, ...], only: bool) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        listener.bind(place)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def release(address: Address) -> None:
    """Removes the socket file of a server whose listener is closed, unless it is another's by now."""
    if address.kind == "unix":
        with contextlib.suppress(OSError):
            if is_abandoned(address.path, socket.SOCK_STREAM):
                os.unlink(address.path)


def listen_unix(listener: socket.socket, path: str) -> None:
    """Has a socket listen at a path, open to this user alone, without ever blocking.

    Raises:
        OSError: it cannot.
    """
    umask = os.umask(0o177)  # never open to others, not even for a moment
    try:
        listener.bind(path)
    finally:
        os.umask(umask)
    listener.listen(BACKLOG)
    listener.setblocking(False)


def is_abandoned(path: str, kind: socket.SocketKind) -> bool:
    """Whether nobody listens at the socket file that is there, such as one that a dead process left.

    Raises:
        OSError: it cannot be told; FileNotFoundError where there is none.
    """
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except BlockingIOError:
            pass  # so many wait there that there is no room
    return False


def _reason(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"another process listens on port {port}; choose another port, or 0 for any free one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "no network interface of this host has that address; use one of its own, or 0.0.0.0 for all"
    if error.errno == errno.EACCES:
        return f"this user may not listen on port {port}; choose one above 1023"
    return error.strerror or str(error)


def _bind_unix(address: Address) -> socket.socket:
    path = os.path.abspath(address.path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise ConfigError(f"cannot listen on {address}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot listen on {address}: this user may not write to {folder}")
    _remove_stale(address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listen_unix(listener, path)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None
    return listener


def _remove_stale(address: Address) -> None:
    """Removes the socket file that a dead worker left; refuses where a live one listens."""
    try:
        mode = os.stat(address.path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {address}: a file that is no socket is there; remove it first")
    try:
        if is_abandoned(address.path, socket.SOCK_STREAM):
            os.unlink(address.path)
            return
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None
    raise ConfigError(
        f"cannot listen on {address}: a live process listens there; stop it, or use another path"
    )
