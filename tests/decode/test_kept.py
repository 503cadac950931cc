"""Kept planes: any window of them gives the pixels that the encoded bytes give; who keeps gives way."""

from __future__ import annotations

import contextlib
import itertools
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from feeder.decode import Decoder, open_decoder
from feeder.decode.fingerprint import probes
from feeder.errors import Closed, ConfigError

pytest.importorskip("feeder.decode._kernel", reason="only the native decoder keeps planes")

FACTS = 29 * 4


@pytest.fixture(params=[1, 3])
def decoder(request: pytest.FixtureRequest) -> Iterator[Decoder]:
    opened = open_decoder(request.param, "native")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def images() -> list[bytes]:
    return list(probes().values())


def scales(images: list[bytes], reduction: int) -> np.ndarray:
    return np.full(len(images), reduction, np.uint8)


def windows(sizes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    low = (random.random(sizes.shape) * sizes * 0.7).astype(np.int32)
    extent = 1 + (random.random(sizes.shape) * (sizes - low - 1)).astype(np.int32)
    return np.concatenate([low, extent], axis=1)


def decode(
    decoder: Decoder, images: list[bytes], cuts: np.ndarray, **settings: object
) -> tuple[np.ndarray, list]:
    flips = np.arange(len(images)) % 2 == 0
    out = np.full((len(images), 40, 56, 3), 99, np.uint8)
    return out, decoder.decode(images, cuts, flips, out, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("reduction", [1, 2, 4, 8])
def test_pixels_are_those_of_the_bytes(decoder: Decoder, images: list[bytes], reduction: int) -> None:
    sizes, _ = decoder.sizes(images)
    kept = decoder.keep(images, scales(images, reduction))
    there = np.array([planes is not None for planes in kept])
    assert 5 < there.sum() < len(images)  # CMYK, PNG and their like have none
    mixed = [planes or image for planes, image in zip(kept, images, strict=True)]
    random = np.random.default_rng(reduction)
    for resample, antialias in itertools.product(("bilinear", "bicubic"), (True, False)):
        settings = {
            "resample": resample,
            "antialias": antialias,
            "reductions": scales(images, reduction),
        }
        for _ in range(4):
            cuts = windows(sizes, random)
            out, reasons = decode(decoder, images, cuts, **settings)
            again, others = decode(decoder, mixed, cuts, **settings, kept=there)
            assert reasons == others
            assert (out == again).all()


def test_what_is_damaged_anywhere_is_not_kept(decoder: Decoder, images: list[bytes]) -> None:
    sizes, _ = decoder.sizes(images)
    kept = decoder.keep(images, scales(images, 1))
    cut = [image[: len(image) * 3 // 4] for image in images]
    again = decoder.keep(cut, scales(images, 1))
    assert set(again) == {None}
    # A window above the damage is good all the same.
    top = np.concatenate([np.zeros_like(sizes), np.minimum(sizes, 8)], axis=1)
    _, reasons = decode(decoder, cut, top)
    assert [planes for planes, reason in zip(kept, reasons, strict=True) if planes and reason is None]


def test_bytes_that_are_no_planes_are_refused(decoder: Decoder, images: list[bytes]) -> None:
    kept = [planes for planes in decoder.keep(images, scales(images, 1)) if planes]
    planes = kept[0]
    whole = np.array([[0, 0, 8, 8]], np.int32)
    facts = list(struct.unpack("29i", planes[:FACTS]))

    def changed(place: int, value: int) -> bytes:
        return struct.pack("29i", *facts[:place], value, *facts[place + 1 :]) + planes[FACTS:]

    for bad in [b"", planes[:50], planes[:-1], planes + b"\0", images[0]]:
        with pytest.raises(ValueError, match="planes that are none"):
            decode(decoder, [bad], whole, kept=np.array([True]))
    for place, value in itertools.product(range(29), (-(2**31), -1, 0, 5, 70_000, 2**31 - 1)):
        if facts[place] == value:
            continue
        with contextlib.suppress(ValueError, AssertionError):  # refused here or there, where it matters
            decode(decoder, [changed(place, value)], whole, kept=np.array([True]))


def test_one_flag_for_each_image(decoder: Decoder, images: list[bytes]) -> None:
    with pytest.raises(ValueError, match="one flag for each image"):
        decode(decoder, images[:2], np.array([[0, 0, 8, 8]] * 2, np.int32), kept=np.array([False]))


def test_keeping_ends_while_others_decode(decoder: Decoder, images: list[bytes]) -> None:
    """It gives way, and still gets on."""
    ended = threading.Event()
    sizes, _ = decoder.sizes(images)
    cuts = windows(sizes, np.random.default_rng(0))

    def others() -> None:
        while not ended.is_set():
            decode(decoder, images, cuts)

    threads = [threading.Thread(target=others) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            assert len(decoder.keep(images[:4], scales(images[:4], 1))) == 4
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_many_keep_at_a_time(decoder: Decoder, images: list[bytes]) -> None:
    expected = decoder.keep(images, scales(images, 1))
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(decoder.keep(images, scales(images, 1))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_a_closed_decoder_keeps_nothing(images: list[bytes]) -> None:
    for threads in (1, 2):
        decoder = open_decoder(threads, "native")
        decoder.close()
        with pytest.raises(Closed):
            decoder.keep(images, scales(images, 1))


def test_the_portable_decoder_cannot(images: list[bytes]) -> None:
    decoder = open_decoder(1, "portable")
    assert not decoder.keeps
    with pytest.raises(ConfigError, match="only the native decoder keeps planes"):
        decoder.keep(images, scales(images, 1))
    with pytest.raises(ConfigError, match="only the native decoder makes pixels of kept planes"):
        decode(decoder, images[:1], np.array([[0, 0, 8, 8]], np.int32), kept=np.array([True]))
    decoder.close()
