"""TLS for both sides: what a context is made of, and a connection that two threads may use.

Nothing below TLS 1.2 is spoken. HTTP/2 is agreed on by ALPN, as gRPC wants it.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from feeder.errors import ConfigError
from feeder.wire.address import Address

__all__ = [
    "GRPC",
    "HTTP",
    "TlsSocket",
    "check_dates",
    "client_context",
    "server_context",
    "shake",
    "shut",
    "validity",
]

GRPC, HTTP = "h2", "http/1.1"
"""What is spoken over TLS, as ALPN names it."""

SYSTEM = "system"
"""Instead of a file: the authorities that this system trusts."""

PIECE_BYTES = 256 << 10
"""Encrypted in one go, with the lock: some 100 us, for which the other thread waits at most."""

MAX_FILE_BYTES = 1 << 20

_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18


def server_context(
    certificate: Path, key: Path | None, client_ca: Path | None, protocol: str = GRPC
) -> ssl.SSLContext:
    """What a worker shakes hands with.

    Args:
        certificate: PEM, the worker's own first, then those between it and the authority.
        key: PEM, without a passphrase; None: it is in the file of the certificate.
        client_ca: PEM; clients must have a certificate of one of these. None: they need none.
        protocol: that is agreed on.

    Raises:
        ConfigError: a file cannot be read, is not what it should be, or the two do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([protocol])
    _prepare(context, certificate, key)
    if client_ca is not None:
        _load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: str, certificate: str | None, key: str | None) -> ssl.SSLContext:
    """What a client shakes hands with: it wants a certificate of `ca` for the name that it dials.

    Raises:
        ConfigError: a file cannot be read, is not what it should be, or the two do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca == SYSTEM:
        context.load_default_certs()
    else:
        _load_authorities(context, Path(ca))
    if certificate is not None:
        _prepare(context, Path(certificate), None if key is None else Path(key))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([GRPC])
    return context


def validity(certificate: Path) -> tuple[datetime, datetime]:
    """From when and until when the first certificate of a file is valid.

    The place is that of RFC 5280, 4.1: Certificate, TBSCertificate, and there behind version, serial number,
    signature and issuer.

    Raises:
        ConfigError: the file cannot be read, or holds no certificate.
    """
    text = _read(certificate).decode("latin-1")
    begin = text.find(ssl.PEM_HEADER)
    end = text.find(ssl.PEM_FOOTER, begin)
    try:
        if begin < 0 or end < 0:
            raise ValueError("no PEM")
        der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(ssl.PEM_FOOTER)] + "\n")
        fields = _parts(_parts(_parts(der)[0][1])[0][1])
        versioned = fields[0][0] == 0xA0
        dates = _parts(fields[3 + versioned][1])
        return _time(*dates[0]), _time(*dates[1])
    except (ValueError, IndexError):
        raise ConfigError(f"{certificate}: is no certificate in PEM") from None


def check_dates(certificate: Path, now: datetime) -> str:
    """Why the first certificate of a file is not valid now; empty if it is."""
    begins, ends = validity(certificate)
    if now < begins:
        return f"{certificate} is not valid before {begins:%Y-%m-%d %H:%M} UTC: look at this host's clock"
    if now > ends:
        return f"{certificate} expired at {ends:%Y-%m-%d %H:%M} UTC: put a new one there"
    return ""


def shake(connection: socket.socket, context: ssl.SSLContext, address: Address) -> ssl.SSLSocket:
    """Shakes hands as a client; the connection belongs to what is returned, or is closed.

    Raises:
        ssl.SSLError, OSError: it failed.
    """
    try:
        return context.wrap_socket(connection, server_hostname=address.name or address.host)
    except BaseException:
        connection.close()
        raise


def shut(connection: socket.socket, how: int) -> None:
    """shutdown() of the connection itself: that of an SSLSocket drops the keys, too, which another may be
    reading with."""
    socket.socket.shutdown(connection, how)


class TlsSocket:
    """A connection after its handshake, with as much of a socket's face as calls need.

    OpenSSL's state of a connection is for one thread at a time. One may receive here while another sends:
    each holds the lock for as long as OpenSSL works, and none while it waits.

    Args:
        connection: shaken hands with; belongs to this from now on.
        tick_s: after so long without a byte to receive, or room for one to send, BlockingIOError is raised,
            as by a socket with SO_RCVTIMEO and SO_SNDTIMEO.
    """

    def __init__(self, connection: ssl.SSLSocket, tick_s: float) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._tick_s = tick_s
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """For select."""
        return self._connection.fileno()

    def recv(self, size: int) -> bytes:
        """As of a socket."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def recv_into(self, view: memoryview, size: int = 0, flags: int = 0) -> int:
        """As of a socket; a flag that asks for all of it changes nothing."""
        while True:
            try:
                with self._lock:
                    return self._connection.recv_into(view, size or len(view))
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0) -> int:
        """As of a socket; with MSG_DONTWAIT it raises BlockingIOError where there is no room now. Then the
        next that is sent must begin with the same bytes: they are encrypted already."""
        with memoryview(data) as view, view[:PIECE_BYTES] as piece:
            while True:
                try:
                    with self._lock:
                        return self._connection.send(piece)
                except ssl.SSLWantWriteError:
                    if flags & socket.MSG_DONTWAIT:
                        raise BlockingIOError from None
                    self._wait(select.POLLOUT)
                except ssl.SSLWantReadError:
                    if flags & socket.MSG_DONTWAIT:
                        raise BlockingIOError from None
                    self._wait(select.POLLIN)

    def sendmsg(
        self, parts: Sequence[bytes | memoryview], ancillary: Sequence[object] = (), flags: int = 0
    ) -> int:
        """Sends of the first of `parts` that is not empty."""
        return self.send(next((part for part in parts if len(part)), b""), flags)

    def shutdown(self, how: int) -> None:
        """Ends the connection below; takes no lock."""
        shut(self._connection, how)

    def close(self) -> None:
        """Gives back the socket."""
        self._connection.close()

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._connection, event)
        if not poll.poll(self._tick_s * 1000):
            raise BlockingIOError


def _prepare(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Loads the own certificate."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (certificate, key):
        if path is not None:
            _read(path)  # says which of the two cannot be read, as OpenSSL does not
    validity(certificate)
    try:
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = "they do not belong together"
        elif key is None:
            why = "the file needs the key, too, or the key a file of its own (--tls-key)"
        else:
            why = "the key must be in PEM, without a passphrase"
        raise ConfigError(f"certificate {certificate} and key {key or certificate}: {why}") from None


def _refuse_passphrase() -> str:
    return ""  # otherwise OpenSSL asks the terminal


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    validity(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(f"{path}: authorities cannot be read from it ({error.reason})") from None


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: has more than {MAX_FILE_BYTES} bytes: neither certificate nor key")
    return data


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """The elements that stand in a row, as tag and content."""
    parts = []
    while der:
        tag, size, head = der[0], der[1], 2
        if size & 0x80:
            head += size & 0x7F
            size = int.from_bytes(der[2:head], "big")
        if head + size > len(der):
            raise ValueError("cut")
        parts.append((tag, der[head : head + size]))
        der = der[head + size :]
    return parts


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # of a year in 1950 to 2049
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
