"""A second tier: records as they are stored, kept near the worker because their shards are far away.

It is a cache like that of planes, with records in their place: the same segments, budget and admission.
Whoever reads a record checks its digest, so that a bit that flipped since costs no more than reading it anew.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feeder.cache.fill import Filler, Offer
from feeder.cache.folder import default_folder
from feeder.cache.shelf import Shelf
from feeder.cache.store import Cache

__all__ = ["ENCODED", "EncodedShelf", "encoded_filler", "encoded_folder"]

log = logging.getLogger(__name__)

ENCODED = "encoded records 1"
"""In the place of a fingerprint of pixels; changes with what is kept of a record."""

_SCALE = 1
_SIZE = (1, 1)


def encoded_folder() -> Path:
    """The folder of the tier unless told otherwise: one of its own, since budgets are by folder."""
    own = default_folder()
    return own.with_name(own.name + "-encoded")


def encoded_filler(cache: Cache) -> Filler:
    """What fills the tier."""
    return Filler(cache, lambda records, _: records)


class EncodedShelf:
    """What the tier has of one data set: a feeder.records.Keeper."""

    def __init__(self, shelf: Shelf, filler: Filler) -> None:
        self._shelf = shelf
        self._filler = filler

    def find(self, records: Sequence[int]) -> dict[int, bytes]:
        """Copies of those records that are there; counts hits and misses."""
        found = self._shelf.find(np.array(records, np.int64), _scales)
        return {
            record: bytes(stored)
            for record, stored in zip(records, found.planes, strict=True)
            if stored is not None
        }

    def offer(self, record: int, stored: bytes) -> None:
        """Takes a record that was read, if there is room for it; does not wait."""
        if not self._shelf.has(record, _SCALE):
            self._filler.offer([Offer(self._shelf, record, stored, _SIZE, _SCALE)])

    def drop(self, record: int) -> None:
        """Forgets what is there of a record, because it is damaged."""
        log.warning("encoded cache: record %d of %s is damaged: read anew", record, self._shelf.name)
        self._shelf.forget(record)


def _scales(sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    return np.full(len(sizes), _SCALE, np.uint8)
