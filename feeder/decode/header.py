"""What an encoded image says about itself, read without decoding it and within stated limits.

The format is told by the first bytes, never by a name. JPEG is walked marker by marker up to its first scan,
as libjpeg does; PNG, GIF, BMP and WebP give their size at fixed places. Nothing here allocates by what the
bytes claim.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from feeder.errors import DataError

__all__ = ["DEFAULT_LIMITS", "Format", "ImageHeader", "Limits", "read_header"]

Format: TypeAlias = Literal["JPEG", "PNG", "GIF", "WEBP", "BMP"]

_FRAME_MARKERS = range(0xC0, 0xD0)
_NOT_FRAMES = {0xC4, 0xC8, 0xCC}  # DHT, JPG, DAC
_DECODABLE = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}  # baseline, extended, progressive, the two arithmetic ones
_PROGRESSIVE = {0xC2, 0xCA}
_ARITHMETIC = {0xC9, 0xCA}

# A Huffman code has at least one bit. Sequential scans need one for DC and one for AC of each block, the
# first scan of a progressive file only the one for DC. 4:1:0 with 4x4 sampling, the sparsest layout that
# libjpeg reads (18 blocks for 1,024 pixels), then gives at most 228 pixels a byte, gray 256, and progressive
# twice that.
_PIXELS_PER_BYTE = 256
_PIXELS_PER_BYTE_PROGRESSIVE = 512
_SMALL_PIXELS = 1 << 16


@dataclass(frozen=True)
class Limits:
    """Bounds on the work that one encoded image may ask for, checked before anything is allocated for it.

    Attributes:
        max_bytes: encoded bytes of one image.
        max_pixels: width x height; 2**27 lets a 100-megapixel photo pass, and bounds what decoding one image
            takes by 0.8 GB for a progressive JPEG and 1.8 GB for CMYK and other formats.
        max_scans: scans of a progressive file; encoders write about 10, a bomb hundreds.
    """

    max_bytes: int = 1 << 27
    max_pixels: int = 1 << 27
    max_scans: int = 100

    @property
    def max_scan_pixels(self) -> int:
        """Pixels x scans of one multi-scan file: what 16 scans over the largest image cost."""
        return 16 * self.max_pixels


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Format and size of one encoded image.

    Attributes:
        format: as Pillow names it.
        width, height: pixels, at least 1.
        components: colour components of a JPEG (1, 3 or 4); 0 for other formats.
        scans: scans of a JPEG that has several; 1 otherwise.
        process: second byte of the frame marker of a JPEG, such as 0xC2; 0 for other formats.
        scan_at: offset of the marker of a JPEG's first scan.
        mode: colours of a JPEG, as libjpeg guesses them: gray, YCbCr, RGB, CMYK or YCCK; "" otherwise.
        sampling: sampling factors of each component of a JPEG, across in the high four bits, down in the low.
    """

    format: Format
    width: int
    height: int
    components: int = 0
    scans: int = 1
    process: int = 0
    scan_at: int = 0
    mode: str = ""
    sampling: bytes = b""

    @property
    def is_arithmetic(self) -> bool:
        """Whether a JPEG is coded arithmetically."""
        return self.process in _ARITHMETIC

    @property
    def is_progressive(self) -> bool:
        """Whether a JPEG refines its coefficients from scan to scan."""
        return self.process in _PROGRESSIVE


def read_header(data: bytes | memoryview, limits: Limits = DEFAULT_LIMITS) -> ImageHeader:
    """Reads the header of one encoded image.

    Args:
        data: the encoded bytes.
        limits: bounds that the header must keep.

    Raises:
        DataError: not a known format, damaged before the first scan, a JPEG process that libjpeg-turbo does
            not read at 8 bits, or over a limit; the message is the reason alone.
    """
    if not data:
        raise DataError("empty: no bytes")
    if len(data) > limits.max_bytes:
        raise DataError(f"{len(data)} bytes, the limit is {limits.max_bytes}")
    start = bytes(data[:32])
    if start.startswith(b"\xff\xd8"):
        header = _jpeg(data)
    else:
        header = _other(start)
    if header.width < 1 or header.height < 1:
        raise DataError(f"{header.format} of {header.width} x {header.height} pixels")
    pixels = header.width * header.height
    if pixels > limits.max_pixels:
        raise DataError(
            f"{header.format} of {header.width} x {header.height} pixels, "
            f"the limit is {limits.max_pixels} in all"
        )
    if header.scans > limits.max_scans or (
        header.scans > 1 and header.scans * pixels > limits.max_scan_pixels
    ):
        raise DataError(
            f"JPEG of {header.scans} scans over {header.width} x {header.height} pixels, the limit is "
            f"{limits.max_scans} scans and {limits.max_scan_pixels} pixels in all scans"
        )
    return header


def _other(start: bytes) -> ImageHeader:
    """Header of a PNG, GIF, BMP or WebP by its first 32 bytes."""
    try:
        if start.startswith(b"\x89PNG\r\n\x1a\n"):
            return ImageHeader("PNG", *struct.unpack_from(">II", start, 16))
        if start.startswith((b"GIF87a", b"GIF89a")):
            return ImageHeader("GIF", *struct.unpack_from("<HH", start, 6))
        if start.startswith(b"BM"):
            (kind,) = struct.unpack_from("<I", start, 14)
            width, height = struct.unpack_from("<HH" if kind == 12 else "<ii", start, 18)
            return ImageHeader("BMP", width, abs(height))  # a negative height means rows from the top
        if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
            return _webp(start)
    except struct.error:
        raise DataError(f"ends in its header, after {len(start)} bytes") from None
    raise DataError(f"not an image: starts with {start[:8]!r}")


def _webp(start: bytes) -> ImageHeader:
    kind = start[12:16]
    if kind == b"VP8X":
        low_w, high_w, low_h, high_h = struct.unpack_from("<HBHB", start, 24)
        return ImageHeader("WEBP", (high_w << 16 | low_w) + 1, (high_h << 16 | low_h) + 1)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", start, 21)
        return ImageHeader("WEBP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", start, 26)
        return ImageHeader("WEBP", width & 0x3FFF, height & 0x3FFF)
    raise DataError(f"WebP without an image: first chunk is {kind!r}")


def _jpeg(data: bytes | memoryview) -> ImageHeader:
    """Walks the markers of a JPEG up to its first scan, with libjpeg's tolerance for fill and stray bytes."""
    view = memoryview(data)
    size = len(view)
    at = 2
    frame: ImageHeader | None = None
    process = 0
    ids = b""
    has_jfif = False
    adobe: int | None = None
    while True:
        while at < size and view[at] != 0xFF:
            at += 1
        while at < size and view[at] == 0xFF:
            at += 1
        if at >= size:
            raise DataError(f"JPEG ends before its first scan, after {size} bytes")
        marker = view[at]
        at += 1
        if marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD7:
            continue  # a stuffed byte, TEM or a restart marker: no length follows
        if marker == 0xD8:
            raise DataError("JPEG with a second start marker before its first scan")
        if marker == 0xD9:
            raise DataError("JPEG without a scan")
        if at + 2 > size:
            raise DataError(f"JPEG ends before its first scan, after {size} bytes")
        length = view[at] << 8 | view[at + 1]
        if length < (8 if marker == 0xDA else 2) or at + length > size:
            raise DataError(f"JPEG segment 0x{marker:02X} of {length} bytes at offset {at} does not fit")
        if marker in _FRAME_MARKERS and marker not in _NOT_FRAMES:
            if frame is not None:
                raise DataError("JPEG with two frame headers")
            process = marker
            frame = _frame(view[at : at + length], marker)
            ids = bytes(view[at + 8 : at + length : 3])
        elif marker == 0xE0:
            has_jfif = has_jfif or (length >= 16 and bytes(view[at + 2 : at + 7]) == b"JFIF\0")
        elif marker == 0xEE and length >= 14 and bytes(view[at + 2 : at + 7]) == b"Adobe":
            adobe = view[at + 13]
        elif marker == 0xDA:
            if frame is None:
                raise DataError("JPEG with a scan before its frame header")
            mode = _mode(ids, has_jfif, adobe)
            frame = replace(frame, process=process, scan_at=at - 2, mode=mode)
            return _check_scans(view, at + length, frame, in_scan=view[at + 2])
        at += length


def _frame(segment: memoryview, marker: int) -> ImageHeader:
    if marker not in _DECODABLE:
        raise DataError(f"JPEG process SOF{marker - 0xC0} is not supported (lossless or hierarchical)")
    if len(segment) < 8:
        raise DataError("JPEG frame header is cut")
    precision, height, width, components = struct.unpack_from(">BHHB", segment, 2)
    if len(segment) != 8 + 3 * components:
        raise DataError(f"JPEG frame header of {len(segment)} bytes for {components} components")
    if precision != 8:
        raise DataError(f"JPEG of {precision} bits a sample, only 8 are supported")
    if components not in (1, 3, 4):
        raise DataError(f"JPEG of {components} components, only 1, 3 and 4 are supported")
    return ImageHeader("JPEG", width, height, components, sampling=bytes(segment[9::3]))


def _mode(ids: bytes, has_jfif: bool, adobe: int | None) -> str:
    """The guess of libjpeg's default_decompress_parms, from component ids and Adobe's transform."""
    if len(ids) == 1:
        return "gray"
    if len(ids) == 4:
        return "CMYK" if adobe in (None, 0) else "YCCK"
    if has_jfif:
        return "YCbCr"
    return "RGB" if adobe == 0 or (adobe is None and ids == b"RGB") else "YCbCr"


def _check_scans(view: memoryview, at: int, frame: ImageHeader, in_scan: int) -> ImageHeader:
    """The frame with its count of scans, after checking that so many pixels can lie in so few bytes."""
    progressive = frame.is_progressive
    pixels = frame.width * frame.height
    capacity = len(view) * (_PIXELS_PER_BYTE_PROGRESSIVE if progressive else _PIXELS_PER_BYTE)
    if not frame.is_arithmetic and pixels > capacity + _SMALL_PIXELS:
        raise DataError(
            f"JPEG claims {frame.width} x {frame.height} pixels, more than its {len(view)} bytes can hold"
        )
    if not progressive and in_scan == frame.components:
        return frame
    # Entropy-coded data never holds FF DA, so that counting bytes counts scans (and, harmlessly, those of a
    # thumbnail in a late APP segment).
    scans = 1 + bytes(view[at:]).count(b"\xff\xda")
    return replace(frame, scans=scans)
