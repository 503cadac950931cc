"""Seek points as the stages above hand them to a decoder; tests/decode/test_seek_points.py looks inside."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

from feeder.decode import GREW, REFUSED, SEEK_BYTES, USED, SeekPoints, decode_crop_batch, open_decoder
from feeder.errors import Closed, ConfigError

CROPS = [(16, 300, 90, 60), (150, 200, 100, 90), (0, 0, 40, 30)]


@pytest.fixture
def images(picture, encode):
    return [encode(picture(320, 400), sampling) for sampling in ("420", "444", "422")]


def test_what_one_call_learned_the_next_one_uses(native, images):
    assert native.seeks
    windows, flips = np.array(CROPS, np.int32), np.array([True, False, True])
    expected, out = np.zeros((3, 32, 32, 3), np.uint8), np.zeros((3, 32, 32, 3), np.uint8)
    assert native.decode(images, windows, flips, expected) == [None] * 3
    seek = SeekPoints.nothing(3)
    outcomes = []
    for _ in range(2):
        assert native.decode(images, windows, flips, out, seek=seek) == [None] * 3
        assert np.array_equal(out, expected)
        outcomes.append(seek.outcomes.tolist())
    assert outcomes == [[GREW] * 3, [USED] * 3]
    assert native.learn(images, seek) == [None] * 3
    assert (seek.outcomes & GREW).all()
    assert native.decode(images, windows[::-1].copy(), flips, out, seek=seek) == [None] * 3
    assert seek.outcomes.tolist() == [USED] * 3


def test_a_part_shares_the_memory(native, images):
    seek = SeekPoints.nothing(3)
    assert native.learn(images[1:], seek.part(1, 3)) == [None, None]
    assert [row.any() for row in seek.points] == [False, True, True]
    assert seek.outcomes.tolist() == [0, GREW, GREW]


def test_learning_says_what_is_damaged_and_passes_over_what_it_cannot_read(native, picture, encode, images):
    from io import BytesIO

    from PIL import Image

    png = BytesIO()
    Image.fromarray(picture(20, 20)).save(png, "PNG")
    cut = images[0][: len(images[0]) // 2]
    seek = SeekPoints.nothing(4)
    reasons = native.learn([images[0], cut, png.getvalue(), b"no image"], seek)
    assert [reason and reason.split(":")[0] for reason in reasons] == [None, "damaged JPEG", None, None]
    assert seek.outcomes.tolist() == [GREW, GREW, 0, 0]
    assert not seek.points[2:].any()
    assert native.learn([], SeekPoints.nothing(0)) == []


def test_points_of_other_bytes_are_refused(native, images):
    seek = SeekPoints.nothing(3)
    native.learn(images, seek)
    seek.points[:] = seek.points[[1, 2, 0]]
    out, _ = decode_crop_batch(images, CROPS, None, (32, 32))
    found = np.zeros_like(out)
    windows, flips = np.array(CROPS, np.int32), np.zeros(3, np.bool_)
    assert native.decode(images, windows, flips, found, seek=seek) == [None] * 3
    assert (seek.outcomes & REFUSED).all()
    assert np.array_equal(out, found)
    assert native.decode(images, windows, flips, found, seek=seek) == [None] * 3
    assert not (seek.outcomes & REFUSED).any()


def test_the_portable_decoder_ignores_them(portable, images):
    assert not portable.seeks
    seek = SeekPoints(
        np.full((3, SEEK_BYTES), 7, np.uint8),
        np.full(3, 9, np.uint8),
    )
    out = np.zeros((3, 32, 32, 3), np.uint8)
    windows = np.array(CROPS, np.int32)
    assert portable.decode(images, windows, np.zeros(3, np.bool_), out, seek=seek) == [None] * 3
    assert (seek.points == 7).all()
    assert not seek.outcomes.any()
    with pytest.raises(ConfigError, match="native"):
        portable.learn(images, seek)


@pytest.mark.parametrize("whole", [False, True])
def test_batches_take_points_along(native, images, whole):
    """Also where some images are left out because their header cannot be read."""
    mixed = [images[0], b"no image", images[1], images[2]]
    crops = None if whole else [CROPS[0], None, *CROPS[1:]]
    expected, errors = decode_crop_batch(mixed, crops, None, (32, 32))
    assert [error is None for error in errors] == [True, False, True, True]
    seek = SeekPoints.nothing(4)
    outcomes = []
    for _ in range(2):
        out, again = decode_crop_batch(mixed, crops, None, (32, 32), seek=seek)
        assert np.array_equal(out[[0, 2, 3]], expected[[0, 2, 3]])
        assert again == errors
        outcomes.append(seek.outcomes.tolist())
    assert outcomes == [[GREW, 0, GREW, GREW], [USED, 0, USED, USED]]
    assert not seek.points[1].any()


@pytest.mark.parametrize(
    "seek",
    [
        SeekPoints(np.zeros((2, SEEK_BYTES), np.uint8), np.zeros(3, np.uint8)),
        SeekPoints(np.zeros((3, SEEK_BYTES - 1), np.uint8), np.zeros(3, np.uint8)),
        SeekPoints(np.zeros((3, SEEK_BYTES), np.int8), np.zeros(3, np.uint8)),
        SeekPoints(np.zeros((3, 2 * SEEK_BYTES), np.uint8)[:, ::2], np.zeros(3, np.uint8)),
        SeekPoints(np.zeros((3, SEEK_BYTES), np.uint8), np.zeros(2, np.uint8)),
        SeekPoints(np.broadcast_to(np.zeros((), np.uint8), (3, SEEK_BYTES)), np.zeros(3, np.uint8)),
        SeekPoints(np.frombuffer(bytes(3 * SEEK_BYTES), np.uint8).reshape(3, -1), np.zeros(3, np.uint8)),
    ],
)
def test_points_that_do_not_fit_are_a_mistake_of_the_caller(decoder, images, seek):
    out = np.zeros((3, 32, 32, 3), np.uint8)
    with pytest.raises(ConfigError, match=r"points|outcomes"):
        decoder.decode(images, np.array(CROPS, np.int32), np.zeros(3, np.bool_), out, seek=seek)
    assert not out.any()
    if decoder.seeks:
        with pytest.raises(ConfigError, match=r"points|outcomes"):
            decoder.learn(images, seek)


def test_a_closed_decoder_learns_nothing(images):
    pytest.importorskip("feeder.decode._kernel")
    decoder = open_decoder(1, "native")
    decoder.close()
    with pytest.raises(Closed):
        decoder.learn(images, SeekPoints.nothing(3))
    decoder = open_decoder(2, "native")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork with threads is what is tested; Python and JAX warn of it
        child = os.fork()
    if child == 0:
        try:
            decoder.learn(images, SeekPoints.nothing(3))
        except Closed:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    decoder.close()
