"""What is kept of each record that was checked: one row of 43 bytes."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from feeder.decode.header import ImageHeader

__all__ = ["MODES", "ROW", "SIDE", "Rows", "describe", "process_name", "sampling_name", "spreads"]

MODES = ("gray", "YCbCr", "RGB", "CMYK", "YCCK", "PNG", "GIF", "WEBP", "BMP")
"""Colours of a JPEG, or the format of what is none; a row keeps the place in this list."""

SIDE = 64
"""Pixels. Each image is scaled to SIDE x SIDE, with antialias; all its rows are decoded for that."""

ROW = np.dtype(
    [
        ("digest", "<u8", 2),
        ("nbytes", "<u4"),
        ("width", "<u4"),
        ("height", "<u4"),
        ("label", "<i4"),
        ("sampling", "<u4"),
        ("spread", "<f4"),
        ("mode", "u1"),
        ("process", "u1"),
        ("good", "?"),
    ]
)
"""Fields:

- digest: first 16 bytes of the sha256 of the encoded image
- nbytes: of the encoded image
- width, height: pixels; 0 where there is no header
- label: class from 0; -1 where the record has none
- sampling: of a JPEG, the factors of up to four components as ImageHeader has them, the first one lowest
- spread: levels in [0, 127.5], see spreads()
- mode: place in MODES
- process: second byte of a JPEG's frame marker; 0 of other formats
- good: whether all of the image could be decoded; the other fields mean nothing but where it is
"""

Rows = npt.NDArray[np.void]
"""Array [n] of ROW."""

_PROCESSES = {0xC0: "baseline", 0xC1: "extended", 0xC2: "progressive", 0xC9: "arithmetic"}
_PROCESSES |= {0xCA: "arithmetic progressive"}

_FULL = 0x11
_SAMPLINGS = {0x11: "4:4:4", 0x21: "4:2:2", 0x22: "4:2:0", 0x12: "4:4:0", 0x41: "4:1:1", 0x42: "4:1:0"}
"""Of three components, the factors of the first where those of the others are 1 x 1."""


def describe(row: np.void, image: memoryview, header: ImageHeader) -> None:
    """Fills in what the bytes and the header of an image say."""
    digest = hashlib.sha256(image).digest()  # fastest of hashlib where the CPU helps; without the GIL
    row["digest"] = np.frombuffer(digest, "<u8", 2)
    row["nbytes"] = len(image)
    row["width"], row["height"] = header.width, header.height
    row["sampling"] = int.from_bytes(header.sampling, "little")
    row["mode"] = MODES.index(header.mode or header.format)
    row["process"] = header.process


def spreads(thumbnails: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """How much is in pictures uint8 [n, SIDE, SIDE, 3]: float64 [n] in [0, 127.5], 0 where they are plain.

    It is the standard deviation of the levels of the colour that has the largest.
    """
    count, height, width, _ = thumbnails.shape
    pixels = height * width
    # Whole rows are summed first: over three colours, NumPy's own std takes twenty times as long.
    levels = thumbnails.reshape(count, height, 3 * width)
    sums = levels.sum(axis=1, dtype=np.uint32).reshape(count, width, 3).sum(axis=1)
    squares = np.square(levels, dtype=np.uint16).sum(axis=1, dtype=np.uint32)
    variances = (squares.reshape(count, width, 3).sum(axis=1) - sums * sums / pixels) / pixels
    largest: npt.NDArray[np.float64] = np.sqrt(variances.clip(0)).max(axis=1, initial=0)
    return largest


def process_name(process: int) -> str:
    """What a JPEG's process is called, or "" for another format."""
    return _PROCESSES[process] if process else ""


def sampling_name(sampling: int) -> str:
    """Name of a JPEG's sampling, such as 4:2:0, or its factors where it has none; "" for gray and others."""
    factors = sampling.to_bytes(4, "little").rstrip(b"\0")
    if len(factors) < 2:
        return ""
    if len(factors) == 3 and len(set(factors)) == 1:
        return "4:4:4"
    if len(factors) == 3 and factors[1:] == bytes([_FULL, _FULL]) and factors[0] in _SAMPLINGS:
        return _SAMPLINGS[factors[0]]
    return " ".join(f"{factor >> 4}x{factor & 15}" for factor in factors)
