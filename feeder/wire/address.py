"""Addresses of workers as users write them, and as gRPC wants them."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from feeder.errors import ConfigError

__all__ = ["Address", "is_local", "parse_address", "parse_listen", "parse_target"]

_FORMS = 'use "host:port", "[ipv6]:port", "dns:name:port" or "unix:/path"'
_MAX_UNIX_PATH_BYTES = 107
"""sun_path of sockaddr_un holds 108 bytes with its closing zero (man 7 unix)."""

_URI_CHARACTERS = frozenset("%#?")
"""gRPC reads "unix:path" as a URI: these would name another file, or none."""

_HOST = re.compile(r"(?!-)[A-Za-z0-9._-]{1,253}(?<!-)")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,15})?")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """One place where a worker, or for "dns" any number of workers, can be reached.

    Attributes:
        kind: "tcp" (host and port), "dns" (a name that stands for all workers, and port) or "unix" (path).
        host: name or address without brackets; empty for "unix".
        port: 0 to 65535; 0 only where a worker listens, and for "unix".
        path: of the socket file; empty unless "unix".
        name: that stood for this host; a certificate is checked against it, or against `host` where empty.
    """

    kind: Literal["tcp", "dns", "unix"]
    host: str = ""
    port: int = 0
    path: str = ""
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"dns:{host}:{self.port}" if self.kind == "dns" else f"{host}:{self.port}"

    @property
    def grpc_target(self) -> str:
        """The name under which gRPC dials or binds it."""
        if self.kind == "unix":
            return f"unix:{os.path.abspath(self.path)}"
        return str(self).removeprefix("dns:")


def parse_target(target: str | Sequence[str]) -> list[Address]:
    """Addresses of "host:port,host:port", of "dns:name:port", of "unix:/path", or of a list of these.

    Raises:
        ConfigError: neither text nor a list of texts, empty, not an address, or one address twice.
    """
    texts: object = target.split(",") if isinstance(target, str) else target
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"target must be a text or a list of texts, got {target!r}; {_FORMS}")
    if not texts or (len(texts) == 1 and not texts[0].strip()):
        raise ConfigError(f"no address of a worker given; {_FORMS}")
    addresses = [parse_address(text) for text in texts]
    for position, address in enumerate(addresses):
        if address in addresses[:position]:
            raise ConfigError(f"the address {address} is given twice")
    return addresses


def parse_address(text: str) -> Address:
    """The address of one worker.

    Raises:
        ConfigError: not an address, or port 0.
    """
    address = _parse(text)
    if address.kind != "unix" and address.port == 0:
        raise ConfigError(f"address {text!r} has port 0, where nobody can be reached; name the worker's port")
    return address


def parse_listen(text: str) -> Address:
    """The address that a worker shall listen on; port 0 lets the system choose.

    Raises:
        ConfigError: not an address, or a "dns:" name.
    """
    address = _parse(text)
    if address.kind == "dns":
        raise ConfigError(f'cannot listen on {text!r}: use "host:port" or "unix:/path"')
    return address


def is_local(address: Address) -> bool:
    """Whether only this host reaches who listens there. A name but "localhost" may stand for anything."""
    if address.kind == "unix" or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def _parse(text: str) -> Address:
    text = text.strip()
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if path.startswith("//"):  # unix:///path, as gRPC also takes it
            path = path[2:]
        if not path or path.endswith("/") or "\0" in path:
            raise ConfigError(f"address {text!r} names no socket file; {_FORMS}")
        if odd := set(os.path.abspath(path)) & _URI_CHARACTERS:
            signs = " or ".join(sorted(odd))
            raise ConfigError(f"address {text!r}: gRPC cannot reach a path with {signs} in it")
        if len(os.fsencode(os.path.abspath(path))) > _MAX_UNIX_PATH_BYTES:
            raise ConfigError(f"address {text!r}: a socket's path has at most {_MAX_UNIX_PATH_BYTES} bytes")
        return Address("unix", path=path)
    kind: Literal["tcp", "dns"] = "dns" if text.startswith("dns:") else "tcp"
    host, colon, port = text.removeprefix("dns:").rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not (colon and (_IPV6 if bracketed else _HOST).fullmatch(host)):
        raise ConfigError(f"{text!r} is no address; {_FORMS}")
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(f"address {text!r}: the port must be a number in [0, 65535], got {port!r}")
    return Address(kind, host=host, port=int(port))
