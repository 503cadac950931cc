"""Compressed pixels: what to ask a worker for, and how they become pixels again.

The codecs are those of cramjam (the extra `compression`), which is imported when a stream asks for any.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

from feeder.client.arguments import text
from feeder.errors import ConfigError, ProtocolError
from feeder.wire.messages import Compression

__all__ = ["Choice", "Chooser", "check_choice", "unpack"]

Choice: TypeAlias = Literal["none", "lz4", "zstd", "auto"]

PROBE_EVERY = 64
"""Under "auto" each codec is tried with one chunk in so many: rates change, and what images are like."""

NEWEST_SHARE = 0.2
"""Of a new measurement in what is known, so that about the last ten count."""


def check_choice(value: str) -> Choice:
    """`value`, if it can be.

    Raises:
        ConfigError: it is unknown, or the library for it is not installed.
    """
    if text("compression", value) not in get_args(Choice):
        raise ConfigError(f"compression must be one of {', '.join(get_args(Choice))}, got {value!r}")
    if value != "none":
        try:
            importlib.import_module("cramjam")
        except ImportError:
            raise ConfigError(
                f"compression={value!r} needs cramjam, which is not installed: pip install cramjam, or use "
                "compression='none'"
            ) from None
    return cast(Choice, value)


def unpack(compression: Compression, packed: Any, pixels: Any) -> None:
    """Decompresses into a buffer, which must be filled by it.

    Never writes beyond the buffer, whatever `packed` holds. Until it returns the buffer may hold anything:
    decompressors write ahead what they correct later.

    Raises:
        ProtocolError: that is not what `packed` holds.
    """
    codecs: Any = importlib.import_module("cramjam")
    try:
        if compression is Compression.LZ4:
            count = codecs.lz4.decompress_block_into(packed, pixels, output_len=len(pixels))
        else:
            count = codecs.zstd.decompress_into(packed, pixels)
    except codecs.DecompressionError as error:
        raise ProtocolError(f"{len(packed)} bytes that are no {compression.name}: {error}") from None
    if count != len(pixels):
        raise ProtocolError(f"{count} bytes were compressed with {compression.name}, not {len(pixels)}")


@dataclass(slots=True)
class _Costs:
    """Of one byte of pixels: bytes on the wire, and seconds of processors at both ends."""

    wire: float
    processor_s: float


class Chooser:
    """What to ask one worker for: decides by what came; knows no socket and no clock.

    Under "auto" that is what takes least: a byte on the wire costs its time there, and a compressed byte of
    pixels the processors' time at both ends, too. Processors are taken to be as scarce as the network: on a
    worker they are what decodes.

    Attributes:
        codecs: that the worker may be asked for, besides none.
    """

    def __init__(self, choice: Choice) -> None:
        self.codecs: tuple[Compression, ...] = ()
        self._choice = choice
        self._asked = 0
        self._wire_s: float | None = None  # of one byte
        self._costs: dict[Compression, _Costs] = {}
        self._best = Compression.NONE

    def connected(self, codecs: Collection[Compression]) -> bool:
        """A worker takes requests that has these; returns whether it has what was chosen."""
        wanted = {kind for kind in Compression if self._choice in ("auto", kind.name.lower())}
        self.codecs = tuple(sorted(wanted & set(codecs) - {Compression.NONE}))
        return bool(self.codecs) or self._choice in ("none", "auto")

    def choose(self) -> Compression:
        """For the next request."""
        codecs = self.codecs
        if self._choice != "auto":
            return codecs[0] if codecs else Compression.NONE
        turn = self._asked % PROBE_EVERY
        self._asked += 1
        # The first one is as it is: it says what the wire takes.
        return codecs[turn - 1] if 1 <= turn <= len(codecs) else self._best

    def came(
        self, compression: Compression, pixel_bytes: int, wire_bytes: int, wire_s: float, processor_s: float
    ) -> None:
        """A chunk of so many bytes of pixels came, as so many that arrived within `wire_s`."""
        self._wire_s = _mixed(self._wire_s, wire_s / wire_bytes)
        if compression is not Compression.NONE:
            known = self._costs.get(compression)
            self._costs[compression] = _Costs(
                _mixed(None if known is None else known.wire, wire_bytes / pixel_bytes),
                _mixed(None if known is None else known.processor_s, processor_s / pixel_bytes),
            )
        best, least_s = Compression.NONE, self._wire_s
        for kind, costs in self._costs.items():
            takes_s = costs.wire * self._wire_s + costs.processor_s
            if kind in self.codecs and takes_s < least_s:
                best, least_s = kind, takes_s
        self._best = best


def _mixed(known: float | None, new: float) -> float:
    return new if known is None else known + NEWEST_SHARE * (new - known)
