"""Flagged records as small pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from feeder.decode import decode_crop
from feeder.decode.header import read_header
from feeder.errors import DataError
from feeder.records import Dataset

__all__ = ["PICTURE", "pictures"]

PICTURE = 160
"""Pixels, the side of a picture."""

_GROUND, _CROSS = (225, 225, 225), (200, 60, 60)


def pictures(dataset: Dataset, numbers: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Records as uint8 [n, PICTURE, PICTURE, 3]: the whole image on gray, or a cross where it is bad.

    Raises:
        StorageError: a record could not be read.
    """
    sheet = np.empty((len(numbers), PICTURE, PICTURE, 3), np.uint8)
    sheet[:] = _GROUND
    reading = dataset.ask(numbers)
    for picture, number in zip(sheet, numbers, strict=True):
        try:
            image = dataset.read(number, reading).image
            header = read_header(image)
            scale = PICTURE / max(header.width, header.height)
            height, width = (max(1, round(side * scale)) for side in (header.height, header.width))
            top, left = (PICTURE - height) // 2, (PICTURE - width) // 2
            picture[top : top + height, left : left + width] = decode_crop(image, None, (height, width))
        except DataError:
            diagonal = np.arange(PICTURE)
            picture[diagonal, diagonal] = picture[diagonal, -1 - diagonal] = _CROSS
    return sheet
