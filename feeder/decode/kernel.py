"""The native decoder: the C++ kernel for JPEG, Pillow for what the kernel passes on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt

from feeder.decode._kernel import Kernel
from feeder.decode.arguments import check_arguments
from feeder.decode.header import DEFAULT_LIMITS, Limits, read_header
from feeder.decode.seek import SeekPoints
from feeder.errors import Closed, DataError
from feeder.spec import Resample

__all__ = ["Level", "NativeDecoder"]

Level = Literal["best", "plain", "sse4", "avx2", "avx512", "neon"]

# feeder_status of native/jpeg_crop.h
_OTHER, _DAMAGED, _OUTSIDE, _NO_MEMORY = 1, 2, 3, 4


class NativeDecoder:
    """Decodes on native threads, without the GIL, only what the windows need.

    Calls are thread-safe and share the threads. What is not an RGB, YCbCr or gray JPEG is decoded on the
    calling thread by Pillow.

    Args:
        threads: images decoded at a time, over all calls.
        limits: bounds on what one image may ask for.
        level: instruction set; all give the same pixels.
        libjpeg_only: decode no image without libjpeg, for comparisons; the pixels are the same.
    """

    seeks = True
    keeps = True

    def __init__(
        self,
        threads: int,
        limits: Limits = DEFAULT_LIMITS,
        *,
        level: Level = "best",
        libjpeg_only: bool = False,
    ) -> None:
        self._limits = limits
        self._kernel = Kernel(
            threads,
            limits.max_bytes,
            limits.max_pixels,
            limits.max_scans,
            limits.max_scan_pixels,
            level,
            libjpeg_only,
        )
        self._pid = os.getpid()
        self.name = f"native ({self._kernel.level})"

    def sizes(self, images: Sequence[bytes | memoryview]) -> tuple[npt.NDArray[np.int32], list[str | None]]:
        """Width and height of each image, by its header alone; see `Decoder.sizes`."""
        sizes = np.zeros((len(images), 2), np.int32)
        statuses = np.zeros(len(images), np.uint8)
        self._kernel.sizes(images, sizes, statuses)
        reasons: list[str | None] = [None] * len(images)
        for index in np.flatnonzero(statuses).tolist():
            try:
                header = read_header(images[index], self._limits)
            except DataError as error:
                reasons[index] = str(error)
                sizes[index] = 0
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
        check_arguments(images, windows, flips, out, resample, reductions, places)
        if reductions is None:
            reductions = np.ones(len(images), np.uint8)
        points = learned = None
        if seek is not None:
            seek.check(len(images))
            points, learned = seek.points, seek.outcomes
        try:
            outcomes = self._kernel.decode(
                images,
                windows,
                flips,
                out,
                resample,
                antialias,
                reductions,
                points,
                learned,
                kept=kept,
                places=places,
            )
        except RuntimeError as error:
            self._refuse(error)
        results: list[str | None] = [None] * len(images)
        for index, outcome in enumerate(outcomes):
            if outcome is None:
                continue
            status, reason = outcome
            if kept is not None and kept[index]:
                raise AssertionError(f"kept planes do not give {_window(windows[index])}: status {status}")
            if status == _OTHER:
                results[index] = self._decode_other(
                    images[index],
                    _window(windows[index]),
                    bool(flips[index]),
                    out[index if places is None else places[index]],
                    resample,
                    antialias,
                )
            else:
                results[index] = self._describe(status, reason, images[index], windows[index])
        return results

    def learn(self, images: Sequence[bytes | memoryview], seek: SeekPoints) -> list[str | None]:
        """Learns all that can be known of images; see `Decoder.learn`."""
        seek.check(len(images))
        try:
            outcomes = self._kernel.learn(images, seek.points, seek.outcomes)
        except RuntimeError as error:
            self._refuse(error)
        return [
            None if outcome is None or outcome[0] == _OTHER else self._describe(outcome[0], outcome[1], image)
            for outcome, image in zip(outcomes, images, strict=True)
        ]

    def keep(
        self, images: Sequence[bytes | memoryview], reductions: npt.NDArray[np.uint8]
    ) -> list[bytes | None]:
        """The planes of each image; see `Decoder.keep`."""
        try:
            return self._kernel.keep(images, reductions)
        except RuntimeError as error:
            self._refuse(error)

    def close(self) -> None:
        """Ends the threads; calls in progress finish first."""
        self._kernel.close()

    def _refuse(self, error: RuntimeError) -> NoReturn:
        if str(error) == "forked":
            raise Closed(
                f"this decoder was opened by process {self._pid} and its threads did not survive the fork: "
                f"open one in process {os.getpid()}"
            ) from None
        if str(error) == "closed":
            raise Closed("this decoder is closed") from None
        raise error

    def _describe(
        self,
        status: int,
        reason: str,
        data: bytes | memoryview,
        window: npt.NDArray[np.int32] | None = None,
    ) -> str:
        if status == _DAMAGED:
            return f"damaged JPEG: {reason}"
        header = read_header(data, self._limits)
        if status == _OUTSIDE and window is not None:
            return (
                f"window {_window(window)} is not within the image of {header.width} x {header.height} pixels"
            )
        if status == _NO_MEMORY:
            raise MemoryError(f"decoding a JPEG of {header.width} x {header.height} pixels")
        raise AssertionError(f"unknown status {status} of the kernel")

    def _decode_other(
        self,
        data: bytes | memoryview,
        window: tuple[int, int, int, int],
        flip: bool,
        out: npt.NDArray[np.uint8],
        resample: Resample,
        antialias: bool,
    ) -> str | None:
        from feeder.decode.portable import decode_window

        return decode_window(
            data,
            window,
            out,
            limits=self._limits,
            reduction=1,
            flip=flip,
            resample=resample,
            antialias=antialias,
        )


def _window(row: npt.NDArray[np.int32]) -> tuple[int, int, int, int]:
    x, y, width, height = row.tolist()
    return x, y, width, height
