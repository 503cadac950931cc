"""The portable decoder: simplejpeg decodes the whole image, Pillow crops and resizes."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import numpy.typing as npt

from feeder.decode.arguments import check_arguments
from feeder.decode.header import DEFAULT_LIMITS, Limits, read_header
from feeder.decode.pillow import decode_cmyk, decode_jpeg, decode_other
from feeder.decode.resize import crop_resize
from feeder.decode.seek import SeekPoints
from feeder.decode.yuv420 import rgb_to_yuv420
from feeder.errors import Closed, ConfigError, DataError
from feeder.spec import Resample

__all__ = ["PortableDecoder", "decode_window", "pillow_name"]


def pillow_name() -> str:
    """Which of the two distributions that share the import name PIL this environment has."""
    for name in ("pillow-simd", "pillow"):
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        return name
    return "pillow of unknown origin"


def decode_window(
    data: bytes | memoryview,
    window: tuple[int, int, int, int],
    out: npt.NDArray[np.uint8],
    *,
    limits: Limits,
    reduction: int,
    flip: bool,
    resample: Resample,
    antialias: bool,
) -> str | None:
    """Decodes one image whole, then crops and resizes it into a slot.

    Args:
        data: encoded bytes.
        window: (x, y, width, height) in pixels of the image.
        out: uint8 [H, W, 3], RGB, or [3 H / 2, W], YUV 4:2:0, as a slot of `Decoder.decode`.
        limits: bounds on what the image may ask for.
        reduction: 1, 2, 4 or 8: scale to decode at; what is not an RGB, YCbCr or gray JPEG ignores it.
        flip: mirror left and right.
        resample: "bilinear", "bicubic" or "tf1_bicubic".
        antialias: whether the filter's support grows with the scale.

    Returns:
        None, or the reason why the slot holds nothing of use.
    """
    try:
        header = read_header(data, limits)
        x, y, width, height = window
        if x + width > header.width or y + height > header.height:
            return f"window {window} is not within the image of {header.width} x {header.height} pixels"
        if header.format != "JPEG" or header.components == 4:
            pixels = (
                decode_cmyk(data, header, window)
                if header.format == "JPEG"
                else decode_other(data, header, window)
            )
            window, reduction = (0, 0, width, height), 1
        elif reduction == 1:
            pixels = decode_jpeg(data, header)
        else:
            least = -(-header.height // reduction), -(-header.width // reduction)
            pixels = decode_jpeg(data, header, least=least)
        rgb = out if out.ndim == 3 else np.empty((out.shape[0] // 3 * 2, out.shape[1], 3), np.uint8)
        crop_resize(
            pixels, window, rgb, reduction=reduction, flip=flip, resample=resample, antialias=antialias
        )
        if rgb is not out:
            rgb_to_yuv420(rgb, out)
    except DataError as error:
        return str(error)
    return None


class PortableDecoder:
    """Decodes on a pool of Python threads; the libraries under it release the GIL.

    Calls are thread-safe and share the pool; with one thread they take turns on the threads that make them.

    Args:
        threads: images decoded at a time, over all calls.
        limits: bounds on what one image may ask for.
    """

    seeks = False
    keeps = False

    def __init__(self, threads: int, limits: Limits = DEFAULT_LIMITS) -> None:
        self.name = f"portable (simplejpeg, {pillow_name()})"
        self._limits = limits
        self._pid = os.getpid()
        self._closed = False
        self._turn = threading.Lock()  # of the calls, where there is no pool
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="feeder-decode") if threads > 1 else None

    def sizes(self, images: Sequence[bytes | memoryview]) -> tuple[npt.NDArray[np.int32], list[str | None]]:
        """Width and height of each image, by its header alone."""
        self._check_open()
        sizes = np.zeros((len(images), 2), np.int32)
        reasons: list[str | None] = [None] * len(images)
        for index, data in enumerate(images):
            try:
                header = read_header(data, self._limits)
            except DataError as error:
                reasons[index] = str(error)
            else:
                sizes[index] = header.width, header.height
        return sizes, reasons

    def decode(
        self,
        images: Sequence[bytes | memoryview],
        windows: npt.NDArray[np.int32],
        flips: npt.NDArray[np.bool_],
        out: npt.NDArray[np.uint8],
        *,
        resample: Resample = "bilinear",
        antialias: bool = True,
        reductions: npt.NDArray[np.uint8] | None = None,
        seek: SeekPoints | None = None,
        kept: npt.NDArray[np.bool_] | None = None,
        places: npt.NDArray[np.int64] | None = None,
    ) -> list[str | None]:
        """Decodes windows into slots; see `Decoder.decode`."""
        self._check_open()
        check_arguments(images, windows, flips, out, resample, reductions, places)
        if kept is not None and kept.any():
            raise ConfigError("only the native decoder makes pixels of kept planes")
        if seek is not None:
            seek.check(len(images))
            seek.outcomes[:] = 0

        def one(index: int) -> str | None:
            x, y, width, height = windows[index].tolist()
            return decode_window(
                images[index],
                (x, y, width, height),
                out[index if places is None else places[index]],
                limits=self._limits,
                reduction=1 if reductions is None else int(reductions[index]),
                flip=bool(flips[index]),
                resample=resample,
                antialias=antialias,
            )

        if self._pool is None:
            with self._turn:
                return [one(index) for index in range(len(images))]
        try:
            results = self._pool.map(one, range(len(images)))
        except RuntimeError as error:
            raise Closed("this decoder was closed while it was called") from error
        return list(results)

    def learn(self, images: Sequence[bytes | memoryview], seek: SeekPoints) -> list[str | None]:
        """Is never possible; see `Decoder.learn`."""
        raise ConfigError("only the native decoder learns seek points: install feeder with its kernel")

    def keep(
        self, images: Sequence[bytes | memoryview], reductions: npt.NDArray[np.uint8]
    ) -> list[bytes | None]:
        """Is never possible; see `Decoder.keep`."""
        raise ConfigError("only the native decoder keeps planes: install feeder with its kernel")

    def close(self) -> None:
        """Ends the threads; calls in progress finish first."""
        self._closed = True
        if self._pid != os.getpid():
            return
        if self._pool is not None:
            self._pool.shutdown()
        else:
            with self._turn:
                pass

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this decoder is closed")
        if self._pid != os.getpid():
            raise Closed(
                f"this decoder was opened by process {self._pid} and its threads did not survive the fork: "
                f"open one in process {os.getpid()}"
            )
