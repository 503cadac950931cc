"""What is not a JPEG, under both decoders."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image


@pytest.mark.parametrize("kind", ["png", "bmp"])
def test_lossless_formats_keep_their_pixels(decoder, one, picture, encode, kind):
    pixels = picture(31, 23)
    found, reason = one(decoder, encode(pixels, kind), (3, 5, 20, 11))
    assert reason is None
    assert np.array_equal(found, pixels[5:16, 3:23])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_every_mode_of_png_gives_rgb(decoder, one, picture, mode):
    if mode == "I;16":
        image = Image.fromarray(np.arange(0, 65536, 128, dtype=np.uint16).reshape(16, 32))
    else:
        image = Image.fromarray(picture(32, 16)).convert(mode)
    buffer = io.BytesIO()
    if mode == "P":
        image.save(buffer, "PNG", transparency=bytes(range(256)))
    else:
        image.save(buffer, "PNG")
    pixels, reason = one(decoder, buffer.getvalue(), (0, 0, 32, 16))
    assert reason is None
    if mode == "I;16":
        assert pixels[8, 0].tolist() == [128, 128, 128], "the high byte, never a wrap-around"
        assert pixels[15, 31].tolist() == [255, 255, 255]
    else:
        assert np.array_equal(pixels, np.asarray(image.convert("RGB")))
    cut, reason = one(decoder, buffer.getvalue(), (7, 3, 21, 12))
    assert reason is None
    assert np.array_equal(cut, pixels[3:15, 7:28])


def test_a_window_of_cmyk_is_the_cut_of_the_whole(decoder, one, picture, encode):
    data = encode(picture(64, 48), "cmyk")
    whole, _ = one(decoder, data, (0, 0, 64, 48))
    cut, reason = one(decoder, data, (7, 3, 21, 12))
    assert reason is None
    assert np.array_equal(cut, whole[3:15, 7:28])


@pytest.mark.parametrize("kind", ["png", "gif", "webp", "bmp"])
def test_damage_is_a_reason(decoder, one, picture, encode, kind):
    data = encode(picture(64, 48), kind)
    _, reason = one(decoder, data[: len(data) // 2], (0, 0, 64, 48))
    assert reason is not None
    assert reason.startswith(f"damaged {kind.upper()}: ")


def test_size_beyond_the_limit_is_refused_without_a_warning(decoder, one):
    header = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (20000).to_bytes(4, "big") * 2 + bytes(20)
    _, reason = one(decoder, header, (0, 0, 8, 8))
    assert reason == "PNG of 20000 x 20000 pixels, the limit is 134217728 in all"
