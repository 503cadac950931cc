"""Binds a gRPC server to an address, and says what is wrong where that fails."""

from __future__ import annotations

import errno
import os
import socket
import stat

import grpc

from feeder.errors import ConfigError
from feeder.wire.address import Address

__all__ = ["bind", "release"]

_LIVE_CHECK_S = 2.0


def bind(server: grpc.Server, address: Address) -> Address:
    """Makes a server that was not started yet listen on an address; returns it with the port that was given.

    Raises:
        ConfigError: the address is in use, not ours, or not allowed.
    """
    if address.kind == "unix":
        return _bind_unix(server, address)
    _check_port(address)
    try:
        port = server.add_insecure_port(address.grpc_target)
    except RuntimeError:
        port = 0
    if port == 0:
        raise ConfigError(f"cannot listen on {address}: gRPC does not say why; is another process using it?")
    return Address("tcp", address.host, port)


def release(address: Address) -> None:
    """Removes the socket file of a server that stopped."""
    if address.kind == "unix":
        try:
            os.unlink(address.path)
        except FileNotFoundError:
            return


def _check_port(address: Address) -> None:
    """Binds the port for a moment, since the system's reason does not come through gRPC."""
    try:
        places = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {address}: no such host here ({reason})") from None
    for family, kind, protocol, _, place in places:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise ConfigError(
                        f"cannot listen on {address}: another process listens on port {address.port}; choose "
                        f"another port, or 0 for any free one"
                    ) from None
                raise ConfigError(f"cannot listen on {address}: {error.strerror}") from None


def _bind_unix(server: grpc.Server, address: Address) -> Address:
    folder = os.path.dirname(os.path.abspath(address.path))
    if not os.path.isdir(folder):
        raise ConfigError(f"cannot listen on {address}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot listen on {address}: this user may not write to {folder}")
    _remove_stale(address)
    # The socket is made by gRPC, and must never have been open to others, not even for a moment.
    umask = os.umask(0o177)
    try:
        port = server.add_insecure_port(address.grpc_target)
    except RuntimeError:
        port = 0
    finally:
        os.umask(umask)
    if port == 0:
        folder = os.path.dirname(os.path.abspath(address.path))
        reason = (
            f"may this user write to {folder}?" if os.path.isdir(folder) else f"there is no folder {folder}"
        )
        raise ConfigError(f"cannot listen on {address}: {reason}")
    return address


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
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_LIVE_CHECK_S)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None
    raise ConfigError(
        f"cannot listen on {address}: a live process listens there; stop it, or use another path"
    )
