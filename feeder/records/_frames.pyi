"""Scanning TFRecords natively: native/frames.h says what it does, feeder/records/scan.py is its only user."""

import numpy as np
import numpy.typing as npt

CRC32C_WAYS: tuple[str, ...]
"""How this machine can compute a crc32c, the fastest way last."""

def scan(
    data: npt.NDArray[np.uint8],
    start: int,
    stop: int,
    offset: int,
    image: bytes,
    label: bytes,
    label_base: int,
    max_record_bytes: int,
    rows: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Takes sound and usual records from data[start:stop], up to the first that is not; without the GIL.

    Args:
        data: uint8 [n]; nobody writes to it meanwhile.
        offset: of data[start] in the shard, in bytes.
        image, label, label_base: Keys, as bytes.
        max_record_bytes: a longer record is not taken; at most 2**62.
        rows: int64 [m, 7], rows of IndexBuilder, written from the first on.

    Returns:
        The records that were taken; the bytes that they have; and the bytes that the next one needs (of its
        header alone, while that is not there), or 0 where that is not why it was not taken.

    Raises:
        ValueError: start and stop are not within data.
    """

def crc32c(data: npt.NDArray[np.uint8], way: str) -> int:
    """The crc32c of bytes by one of CRC32C_WAYS; scan takes the last."""
