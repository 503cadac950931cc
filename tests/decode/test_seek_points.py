"""Seek points change what is decoded for a window, never the result."""

from __future__ import annotations

import numpy as np
import pytest

kernel = pytest.importorskip("feeder.decode._kernel")

KINDS = ["444", "422", "420", "440", "411", "gray", "restarts"]
USED, GREW, REFUSED = 1, 2, 4

# Of what is stored: the number of the last known point, and the first point.
KNOWN, FIRST_POINT, POINT_BYTES = slice(2, 4), 8, 8


@pytest.fixture(scope="module")
def native():
    opened = kernel.Kernel(1, 1 << 27, 1 << 28, 100, 1 << 34, "best", False)
    yield opened
    opened.close()


def decode(native, images, windows, seek=None, size=(24, 31)):
    """Pixels, verdicts and outcomes of a window of each image."""
    count = len(images)
    out, outcomes = np.zeros((count, *size, 3), np.uint8), np.full(count, 99, np.uint8)
    verdicts = native.decode(
        images,
        np.array(windows, np.int32),
        np.zeros(count, np.bool_),
        out,
        "bilinear",
        True,
        np.ones(count, np.uint8),
        seek,
        None if seek is None else outcomes,
    )
    return out, verdicts, outcomes


def learn(native, images):
    seek, outcomes = np.zeros((len(images), kernel.SEEK_BYTES), np.uint8), np.zeros(len(images), np.uint8)
    return seek, native.learn(images, seek, outcomes), outcomes


def windows_of(random, width, height, count):
    windows = [(0, 0, width, height), (0, 0, 1, 1), (width - 1, height - 1, 1, 1)]
    for _ in range(count):
        w, h = int(random.integers(1, width + 1)), int(random.integers(1, height + 1))
        windows.append(
            (int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h)
        )
    return windows


@pytest.mark.parametrize("kind", KINDS)
def test_same_pixels_with_all_points(native, picture, encode, kind):
    random = np.random.default_rng(1)
    for width, height in [(1, 1), (16, 16), (17, 33), (95, 71), (8, 1300)]:
        data = encode(picture(width, height), kind)
        points, verdicts, outcomes = learn(native, [data])
        assert verdicts == [None]
        assert outcomes[0] == GREW
        windows = windows_of(random, width, height, 60)
        images = [data] * len(windows)
        expected, _, _ = decode(native, images, windows)
        pixels, verdicts, outcomes = decode(native, images, windows, points.repeat(len(windows), axis=0))
        assert verdicts == [None] * len(windows)
        assert (outcomes == USED).all()
        assert np.array_equal(pixels, expected)


def known(points):
    return int.from_bytes(points.tobytes()[KNOWN], "little")


def cut_to(points, count):
    """The first `count` of the points."""
    cut = points.copy()
    cut[KNOWN] = np.frombuffer(count.to_bytes(2, "little"), np.uint8)
    cut[FIRST_POINT + POINT_BYTES * count :] = 0
    return cut if count else np.zeros_like(points)


@pytest.mark.parametrize("kind", KINDS)
def test_points_are_learned_with_windows_and_only_grow(native, picture, encode, kind):
    data = encode(picture(95, 171), kind)
    complete, _, _ = learn(native, [data])
    seek = np.zeros_like(complete)
    for bottom in (1, 30, 20, 90, 171, 171):
        before = known(seek[0])
        window = [(40, bottom - 1, 20, 1)]
        expected, _, _ = decode(native, [data], window)
        pixels, _, outcomes = decode(native, [data], window, seek)
        assert np.array_equal(pixels, expected)
        assert known(seek[0]) >= before
        assert bool(outcomes[0] & GREW) == (known(seek[0]) > before)
        assert np.array_equal(cut_to(complete[0], known(seek[0]))[:992], seek[0][:992])
    assert np.array_equal(seek, complete)


@pytest.mark.parametrize("kind", KINDS)
def test_every_prefix_gives_the_same(native, picture, encode, kind):
    data = encode(picture(70, 61), kind)
    complete, _, _ = learn(native, [data])
    random = np.random.default_rng(2)
    windows = windows_of(random, 70, 61, 5)
    images = [data] * len(windows)
    expected, _, _ = decode(native, images, windows)
    for count in range(known(complete[0]) + 1):
        seek = np.stack([cut_to(complete[0], count)] * len(windows))
        pixels, verdicts, outcomes = decode(native, images, windows, seek)
        assert verdicts == [None] * len(windows)
        assert np.array_equal(pixels, expected)
        assert not (outcomes & REFUSED).any()


def test_points_of_another_image_are_refused(native, picture, encode):
    data, other = (encode(picture(95, 71, seed), "420") for seed in (1, 2))
    length = max(len(data), len(other))
    data, other = (image + bytes(length - len(image)) for image in (data, other))
    points, _, _ = learn(native, [other])
    window = [(0, 0, 95, 71)]
    expected, _, _ = decode(native, [data], window)
    pixels, verdicts, outcomes = decode(native, [data], window, points)
    assert verdicts == [None]
    assert np.array_equal(pixels, expected)
    assert outcomes[0] == REFUSED | GREW
    assert np.array_equal(points, learn(native, [data])[0])


def test_a_wrong_point_is_found_where_decoding_comes_by(native, picture, encode):
    data = encode(picture(300, 200), "444")
    complete, _, _ = learn(native, [data])
    window = [(0, 0, 300, 200)]
    expected, _, _ = decode(native, [data], window)
    a_row = (known(complete[0]) + 1) // 25
    for row in (1, 12, 24):
        for byte in (0, 1, 4, 5, 7):
            wrong = complete.copy()
            wrong[0, FIRST_POINT + POINT_BYTES * (a_row * row - 1) + byte] ^= 1
            pixels, verdicts, outcomes = decode(native, [data], window, wrong)
            assert verdicts == [None]
            assert outcomes[0] == REFUSED | GREW
            assert np.array_equal(pixels, expected)
            assert np.array_equal(wrong, complete)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_points_do_no_harm(native, picture, encode, kind):
    """They may change pixels (a container binds points to their bytes), but no verdict of a sound image."""
    data = encode(picture(95, 71), kind)
    complete, _, _ = learn(native, [data])
    random = np.random.default_rng(3)
    windows = windows_of(random, 95, 71, 1500)
    seek = complete.repeat(len(windows), axis=0)
    for row in seek:
        for _ in range(int(random.integers(1, 6))):
            place = int(random.integers(0, FIRST_POINT + POINT_BYTES * (known(complete[0]) + 1)))
            row[place] = (0, 255, int(random.integers(256)))[int(random.integers(3))]
    seek[::7] = random.integers(0, 256, (len(seek[::7]), kernel.SEEK_BYTES))
    _, verdicts, _ = decode(native, [data] * len(windows), windows, seek)
    assert verdicts == [None] * len(windows)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found_alike_with_points(native, picture, encode, kind):
    data = encode(picture(90, 60), kind)
    head = data.index(b"\xff\xda") + 14
    random = np.random.default_rng(4)
    images = []
    for _ in range(300):
        damaged = bytearray(data)
        for place in random.integers(head, len(data), int(random.integers(1, 3))):
            damaged[place] = (0xFF, int(random.integers(256)))[int(random.integers(4)) > 0]
        images.append(
            bytes(damaged[: int(random.integers(head, len(data) + 1))] if random.random() < 0.3 else damaged)
        )
    points, _, _ = learn(native, images)
    windows = windows_of(random, 90, 60, len(images) - 3)
    expected, verdicts, _ = decode(native, images, windows)
    pixels, found, outcomes = decode(native, images, windows, points.copy())
    assert found == verdicts
    good = np.array([verdict is None for verdict in verdicts])
    assert good.any()
    assert not good.all()
    assert np.array_equal(pixels[good], expected[good])
    assert not (outcomes & REFUSED).any()


@pytest.mark.parametrize(("kind", "width", "height"), [("444", 60, 6000), ("420", 8192, 8192)])
def test_large_images(native, kind, width, height, picture, encode):
    """More rows of MCUs than there are points: one for each few rows."""
    tile = picture(512, 512)
    pixels = np.tile(tile, (-(-height // 512), -(-width // 512), 1))[:height, :width]
    data = encode(np.ascontiguousarray(pixels), kind)
    points, verdicts, _ = learn(native, [data])
    assert verdicts == [None]
    windows = [(width // 3, height // 2 + 5, 40, 61), (0, height - 130, width, 130), (width - 9, 300, 9, 500)]
    expected, _, _ = decode(native, [data] * 3, windows)
    pixels, _, outcomes = decode(native, [data] * 3, windows, points.repeat(3, axis=0))
    assert np.array_equal(pixels, expected)
    assert (outcomes == USED).all()


def test_real_files(native, sample):
    images = sample[::10]
    sizes, statuses = np.zeros((len(images), 2), np.int32), np.zeros(len(images), np.uint8)
    native.sizes(images, sizes, statuses)
    random = np.random.default_rng(5)
    points, verdicts, outcomes = learn(native, images)
    assert verdicts == [None] * len(images)
    assert (outcomes == GREW).all()
    for _ in range(3):
        windows = [windows_of(random, *size, 1)[-1] for size in sizes.tolist()]
        expected, _, _ = decode(native, images, windows, size=(90, 80))
        pixels, _, outcomes = decode(native, images, windows, points, size=(90, 80))
        assert np.array_equal(pixels, expected)
        assert (outcomes == USED).all()
