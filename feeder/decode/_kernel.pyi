"""The native kernel: native/jpeg_crop.h says what it does, feeder/decode/kernel.py is its only user."""

import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

LEVELS: tuple[str, ...]
"""Instruction sets that this machine runs, the best one last."""

SEEK_BYTES: int
"""Bytes of the seek points of one image."""

@disjoint_base
class Kernel:
    def __init__(
        self,
        threads: int,
        max_bytes: int,
        max_pixels: int,
        max_scans: int,
        max_scan_pixels: int,
        level: str,
        libjpeg_only: bool,
    ) -> None:
        """A pool of threads; level is one of LEVELS or "best"."""

    @property
    def level(self) -> str: ...
    def sizes(
        self,
        images: Sequence[bytes | memoryview],
        sizes: npt.NDArray[np.int32],
        statuses: npt.NDArray[np.uint8],
    ) -> None:
        """Fills sizes, int32 [n, 2], and statuses, uint8 [n]: 0, or 1 where it does not read the header."""

    def decode(
        self,
        images: Sequence[bytes | memoryview],
        windows: npt.NDArray[np.int32],
        flips: npt.NDArray[np.bool_],
        out: npt.NDArray[np.uint8],
        resample: str,
        antialias: bool,
        reductions: npt.NDArray[np.uint8],
        seek: npt.NDArray[np.uint8] | None = None,
        outcomes: npt.NDArray[np.uint8] | None = None,
        stop: str = "pixels",
        kept: npt.NDArray[np.bool_] | None = None,
        places: npt.NDArray[np.int64] | None = None,
    ) -> list[tuple[int, str] | None]:
        """For each image None, or its status (feeder_status in jpeg_crop.h) and a reason.

        Args:
            out: uint8 [n, H, W, 3], or [n, 3 H / 2, W] of YUV 4:2:0.
            seek: uint8 [n, SEEK_BYTES], what is known of the images, all zero for nothing; read, and written
                where more was learned.
            outcomes: uint8 [n], set where seek is given: 1 it was used, 2 it was written, 4 it contradicts
                the image and was not used, and then it is cleared or, with 2, replaced.
            stop: "pixels"; or "planes" or "entropy", to measure the stages before: out is undefined then.
            kept: bool [n], which images are what `keep` returned, at the same reductions.
            places: int64 [n], which slot of `out` each image goes to; None: image i to slot i.

        Raises:
            RuntimeError: "closed" or "forked".
        """

    def keep(
        self, images: Sequence[bytes | memoryview], reductions: npt.NDArray[np.uint8]
    ) -> list[bytes | None]:
        """All planes of each image, for `decode`; None where it has none, or any of it is damaged.

        Gives way to what others decode meanwhile.

        Raises:
            RuntimeError: "closed" or "forked".
        """

    def planes(
        self,
        image: bytes | memoryview,
        window: tuple[int, int, int, int] | None = None,
        reduction: int = 1,
        seek: npt.NDArray[np.uint8] | None = None,
    ) -> tuple[list[npt.NDArray[np.uint8]], npt.NDArray[np.int32]]:
        """The planes that a window (x, y, width, height) of the full image is made of; None is all of it.

        Args:
            seek: uint8 [1, SEEK_BYTES], as in decode.

        Returns:
            One uint8 [rows, columns] array for each component, and int32 [29] facts: components (1 or 3), 1
            where three are Y, Cb and Cr, 1 where chroma is smoothed, width and height in pixels at
            1/reduction; then for each of three planes its width and height in samples, the pixels of a sample
            across and down, and left, top, right and bottom of the samples that are returned.

        Raises:
            ValueError: the image does not decode here.
        """

    def resample(
        self,
        planes: Sequence[npt.NDArray[np.uint8] | memoryview],
        layouts: npt.NDArray[np.int32],
        windows: npt.NDArray[np.int32],
        flips: npt.NDArray[np.bool_],
        out: npt.NDArray[np.uint8],
        resample: str,
        antialias: bool,
        reductions: npt.NDArray[np.uint8],
    ) -> list[tuple[int, str] | None]:
        """As `decode`, from planes: those of all images one after the other, and int32 [n, 29] facts."""

    def learn(
        self,
        images: Sequence[bytes | memoryview],
        seek: npt.NDArray[np.uint8],
        outcomes: npt.NDArray[np.uint8],
    ) -> list[tuple[int, str] | None]:
        """Decodes all of each image's coefficients for its seek points alone; as decode."""

    def close(self) -> None: ...

@disjoint_base
class MessageBuffer:
    def __init__(self, size: int) -> None: ...
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

    def finish(self) -> bytes: ...
