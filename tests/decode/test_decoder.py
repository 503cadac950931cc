"""The decoder as the stages above use it: arguments, threads, close, fork; and the two direct functions."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from feeder.decode import decode_crop, decode_crop_batch, open_decoder
from feeder.errors import Closed, ConfigError, DataError

KINDS = ["native", "portable"]


@pytest.fixture(params=KINDS)
def kind(request):
    if request.param == "native":
        pytest.importorskip("feeder.decode._kernel")
    return request.param


@pytest.fixture
def jpeg(picture, encode):
    return encode(picture(120, 90), "420")


def batch(jpeg, count, size=(32, 32)):
    windows = np.array([[index % 7, index % 5, 100, 80] for index in range(count)], np.int32)
    return [jpeg] * count, windows, np.arange(count) % 2 == 0, np.zeros((count, *size, 3), np.uint8)


def test_threads_do_not_change_pixels(kind, jpeg):
    results = []
    for threads in (1, 3):
        decoder = open_decoder(threads, kind)
        images, windows, flips, out = batch(jpeg, 20)
        assert decoder.decode(images, windows, flips, out) == [None] * 20
        decoder.close()
        results.append(out)
    assert np.array_equal(*results)


def test_images_go_to_the_places_that_are_named(kind, jpeg):
    decoder = open_decoder(2, kind)
    images, windows, flips, expected = batch(jpeg, 5)
    decoder.decode(images, windows, flips, expected)
    places = np.array([7, 0, 3, 8, 2])
    out = np.full((9, 32, 32, 3), 201, np.uint8)
    assert decoder.decode(images, windows, flips, out, places=places) == [None] * 5
    decoder.close()
    assert np.array_equal(out[places], expected)
    assert (np.delete(out, places, axis=0) == 201).all()


def test_concurrent_calls_share_the_threads(kind, jpeg):
    decoder = open_decoder(2, kind)
    images, windows, flips, expected = batch(jpeg, 12)
    decoder.decode(images, windows, flips, expected)

    def call(_):
        out = np.zeros_like(expected)
        assert decoder.decode(images, windows, flips, out) == [None] * 12
        return np.array_equal(out, expected)

    with ThreadPoolExecutor(6) as callers:
        assert all(callers.map(call, range(30)))
    decoder.close()


def test_native_threads_end_with_close(jpeg):
    pytest.importorskip("feeder.decode._kernel")

    def named():
        names = []
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{task}/comm") as comm:
                names.append(comm.read().strip())  # one of another test may end meanwhile
        return names.count("feeder-decode")

    before = named()
    decoder = open_decoder(3, "native")
    assert named() == before + 3
    decoder.close()
    assert named() == before


def test_close_waits_for_calls_and_refuses_later_ones(kind, jpeg):
    decoder = open_decoder(2, kind)
    images, windows, flips, out = batch(jpeg, 200)
    started = threading.Event()
    outcome = []

    def call():
        started.set()
        try:
            outcome.append(decoder.decode(images, windows, flips, out))
        except Closed as error:
            outcome.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    started.wait()
    decoder.close()
    caller.join(30)
    assert outcome[0] == [None] * 200 or isinstance(outcome[0], Closed)
    decoder.close()
    with pytest.raises(Closed, match="closed"):
        decoder.decode(images, windows, flips, out)


def test_a_forked_child_is_refused(kind, jpeg):
    decoder = open_decoder(2, kind)
    images, windows, flips, out = batch(jpeg, 4)
    decoder.decode(images, windows, flips, out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork with threads is what is tested; Python and JAX warn of it
        child = os.fork()
    if child == 0:
        code = 1
        try:
            decoder.decode(images, windows, flips, out)
        except Closed as error:
            code = 0 if "fork" in str(error) else 2
            decoder.close()
            del decoder
            if decode_crop(jpeg, None, (8, 8)).shape != (8, 8, 3):  # this one opens what it needs
                code = 3
        except BaseException:  # noqa: BLE001 -- nothing may leave the child but its exit code
            traceback.print_exc()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    decoder.close()


def test_a_program_may_end_without_close():
    program = (
        "import numpy as np, feeder.decode as d\n"
        "decoder = d.open_decoder(2)\n"
        "message = d.MessageBuffer(10)\n"
        "view = np.frombuffer(message, np.uint8)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_the_kernel_the_portable_decoder_serves(jpeg):
    program = (
        "import sys; sys.modules['feeder.decode._kernel'] = None\n"
        "import feeder.decode as d\n"
        "print(d.open_decoder(1).name.split()[0], d.MessageBuffer.__name__)\n"
        "try: d.open_decoder(1, 'native')\n"
        "except d.decoder.ConfigError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == "portable PortableMessageBuffer"
    assert "kind='portable'" in second


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"windows": np.zeros((4, 4), np.int64)}, "windows must be an array of int32"),
        ({"windows": np.ones((3, 4), np.int32)}, r"windows must have shape \(4, 4\)"),
        ({"windows": np.zeros((4, 4), np.int32)}, "window 0 must be"),
        ({"windows": np.full((4, 4), -1, np.int32)}, "window 0 must be"),
        ({"windows": np.ones((4, 8), np.int32)[:, ::2]}, "windows must be C-contiguous"),
        ({"flips": np.zeros(4, np.uint8)}, "flips must be an array of bool"),
        ({"out": np.zeros((4, 8, 8, 4), np.uint8)}, r"out must have shape \(4, any, any, 3\)"),
        ({"out": np.zeros((4, 0, 8, 3), np.uint8)}, "out must be writable and not empty"),
        ({"resample": "nearest"}, "resample must be one of bilinear, bicubic, tf1_bicubic"),
        ({"reductions": np.full(4, 3, np.uint8)}, "reductions must be 1, 2, 4 or 8"),
        ({"places": np.arange(4, dtype=np.int32)}, "places must be an array of int64"),
        ({"places": np.arange(3)}, r"places must have shape \(4,\)"),
        ({"places": np.array([0, 1, 2, 4])}, r"places must be in \[0, 4\)"),
        ({"places": np.array([0, 1, 2, -1])}, r"places must be in \[0, 4\)"),
        ({"out": np.zeros((3, 8, 8, 3), np.uint8), "places": np.arange(4)}, r"places must be in \[0, 3\)"),
    ],
)
def test_wrong_arguments_are_refused(kind, jpeg, change, message):
    images, windows, flips, out = batch(jpeg, 4)
    arguments = {"images": images, "windows": windows, "flips": flips, "out": out} | change
    decoder = open_decoder(1, kind)
    try:
        with pytest.raises(ConfigError, match=message):
            decoder.decode(**arguments)
    finally:
        decoder.close()


def test_read_only_slots_are_refused(kind, jpeg):
    images, windows, flips, out = batch(jpeg, 4)
    out.flags.writeable = False
    decoder = open_decoder(1, kind)
    with pytest.raises(ConfigError, match="out must be writable"):
        decoder.decode(images, windows, flips, out)
    decoder.close()


def test_a_window_outside_of_the_image_is_a_reason(decoder, one, jpeg):
    for window in ((100, 0, 21, 10), (0, 90, 1, 1), (2**31 - 1, 0, 1, 1), (0, 0, 2**31 - 1, 1)):
        _, reason = one(decoder, jpeg, window, (8, 8))
        assert reason == f"window {window} is not within the image of 120 x 90 pixels"


def test_empty_batch(decoder):
    nothing = np.zeros((0, 4), np.int32), np.zeros(0, np.bool_), np.zeros((0, 8, 8, 3), np.uint8)
    assert decoder.decode([], *nothing) == []
    sizes, reasons = decoder.sizes([])
    assert sizes.shape == (0, 2)
    assert reasons == []


def test_buffers_of_any_kind(decoder, one, jpeg):
    expected, _ = one(decoder, jpeg, (0, 0, 120, 90))
    for data in (bytearray(jpeg), memoryview(b"xx" + jpeg)[2:], np.frombuffer(jpeg, np.uint8).data):
        pixels, reason = one(decoder, data, (0, 0, 120, 90))
        assert reason is None
        assert np.array_equal(pixels, expected)


@pytest.mark.parametrize(("threads", "kind_", "message"), [(0, "auto", "threads"), (1, "gpu", "kind")])
def test_open_checks_its_arguments(threads, kind_, message):
    with pytest.raises(ConfigError, match=message):
        open_decoder(threads, kind_)


def test_decode_crop(jpeg):
    whole = decode_crop(jpeg, None, (90, 120))
    assert whole.shape == (90, 120, 3)
    assert whole.dtype == np.uint8
    part = decode_crop(jpeg, (10, 20, 30, 40), (40, 30))
    assert np.array_equal(part, whole[20:60, 10:40])
    assert np.array_equal(decode_crop(jpeg, (10, 20, 30, 40), (40, 30), flip=True), part[:, ::-1])
    with pytest.raises(DataError, match="window"):
        decode_crop(jpeg, (100, 20, 30, 40), (40, 30))
    with pytest.raises(DataError, match="not an image"):
        decode_crop(b"<html>", None, (8, 8))
    with pytest.raises(ConfigError, match="size"):
        decode_crop(jpeg, None, (0, 8))


def test_decode_crop_batch(jpeg):
    crops = [None, (10, 20, 30, 40), None]
    images, errors = decode_crop_batch([jpeg, jpeg, b""], crops, [False, True, False], (24, 20), threads=2)
    assert images.shape == (3, 24, 20, 3)
    assert errors == [None, None, "empty: no bytes"]
    assert np.array_equal(images[0], decode_crop(jpeg, None, (24, 20)))
    assert np.array_equal(images[1], decode_crop(jpeg, crops[1], (24, 20), flip=True))
    out = np.zeros((2, 24, 20, 3), np.uint8)
    same, errors = decode_crop_batch([jpeg, jpeg], None, None, (24, 20), out=out)
    assert same is out
    assert errors == [None, None]
    assert np.array_equal(out[1], images[0])
    with pytest.raises(ConfigError, match="one of each"):
        decode_crop_batch([jpeg], [None, None], None, (8, 8))
    with pytest.raises(ConfigError, match="out must have shape"):
        decode_crop_batch([jpeg], None, None, (8, 8), out=out)
