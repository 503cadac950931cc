from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.records.example import ExampleError, encode_example, parse_example
from feeder.records.keys import DEFAULT_KEYS, Keys, RecordKeys, Unusable, zero_based

KEYS = DEFAULT_KEYS["tfrecord"]


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(key: str, value: bytes) -> bytes:
    return delimited(1, delimited(1, key.encode()) + delimited(2, value))


IMAGE = feature("image/encoded", delimited(1, delimited(1, b"JPEG bytes")))


def label(value: bytes) -> bytes:
    return feature("image/class/label", value)


def integers(*values: int) -> bytes:
    return delimited(3, delimited(1, b"".join(map(varint, values))))


def parse(*features: bytes) -> tuple[bytes, int]:
    payload = delimited(1, b"".join(features))
    start, length, value = parse_example(payload, KEYS)
    return payload[start : start + length], value


names = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["image/encoded", "image/class/label", "image/encodee", "image/class/labex", "é" * 13]),
)
values = st.one_of(
    st.lists(st.binary(max_size=200), max_size=3),
    st.lists(st.floats(width=32), max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
)


def kind_of(value: list[Any]) -> str:
    if value and isinstance(value[0], bytes):
        return "bytes_list"
    return "float_list" if value and isinstance(value[0], float) else "int64_list"


@st.composite
def feature_maps(draw: st.DrawFn) -> dict[str, list[Any]]:
    features = draw(st.dictionaries(names, values, max_size=6))
    if draw(st.booleans()):
        features["image/encoded"] = [draw(st.binary(min_size=1, max_size=300))]
    if draw(st.booleans()):
        features["image/class/label"] = [draw(st.integers(-(2**63), 2**63 - 1))]
    return features


def expected(example: Any) -> tuple[bytes, int] | None:
    """What the record says by protobuf's reading, or None where it is bad."""
    features = example.features.feature
    if "image/encoded" not in features or "image/class/label" not in features:
        return None
    images = features["image/encoded"].bytes_list.value
    labels = features["image/class/label"].int64_list.value
    if len(images) != 1 or len(labels) != 1 or not images[0]:
        return None
    return images[0], labels[0]


def assert_agrees(example: Any, payload: bytes) -> None:
    want = expected(example)
    if want is None:
        with pytest.raises(ExampleError):
            parse_example(payload, KEYS)
    else:
        start, length, value = parse_example(payload, KEYS)
        assert (payload[start : start + length], value) == want


@given(feature_maps())
@settings(max_examples=300)
def test_agrees_with_protobuf(example_class: Any, features: dict[str, list[Any]]) -> None:
    example = example_class()
    for name, value in features.items():
        getattr(example.features.feature[name], kind_of(value)).value.extend(value)
    payload = example.SerializeToString()
    assert_agrees(example, payload)
    if expected(example) is not None:
        assert parse_example(memoryview(payload), KEYS) == parse_example(payload, KEYS)


@given(feature_maps(), st.data())
@settings(max_examples=500)
def test_damaged_bytes_raise_only_the_stated_error(
    example_class: Any, features: dict[str, list[Any]], data: st.DataObject
) -> None:
    """And what both readers accept, they read alike."""
    example = example_class()
    for name, value in features.items():
        getattr(example.features.feature[name], kind_of(value)).value.extend(value)
    payload = bytearray(example.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(payload)))
        action = data.draw(st.sampled_from(["flip", "cut", "insert", "delete"]))
        if action == "flip" and place < len(payload):
            payload[place] ^= 1 << data.draw(st.integers(0, 7))
        elif action == "cut":
            del payload[place:]
        elif action == "insert":
            payload[place:place] = data.draw(st.binary(min_size=1, max_size=12))
        else:
            del payload[place : place + data.draw(st.integers(1, 8))]
    try:
        start, length, value = parse_example(bytes(payload), KEYS)
    except ExampleError:
        return
    assert 0 <= start < start + length <= len(payload)
    assert -(2**63) <= value < 2**63
    try:
        read = example_class.FromString(bytes(payload))
    except DecodeError:
        return  # damaged in a feature that was not asked for
    assert expected(read) == (bytes(payload[start : start + length]), value)


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_any_bytes_at_all_raise_only_the_stated_error(data: bytes) -> None:
    with pytest.raises(ExampleError):
        parse_example(data, KEYS)


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.binary(max_size=300) | st.integers(0, 2**63 - 1)))
def test_what_encode_example_writes_protobuf_reads(
    example_class: Any, features: dict[str, bytes | int]
) -> None:
    read = example_class.FromString(encode_example(features)).features.feature
    assert {
        name: (read[name].bytes_list.value or read[name].int64_list.value)[0] for name in read
    } == features


@pytest.mark.parametrize("value", [0, 1, 127, 128, 1000, 2**31, 2**63 - 1, -1, -(2**63)])
def test_labels_packed_and_unpacked(value: int) -> None:
    assert parse(IMAGE, label(integers(value))) == (b"JPEG bytes", value)
    assert parse(IMAGE, label(delimited(3, b"\x08" + varint(value)))) == (b"JPEG bytes", value)


def test_the_last_of_two_entries_wins() -> None:
    assert parse(IMAGE, label(integers(1)), label(integers(2)))[1] == 2
    other = feature("image/encoded", delimited(1, delimited(1, b"second")))
    assert parse(IMAGE, other, label(integers(1)))[0] == b"second"


def test_value_before_key_and_unknown_fields() -> None:
    turned = delimited(1, delimited(2, integers(7)) + delimited(1, b"image/class/label"))
    extra = delimited(1, delimited(1, b"image/encoded") + delimited(3, b"?") + delimited(2, IMAGE[-14:]))
    assert parse(turned, extra) == (b"JPEG bytes", 7)
    unknown = b"\x10\x05" + delimited(9, b"x") + b"\x15abcd" + b"\x11abcdefgh"
    assert parse(unknown, IMAGE, label(integers(7))) == (b"JPEG bytes", 7)


def test_keys_of_equal_length_and_long_keys() -> None:
    same = Keys("img", "cls", 1)
    payload = delimited(
        1,
        feature("img", delimited(1, delimited(1, b"J"))) + feature("cls", integers(3)) + feature("dog", b""),
    )
    start, length, value = parse_example(payload, same)
    assert (payload[start : start + length], value) == (b"J", 3)
    long = Keys("i" * 200, "l" * 300, 1)
    payload = delimited(
        1, feature("i" * 200, delimited(1, delimited(1, b"J"))) + feature("l" * 300, integers(3))
    )
    start, length, value = parse_example(payload, long)
    assert (payload[start : start + length], value) == (b"J", 3)


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ([IMAGE], "no feature 'image/class/label': the record has 'image/encoded'"),
        ([label(integers(1))], "no feature 'image/encoded': the record has 'image/class/label'"),
        ([], "the record has none at all"),
        ([IMAGE, label(b"")], "'image/class/label' holds no value"),
        ([IMAGE, label(delimited(1, delimited(1, b"cat")))], "holds bytes or text, not one integer"),
        ([IMAGE, label(delimited(2, delimited(1, b"abcd")))], "holds floats, not one integer"),
        ([IMAGE, label(integers())], "'image/class/label' has 0 values"),
        ([IMAGE, label(integers(1, 2))], "'image/class/label' has 2 values"),
        (
            [feature("image/encoded", integers(1)), label(integers(1))],
            "holds integers, not one encoded image",
        ),
        (
            [feature("image/encoded", delimited(1, delimited(1, b""))), label(integers(1))],
            r"empty \(0 bytes\)",
        ),
        (
            [feature("image/encoded", delimited(1, delimited(1, b"a") * 2)), label(integers(1))],
            "'image/encoded' has 2 values",
        ),
        ([IMAGE, label(integers(1)) + b"\x0a\x7f"], "not a whole tf.train.Example"),
    ],
)
def test_reasons_name_the_key_and_what_came(features: list[bytes], said: str) -> None:
    with pytest.raises(ExampleError, match=said):
        parse(*features)


def test_a_bare_jpeg_is_recognised(imagenet_sample: Any) -> None:
    jpeg = next(iter(sorted(imagenet_sample.glob("*.JPEG")))).read_bytes()
    with pytest.raises(ExampleError, match="bare JPEG"):
        parse_example(jpeg, KEYS)


def test_many_or_hostile_names_make_a_short_reason() -> None:
    features = [feature(f"{number:03d}" + "x" * 5000, b"") for number in range(200)]
    features.append(delimited(1, delimited(1, b"\xff\xfe\n") + delimited(2, b"")))
    with pytest.raises(ExampleError, match="and 181 more") as caught:
        parse(*features)
    assert len(str(caught.value)) < 2000


def test_zero_based() -> None:
    assert zero_based(1, KEYS) == 0
    assert zero_based(2**31, KEYS) == 2**31 - 1
    assert zero_based(-5, Keys("image", "label", -5)) == 0
    for value, base in ((0, 1), (-1, 0)):
        with pytest.raises(Unusable, match=f"is {value}; labels here start at {base}"):
            zero_based(value, Keys("image", "label", base))
    for value, base in ((2**31, 0), (2**63 - 1, 1)):
        with pytest.raises(Unusable, match=f"is {value}; labels here end at {2**31 - 1 + base}"):
            zero_based(value, Keys("image", "label", base))
    with pytest.raises(Unusable) as caught:  # as JSON may say
        zero_based(10**4000, KEYS)
    assert len(str(caught.value)) < 200


def test_groups_are_passed_over_like_other_unknown_fields() -> None:
    def group(number: int, content: bytes = b"") -> bytes:
        return varint(number << 3 | 3) + content + varint(number << 3 | 4)

    unknown = group(9, delimited(1, b"x") + group(4) + varint(2 << 3) + varint(7))
    entries = feature("image/encoded", unknown + delimited(1, unknown + delimited(1, b"jpeg")))
    entries += unknown + label(unknown + integers(3))
    payload = unknown + delimited(1, entries) + unknown
    start, length, value = parse_example(payload, KEYS)
    assert (payload[start : start + length], value) == (b"jpeg", 3)
    whole = delimited(1, feature("image/encoded", delimited(1, delimited(1, b"jpeg"))) + label(integers(3)))
    for odd in (varint(9 << 3 | 3), varint(9 << 3 | 4), varint(9 << 3 | 3) + varint(8 << 3 | 4)):
        with pytest.raises(Unusable, match="not a whole"):
            parse_example(odd + whole, KEYS)
    deep = varint(9 << 3 | 3) * 1000 + varint(9 << 3 | 4) * 1000
    with pytest.raises(Unusable, match="not a whole"):
        parse_example(deep + whole, KEYS)


def test_the_last_key_of_an_entry_counts() -> None:
    image = delimited(2, delimited(1, delimited(1, b"jpeg")))
    entry = delimited(1, delimited(1, b"other") + delimited(1, b"image/encoded") + image)
    assert parse(entry, label(integers(3))) == (b"jpeg", 3)


def test_keys_are_checked() -> None:
    for bad in ({"image": ""}, {"image": "\udcff"}, {"label": "image/encoded"}, {"label_base": 2**40}):
        with pytest.raises(ConfigError):
            RecordKeys(**bad)  # type: ignore[arg-type]
