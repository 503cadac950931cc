"""YUV 4:2:0 out of the decoders: exactly what the RGB of the same window says it must be."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from PIL import Image

from feeder.client.pixels import yuv420_to_rgb
from feeder.decode import Decoder, SeekPoints, open_decoder
from feeder.decode.yuv420 import rgb_to_yuv420
from feeder.errors import ConfigError
from feeder.order import train_windows

SIDE = 224
TO_YCC = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])


def planes_of(slot: np.ndarray) -> list[np.ndarray]:
    """Y, Cb and Cr of a slot [3 H / 2, W], in double."""
    height, width = slot.shape[0] * 2 // 3, slot.shape[1]
    flat = slot.astype(np.float64).ravel()
    luma, chroma = height * width, height * width // 4
    return [
        flat[:luma].reshape(height, width),
        *(flat[luma + at : luma + at + chroma].reshape(height // 2, width // 2) for at in (0, chroma)),
    ]


def halved(rgb: np.ndarray) -> list[np.ndarray]:
    """The same of RGB [..., H, W, 3], not rounded: JFIF's formula, and the mean of 2x2."""
    y, cb, cr = np.moveaxis(rgb.astype(np.float64) @ TO_YCC.T, -1, 0)
    half = (rgb.shape[-3] // 2, 2, rgb.shape[-2] // 2, 2)
    return [y, *(128 + plane.reshape(*rgb.shape[:-3], *half).mean((-3, -1)) for plane in (cb, cr))]


def check(slot: np.ndarray, rgb: np.ndarray) -> None:
    """Sees that a slot is RGB [H, W, 3] in whole levels: to the bit, and by the formula in double."""
    expected = np.empty_like(slot)
    rgb_to_yuv420(rgb, expected)
    assert np.array_equal(slot, expected)
    for found, exact in zip(planes_of(slot), halved(rgb), strict=True):
        assert np.abs(found - exact.clip(0, 255)).max() <= 0.51  # weights are in 65,536ths


def decode(
    decoder: Decoder, data: bytes, window: Any, size: tuple[int, int], flip: bool = False, **settings: Any
) -> np.ndarray:
    """One slot of YUV 4:2:0, of (height, width)."""
    reduction = np.array([settings.pop("reduction", 1)], np.uint8)
    out = np.full((1, size[0] * 3 // 2, size[1]), 77, np.uint8)
    windows, flips = np.array([window], np.int32), np.array([flip])
    assert decoder.decode([data], windows, flips, out, reductions=reduction, **settings) == [None]
    return out[0]


@pytest.fixture(scope="module")
def image(picture: Callable[..., np.ndarray]) -> np.ndarray:
    return picture(201, 160)


@pytest.mark.parametrize(
    "kind", ["444", "422", "420", "440", "411", "progressive", "gray", "cmyk", "png", "webp", "bmp", "rgb"]
)
@pytest.mark.parametrize("flip", [False, True])
def test_any_image_is_its_rgb_halved(
    decoder: Decoder, one: Any, image: np.ndarray, encode: Any, kind: str, flip: bool
) -> None:
    if kind == "rgb":
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", keep_rgb=True, quality=90)
        data = buffer.getvalue()
    else:
        data = encode(image, kind)
    for window, size in [
        ((0, 0, 201, 160), (64, 96)),
        ((13, 5, 101, 90), (128, 130)),
        ((200, 3, 1, 1), (2, 2)),
    ]:
        rgb, _ = one(decoder, data, window, size, flip=flip)
        found = decode(decoder, data, window, size, flip)
        check(found, rgb)
        if kind == "gray":
            assert np.array_equal(planes_of(found)[0], rgb[..., 0])
            assert (found[size[0] :] == 128).all()


@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "tf1_bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("reduction", [1, 2, 8])
def test_with_any_setting(
    decoder: Decoder, one: Any, image: np.ndarray, encode: Any, resample: Any, antialias: bool, reduction: int
) -> None:
    settings = {"resample": resample, "antialias": antialias, "reduction": reduction}
    for kind in ("444", "420"):
        data = encode(image, kind)
        # The last one has more taps than 16 bits are good for.
        for window, size in [
            ((3, 7, 150, 99), (48, 40)),
            ((50, 40, 20, 30), (70, 64)),
            ((0, 0, 201, 160), (4, 2)),
        ]:
            rgb, _ = one(decoder, data, window, size, **settings)
            check(decode(decoder, data, window, size, **settings), rgb)


def test_pure_colours_stay_within_a_byte(decoder: Decoder, encode: Any) -> None:
    for colour in ((0, 0, 255), (255, 0, 0), (0, 255, 0), (255, 255, 255), (0, 0, 0)):
        one = np.full((16, 16, 3), colour, np.uint8)
        y, cb, cr = planes_of(decode(decoder, encode(one, "png"), (0, 0, 16, 16), (16, 16)))
        expected = [min(255, round(float(plane[0, 0]))) for plane in halved(one)]
        assert [(plane.min(), plane.max()) for plane in (y, cb, cr)] == [(one, one) for one in expected]


@pytest.mark.parametrize("kind", ["444", "422", "420", "gray"])
@given(data=st.data())
@limits(max_examples=30)
def test_levels_and_mirror_images_agree(
    levels: list[Decoder], pictures: dict[str, bytes], kind: str, data: Any
) -> None:
    x, y = data.draw(st.integers(0, 180)), data.draw(st.integers(0, 140))
    window = (x, y, data.draw(st.integers(1, 201 - x)), data.draw(st.integers(1, 160 - y)))
    size = (2 * data.draw(st.integers(1, 45)), 2 * data.draw(st.integers(1, 45)))
    settings = {
        "resample": data.draw(st.sampled_from(["bilinear", "bicubic", "tf1_bicubic"])),
        "antialias": data.draw(st.booleans()),
        "reduction": data.draw(st.sampled_from([1, 2, 4, 8])),
    }
    first, *others = [decode(level, pictures[kind], window, size, **settings) for level in levels]
    for other in others:
        assert np.array_equal(first, other)
    mirrored = decode(levels[-1], pictures[kind], window, size, flip=True, **settings)
    for plane, twin in zip(planes_of(first), planes_of(mirrored), strict=True):
        assert np.array_equal(plane[:, ::-1], twin)


@pytest.fixture(scope="module")
def levels() -> Any:
    kernel = pytest.importorskip("feeder.decode._kernel")
    from feeder.decode.kernel import NativeDecoder

    decoders = [NativeDecoder(1, level=level) for level in kernel.LEVELS]
    yield decoders
    for decoder in decoders:
        decoder.close()


@pytest.fixture(scope="module")
def pictures(image: np.ndarray, encode: Any) -> dict[str, bytes]:
    return {kind: encode(image, kind) for kind in ("444", "422", "420", "gray")}


def test_planes_and_seek_points_and_places_change_nothing(
    native: Decoder, pictures: dict[str, bytes]
) -> None:
    images = list(pictures.values())
    count = len(images)
    windows, flips = np.array([(20, 30, 150, 100)] * count, np.int32), np.arange(count) % 2 == 0
    ones, places = np.ones(count, np.uint8), np.array([5, 0, 3, 2])
    expected = np.zeros((count, 96, 64), np.uint8)
    assert native.decode(images, windows, flips, expected) == [None] * count
    points = SeekPoints.nothing(count)
    native.learn(images, points)
    assert points.outcomes.all()
    kept = native.keep(images, ones)
    for given_images, more in [
        (images, {"seek": points}),
        (kept, {"kept": np.ones(count, np.bool_), "reductions": ones}),
    ]:
        out = np.full((6, 96, 64), 9, np.uint8)
        assert native.decode(given_images, windows, flips, out, places=places, **more) == [None] * count
        assert np.array_equal(out[places], expected)
        assert (np.delete(out, places, axis=0) == 9).all()


@pytest.mark.parametrize("shape", [(1, 10, 8), (1, 9, 7), (1, 0, 8), (1, 3, 2, 4)])
def test_sides_that_are_not_even_are_refused(
    decoder: Decoder, pictures: dict[str, bytes], shape: Any
) -> None:
    window, flip = np.array([(0, 0, 8, 8)], np.int32), np.array([False])
    with pytest.raises(ConfigError, match="out must"):
        decoder.decode([pictures["444"]], window, flip, np.zeros(shape, np.uint8))


def test_both_decoders_agree(native: Decoder, portable: Decoder, pictures: dict[str, bytes]) -> None:
    for kind in ("444", "gray"):  # other chroma is made smooth by libjpeg with a rounding of its own
        first, second = (
            decode(one, pictures[kind], (11, 13, 180, 140), (64, 48)).astype(int)
            for one in (native, portable)
        )
        assert np.abs(first - second).max() <= 2


def check_quality(images: list[bytes]) -> tuple[float, float]:
    """Makes random crops of real files both ways; returns the PSNR of all pixels in dB, of YUV 4:2:0 and of
    RGB that went there and back by hand."""
    decoder = open_decoder(1, "native")
    sizes, _ = decoder.sizes(images)
    windows, flips = train_windows("torchvision", 7, 0, np.arange(len(images)), sizes)
    rgb = np.empty((len(images), SIDE, SIDE, 3), np.uint8)
    yuv = np.empty((len(images), SIDE * 3 // 2, SIDE), np.uint8)
    for out in (rgb, yuv):
        assert decoder.decode(images, windows, flips, out) == [None] * len(images)
    decoder.close()
    assert yuv.nbytes * 2 == rgb.nbytes
    errors = []
    for pixels, slot in zip(rgb, yuv, strict=True):
        back = np.concatenate(
            [plane.round().clip(0, 255).astype(np.uint8).ravel() for plane in halved(pixels)]
        )
        ours, theirs = (
            float(((yuv420_to_rgb(flat).astype(np.float64) - pixels) ** 2).mean())
            for flat in (slot.ravel(), back)
        )
        assert ours <= theirs * 10**0.05  # 0.5 dB
        errors.append((ours, theirs))
    ours_db, theirs_db = 10 * np.log10(255**2 / np.mean(errors, axis=0))
    assert ours_db >= 38
    return ours_db, theirs_db


def test_real_files_lose_no_more_than_halved_rgb(native: Decoder, sample: list[bytes]) -> None:
    check_quality(sample[::10])


@pytest.mark.soak
def test_all_real_files_lose_no_more_than_halved_rgb(native: Decoder, sample: list[bytes]) -> None:
    ours, theirs = check_quality(sample)
    assert ours >= theirs - 0.1
