"""YUV 4:2:0 back to RGB, by each adapter, against slow and obvious arithmetic."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from feeder.client.batch import Batch
from feeder.client.pixels import MEAN, STD, split_planes, yuv420_to_rgb
from feeder.errors import ConfigError
from feeder.order import Position
from feeder.spec import StreamSpec

SIZE = 10


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, SIZE * SIZE * 3 // 2), np.uint8)


def oracle(image: np.ndarray, chroma: str) -> np.ndarray:
    """One image, pixel by pixel: float64 [S, S, 3], not rounded."""
    half = SIZE // 2
    y = image[: SIZE * SIZE].reshape(SIZE, SIZE)
    planes = image[SIZE * SIZE :].astype(np.float64).reshape(2, half, half)
    rgb = np.empty((SIZE, SIZE, 3))
    for row, column in itertools.product(range(SIZE), repeat=2):
        near = row // 2, column // 2
        far = tuple(
            min(max(at + (1 if of % 2 else -1), 0), half - 1)
            for at, of in zip(near, (row, column), strict=True)
        )
        if chroma == "nearest":
            far = near
        cb, cr = (
            0.5625 * plane[near]
            + 0.1875 * plane[far[0], near[1]]
            + 0.1875 * plane[near[0], far[1]]
            + 0.0625 * plane[far]
            for plane in planes
        )
        luma = float(y[row, column])
        rgb[row, column] = (
            luma + 1.402 * (cr - 128),
            luma - 0.344136 * (cb - 128) - 0.714136 * (cr - 128),
            luma + 1.772 * (cb - 128),
        )
    return rgb.clip(0, 255)


@pytest.mark.parametrize("chroma", ["smooth", "nearest"])
class TestRgb:
    def test_numpy(self, images: np.ndarray, chroma: Any) -> None:
        found = yuv420_to_rgb(images, chroma)
        assert (found.dtype, found.shape) == (np.uint8, (3, SIZE, SIZE, 3))
        for image, rgb in zip(images, found, strict=True):
            assert np.abs(rgb - oracle(image, chroma)).max() <= 0.51

    def test_jax(self, images: np.ndarray, chroma: Any) -> None:
        jax = pytest.importorskip("jax", reason="JAX is not installed (extra trainer)")
        import feeder.client.jax as adapter

        expected = np.stack([oracle(image, chroma) for image in images])
        for dtype, tolerance in (("float32", 1e-3), ("uint8", 0.51), ("bfloat16", 0.51)):
            found = jax.jit(lambda x, d=dtype: adapter.yuv420_to_rgb(x, d, chroma))(images)
            assert found.dtype == dtype
            assert np.abs(np.asarray(found, np.float64) - expected).max() <= tolerance
        both = jax.jit(lambda x: adapter.normalize(adapter.yuv420_to_rgb(x, chroma=chroma)))(images)
        assert both.dtype == "bfloat16"
        normal = (expected / 255 - MEAN) / STD
        assert np.abs(np.asarray(both, np.float64) - normal).max() < 2.0**-7

    def test_torch(self, images: np.ndarray, chroma: Any) -> None:
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        import feeder.client.torch as adapter

        expected = np.stack([oracle(image, chroma) for image in images]).transpose(0, 3, 1, 2)
        for dtype, tolerance in ((torch.float32, 1e-3), (torch.uint8, 0.51)):
            found = adapter.yuv420_to_rgb(torch.from_numpy(images), dtype, chroma)
            assert found.dtype == dtype
            assert found.is_contiguous(memory_format=torch.channels_last)
            assert np.abs(found.double().numpy() - expected).max() <= tolerance
        both = adapter.normalize(adapter.yuv420_to_rgb(torch.from_numpy(images), chroma=chroma))
        assert both.dtype == torch.bfloat16
        normal = (expected / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
        assert np.abs(both.double().numpy() - normal).max() < 2.0**-7


def batch(images: np.ndarray) -> Batch:
    position = Position(0, 0, StreamSpec("data", 3, 3), 9, "f")
    return Batch(images, np.zeros(3, np.int32), np.ones(3, np.bool_), position)


def test_planes_of_a_batch_are_views(images: np.ndarray) -> None:
    mine = images.copy()
    y, cb, cr = batch(mine).planes()
    assert (y.shape, cb.shape, cr.shape) == (
        (3, SIZE, SIZE),
        (3, SIZE // 2, SIZE // 2),
        (3, SIZE // 2, SIZE // 2),
    )
    assert np.array_equal(np.concatenate([plane.reshape(3, -1) for plane in (y, cb, cr)], axis=1), images)
    y[1, 2, 3], cb[0, 0, 1], cr[2, 4, 4] = 1, 2, 3
    luma = SIZE * SIZE
    assert (mine[1, 2 * SIZE + 3], mine[0, luma + 1], mine[2, -1]) == (1, 2, 3)


def test_what_is_no_yuv420_is_refused(images: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="output='yuv420'"):
        batch(np.zeros((3, 8, 8, 3), np.uint8)).planes()
    for wrong in (
        images[:, :-1],
        np.zeros((2, 0), np.uint8),
        np.zeros((1, 9 * 9 * 3 // 2), np.uint8),
        np.uint8(3),
    ):
        with pytest.raises(ConfigError, match="YUV 4:2:0"):
            split_planes(wrong)
    with pytest.raises(ConfigError, match="chroma must be one of smooth, nearest, got 'linear'"):
        yuv420_to_rgb(images, "linear")  # type: ignore[arg-type]
