"""Figures as people read them: bytes, times, shares."""

from __future__ import annotations

__all__ = ["duration", "number", "share", "short", "size"]

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def number(value: float, digits: int = 3) -> str:
    """A number >= 0 in so many digits, or in all of its whole ones: "0.0123", "12.3", "12,345"."""
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def size(nbytes: float) -> str:
    """Bytes in three digits, by powers of 1,000: "1.23 GB"."""
    unit = 0
    while nbytes >= 999.5 and unit < len(_UNITS) - 1:
        nbytes /= 1000
        unit += 1
    return f"{number(nbytes)} {_UNITS[unit]}"


def short(seconds: float) -> str:
    """Seconds or milliseconds in three digits: "12.3 ms"."""
    return f"{number(seconds)} s" if seconds >= 0.9995 else f"{number(1000 * seconds)} ms"


def duration(seconds: float) -> str:
    """Whole seconds, minutes or hours: "3 min"."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    return f"{whole // 3600} h"


def share(part: float) -> str:
    """A share in [0, 1] as whole percent: "0 %" is nothing at all, and "100 %" all of it."""
    if 0 < part < 0.01:
        return "under 1 %"
    if 0.99 < part < 1:
        return "over 99 %"
    return f"{100 * part:.0f} %"
