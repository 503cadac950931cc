"""Finds the image and the label in a serialized tf.train.Example, without TensorFlow and without a copy.

    Example  { Features features = 1; }
    Features { map<string, Feature> feature = 1; }   on the wire: repeated { key = 1; value = 2; }
    Feature  { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    XxxList  { repeated xxx value = 1; }             numbers packed or not

Where a message says something twice, protobuf's rules hold: the last entry of a key wins, lists are joined.
Features that were not asked for are skipped by their length and not looked into.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from feeder.records.keys import Keys, Unusable

__all__ = ["Example", "ExampleError", "encode_example", "parse_example"]

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = 0, 1, 2, 3, 4, 5
_KIND_NAMES = {0: "no value", 1: "bytes or text", 2: "floats", 3: "integers"}
_BYTES_LIST, _INT64_LIST = 1, 3
_MAX_DEPTH = 100
"""Of groups within groups, as in protobuf."""

_NAMES_SHOWN = 20
_NAME_LENGTH_SHOWN = 60

Buffer = bytes | memoryview


class Example(NamedTuple):
    """What a record says.

    Attributes:
        image_start: first byte of the encoded image, from the start of the record's payload.
        image_bytes: length of the encoded image, at least 1.
        label: class as the file states it, in [-2**63, 2**63).
    """

    image_start: int
    image_bytes: int
    label: int


class ExampleError(Unusable):
    """A payload holds no usable image and label; the text is the reason."""


def parse_example(data: Buffer, keys: Keys) -> Example:
    """Finds image and label.

    Args:
        data: one serialized Example; any bytes at all may come.
        keys: features to find.

    Raises:
        ExampleError: a key is missing, its feature is of another kind, empty or has several values, or `data`
            is not an Example.
    """
    image_key, label_key = _encoded(keys)
    found: dict[bytes, tuple[int, int]] = {}
    try:
        size = len(data)
        features, start = _varint(data, 1, size) if size and data[0] == 0x0A else (0, 0)
        if start and start + features == size:  # the usual layout: one Features and nothing else
            _find(data, start, size, image_key, label_key, found)
        else:
            for number, wire, start, stop in _fields(data, 0, size):
                if number == 1 and wire == _BYTES:
                    _find(data, start, stop, image_key, label_key, found)
        for key in (image_key, label_key):
            if key not in found:
                raise ExampleError(_missing(data, key.decode()))
        image_start, image_bytes = _one_image(data, found[image_key], keys.image)
        return Example(image_start, image_bytes, _one_label(data, found[label_key], keys.label))
    except _Malformed as error:
        bare = " (it starts like a bare JPEG file)" if bytes(data[:3]) == b"\xff\xd8\xff" else ""
        raise ExampleError(f"not a whole tf.train.Example: {error}{bare}") from None


@lru_cache(maxsize=16)
def _encoded(keys: Keys) -> tuple[bytes, bytes]:
    return keys.image.encode(), keys.label.encode()


def encode_example(features: Mapping[str, bytes | int]) -> bytes:
    """A serialized Example with one value a feature, in the order of the mapping; integers in [0, 2**63)."""
    entries = []
    for name, value in features.items():
        if isinstance(value, int):
            feature = _delimited(0x1A, _delimited(0x0A, _encode_varint(value)))
        else:
            feature = _delimited(0x0A, _delimited(0x0A, value))
        entries.append(_delimited(0x0A, _delimited(0x0A, name.encode()) + _delimited(0x12, feature)))
    return _delimited(0x0A, b"".join(entries))


def _delimited(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Malformed(Exception):
    """The bytes break the wire format."""


def _varint(data: Buffer, pos: int, end: int) -> tuple[int, int]:
    """An unsigned 64-bit varint at `pos` and the place behind it."""
    if pos + 3 <= end:  # nearly all are of one to three bytes
        first = data[pos]
        if first < 0x80:
            return first, pos + 1
        second = data[pos + 1]
        if second < 0x80:
            return first & 0x7F | second << 7, pos + 2
        third = data[pos + 2]
        if third < 0x80:
            return first & 0x7F | (second & 0x7F) << 7 | third << 14, pos + 3
    value = shift = 0
    while pos < end:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, pos
        shift += 7
        if shift == 70:
            raise _Malformed(f"varint longer than 10 bytes at byte {pos}")
    raise _Malformed(f"cut in a varint at byte {pos}")


def _fields(data: Buffer, pos: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, stop) of each field in data[pos:end]; value: data[start:stop].

    Groups, of which an Example has none, are passed over with all that is in them.
    """
    groups: list[int] = []
    while pos < end:
        tag, pos = _varint(data, pos, end)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number < 1 << 29:
            raise _Malformed(f"field number {number} at byte {pos}")
        start = pos
        if wire == _GROUP and len(groups) < _MAX_DEPTH:
            groups.append(number)
            continue
        if wire == _GROUP_END and groups and groups[-1] == number:
            groups.pop()
            continue
        if wire == _BYTES:
            length, start = _varint(data, pos, end)
            pos = start + length
        elif wire == _VARINT:
            _, pos = _varint(data, pos, end)
        elif wire == _FIXED64:
            pos += 8
        elif wire == _FIXED32:
            pos += 4
        else:
            raise _Malformed(f"wire type {wire} at byte {pos}")
        if pos > end:
            raise _Malformed(f"field {number} ends {pos - end} bytes behind its message")
        if not groups:
            yield number, wire, start, pos
    if groups:
        raise _Malformed(f"group {groups[-1]} does not end")


def _find(
    data: Buffer, pos: int, end: int, first: bytes, second: bytes, found: dict[bytes, tuple[int, int]]
) -> None:
    """Notes where the Features of two keys lie among the map entries in data[pos:end].

    Written out for the layout that every writer produces (each entry a key and then its value); an entry of
    another layout takes the general way. An entry whose key has another length than both costs a few steps.
    """
    lengths = {len(first): first, len(second): second} if len(first) != len(second) else {}
    while pos < end:
        if data[pos] != 0x0A or not lengths:
            for key, value in _entries(data, pos, end):
                if key in (first, second):
                    found[bytes(key)] = value
            return
        pos += 1
        length = data[pos] if pos < end else 0x80
        if length < 0x80:
            start = pos + 1
        else:
            length, start = _varint(data, pos, end)
        pos = start + length
        if pos > end:
            raise _Malformed(f"a feature ends {pos - end} bytes behind its message")
        if length > 3 and data[start] == 0x0A:
            key_bytes = data[start + 1]
            wanted = lengths.get(key_bytes)
            key_stop = start + 2 + key_bytes
            if key_stop < pos and data[key_stop] == 0x12:
                if wanted is None and key_bytes < 0x80:
                    continue
                value_bytes, value_start = _varint(data, key_stop + 1, pos)
                if value_start + value_bytes == pos:
                    if wanted is not None and data[start + 2 : key_stop] == wanted:
                        found[wanted] = (value_start, pos)
                    continue
        key, value = _entry(data, start, pos)
        if key in (first, second):
            found[bytes(key)] = value


def _entries(data: Buffer, pos: int, end: int) -> Iterator[tuple[Buffer, tuple[int, int]]]:
    """(key, where its Feature lies) of each map entry in data[pos:end], whatever its layout."""
    for number, wire, start, stop in _fields(data, pos, end):
        if number == 1 and wire == _BYTES:
            yield _entry(data, start, stop)


def _entry(data: Buffer, pos: int, end: int) -> tuple[Buffer, tuple[int, int]]:
    """Key and place of the Feature of one map entry, whatever its layout."""
    key: Buffer = b""
    value = (end, end)
    for number, wire, start, stop in _fields(data, pos, end):
        if number == 1 and wire == _BYTES:
            key = data[start:stop]
        elif number == 2 and wire == _BYTES:
            if value[0] != value[1]:
                raise _Malformed(f"a feature has two values at byte {start}")
            value = (start, stop)
    return key, value


def _lists(data: Buffer, feature: tuple[int, int]) -> tuple[int, list[tuple[int, int]]]:
    """Kind of a Feature (its field number, 0: none) and where the parts of its list lie."""
    kind = 0
    parts: list[tuple[int, int]] = []
    for number, wire, start, stop in _fields(data, *feature):
        if wire == _BYTES and 1 <= number <= 3:
            if number != kind:
                kind, parts = number, []
            parts.append((start, stop))
    return kind, parts


def _one_image(data: Buffer, feature: tuple[int, int], key: str) -> tuple[int, int]:
    pos, stop = feature
    if stop - pos > 4 and data[pos] == 0x0A:  # the usual layout: one list with one value and nothing else
        list_bytes, pos = _varint(data, pos + 1, stop)
        if pos + list_bytes == stop and list_bytes > 2 and data[pos] == 0x0A:
            image_bytes, pos = _varint(data, pos + 1, stop)
            if pos + image_bytes == stop and image_bytes:
                return pos, image_bytes
    kind, parts = _lists(data, feature)
    if kind != _BYTES_LIST:
        raise ExampleError(f"feature {key!r} holds {_KIND_NAMES[kind]}, not one encoded image")
    values = [
        (start, stop - start)
        for part in parts
        for number, wire, start, stop in _fields(data, *part)
        if number == 1 and wire == _BYTES
    ]
    if len(values) != 1:
        raise ExampleError(f"feature {key!r} has {len(values)} values, not one")
    if values[0][1] == 0:
        raise ExampleError(f"feature {key!r} is empty (0 bytes)")
    return values[0]


def _one_label(data: Buffer, feature: tuple[int, int], key: str) -> int:
    pos, stop = feature
    size = stop - pos
    if (
        4 < size < 0x80
        and data[pos] == 0x1A
        and data[pos + 1] == size - 2
        and data[pos + 2] == 0x0A
        and data[pos + 3] == size - 4
    ):  # the usual layout: one packed list and nothing else
        value, pos = _varint(data, pos + 4, stop)
        if pos == stop:
            return value - (1 << 64) if value >> 63 else value
    kind, parts = _lists(data, feature)
    if kind != _INT64_LIST:
        raise ExampleError(f"feature {key!r} holds {_KIND_NAMES[kind]}, not one integer")
    count = value = 0
    for part in parts:
        for number, wire, start, stop in _fields(data, *part):
            if number != 1 or wire not in (_VARINT, _BYTES):
                continue
            while start < stop:
                value, start = _varint(data, start, stop)
                count += 1
    if count != 1:
        raise ExampleError(f"feature {key!r} has {count} values, not one")
    return value - (1 << 64) if value >> 63 else value


def _missing(data: Buffer, key: str) -> str:
    """Reason for a key that is not there, with the keys that are."""
    names = sorted(
        {
            bytes(name[:_NAME_LENGTH_SHOWN]).decode("utf-8", "replace")
            for number, wire, start, stop in _fields(data, 0, len(data))
            if number == 1 and wire == _BYTES
            for name, _ in _entries(data, start, stop)
        }
    )
    if not names:
        return f"no feature {key!r}: the record has none at all"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"no feature {key!r}: the record has {', '.join(map(repr, names[:_NAMES_SHOWN]))}{more}"
