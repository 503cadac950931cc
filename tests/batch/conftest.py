"""Small data sets with records that are bad in known ways."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from PIL import Image

from feeder.decode import Decoder, open_decoder
from feeder.records import Dataset
from feeder.records.tfrecord import frame

Payloads: TypeAlias = Sequence[bytes]
OpenDataset: TypeAlias = Callable[[Payloads], Dataset]


def jpeg(number: int, width: int = 60, height: int = 48) -> bytes:
    """A noisy image, different for each number."""
    pixels = np.random.default_rng(number).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((width, height)).save(out, "JPEG", quality=90)
    return out.getvalue()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def example(image: bytes, label: int, image_key: str = "image/encoded") -> bytes:
    """A tf.train.Example with one image and one label, which counts from 1 as ImageNet's do."""
    features = {
        image_key: _field(1, _field(1, image)),
        "image/class/label": _field(3, _field(1, _varint(label))),
    }
    entries = (_field(1, _field(1, key.encode()) + _field(2, value)) for key, value in features.items())
    return _field(1, b"".join(entries))


@pytest.fixture
def good() -> list[bytes]:
    """Payloads of 24 good records; the label of record i is i, from 0."""
    return [example(jpeg(number), number + 1) for number in range(24)]


@pytest.fixture
def damaged() -> Callable[[int, Callable[[bytes], bytes]], bytes]:
    """Builds the payload of a record whose image was changed by a function."""

    def build(number: int, change: Callable[[bytes], bytes]) -> bytes:
        return example(change(jpeg(number)), number + 1)

    return build


@pytest.fixture
def make_image() -> Callable[..., bytes]:
    return jpeg


@pytest.fixture
def make_payload() -> Callable[..., bytes]:
    return example


@pytest.fixture
def write_shards(tmp_path: Path) -> Callable[[Payloads], Path]:
    """Writes payloads to two shards in a folder of their own."""

    def write(payloads: Payloads) -> Path:
        folder = tmp_path / f"shards-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        half = len(payloads) // 2
        for shard, part in enumerate((payloads[:half], payloads[half:])):
            with open(folder / f"part-{shard:05d}-of-00002", "wb") as file:
                for payload in part:
                    before, after, _ = frame(payload)
                    file.write(before + payload + after)
        return folder

    return write


@pytest.fixture
def open_dataset(write_shards: Callable[[Payloads], Path]) -> Iterator[OpenDataset]:
    """Opens payloads as a data set of two shards."""
    opened: list[Dataset] = []

    def open_(payloads: Payloads) -> Dataset:
        opened.append(Dataset.open("d", [str(write_shards(payloads))]))
        return opened[-1]

    yield open_
    for dataset in opened:
        dataset.close()


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    opened = open_decoder(2)
    yield opened
    opened.close()
