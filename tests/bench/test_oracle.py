import io

import numpy as np
import pytest
from PIL import Image

from bench.oracle import agreement, expected


def encoded(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def ramp():
    """uint8 [40, 60, 3]; red grows to the right, green downwards."""
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[..., 0] = np.arange(60)[None, :] * 4
    pixels[..., 1] = np.arange(40)[:, None] * 6
    return pixels


@pytest.mark.parametrize("antialias", [True, False])
def test_a_window_of_the_output_size_is_the_crop_itself(ramp, antialias):
    out = expected([encoded(ramp)], np.array([[10, 5, 20, 20]]), np.array([False]), 20, antialias=antialias)
    np.testing.assert_array_equal(out[0], ramp[5:25, 10:30])


@pytest.mark.parametrize("antialias", [True, False])
def test_a_flip_mirrors_the_result(ramp, antialias):
    windows = np.array([[3, 2, 50, 30]] * 2)
    out = expected([encoded(ramp)] * 2, windows, np.array([False, True]), 16, antialias=antialias)
    np.testing.assert_array_equal(out[0], out[1][:, ::-1])


def test_without_antialias_only_the_nearest_pixels_count():
    pixels = np.zeros((1, 8, 3), np.uint8)
    pixels[0, 3:5] = 200
    window, flip = np.array([[0, 0, 8, 1]]), np.array([False])
    # The centres of two output pixels are at 1.5 and 5.5: between pixels 1 and 2, and 5 and 6.
    plain = expected([encoded(pixels)], window, flip, 2, antialias=False)
    assert plain.max() == 0
    assert expected([encoded(pixels)], window, flip, 2, antialias=True).max() > 0


def test_agreement_counts_levels():
    wanted = np.zeros((2, 4, 4, 3), np.uint8)
    outputs = wanted.copy()
    outputs[1] = 10
    found = agreement(outputs, wanted)
    assert (found.mean_abs, found.far_off, found.worst_image) == (5.0, 0.5, 10.0)
    assert agreement(wanted, outputs) == found


@pytest.mark.parametrize("outputs", [np.zeros((2, 4, 4, 3), np.float32), np.zeros((2, 3, 4, 4), np.uint8)])
def test_another_shape_or_type_is_no_agreement(outputs):
    with pytest.raises(ValueError, match=r"output is .*, wanted uint8"):
        agreement(outputs, np.zeros((2, 4, 4, 3), np.uint8))
