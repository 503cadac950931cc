"""What a JPEG lacks that libjpeg decodes without a warning: a scan, a component, the end of its data."""

from __future__ import annotations

import re

from feeder.decode.header import ImageHeader

__all__ = ["missing"]

# Within entropy-coded data only stuffed bytes and restart markers follow an FF.
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])", re.DOTALL)


def missing(data: bytes | memoryview, header: ImageHeader, *, ended: bool) -> str | None:
    """What is missing, in the words of the kernel (libjpeg_decoder.cpp), or None.

    A sequential Huffman-coded scan that is cut makes libjpeg warn; nothing is said of it here.

    Args:
        data: a JPEG.
        header: of it.
        ended: whether it has an end marker. Without one, complete is what has all bits of all coefficients;
            nothing is that is coded arithmetically, as such data may end anywhere.
    """
    in_first_scan = data[header.scan_at + 4]
    if in_first_scan == header.components and not header.is_progressive:
        return None if ended or not header.is_arithmetic else "ends before its last row"
    bits = _low_bits(data, header)
    complete = len(bits) == header.components
    if not ended:
        refined = complete and not any(map(any, bits.values()))
        if header.is_arithmetic or (header.is_progressive and not refined):
            return "ends before its last scan"
    return None if complete else "has no scan of one of its components"


def _low_bits(data: bytes | memoryview, header: ImageHeader) -> dict[int, list[int]]:
    """By component, for each of 64 coefficients the lowest bit that came; -1: none did."""
    found: dict[int, list[int]] = {}
    at = header.scan_at
    while match := _MARKER.search(data, at):
        marker, at = match[1][0], match.end()
        if marker == 0xD9:
            break
        if marker in (0x01, 0xD8):  # without a length
            continue
        length = int.from_bytes(data[at : at + 2], "big")
        segment = bytes(data[at + 2 : at + length])
        at += max(length, 2)
        if marker != 0xDA or len(segment) < 4 + 2 * segment[0]:
            continue
        count = segment[0]
        first, last, approximation = segment[1 + 2 * count : 4 + 2 * count]
        if not header.is_progressive:
            first, last, approximation = 0, 63, 0
        for component in segment[1 : 1 + 2 * count : 2]:
            low = found.setdefault(component, [-1] * 64)
            low[first : last + 1] = [approximation & 15] * (last + 1 - first)
    return found
