"""The portable decoder: simplejpeg decodes the whole image, Pillow crops and resizes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import numpy.typing as npt

from feeder.decode.arguments import check_arguments
from feeder.decode.header import DEFAULT_LIMITS, ImageHeader, Limits, read_header
from feeder.decode.pillow import decode_cmyk, decode_jpeg, decode_other
from feeder.decode.resize import crop_resize
from feeder.errors import Closed, DataError
from feeder.spec import Resample

__all__ = ["PortableDecoder", "decode_whole", "pillow_name"]


def pillow_name() -> str:
    """Which of the two distributions that share the import name PIL this environment has."""
    for name in ("pillow-simd", "pillow"):
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        return name
    return "pillow of unknown origin"


def decode_whole(
    data: bytes | memoryview, header: ImageHeader, reduction: int
) -> tuple[npt.NDArray[np.uint8], int]:
    """Decodes one image whole.

    Args:
        data: encoded bytes.
        header: what read_header() said of them.
        reduction: 1, 2, 4 or 8: scale to decode at; formats that cannot, ignore it.

    Returns:
        uint8 [h, w, 3], and the reduction that it was decoded at.

    Raises:
        DataError: the bytes are damaged.
    """
    if header.format != "JPEG":
        return decode_other(data, header), 1
    if header.components == 4:
        return decode_cmyk(data), 1
    if reduction == 1:
        pixels = decode_jpeg(data)
    else:
        pixels = decode_jpeg(data, least=(-(-header.height // reduction), -(-header.width // reduction)))
    return pixels, reduction


class PortableDecoder:
    """Decodes on a pool of Python threads; the libraries under it release the GIL.

    Calls are thread-safe and share the pool.

    Args:
        threads: images decoded at a time, over all calls.
        limits: bounds on what one image may ask for.
    """

    def __init__(self, threads: int, limits: Limits = DEFAULT_LIMITS) -> None:
        self.name = f"portable (simplejpeg, {pillow_name()})"
        self._limits = limits
        self._pid = os.getpid()
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(
            threads, thread_name_prefix="feeder-decode"
        )

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
    ) -> list[str | None]:
        """Decodes windows into slots; see `Decoder.decode`."""
        pool = self._check_open()
        check_arguments(images, windows, flips, out, resample, reductions)

        def one(index: int) -> str | None:
            try:
                header = read_header(images[index], self._limits)
                x, y, width, height = window = tuple(windows[index].tolist())
                if x + width > header.width or y + height > header.height:
                    return (
                        f"window {window} is not within the image of {header.width} x {header.height} pixels"
                    )
                asked = 1 if reductions is None else int(reductions[index])
                pixels, reduction = decode_whole(images[index], header, asked)
                crop_resize(
                    pixels,
                    window,
                    out[index],
                    reduction=reduction,
                    flip=bool(flips[index]),
                    resample=resample,
                    antialias=antialias,
                )
            except DataError as error:
                return str(error)
            return None

        try:
            results = pool.map(one, range(len(images)))
        except RuntimeError as error:
            raise Closed("this decoder was closed while it was called") from error
        return list(results)

    def close(self) -> None:
        """Ends the pool; waits for images that are being decoded."""
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown()
        self._pool = None

    def _check_open(self) -> ThreadPoolExecutor:
        if self._pool is None:
            raise Closed("this decoder is closed")
        if self._pid != os.getpid():
            raise Closed(
                f"this decoder was opened by process {self._pid} and its threads did not "
                f"survive the fork: open one in process {os.getpid()}"
            )
        return self._pool
