"""What gRPC says in HTTP headers: the request, its deadline, and how a call ended.

From "gRPC over HTTP2" of the gRPC project.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

import grpc
from h2.errors import ErrorCodes

from feeder.wire.address import Address
from feeder.wire.credentials import Credentials
from feeder.wire.opening import ONE_CALL

__all__ = [
    "CallFailed",
    "deadline_s",
    "failure_of",
    "request_headers",
    "reset",
    "status_headers",
    "texts",
]

_HTTP_STATUS = {
    "401": grpc.StatusCode.UNAUTHENTICATED,
    "403": grpc.StatusCode.PERMISSION_DENIED,
    "404": grpc.StatusCode.UNIMPLEMENTED,
}
"""Of an answer without grpc-status, from gRPC's "HTTP to gRPC Status Code Mapping"; else UNAVAILABLE."""

_RESET_STATUS: dict[int, grpc.StatusCode] = {
    ErrorCodes.CANCEL: grpc.StatusCode.CANCELLED,
    ErrorCodes.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_TIMEOUT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class CallFailed(grpc.RpcError):
    """The call ended with another status than OK, or its connection with none."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        """The status; UNAVAILABLE where the connection failed."""
        return self._code

    def details(self) -> str:
        """What the peer, or the system, says about it."""
        return self._details


def request_headers(
    address: Address, method: str, user_agent: str, credentials: Credentials
) -> list[tuple[str, str]]:
    """What a call begins with, on a connection of its own."""
    unix = address.kind == "unix"
    authority = "localhost" if unix else str(address).removeprefix("dns:")
    authorization = credentials.authorization()
    return [
        (":method", "POST"),
        (":scheme", "http" if unix or credentials.tls_ca is None else "https"),
        (":path", method),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", user_agent),
        ("grpc-accept-encoding", "identity"),
        ONE_CALL,
        *([] if authorization is None else [("authorization", authorization)]),
    ]


def deadline_s(headers: Mapping[bytes, bytes]) -> float | None:
    """When a call with these headers shall end, by the monotonic clock; None: never."""
    match = _TIMEOUT.fullmatch(headers.get(b"grpc-timeout", b""))
    return time.monotonic() + int(match[1]) * _TIMEOUT_S[match[2]] if match else None


def status_headers(code: grpc.StatusCode, details: str) -> list[tuple[str, str]]:
    """How a call ends."""
    status = [("grpc-status", str(code.value[0]))]
    if details:
        status.append(("grpc-message", quote(details, _PRINTABLE, errors="backslashreplace")))
    return status


def texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as h2 gives them."""
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in headers}


def failure_of(headers: Mapping[str, str], trailers: Mapping[str, str]) -> CallFailed | None:
    """What is wrong with a call that ended so; None where it ended well."""
    said = trailers if "grpc-status" in trailers else headers
    status = said.get("grpc-status")
    if status is None:
        http = headers.get(":status", "none")
        code = _HTTP_STATUS.get(http, grpc.StatusCode.UNAVAILABLE)
        return CallFailed(code, f"the answer is not gRPC's: HTTP status {http}")
    if status == "0":
        return None
    return CallFailed(_status_code(status), unquote(said.get("grpc-message", "")))


def reset(code: int) -> CallFailed:
    """What a peer means that resets the stream with this code."""
    status = _RESET_STATUS.get(code, grpc.StatusCode.UNAVAILABLE)
    return CallFailed(status, f"the server reset the stream (code {code})")


def _status_code(number: str) -> grpc.StatusCode:
    for code in grpc.StatusCode:
        if str(code.value[0]) == number:
            return code
    return grpc.StatusCode.UNKNOWN
