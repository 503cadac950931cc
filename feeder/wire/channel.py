"""Settings of gRPC and of sockets, for both sides.

gRPC's were chosen on loopback with messages of 0.6 to 2.4 MB (4 to 16 images of 224x224x3): plain settings
move 1.5 to 2.1 GB/s, these 3.4 to 4.4 GB/s.
"""

from __future__ import annotations

import os
import socket
from typing import Any, TypeAlias

import grpc

from feeder.wire.address import Address
from feeder.wire.credentials import Credentials

__all__ = ["CLIENT_OPTIONS", "SERVER_OPTIONS", "dial", "fit_buffers", "open_channel"]

Options: TypeAlias = tuple[tuple[str, int | str], ...]

MAX_REQUEST_BYTES = 1 << 20
"""Largest message that a worker takes. A request is some hundred bytes."""

DIAL_TIMEOUT_S = 5.0

KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
"""A peer that vanished without a word (power, cable) is noticed within 30 s; a trainer may pause for ever."""

SAME_HOST_BUFFER_BYTES = 256 << 10
"""What is on its way between two processes of a host stays in the processor's cache until it is copied out;
the megabytes that the kernel allows otherwise cost both sides a third more processor time."""

_TRANSPORT: Options = (
    ("grpc.http2.max_frame_size", (1 << 24) - 1),  # the most that HTTP/2 allows
    ("grpc.http2.lookahead_bytes", 64 << 20),
    ("grpc.http2.write_buffer_size", 16 << 20),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # no limit
    ("grpc.max_send_message_length", -1),
)

CLIENT_OPTIONS: Options = (
    *_TRANSPORT,
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # streams of one process do not share one connection
    ("grpc.enable_http_proxy", 0),  # a worker is a neighbour; http_proxy is for elsewhere
    ("grpc.enable_retries", 0),  # the client knows better: from the next worker in line
    ("grpc.min_reconnect_backoff_ms", 5_000),  # for dialing, in spite of the name
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

SERVER_OPTIONS: Options = (
    *_TRANSPORT,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.so_reuseport", 0),  # two workers on one port is a mistake that must show
    # Otherwise pings more often than every 300 s end the connection with "too_many_pings".
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
)


def open_channel(address: Address, credentials: Credentials | None = None) -> grpc.Channel:
    """A channel to one worker, with `CLIENT_OPTIONS`; dials when first used.

    Args:
        credentials: what the worker is shown; None: what the environment says.

    Raises:
        ConfigError: a file of the credentials cannot be used.
    """
    credentials = credentials or Credentials.from_environment()
    tls = None if address.kind == "unix" else credentials.channel()
    if tls is None:
        channel = grpc.insecure_channel(address.grpc_target, options=CLIENT_OPTIONS)
    else:
        named = (("grpc.ssl_target_name_override", address.name),) if address.name else ()
        channel = grpc.secure_channel(address.grpc_target, tls, options=(*CLIENT_OPTIONS, *named))
    authorization = credentials.authorization()
    return channel if authorization is None else grpc.intercept_channel(channel, _Authorized(authorization))


def dial(address: Address) -> socket.socket:
    """A connection, that gives up after DIAL_TIMEOUT_S whatever it waits for.

    Raises:
        OSError: nobody answers there.
    """
    if address.kind == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(DIAL_TIMEOUT_S)
            connection.connect(os.path.abspath(address.path))
        except BaseException:
            connection.close()
            raise
        return connection
    connection = socket.create_connection((address.host, address.port), DIAL_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fit_buffers(connection)
    return connection


class _Authorized(
    grpc.UnaryUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds a header to each call: gRPC's own credentials for calls need TLS below."""

    def __init__(self, authorization: str) -> None:
        self._header = ("authorization", authorization)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._with_header(details), request)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(self._with_header(details), requests)

    def _with_header(self, details: Any) -> Any:
        return details._replace(metadata=[*(details.metadata or ()), self._header])


def fit_buffers(connection: socket.socket) -> None:
    """Keeps the buffers of a TCP connection small where both its ends are on this host; between hosts the
    kernel knows best what fits the distance."""
    if connection.family == socket.AF_UNIX or connection.getsockname()[0] != connection.getpeername()[0]:
        return
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, buffer, SAME_HOST_BUFFER_BYTES)
