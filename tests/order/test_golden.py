"""Numbers that may never change by accident: every saved position would go on in another order.

Who changes the order on purpose raises the version of Position and writes these down anew.
"""

from __future__ import annotations

import numpy as np
import pytest

from feeder.order import Order, assign, next_in_line, train_windows
from feeder.spec import Remainder, Sampler, StreamSpec

SLOTS = np.array([0, 1, 100, 255])


@pytest.mark.parametrize(
    ("records", "remainder", "seed", "epoch", "taken", "expected"),
    [
        (1_281_167, "drop", 42, 0, 0, [3343, 7787, 505154, 1280022]),
        (1_281_167, "drop", 42, 89, 4998, [5002, 7302, 502035, 1277117]),
        (1_281_167, "drop", 2**63 - 1, 7, 0, [177, 9362, 501814, 1277474]),
        (1_281_167, "wrap", 42, 0, 123_456, [766, 7290, 504678, 1278010]),
        (10_000, "pad", 42, 3, 36, [4, 56, 3923, 9961]),
    ],
)
def test_order(
    records: int, remainder: Remainder, seed: int, epoch: int, taken: int, expected: list[int]
) -> None:
    order = Order(StreamSpec("imagenet", 256, 256, seed=seed, remainder=remainder), records)
    assert order.records(epoch, taken, SLOTS).tolist() == expected


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (
            "torchvision",
            [[19, 5, 336, 367], [10, 110, 349, 357], [329, 247, 205, 218], [0, 466, 50, 67]],
        ),
        (
            "inception",
            [[31, 100, 230, 206], [49, 218, 243, 217], [306, 173, 234, 296], [4, 479, 43, 43]],
        ),
    ],
)
def test_windows(sampler: Sampler, expected: list[list[int]]) -> None:
    sizes = np.array([[500, 375], [375, 500], [640, 480], [50, 1000]], np.int32)
    windows, flips = train_windows(sampler, 42, 5, np.array([0, 1, 999, 1_281_166]), sizes)
    assert windows.tolist() == expected
    assert flips.tolist() == [False, False, True, True]


def test_workers() -> None:
    workers = ["a:1", "b:1", "c:1"]
    assert "".join(assign(range(8), workers).values()) == "b:1a:1c:1b:1a:1c:1c:1a:1"
    assert next_in_line(5, workers) == ["c:1", "a:1", "b:1"]
