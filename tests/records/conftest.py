"""Builds tf.train.Example messages and shards by means that the package does not use itself."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Example = Any  # a message class made at run time
Optional, Repeated = 1, 3
String, Bytes, Message, Float, Int64 = 9, 12, 11, 2, 3


def _message_class() -> Example:
    """tensorflow/core/example/{example,feature}.proto, declared by hand."""
    file = descriptor_pb2.FileDescriptorProto(name="oracle.proto", package="oracle", syntax="proto3")
    for name, kind in (("BytesList", Bytes), ("FloatList", Float), ("Int64List", Int64)):
        file.message_type.add(name=name).field.add(name="value", number=1, label=Repeated, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), 1
    ):
        feature.field.add(
            name=name, number=number, label=Optional, type=Message, type_name=f".oracle.{kind}", oneof_index=0
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=Optional, type=String)
    entry.field.add(name="value", number=2, label=Optional, type=Message, type_name=".oracle.Feature")
    features.field.add(
        name="feature", number=1, label=Repeated, type=Message, type_name=".oracle.Features.FeatureEntry"
    )
    file.message_type.add(name="Example").field.add(
        name="features", number=1, label=Optional, type=Message, type_name=".oracle.Features"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("oracle.Example"))


@pytest.fixture(scope="session")
def example_class() -> Example:
    """Protobuf's own tf.train.Example: the oracle."""
    return _message_class()


@pytest.fixture(scope="session")
def make_payload(example_class: Example) -> Callable[..., bytes]:
    """Serializes an Example with an image and a label, and some more features as converters write them."""

    def make(image: bytes, label: int) -> bytes:
        example = example_class()
        features = example.features.feature
        features["image/encoded"].bytes_list.value.append(image)
        features["image/class/label"].int64_list.value.append(label)
        features["image/format"].bytes_list.value.append(b"JPEG")
        features["image/height"].int64_list.value.append(375)
        features["image/object/bbox/xmin"].float_list.value.extend([0.25, 0.5])
        payload: bytes = example.SerializeToString()
        return payload

    return make


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


@pytest.fixture(scope="session")
def framed() -> Callable[[bytes], bytes]:
    """One payload as a TFRecord."""

    def frame(payload: bytes) -> bytes:
        length = struct.pack("<Q", len(payload))
        return length + masked(length) + payload + masked(payload)

    return frame


@pytest.fixture(scope="session")
def write_shard(framed: Callable[[bytes], bytes]) -> Callable[[Path, Sequence[bytes]], Path]:
    """Writes payloads to a shard file."""

    def write(path: Path, payloads: Sequence[bytes]) -> Path:
        path.write_bytes(b"".join(map(framed, payloads)))
        return path

    return write
