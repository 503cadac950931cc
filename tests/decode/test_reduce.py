from __future__ import annotations

import numpy as np
import pytest

from feeder.decode import reductions
from feeder.errors import ConfigError

SIZES = np.array([[500, 375], [4000, 3000], [224, 224], [900, 447], [3600, 1792]], np.int32)


def test_auto_keeps_the_smallest_window_at_the_output():
    smallest = np.array([[100, 80], [448, 448], [224, 224], [1800, 900], [3600, 1792]], np.int32)
    assert reductions("auto", smallest, SIZES, 224).tolist() == [1, 2, 1, 4, 8]


def test_number_keeps_the_short_side():
    assert reductions(224, SIZES, SIZES, 1).tolist() == [1, 8, 1, 1, 8]
    assert reductions(1, SIZES, SIZES, 224).tolist() == [8, 8, 8, 8, 8]


def test_none_never_reduces():
    found = reductions(None, SIZES, SIZES, 1)
    assert found.tolist() == [1] * 5
    assert found.dtype == np.uint8


def test_nothing():
    assert reductions("auto", SIZES[:0], SIZES[:0], 224).shape == (0,)


@pytest.mark.parametrize("reduce", [0, -1, "all", True, 2.5])
def test_anything_else_is_refused(reduce):
    with pytest.raises(ConfigError, match="reduce must be"):
        reductions(reduce, SIZES, SIZES, 224)
