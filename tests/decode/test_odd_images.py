"""Every odd image gives what has to come of it, by each way it may go, and takes no more than its share."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest

from feeder.decode import SeekPoints, decode_crop
from feeder.errors import DataError
from feeder.order import eval_windows, train_windows

OUTPUT = (24, 31)

# Of channel values of the portable twin, against the kernel: mean absolute difference, and the share of them
# that are off by more than 8. Wider than in test_oracle, as a window may be one row of the hardest chroma.
TWIN_MEAN, TWIN_FAR = 1.5, 0.05

SEVERAL = 10
"""Windows that are tried at every scale."""


def decode(decoder, data, windows, *, reduction=1, **settings):
    """Pixels of many windows of one image, black where there are none, and the reasons."""
    count = len(windows)
    out = np.zeros((count, *OUTPUT, 3), np.uint8)
    reasons = decoder.decode(
        [data] * count,
        np.array(windows, np.int32),
        np.arange(count) % 2 == 0,
        out,
        reductions=np.full(count, reduction, np.uint8),
        **settings,
    )
    out[[reason is not None for reason in reasons]] = 0
    return out, reasons


def windows_of(image, width, height):
    """The whole, strips that end at one row after another, any, and some of the manifest; 3 where large."""
    random = np.random.default_rng(width + height)
    if width * height > 1 << 20:
        return [(0, 0, width, height), (width - 99, height - 99, 99, 99), (width // 2, 7, 300, 200)]
    found = [(0, 0, width, height)]
    for bottom in range(1, height + 1, max(1, height // 8)):
        found += [(0, 0, width, bottom), (width // 3, bottom - 1, max(1, width // 3), 1)]
    for _ in range(10):
        w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
        x, y = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
        found.insert(int(random.integers(1, len(found))), (x, y, w, h))
    return found + [tuple(crop) for crop in image.expect.get("crops", [])[::4]]


@pytest.fixture(scope="module")
def ways():
    """The kernel at every level, and libjpeg alone; the first is what the others are compared with."""
    kernel = pytest.importorskip("feeder.decode._kernel")
    from feeder.decode.kernel import NativeDecoder

    opened = [NativeDecoder(1), *(NativeDecoder(1, level=level) for level in kernel.LEVELS)]
    opened.append(NativeDecoder(1, libjpeg_only=True))
    yield opened
    for decoder in opened:
        decoder.close()


def test_every_way_gives_the_same_pixels_or_the_same_error(odd_images, ways, portable):
    """Levels, libjpeg alone, seek points, kept planes: bit for bit; the portable twin: within its tolerance.

    The twin decodes images whole, and so finds damage below a window, too.
    """
    first = ways[0]
    kept = with_points = 0
    for image in odd_images:
        data, name = image.data, image.name
        ((width, height),), (header,) = (found.tolist() for found in map(np.asarray, first.sizes([data])))
        for decoder in (*ways, portable):
            assert decoder.sizes([data])[1] == [header], name
        if header is not None:
            _, reasons = decode(portable, data, [(0, 0, 1, 1)])
            for decoder in ways:
                assert decode(decoder, data, [(0, 0, 1, 1)])[1] == [header] == reasons, name
            assert first.keep([data], np.ones(1, np.uint8)) == [None]
            continue
        windows = windows_of(image, width, height)
        for reduction in (1, 2, 4, 8) if len(windows) > 3 else (1, 8):
            some = windows if reduction == 1 else windows[:SEVERAL]
            expected, reasons = decode(first, data, some, reduction=reduction)
            for decoder in ways[1:]:
                pixels, others = decode(decoder, data, some, reduction=reduction)
                assert others == reasons, (name, decoder.name, reduction)
                assert np.array_equal(pixels, expected), (name, decoder.name, reduction)

            (planes,) = first.keep([data], np.array([reduction], np.uint8))
            if planes is not None:
                assert set(reasons) == {None}, name
                pixels, others = decode(
                    first, planes, some, reduction=reduction, kept=np.ones(len(some), np.bool_)
                )
                assert others == reasons, (name, reduction)
                assert np.array_equal(pixels, expected), (name, reduction)
                kept += 1

            pixels, others = decode(portable, data, some[:SEVERAL], reduction=reduction)
            both = [mine is None is theirs for mine, theirs in zip(reasons, others, strict=False)]
            assert all(theirs for mine, theirs in zip(reasons, others, strict=False) if mine), name
            # Noise is full of colours that no screen has, and then it matters when they are clipped. And an
            # image of a few pixels has several scales that give its reduced size; the twin takes one of them.
            noise = image.expect["kind"] != "decodes" and "pixels" not in image.expect
            if not noise and (reduction == 1 or 8 * reduction <= min(width, height)):
                difference = np.abs(pixels[both].astype(np.int16) - expected[: len(pixels)][both])
                assert all(one.mean() <= TWIN_MEAN for one in difference), (name, reduction)
                assert all((one > 8).mean() <= TWIN_FAR for one in difference), (name, reduction)

        seek = SeekPoints.nothing(1)
        first.learn([data], seek)
        points = SeekPoints(np.repeat(seek.points, len(windows), 0), np.zeros(len(windows), np.uint8))
        expected, reasons = decode(first, data, windows)
        pixels, others = decode(first, data, windows, seek=points)
        assert others == reasons, name
        assert np.array_equal(pixels, expected), name
        with_points += bool(points.outcomes.any())
    assert kept > 100
    assert with_points > 20


def test_damage_is_named_alike_by_every_window_that_reaches_it(odd_images, ways):
    """From the first row on that is damaged, whatever the window's top and sides; those above it are good."""
    reached = 0
    for image in odd_images:
        ((width, height),), (header,) = (
            found.tolist() for found in map(np.asarray, ways[0].sizes([image.data]))
        )
        if header is not None:
            continue
        windows = windows_of(image, width, height)
        _, reasons = decode(ways[0], image.data, windows)
        whole = reasons[0]
        assert set(reasons) <= {None, whole}, image.name
        if whole is None:
            continue
        bottoms = [y + h for _, y, _, h in windows]
        damaged = min(bottom for bottom, reason in zip(bottoms, reasons, strict=True) if reason is not None)
        for window, bottom, reason in zip(windows, bottoms, reasons, strict=True):
            assert (reason is not None) == (bottom >= damaged), (image.name, window)
        reached += damaged < height
    assert reached >= 2


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


@pytest.mark.parametrize("sampler", ["torchvision", "inception"])
def test_any_size_gives_the_size_that_was_asked_for(decoder, odd_images, sampler):
    """With the windows of training and of evaluation."""
    draws = 200
    for image in odd_images:
        if "/size_" not in image.name:
            continue
        sizes = np.tile(np.int32([[image.expect["width"], image.expect["height"]]]), (draws, 1))
        windows, _ = train_windows(sampler, 5, 0, np.arange(draws), sizes)
        few = windows[: draws if sizes.max() < 1000 else 20]
        windows = np.concatenate([few, eval_windows(sampler, 24, sizes[:1])])
        _, reasons = decode(decoder, image.data, windows)
        assert set(reasons) == {None}, image.name


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


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_thousands_of_damaged_images_leave_memory_flat(decoder, picture, encode, count):
    """Mutations: each decodes or gives a reason, and nothing is left behind."""
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
    found += [reason for _ in range(count // 50 - 10) for reason in round_of_damage()]
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert any(reason is None for reason in found)
    assert any(reason is not None for reason in found)
    assert grown_kb < 16 * 1024
