"""The members of a tar archive (ustar, PAX, GNU), in order; damage is found and never passed over.

A header is a block of 512 bytes with a checksum of its own; data follow in whole blocks. A long name comes as
a member of its own in front (GNU types L and K, PAX types x and g). The archive ends with blocks of zeros, or
just ends; anything else behind a block of zeros is damage, because a header that was overwritten with zeros
looks the same. (POSIX.1-2017, pax: ustar and pax interchange formats; GNU tar manual, basic tar format.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from feeder.records.stream import Torn, Window

__all__ = ["BLOCK_BYTES", "Member", "looks_like_tar", "members"]

BLOCK_BYTES = 512

MAX_EXTENSION_BYTES = 1 << 20
"""Longest PAX header or long name that is believed."""

_ZEROS = bytes(BLOCK_BYTES)
_DIGITS = re.compile(r"[0-9]{1,18}")
_OCTAL = re.compile(rb" *([0-7]*) *(?:\0.*)?", re.DOTALL)

_FILES = b"0\0007S"
_LONG_NAME, _LONG_LINK, _PAX, _SOLARIS_PAX, _PAX_GLOBAL, _SPARSE = b"L", b"K", b"x", b"X", b"g", b"S"
_WITHOUT_DATA = b"123456"
"""Links, devices, folders and pipes: whatever their size says, no data follow."""


class Member(NamedTuple):
    """One member, its data next in the window.

    Attributes:
        name: whole name, as text; bytes that are not UTF-8 as lone surrogates.
        header: offset of the first header that belongs to it.
        offset: offset of its data.
        size: bytes of its data.
        is_file: whether it is a regular file.
        is_sparse: whether its data are not the file's bytes, but a map of them and parts of them.
    """

    name: str
    header: int
    offset: int
    size: int
    is_file: bool
    is_sparse: bool


def looks_like_tar(block: bytes) -> bool:
    """Whether a file that starts with these bytes is an archive, perhaps an empty one."""
    if len(block) < BLOCK_BYTES:
        return False
    return block == _ZEROS or block[257:262] == b"ustar" or _is_sound(block)


def members(window: Window) -> Iterator[Member]:
    """All members in order. Before the next is asked for, the data of one may be taken from the window.

    Raises:
        Torn: the archive is damaged there.
        StorageError: it cannot be read.
    """
    everywhere: dict[str, str] = {}
    while True:
        first = window.position
        own: dict[str, str] = {}
        while True:
            at = window.position
            block = _block(window, at, optional=not own)
            if block is None:
                return
            if block == _ZEROS:
                if own:
                    raise Torn(at, "a block of zeros instead of the header that the one before announces")
                _require_end(window, at)
                return
            if not _is_sound(block):
                raise Torn(at, "checksum of a tar header is wrong")
            kind = block[156:157]
            size = _number(block[124:136], at, "size")
            if kind in (_LONG_NAME, _LONG_LINK):
                text = _extension(window, at, size).split(b"\0", 1)[0]
                own.setdefault("path" if kind == _LONG_NAME else "linkpath", _text(text))
            elif kind in (_PAX, _SOLARIS_PAX):
                own = _records(_extension(window, at, size), at) | own
            elif kind == _PAX_GLOBAL:
                everywhere |= _records(_extension(window, at, size), at)
                if not own:
                    first = window.position
            else:
                break
        about = everywhere | own
        # GNU tar stores a sparse file under a name of its own making, and says its true one beside it.
        name = about.get("GNU.sparse.name") or about.get("path") or _name(block)
        if stated := about.get("size"):  # an empty value takes back what was said before
            if _DIGITS.fullmatch(stated) is None:
                raise Torn(at, f"size {stated[:40]!r} of a PAX header")
            size = int(stated)
        if kind in _WITHOUT_DATA:
            size = 0
        is_sparse = kind == _SPARSE or any(key.startswith("GNU.sparse") for key in own)
        if kind == _SPARSE:
            _pass_sparse_map(window, block)
        start = window.position
        is_file = kind in _FILES and not (kind == b"\0" and name.endswith("/"))
        yield Member(name, first, start, size, is_file, is_sparse)
        whole = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        taken = window.position - start
        if window.skip(whole - taken) < whole - taken:
            missing = start + whole - window.position
            raise Torn(
                at, window.broken or f"cut short: {missing} bytes of the member {name[:200]!r} are missing"
            )


def _block(window: Window, at: int, *, optional: bool = False) -> bytes | None:
    there = window.have(BLOCK_BYTES)
    if there < BLOCK_BYTES:
        if there == 0 and optional and not window.broken:
            return None
        raise Torn(at, window.broken or f"cut in a tar header: {there} of {BLOCK_BYTES} bytes are there")
    block = bytes(window.view[window.lo : window.lo + BLOCK_BYTES])
    window.lo += BLOCK_BYTES
    return block


def _require_end(window: Window, at: int) -> None:
    """Raises Torn unless nothing but zeros follows."""
    while there := window.have(1 << 16):
        data = window.bytes[window.lo : window.lo + there]
        if data.any():
            more = window.position + int(np.argmax(data > 0))
            raise Torn(
                at,
                f"the archive ends here, but more follows at offset {more}: a header was overwritten, or "
                f"several archives were joined",
            )
        window.lo += there
    if window.broken:
        raise Torn(at, window.broken)


def _is_sound(block: bytes) -> bool:
    match = _OCTAL.fullmatch(block[148:156])
    if match is None or not match[1]:
        return False
    stated = int(match[1], 8)
    rest = (block[:148] + b" " * 8 + block[156:]).replace(b"\0", b"")  # most of it, and no part of the sum
    total = sum(rest)
    # Old writers summed signed bytes.
    return stated == total or stated == total - 256 * sum(byte > 127 for byte in rest)


def _number(field: bytes, at: int, what: str) -> int:
    if field[0] == 0x80:
        number = int.from_bytes(field[1:], "big")
    elif (match := _OCTAL.fullmatch(field)) is not None:
        number = int(match[1] or b"0", 8)
    else:
        raise Torn(at, f"{what} {field!r} of a tar header is no number")
    if number >= 1 << 62:
        raise Torn(at, f"{what} {number} of a tar header")
    return number


def _name(block: bytes) -> str:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0]
    if prefix and block[257:263] == b"ustar\0":  # GNU's own magic has other fields there
        name = prefix + b"/" + name
    return _text(name)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _extension(window: Window, at: int, size: int) -> bytes:
    """The data of a member that describes the next one."""
    if size > MAX_EXTENSION_BYTES:
        raise Torn(at, f"a PAX header or long name of {size} bytes, above the limit of {MAX_EXTENSION_BYTES}")
    whole = -(-size // BLOCK_BYTES) * BLOCK_BYTES
    if window.have(whole) < whole:
        raise Torn(at, window.broken or "cut short in a PAX header or long name")
    data = bytes(window.view[window.lo : window.lo + size])
    window.lo += whole
    return data


def _records(data: bytes, at: int) -> dict[str, str]:
    """What a PAX header says: records of the form "LENGTH KEY=VALUE\\n"."""
    found: dict[str, str] = {}
    pos = 0
    while pos < len(data) and data[pos]:
        space = data.find(b" ", pos, pos + 20)
        digits = data[pos:space] if space > 0 else b""
        end = pos + int(digits) if digits.isdigit() else 0
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not space + 1 < end <= len(data) or data[end - 1] != 0x0A or not equals:
            raise Torn(at, f"PAX header is damaged at its byte {pos}")
        found[_text(key)] = _text(value)
        pos = end
    return found


def _pass_sparse_map(window: Window, block: bytes) -> None:
    """Passes over the blocks with which a map goes on that does not fit into its header."""
    more = block[482]
    while more:
        at = window.position
        following = _block(window, at)
        assert following is not None
        more = following[504]
