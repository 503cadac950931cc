"""One set of pixels, whatever the instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from feeder.decode import pixel_fingerprint

kernel = pytest.importorskip("feeder.decode._kernel")


@pytest.fixture(scope="module")
def levels():
    from feeder.decode.kernel import NativeDecoder

    decoders = [NativeDecoder(1, level=level) for level in kernel.LEVELS]
    yield decoders
    for decoder in decoders:
        decoder.close()


def test_each_level_is_what_it_says(levels):
    assert [decoder.name for decoder in levels] == [f"native ({level})" for level in kernel.LEVELS]
    assert kernel.LEVELS[0] == "plain"


def test_fingerprints_are_equal(levels):
    assert len({pixel_fingerprint(decoder) for decoder in levels}) == 1


def test_random_geometries(levels, one, picture, encode):
    random = np.random.default_rng(2)
    data = encode(picture(211, 173), "444")
    for _ in range(60):
        w, h = int(random.integers(1, 212)), int(random.integers(1, 174))
        window = (int(random.integers(0, 212 - w)), int(random.integers(0, 174 - h)), w, h)
        size = (int(random.integers(1, 130)), int(random.integers(1, 130)))
        settings = {
            "resample": ("bilinear", "bicubic", "tf1_bicubic")[int(random.integers(3))],
            "antialias": bool(random.integers(2)),
            "flip": bool(random.integers(2)),
            "reduction": int(2 ** random.integers(4)),
        }
        first, *others = [one(decoder, data, window, size, **settings)[0] for decoder in levels]
        for other in others:
            assert np.array_equal(first, other), (window, size, settings)


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="no level mmx"):
        kernel.Kernel(1, 1, 1, 1, 1, "mmx", False)
