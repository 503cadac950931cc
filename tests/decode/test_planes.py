"""Planes are libjpeg's, a window's are a part of the image's, and pixels depend on nothing but planes."""

from __future__ import annotations

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

KINDS = ["444", "422", "420", "440", "411", "gray", "progressive", "restarts"]
SIZES = [(1, 1), (2, 3), (3, 2), (1, 40), (40, 1), (4, 5), (5, 4), (16, 16), (17, 33), (95, 71)]


@pytest.fixture(scope="module")
def kernels():
    """The kernel as it is, and one that uses nothing but libjpeg."""
    module = pytest.importorskip("feeder.decode._kernel")
    found = [
        module.Kernel(1, 2**30, 2**28, 100, 2**34, "best", libjpeg_only) for libjpeg_only in (False, True)
    ]
    yield found
    for kernel in found:
        kernel.close()


def random_window(random, width, height):
    w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
    return int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h


def regions(facts):
    """left, top, right and bottom of each plane."""
    return [tuple(facts[9 + 8 * index : 13 + 8 * index].tolist()) for index in range(facts[0])]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduction", [1, 2, 4, 8])
def test_planes_are_those_of_libjpeg(kernels, picture, encode, kind, reduction):
    for width, height in SIZES:
        data = encode(picture(width, height), kind)
        (found, facts), (expected, others) = (kernel.planes(data, None, reduction) for kernel in kernels)
        assert facts.tolist() == others.tolist()
        assert all(np.array_equal(*planes) for planes in zip(found, expected, strict=True))


def test_libjpegs_planes_are_what_it_decodes(kernels, picture, encode):
    data = encode(picture(83, 61), "444")
    image = Image.open(io.BytesIO(data))
    image.draft("YCbCr", None)
    expected = np.asarray(image)
    assert image.mode == "YCbCr"
    for kernel in kernels:
        planes, facts = kernel.planes(data)
        assert np.array_equal(np.stack(planes, axis=2), expected)
        assert facts[:5].tolist() == [3, 1, 1, 83, 61]
    gray = encode(picture(83, 61), "gray")
    (luminance,), facts = kernels[0].planes(gray)
    assert np.array_equal(luminance, simplejpeg.decode_jpeg(gray, "GRAY")[:, :, 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduction", [1, 2, 4, 8])
def test_a_window_and_its_planes_and_all_planes_give_the_same_pixels(
    kernels, picture, encode, kind, reduction
):
    random = np.random.default_rng(reduction)
    kernel = kernels[0]
    width, height = 95, 71
    data = encode(picture(width, height), kind)
    planes, facts = kernel.planes(data, None, reduction)
    for index in range(60):
        window = random_window(random, width, height)
        some, some_facts = kernel.planes(data, window, reduction)
        for part, whole, (left, top, right, bottom) in zip(some, planes, regions(some_facts), strict=True):
            assert np.array_equal(part, whole[top:bottom, left:right])
        shape = (1, int(random.integers(1, 60)), int(random.integers(1, 60)), 3)
        settings = (
            ("bilinear", "bicubic", "tf1_bicubic")[index % 3],
            bool(random.integers(2)),
            np.array([reduction], np.uint8),
        )
        geometry = np.array([window], np.int32), np.array([index % 2 == 1])
        direct, from_some, from_all = (np.zeros(shape, np.uint8) for _ in range(3))
        assert kernel.decode([data], *geometry, direct, *settings) == [None]
        assert kernel.resample(some, some_facts[None], *geometry, from_some, *settings) == [None]
        assert kernel.resample(planes, facts[None], *geometry, from_all, *settings) == [None]
        assert np.array_equal(from_some, direct), window
        assert np.array_equal(from_all, direct), window


def test_extreme_scales(kernels, one, native, picture, encode):
    """Down to one pixel of thousands, and up to thousands from one."""
    pixels = picture(900, 700) // 2 + 64
    for kind in ("444", "420", "gray"):
        data = encode(pixels, kind)
        full = simplejpeg.decode_jpeg(data)
        for size in ((1, 1), (2, 900), (700, 2), (5, 3), (21, 1500), (1500, 27)):
            for resample in ("bilinear", "bicubic"):
                found, reason = one(native, data, (0, 0, 900, 700), size, resample=resample)
                assert reason is None
                expected = Image.fromarray(full).resize(size[::-1], Image.Resampling[resample.upper()])
                assert np.abs(found.astype(np.int16) - np.asarray(expected)).max() <= 4, (
                    kind,
                    size,
                    resample,
                )
        for x, y in ((0, 0), (899, 699), (450, 333)):
            found, _ = one(native, data, (x, y, 1, 1), (40, 300))
            assert np.array_equal(found, np.broadcast_to(found[0, 0], found.shape))


def test_planes_that_cannot_be_are_refused(kernels, picture, encode):
    kernel = kernels[0]
    data = encode(picture(40, 30), "420")
    planes, facts = kernel.planes(data, (8, 6, 20, 10))
    out = np.zeros((1, 8, 8, 3), np.uint8)
    rest = np.array([False]), out, "bilinear", True, np.array([1], np.uint8)

    def resample(facts, window):
        return kernel.resample(planes, facts[None], np.array([window], np.int32), *rest)

    assert resample(facts, (8, 6, 20, 10)) == [None]
    for window in ((6, 6, 20, 10), (8, 2, 20, 10), (8, 6, 24, 10), (8, 6, 20, 16), (30, 6, 20, 10)):
        assert resample(facts, window) == [(3, "")], window
    most = 2**31 - 1
    for window in ((most, 6, 20, 10), (8, most, 20, 10), (8, 6, most, 10), (8, 6, 20, most), (most,) * 4):
        assert resample(facts, window) == [(3, "")], window
    for index in range(29):
        for value in (-1, 0, 5, 2**31 - 1):
            changed = facts.copy()
            changed[index] = value
            try:
                outcome = resample(changed, (8, 6, 20, 10))
            except ValueError:
                continue
            assert outcome in ([None], [(3, "")])
    with pytest.raises(ValueError, match="status and reason"):
        kernel.planes(b"no image")
