"""Every crafted image gives what its manifest says, alone and in a batch, for no more than its share."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest

from feeder.decode import decode_crop
from feeder.errors import DataError


def test_manifest(decoder, one, odd_images):
    assert odd_images
    for image in odd_images:
        kind = image.expect["kind"]
        sizes, reasons = decoder.sizes([image.data])
        width, height = sizes[0].tolist()
        pixels = None
        if reasons[0] is None:
            pixels, reasons[0] = one(decoder, image.data, (0, 0, width, height))
        reason = reasons[0]
        assert reason is None or (isinstance(reason, str) and len(reason) > 8)
        if kind == "clear_error" or kind == "bounded":
            assert reason is not None, image.name
        elif kind == "decodes":
            assert reason is None, (image.name, reason)
        if reason is not None:
            continue
        assert (width, height) == (image.expect["width"], image.expect["height"]), image.name
        for x, y, color, tolerance in image.expect.get("pixels", []):
            assert np.abs(pixels[y, x].astype(int) - color).max() <= tolerance, (image.name, x, y)


def test_crops_of_the_manifest(native, one, odd_images):
    for image in odd_images:
        crops = image.expect.get("crops", [])
        if not crops:
            continue
        width, height = image.expect["width"], image.expect["height"]
        full, _ = one(native, image.data, (0, 0, width, height))
        for x, y, w, h in crops:
            pixels, reason = one(native, image.data, (x, y, w, h))
            assert reason is None
            assert np.array_equal(pixels, full[y : y + h, x : x + w]), (image.name, x, y, w, h)


def test_any_size_gives_the_size_that_was_asked_for(decoder, one, odd_images):
    random = np.random.default_rng(5)
    for image in odd_images:
        if "/size_" not in image.name:
            continue
        width, height = image.expect["width"], image.expect["height"]
        for _ in range(5):
            w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
            x, y = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
            _, reason = one(decoder, image.data, (x, y, w, h), (24, 24))
            assert reason is None, (image.name, reason)


def test_bombs_are_refused_before_they_cost_anything(decoder, one, odd_images):
    bombs = [image for image in odd_images if image.expect["kind"] == "bounded"]
    assert bombs
    for image in bombs:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.monotonic()
        _, reason = one(decoder, image.data, (0, 0, 8, 8))
        assert reason is not None
        assert time.monotonic() - start < image.expect["limit_s"]
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown_mb < image.expect["limit_mb"]


def test_neighbours_of_bad_images_are_untouched(decoder, odd_images, picture, encode):
    good = encode(picture(90, 70), "420")
    images = [good]
    for image in odd_images:
        if image.expect["kind"] in ("clear_error", "bounded") or "cmyk" in image.name or "png" in image.name:
            images += [image.data, good]
    windows = np.tile(np.array([[0, 0, 30, 20]], np.int32), (len(images), 1))
    out = np.full((len(images), 16, 16, 3), 77, np.uint8)
    reasons = decoder.decode(images, windows, np.zeros(len(images), np.bool_), out)
    for index in range(0, len(images), 2):
        assert reasons[index] is None
        assert np.array_equal(out[index], out[0])


def test_orientation_is_ignored_and_broken_exif_is_silent(decoder, one, odd_images, capfd):
    upright = None
    for image in odd_images:
        if "exif" not in image.name:
            continue
        pixels, reason = one(decoder, image.data, (0, 0, 97, 61))
        assert reason is None
        upright = pixels if upright is None else upright
        assert np.array_equal(pixels, upright)
    assert capfd.readouterr() == ("", "")


def test_cmyk_is_the_same_through_every_path(native, portable, one, odd_images):
    for image in odd_images:
        if "cmyk" in image.name:
            first, _ = one(native, image.data, (3, 5, 80, 50), (24, 31))
            second, _ = one(portable, image.data, (3, 5, 80, 50), (24, 31))
            assert np.array_equal(first, second)


def test_single_image_raises_the_reason(odd_images):
    for image in odd_images:
        if image.expect["kind"] == "clear_error":
            with pytest.raises(DataError, match=r"\w+"):
                decode_crop(image.data, None, (16, 16))


def test_thousands_of_damaged_images_leave_memory_flat(decoder, picture, encode):
    """2,000 mutations: each decodes or gives a reason, and nothing is left behind."""
    random = np.random.default_rng(11)
    seeds = [encode(picture(120, 90), kind) for kind in ("444", "420", "progressive", "gray")]
    windows = np.array([[8, 9, 64, 48]] * 50, np.int32)
    out = np.empty((50, 16, 16, 3), np.uint8)

    def round_of_damage():
        images = []
        for index in range(50):
            data = bytearray(seeds[index % len(seeds)])
            for place in random.integers(0, len(data), 3):
                data[place] = random.integers(256)
            images.append(bytes(data[: random.integers(1, len(data) + 1)] if index % 5 == 0 else data))
        return decoder.decode(images, windows, np.zeros(50, np.bool_), out)

    found = [reason for _ in range(10) for reason in round_of_damage()]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found += [reason for _ in range(30) for reason in round_of_damage()]
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert any(reason is None for reason in found)
    assert any(reason is not None for reason in found)
    assert grown_kb < 16 * 1024
