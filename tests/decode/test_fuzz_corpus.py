"""The corpus that fuzzing starts from, with what it found so far, through the kernel as it is installed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import feeder.decode

CORPUS = Path(feeder.decode.__file__).parent / "native/fuzz/corpus"

CHOICES = 32
"""Bytes behind the image in a file of corpus/jpeg; see native/fuzz/fuzz_input.h."""


WINDOWS = [(0, 0, 1, 1), (0, 0, 16, 16), (3, 5, 20, 9), (1, 17, 30, 8)]

USED, GREW = 1, 2


@pytest.fixture(scope="module")
def images() -> list[bytes]:
    return [file.read_bytes()[:-CHOICES] for file in sorted((CORPUS / "jpeg").iterdir())]


def test_same_pixels_by_every_way(agree: Callable[..., int], images: list[bytes]) -> None:
    decoded = 0
    for window in WINDOWS:
        decoded += agree(images, [window] * len(images))
    assert decoded > len(images) / 3


def test_damage_in_arithmetic_data_is_noticed_behind_the_last_row(native, portable, one):
    """libjpeg makes noise of it; only in the end it shows that too much or too little is left of the data."""
    data = (CORPUS / "jpeg/6af9db8fb927").read_bytes()[:-CHOICES]
    whole, last_row, first_row = (0, 0, 48, 40), (9, 39, 20, 1), (0, 0, 48, 1)
    assert one(native, data, whole)[1] is None
    places = range(data.index(b"\xff\xda") + 14, len(data) - 2, 7)
    noticed = 0
    for place in places:
        damaged = data[:place] + bytes((data[place] ^ 0x55,)) + data[place + 1 :]
        reasons = [
            one(native, damaged, whole)[1],
            one(native, damaged, last_row)[1],
            one(portable, damaged, whole)[1],
        ]
        assert len({reason is None for reason in reasons}) == 1
        noticed += reasons[0] is not None
        assert reasons[0] is not None or one(native, damaged, first_row)[1] is None
    assert noticed > len(places) / 2


def test_same_pixels_with_seek_points(images: list[bytes]) -> None:
    module = pytest.importorskip("feeder.decode._kernel")
    kernel = module.Kernel(1, 1 << 20, 1 << 20, 20, 1 << 22, "best", False)
    points, outcomes = np.zeros((len(images), module.SEEK_BYTES), np.uint8), np.zeros(len(images), np.uint8)
    kernel.learn(images, points, outcomes)
    assert np.isin(outcomes, [0, GREW]).all()
    assert (outcomes == GREW).sum() > len(images) / 3

    def decode(window, *seek):
        out = np.zeros((len(images), 8, 9, 3), np.uint8)
        windows = np.array([window] * len(images), np.int32)
        flips, reductions = np.zeros(len(images), np.bool_), np.ones(len(images), np.uint8)
        verdicts = kernel.decode(images, windows, flips, out, "bilinear", True, reductions, *seek)
        out[[verdict is not None for verdict in verdicts]] = 0
        return out, verdicts

    for window in WINDOWS:
        before = points.copy()
        (pixels, verdicts), (expected, reasons) = decode(window, points, outcomes), decode(window)
        assert verdicts == reasons
        assert np.array_equal(pixels, expected)
        assert np.isin(outcomes, [0, USED]).all()
        assert np.array_equal(points, before)
    kernel.close()


def test_kept_planes_are_refused_or_give_the_same_pixels_on_every_level() -> None:
    module = pytest.importorskip("feeder.decode._kernel")
    kept = [file.read_bytes()[:-CHOICES] for file in sorted((CORPUS / "kept").iterdir())]
    kernels = [module.Kernel(1, 1 << 20, 1 << 20, 20, 1 << 22, level, False) for level in module.LEVELS]
    one, yes = np.ones(1, np.uint8), np.ones(1, np.bool_)
    decoded = 0
    for planes, window in itertools.product(kept, WINDOWS):
        results = []
        for kernel in kernels:
            out = np.zeros((1, 40, 9, 3), np.uint8)
            try:
                verdict = kernel.decode(
                    [planes], np.array([window], np.int32), yes, out, "bilinear", True, one, kept=yes
                )[0]
            except ValueError as error:
                verdict = str(error)
            results.append((verdict, out.tobytes()))
        assert len(set(results)) == 1
        decoded += results[0][0] is None
    assert decoded > len(kept) / 3
    for kernel in kernels:
        kernel.close()
