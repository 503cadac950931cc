"""Decoders and pictures that the tests of this package share."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from odd_corpus import Corpus, OddFile
from PIL import Image

from feeder.decode import Decoder, open_decoder

Pixels = npt.NDArray[np.uint8]


@pytest.fixture
def native() -> Iterator[Decoder]:
    """The native decoder with one thread; tests are skipped where the kernel is not built."""
    pytest.importorskip("feeder.decode._kernel")
    decoder = open_decoder(1, "native")
    yield decoder
    decoder.close()


@pytest.fixture
def portable() -> Iterator[Decoder]:
    decoder = open_decoder(1, "portable")
    yield decoder
    decoder.close()


@pytest.fixture(params=["native", "portable"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """Each of the two decoders in turn."""
    found: Decoder = request.getfixturevalue(request.param)
    return found


def _one(
    decoder: Decoder,
    data: bytes,
    window: tuple[int, int, int, int],
    size: tuple[int, int] | None = None,
    *,
    flip: bool = False,
    reduction: int = 1,
    **settings: Any,
) -> tuple[Pixels, str | None]:
    """Pixels of one window, and the reason; without a size (height, width) the window itself, one to one."""
    out = np.zeros((1, *(size or (window[3], window[2])), 3), np.uint8)
    reasons = decoder.decode(
        [data],
        np.array([window], np.int32),
        np.array([flip]),
        out,
        reductions=np.array([reduction], np.uint8),
        **settings,
    )
    return out[0], reasons[0]


@pytest.fixture(scope="session")
def one() -> Callable[..., tuple[Pixels, str | None]]:
    return _one


def _picture(width: int, height: int, seed: int = 0) -> Pixels:
    """Smooth shapes, sharp edges and noise: uint8 [height, width, 3]."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 / max(width, 2), y * 255 / max(height, 2), (x + y) * 3 % 256], axis=2)
    pixels[(x // 9 + y // 7) % 2 == 0] *= 0.5
    pixels += random.normal(0, 12, pixels.shape)
    return pixels.clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def picture() -> Callable[..., Pixels]:
    return _picture


def _encode(pixels: Pixels, kind: str, **options: Any) -> bytes:
    """JPEG by kind: a sampling that simplejpeg writes (444, 422, 420, 440, 411, Gray), or "progressive"."""
    buffer = io.BytesIO()
    if kind == "progressive":
        Image.fromarray(pixels).save(buffer, "JPEG", quality=85, progressive=True)
    elif kind == "restarts":
        Image.fromarray(pixels).save(buffer, "JPEG", quality=85, restart_marker_blocks=5)
    elif kind == "gray":
        Image.fromarray(pixels).convert("L").save(buffer, "JPEG", quality=85)
    elif kind == "cmyk":
        Image.fromarray(pixels).convert("CMYK").save(buffer, "JPEG", quality=85)
    elif kind in ("png", "gif", "bmp", "webp"):
        Image.fromarray(pixels).save(buffer, kind.upper(), **options)
    else:
        encoded: bytes = simplejpeg.encode_jpeg(pixels, 85, colorsubsampling=kind)
        return encoded
    return buffer.getvalue()


@pytest.fixture(scope="session")
def encode() -> Callable[..., bytes]:
    return _encode


@pytest.fixture(scope="session")
def sample(imagenet_sample: Path) -> list[bytes]:
    """The real files, in order of their names."""
    return [path.read_bytes() for path in sorted(imagenet_sample.iterdir())]


@pytest.fixture(scope="session")
def agree() -> Iterator[Callable[..., int]]:
    """Decodes images by all levels and by libjpeg alone; asserts that they agree; returns how many decode."""
    kernel = pytest.importorskip("feeder.decode._kernel")
    from feeder.decode.kernel import NativeDecoder

    decoders = [NativeDecoder(1, level=level) for level in kernel.LEVELS]
    decoders.append(NativeDecoder(1, libjpeg_only=True))

    def check(images: list[bytes], windows: list[tuple[int, int, int, int]], **settings: Any) -> int:
        size = (19, 23)
        flips = np.arange(len(images)) % 3 == 0
        expected: Pixels | None = None
        verdicts: list[str | None] = []
        for decoder in decoders:
            out = np.zeros((len(images), *size, 3), np.uint8)
            reasons = decoder.decode(images, np.array(windows, np.int32), flips, out, **settings)
            good = np.array([reason is None for reason in reasons], np.bool_)
            out[~good] = 0
            if expected is None:
                expected, verdicts = out, reasons
            assert reasons == verdicts, decoder.name
            differ = np.flatnonzero((out != expected).any(axis=(1, 2, 3)))
            assert not differ.size, (decoder.name, differ, [windows[index] for index in differ])
        return verdicts.count(None)

    yield check
    for decoder in decoders:
        decoder.close()


@pytest.fixture(scope="session")
def odd_images(corpus: Corpus) -> list[OddFile]:
    """Odd and damaged images with what has to come of them."""
    return corpus.of("images")
