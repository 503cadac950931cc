"""Every level of the kernel makes of damaged files what libjpeg does: the same pixels, or the same reason.

The fuzz targets in feeder/decode/native/fuzz ask the same of far more files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import feeder.decode

PROBES = Path(feeder.decode.__file__).parent / "probes"


def draw_window(random, width, height):
    w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
    return int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h


def segments(data):
    """(begin, end) of each segment before the entropy-coded data, and of that data."""
    found, at = [], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((at, end))
        at = end
    end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return [*found, (at, end), (end, len(data))]


def mutate(data: bytes, random: np.random.Generator) -> bytes:
    """One change that a header may survive: of bytes, of the frame, of segments, of restart markers."""
    *header, (begin, end) = segments(data)
    part = header[int(random.integers(len(header)))]
    place = int(random.integers(begin, end))
    changed = bytearray(data)
    kind = int(random.integers(10))
    if kind == 0:  # any bit of the header
        changed[int(random.integers(*part))] ^= 1 << int(random.integers(8))
    elif kind <= 3:  # a few bytes of the data
        for at in random.integers(begin, end, int(random.integers(1, 4))):
            changed[at] = (0xFF, int(random.integers(256)))[int(random.integers(4)) > 0]
    elif kind == 4:  # its end
        del changed[place:]
    elif kind == 5:  # a part of it
        del changed[place : place + int(random.integers(1, 60))]
    elif kind == 6:  # a restart marker that doesn't belong
        changed[place:place] = bytes([0xFF, 0xD0 + int(random.integers(8))])
    elif kind == 7:  # an interval that the data doesn't have
        changed[part[0] : part[0]] = b"\xff\xdd\x00\x04" + int(random.integers(0, 40)).to_bytes(2, "big")
    elif kind == 8:  # sides or sampling factors
        frame = next(at for at, _ in header if 0xC0 <= data[at + 1] <= 0xC2)
        which = (6, 8, 11)[int(random.integers(3))]
        changed[frame + which] = (
            int(random.integers(0, 256)) if which != 11 else random.choice([17, 18, 33, 34])
        )
    else:  # a segment taken away, or given twice
        again = bytes(changed[part[0] : part[1]])
        changed[part[0] : part[1]] = again * (2 * int(random.integers(2)))
    return bytes(changed)


@pytest.mark.parametrize("count", [2_000, pytest.param(200_000, marks=pytest.mark.soak)])
def test_mutated_files(agree: Callable[..., int], count: int) -> None:
    random = np.random.default_rng(count)
    probes = [path.read_bytes() for path in sorted(PROBES.glob("*.jpg")) if path.stem != "cmyk"]
    decoded = 0
    for start in range(0, count, 100):
        images = []
        for _ in range(100):
            data = probes[int(random.integers(len(probes)))]
            images.append(mutate(data, random))
        settings = {"resample": ("bilinear", "bicubic")[start // 100 % 2], "antialias": start % 300 != 0}
        decoded += agree(images, [draw_window(random, 83, 67) for _ in images], **settings)
    assert count / 5 < decoded < count


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.soak)])
def test_the_portable_twin_passes_no_damage_that_the_kernel_finds(native, portable, count: int) -> None:
    """It may be stricter, as it reads to the end of the file."""
    random = np.random.default_rng(count)
    probes = [path.read_bytes() for path in sorted(PROBES.glob("*.jpg"))]
    out = np.zeros((1, 16, 16, 3), np.uint8)
    found = 0
    for _ in range(count):
        data = mutate(probes[int(random.integers(len(probes)))], random)
        sizes, (header,) = native.sizes([data])
        if header is not None:
            continue
        whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
        (damage,) = native.decode([data], whole, np.zeros(1, np.bool_), out)
        if damage is not None:
            found += 1
            assert portable.decode([data], whole, np.zeros(1, np.bool_), out) != [None], damage
    assert count / 10 < found < count
