"""One batch: as the user gets it, and while it is being put together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feeder.order import Position
from feeder.wire.messages import BadRecordInfo, Chunk, SlotStatus

__all__ = ["Assembly", "Batch"]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """This consumer's part of one global step; the arrays are fresh for each batch and the caller's own.

    Attributes:
        images: uint8 [B, H, W, 3], RGB; zero where masked.
        labels: int32 [B], from 0; -1 where masked.
        mask: bool [B]; False where the slot holds no sample: padding, or in evaluation a bad record.
        position: where a stream goes on after this batch; see `Client.stream(start=...)`.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int32]
    mask: NDArray[np.bool_]
    position: Position


class Assembly:
    """A batch in the making. Pieces may be written from several threads at a time: they never overlap.

    Attributes:
        slots: of the global step that belong to this consumer; B in number.
        images, labels: as in Batch.
        records: int64 [B], what fills each slot; -1 for padding.
        status: uint8 [B], SlotStatus of each slot.
        bad: the bad records that were met.
    """

    __slots__ = ("bad", "images", "labels", "records", "slots", "status")

    def __init__(self, slots: range, image_size: int) -> None:
        self.slots = slots
        self.images: NDArray[np.uint8] = np.empty((len(slots), image_size, image_size, 3), np.uint8)
        self.labels: NDArray[np.int32] = np.empty(len(slots), np.int32)
        self.records: NDArray[np.int64] = np.empty(len(slots), np.int64)
        self.status: NDArray[np.uint8] = np.empty(len(slots), np.uint8)
        self.bad: list[BadRecordInfo] = []

    @property
    def mask(self) -> NDArray[np.bool_]:
        """bool [B], a fresh array: where there is a sample."""
        return self.status <= SlotStatus.SUBSTITUTE

    def mismatch(self, slots: tuple[int, ...], chunk: Chunk) -> str | None:
        """Why a chunk cannot be the answer for these slots, or None."""
        expected = len(slots) * self.images[0].nbytes
        if len(chunk.records) == len(slots) and len(chunk.pixels) == expected:
            return None
        return (
            f"{len(chunk.records)} slots with {len(chunk.pixels)} bytes of pixels came, "
            f"asked for were {len(slots)} slots with {expected} bytes"
        )

    def write(self, slots: tuple[int, ...], chunk: Chunk) -> None:
        """Copies a chunk into its slots: the one copy that the client makes of the pixels."""
        pixels = np.frombuffer(chunk.pixels, np.uint8).reshape(len(slots), *self.images.shape[1:])
        begin = 0
        while begin < len(slots):  # runs of neighbouring slots; NumPy copies each without the GIL
            end = begin + 1
            while end < len(slots) and slots[end] == slots[end - 1] + 1:
                end += 1
            at = slice(slots[begin] - self.slots.start, slots[end - 1] + 1 - self.slots.start)
            self.images[at] = pixels[begin:end]
            self.labels[at] = chunk.labels[begin:end]
            self.records[at] = chunk.records[begin:end]
            self.status[at] = chunk.status[begin:end]
            begin = end
        self.bad.extend(chunk.bad)
