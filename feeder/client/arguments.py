"""What users pass to `connect` and `Client.stream`, checked: of the right type, or a ConfigError."""

from __future__ import annotations

import operator
from typing import Any

from feeder.errors import ConfigError

__all__ = ["boolean", "integer", "seconds", "text"]

MAX_SECONDS = 10**8
"""Three years. Waits of threads end with an OverflowError where they are a hundred times that."""


def integer(name: str, value: Any, least: int | None = None) -> int:
    """A Python int of any integer, NumPy's included; no bool."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be an integer, got {value!r}") from None
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least}, got {number}")
    return number


def boolean(name: str, value: Any) -> bool:
    """A bool as it is."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")
    return value


def text(name: str, value: Any) -> str:
    """A text as it is, if UTF-8 has bytes for it: messages hold it so."""
    try:
        if not isinstance(value, str):
            raise TypeError
        value.encode()
    except (TypeError, UnicodeEncodeError):
        raise ConfigError(f"{name} must be text, got {value!r}") from None
    return value


def seconds(name: str, value: Any) -> float:
    """A float of a time span that threads and gRPC can wait for."""
    try:
        if isinstance(value, bool | str):
            raise TypeError
        span = float(value)
    except (TypeError, ValueError, OverflowError):
        span = 0.0
    if not 0 < span <= MAX_SECONDS:
        raise ConfigError(f"{name} must be more than 0 and at most {MAX_SECONDS} seconds, got {value!r}")
    return span
