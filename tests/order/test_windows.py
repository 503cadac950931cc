from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.order import eval_windows, smallest_window, train_windows, whole_windows
from feeder.order.windows import _exp
from feeder.spec import Sampler

SAMPLERS: list[Sampler] = list(get_args(Sampler))
COUNT = 20_000

side = st.one_of(st.integers(1, 12), st.integers(1, 700), st.integers(1, 65_500))


def sizes_of(width: int, height: int, count: int = COUNT) -> NDArray[np.int32]:
    return np.tile(np.array([[width, height]], np.int32), (count, 1))


def draw(
    sampler: Sampler, width: int, height: int, count: int = COUNT
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    return train_windows(sampler, 11, 2, np.arange(count), sizes_of(width, height, count))


def oracle(sampler: Sampler, width: int, height: int, count: int) -> NDArray[np.int64]:
    """The same distributions by the written-out rules, one window at a time from Python's random; int64 [n,
    4].
    """
    source = random.Random(width * 100_000 + height)
    one = slow_torchvision if sampler == "torchvision" else slow_inception
    return np.array([one(source, width, height) for _ in range(count)])


def slow_torchvision(source: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = width * height * source.uniform(0.08, 1.0)
        ratio = math.exp(source.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return source.randint(0, width - w), source.randint(0, height - h), w, h
    if width / height < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h


def slow_inception(source: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    least, most = 0.08 * width * height, 1.0 * width * height
    for _ in range(10):
        ratio = source.uniform(3 / 4, 4 / 3)
        low, high = round(math.sqrt(least / ratio)), round(math.sqrt(most / ratio))
        if round(high * ratio) > width:
            high = int((width + 0.5 - 1e-7) / ratio)
            if round(high * ratio) > width:
                high -= 1
        high = min(high, height)
        h = source.randint(min(low, high), high)
        w = round(h * ratio)
        if w * h < least:
            h += 1
            w = round(h * ratio)
        if w * h > most:
            h -= 1
            w = round(h * ratio)
        if not least <= w * h <= most or not 0 < w <= width or not 0 < h <= height:
            continue
        if w * h / (width * height) < 0.1:
            continue
        if (w, h) == (width, height):
            break
        return source.randrange(width - w or 1), source.randrange(height - h or 1), w, h
    square = max(1, int(0.875 * min(width, height)))
    x, y = ((full - square + 1) // 2 for full in (width, height))
    return min(x, width - square), min(y, height - square), square, square


def distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Kolmogorov-Smirnov distance of two samples, times sqrt(n m / (n + m)): above 1.95 once in a
    thousand.
    """
    a, b = np.sort(a), np.sort(b)
    both = np.concatenate([a, b])
    gap = np.searchsorted(a, both, "right") / len(a) - np.searchsorted(b, both, "right") / len(b)
    return float(np.abs(gap).max() * math.sqrt(len(a) * len(b) / (len(a) + len(b))))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("width", "height"), [(500, 375), (1, 500), (500, 100), (30, 20), (3, 3)])
def test_windows_are_distributed_as_by_the_slow_sampler(sampler: Sampler, width: int, height: int) -> None:
    """I25: area share, logarithm of the ratio, sides and offsets, for ordinary, thin and tiny images."""
    fast = draw(sampler, width, height)[0].astype(np.float64)
    slow = oracle(sampler, width, height, COUNT).astype(np.float64)
    features = {
        "area": lambda w: w[:, 2] * w[:, 3] / (width * height),
        "log ratio": lambda w: np.log(w[:, 2] / w[:, 3]),
        "x": lambda w: w[:, 0],
        "y": lambda w: w[:, 1],
        "x share": lambda w: (w[:, 0] + 0.5) / (width - w[:, 2] + 1),
        "width": lambda w: w[:, 2],
        "height": lambda w: w[:, 3],
    }
    for name, feature in features.items():
        assert distance(feature(fast), feature(slow)) < 1.95, name


def test_torchvision_area_is_uniform_where_everything_fits() -> None:
    """With no constraint from the sides, area share is uniform and the logarithm of the ratio too."""
    windows = draw("torchvision", 4000, 4000)[0].astype(np.float64)
    area = windows[:, 2] * windows[:, 3] / 4000**2
    small = area < 0.5  # such windows fit whatever their ratio
    grid = np.linspace(0.08, 0.5, small.sum())
    assert distance(area[small], grid) < 1.95
    ratios = np.log(windows[small, 2] / windows[small, 3]) / math.log(4 / 3)
    assert distance(ratios, np.linspace(-1, 1, small.sum())) < 1.95


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_half_are_mirrored_whatever_the_window(sampler: Sampler) -> None:
    windows, flips = draw(sampler, 500, 375)
    assert abs(flips.mean() - 0.5) < 4 * 0.5 / math.sqrt(COUNT)
    for column in range(4):
        assert abs(np.corrcoef(windows[:, column], flips)[0, 1]) < 4 / math.sqrt(COUNT)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_last_offset_comes_from_torchvision_and_never_from_tensorflow(sampler: Sampler) -> None:
    windows = draw(sampler, 6, 6)[0]
    windows = windows[windows[:, 2] < 5]  # 5 x 5 may be the centred crop
    left = 6 - windows[:, 2:] - windows[:, :2]
    assert windows[:, :2].min() == 0
    assert left[6 - windows[:, 2:] > 0].min() == (0 if sampler == "torchvision" else 1)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (640, 480)])
def test_ratios_and_areas_stay_in_their_ranges(sampler: Sampler, width: int, height: int) -> None:
    """I25: but for the rounding of both sides to whole pixels."""
    windows = draw(sampler, width, height)[0].astype(np.float64)
    w, h = windows[:, 2], windows[:, 3]
    assert ((w + 0.5) / (h - 0.5) >= 3 / 4).all()
    assert ((w - 0.5) / (h + 0.5) <= 4 / 3).all()
    least = 0.08 if sampler == "torchvision" else 0.1
    assert ((w + 0.5) * (h + 0.5) >= least * width * height).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
@settings(deadline=None, max_examples=150)
@given(width=side, height=side, seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**40))
def test_windows_are_inside_and_never_empty(
    sampler: Sampler, width: int, height: int, seed: int, epoch: int
) -> None:
    sizes = sizes_of(width, height, 16)
    drawn = train_windows(sampler, seed, epoch, np.arange(16), sizes)[0]
    bound = smallest_window("train", sampler, sizes, 224)
    assert (drawn[:, 2:] >= bound).all()
    assert (bound >= 1).all()
    for image_size in (1, 224, 4096):
        for windows in (drawn, eval_windows(sampler, image_size, sizes), whole_windows(sizes)):
            assert windows.dtype == np.int32
            assert windows.shape == (16, 4)
            assert (windows[:, :2] >= 0).all()
            assert (windows[:, 2:] >= 1).all()
            assert (windows[:, :2] + windows[:, 2:] <= sizes).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_smallest_window_is_close_to_the_smallest_that_comes(sampler: Sampler) -> None:
    windows = draw(sampler, 500, 375)[0]
    bound = smallest_window("train", sampler, sizes_of(500, 375, 1), 224)[0]
    assert (windows[:, 2:].min(axis=0) - bound <= 6).all()


def test_smallest_window_of_evaluation_and_of_whole_images_is_the_window() -> None:
    sizes = np.array([[500, 375], [100, 900]], np.int32)
    for sampler in SAMPLERS:
        bound = smallest_window("eval", sampler, sizes, 224)
        assert np.array_equal(bound, eval_windows(sampler, 224, sizes)[:, 2:])
        assert np.array_equal(smallest_window("none", sampler, sizes, 224), sizes)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_two_workers_or_epochs_draw_alike(sampler: Sampler) -> None:
    """P01: 64 records with one image in each, 4 workers, 2 epochs: 128 different crops."""
    seen = set()
    for epoch in (0, 1):
        for worker in range(4):
            records = np.arange(worker, 64, 4)
            windows, flips = train_windows(sampler, 0, epoch, records, sizes_of(500, 375, 16))
            seen |= {(*window, flip) for window, flip in zip(windows.tolist(), flips.tolist(), strict=True)}
    assert len(seen) == 128


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_window_depends_on_seed_epoch_record_and_size_only(sampler: Sampler) -> None:
    """Alone or in a batch, one epoch for all or one for each: the same window. Other seed or epoch:
    another.
    """
    source = np.random.default_rng(1)
    sizes = source.integers(1, 900, (40, 2), dtype=np.int32)
    records, epochs = source.integers(0, 10**9, 40), source.integers(0, 5, 40)
    windows, flips = train_windows(sampler, 7, epochs, records, sizes)
    for i in range(40):
        alone = train_windows(sampler, 7, int(epochs[i]), records[i : i + 1], sizes[i : i + 1])
        assert alone[0].tolist() == [windows[i].tolist()]
        assert alone[1].tolist() == [flips[i]]
    large = sizes_of(500, 375, 200)
    for one, other in (((0, 1), (1, 0)), ((7, 2), (7, 3)), ((2**63 - 1, 0), (2**63 - 2, 1))):
        a, b = (train_windows(sampler, *pair, np.arange(200), large)[0] for pair in (one, other))
        assert (a == b).all(axis=1).sum() <= 1


def test_exp_is_as_exact_as_it_says() -> None:
    x = np.linspace(-math.log(4 / 3), math.log(4 / 3), 10_001)
    assert np.abs(_exp(x) / np.exp(x) - 1).max() < 1e-10


@settings(deadline=None)
@given(side, side, st.sampled_from([1, 32, 64, 160, 224, 299]))
def test_torchvision_evaluation_is_the_nearest_window_to_resize_and_centre_crop(
    width: int, height: int, image_size: int
) -> None:
    x, y, w, h = eval_windows("torchvision", image_size, sizes_of(width, height, 1))[0].tolist()
    short = round(image_size * 256 / 224)
    for first, extent, full in ((x, w, width), (y, h, height)):
        resized = int(Fraction(short * full, min(width, height)))
        scale = Fraction(full, resized)
        left = round((resized - image_size) / 2) * scale
        assert abs(extent - max(1, image_size * scale)) <= Fraction(1, 2) + Fraction(1, 10**6)
        assert abs(first - min(left, full - extent)) <= Fraction(1, 2) + Fraction(1, 10**6)


def test_evaluation_windows_of_ordinary_images() -> None:
    sizes = np.array([[500, 375], [256, 256], [320, 512], [1, 1], [2, 900]], np.int32)
    assert eval_windows("torchvision", 224, sizes).tolist() == [
        [85, 23, 328, 328],
        [16, 16, 224, 224],
        [20, 115, 280, 280],  # the long side shrinks to int(409.6), the crop starts at round(92.5) = 92
        [0, 0, 1, 1],
        [0, 449, 2, 2],
    ]
    # int(0.875 * short side), at ((side - square) + 1) // 2
    assert eval_windows("inception", 224, sizes).tolist() == [
        [86, 24, 328, 328],
        [16, 16, 224, 224],
        [20, 116, 280, 280],
        [0, 0, 1, 1],
        [1, 450, 1, 1],
    ]


def test_no_images_no_windows() -> None:
    none = np.empty((0, 2), np.int32)
    for sampler in SAMPLERS:
        windows, flips = train_windows(sampler, 0, 0, np.empty(0, np.int64), none)
        assert windows.shape == (0, 4)
        assert flips.shape == (0,)
        assert eval_windows(sampler, 224, none).shape == (0, 4)
        assert smallest_window("train", sampler, none, 224).shape == (0, 2)
