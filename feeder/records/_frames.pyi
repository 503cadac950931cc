"""Scanning TFRecords natively, and crc32c: native/frames.h and native/crc32c.h say what they do.

feeder/records/scan.py and feeder/records/crc32c.py are their only users.
"""

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

WAYS: tuple[str, ...]
"""How this machine can compute a crc32c, the fastest way last."""

def crc32c(data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """The crc32c of C-contiguous bytes, by the fastest way."""

@disjoint_base
class Scanner:
    def __init__(
        self, image: str, label: str, label_base: int, max_record_bytes: int, way: str = "best"
    ) -> None:
        """Finds what Keys say; leaves records that are longer than max_record_bytes, which is at most 2**62.

        Args:
            way: one of WAYS, or the best of them.

        Raises:
            ValueError: no such way here, or a number out of range.
        """

    def scan(
        self,
        data: npt.NDArray[np.uint8],
        start: int,
        stop: int,
        offset: int,
        rows: npt.NDArray[np.int64],
    ) -> tuple[int, int, int]:
        """Takes sound and usual records from data[start:stop], up to the first that is not; without the GIL.

        Args:
            data: uint8 [n]; nobody writes to it meanwhile.
            offset: of data[start] in the shard, in bytes.
            rows: int64 [m, 7], rows of IndexBuilder, written from the first on; no more records are taken.

        Returns:
            The records that were taken; the bytes that they have; and the bytes that the next one needs (its
            header alone, while that is not there), or 0 where that is not why it was not taken.

        Raises:
            ValueError: start and stop are not within data.
        """
