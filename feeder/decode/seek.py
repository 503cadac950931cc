"""What a decoder knows of images that it decoded before: where in their bytes it may start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feeder.decode.arguments import check_array
from feeder.errors import ConfigError

__all__ = ["GREW", "REFUSED", "SEEK_BYTES", "USED", "SeekPoints"]

SEEK_BYTES = 1000
"""Size of what is known of one image; all zero is nothing."""

USED, GREW, REFUSED = 1, 2, 4
"""Bits of an outcome: points were used; more was learned, so store them; they contradicted the image and were
not used."""


@dataclass(frozen=True, slots=True, eq=False)
class SeekPoints:
    """Seek points of the n images of one call.

    They change what decoding costs, never what comes of it, damage that is found included: points that
    contradict an image are refused, and the image is decoded as without.

    Attributes:
        points: uint8 [n, SEEK_BYTES], C-contiguous; read, and written where more was learned. Zero: nothing
            is known. They belong to the exact bytes of the image, which whoever keeps them has to see to.
        outcomes: uint8 [n], set by each call: bits USED, GREW, REFUSED.
    """

    points: npt.NDArray[np.uint8]
    outcomes: npt.NDArray[np.uint8]

    @classmethod
    def nothing(cls, count: int) -> SeekPoints:
        """Points of `count` images of which nothing is known."""
        return cls(np.zeros((count, SEEK_BYTES), np.uint8), np.zeros(count, np.uint8))

    def part(self, first: int, last: int) -> SeekPoints:
        """Those of images [first, last), in the same memory."""
        return SeekPoints(self.points[first:last], self.outcomes[first:last])

    def check(self, count: int) -> None:
        """Raises ConfigError where the arrays are not those of `count` images."""
        check_array("points", self.points, np.uint8, (count, SEEK_BYTES))
        check_array("outcomes", self.outcomes, np.uint8, (count,))
        if not self.points.flags.writeable or not self.outcomes.flags.writeable:
            raise ConfigError("points and outcomes must be writable")
