"""The native kernel: native/jpeg_crop.h says what it does, feeder/decode/kernel.py is its only user."""

import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

LEVELS: tuple[str, ...]
"""Instruction sets that this machine runs, the best one last."""

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
        bicubic: bool,
        antialias: bool,
        reductions: npt.NDArray[np.uint8],
    ) -> list[tuple[int, str] | None]:
        """For each image None, or its status (feeder_status in jpeg_crop.h) and a reason.

        Raises:
            RuntimeError: "closed" or "forked".
        """

    def close(self) -> None: ...

@disjoint_base
class MessageBuffer:
    def __init__(self, size: int) -> None: ...
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

    def finish(self) -> bytes: ...
