"""One batch: as the user gets it, and while it is being put together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.client.pixels import split_planes
from feeder.order import Position
from feeder.wire.messages import BadRecordInfo, Chunk, Compression, SlotStatus

__all__ = ["Assembly", "Batch", "Landing"]

_HAS_SAMPLE = bytes(status <= SlotStatus.SUBSTITUTE for status in range(256))
"""By status, whether a slot has a sample."""

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """This consumer's part of one global step.

    The arrays are the caller's own, to keep and to write to: nothing else ever changes what is in them. From
    a worker on the same host `images` lies in memory that is used again for a later batch, but only when this
    array and all that was made of it without a copy (views, tensors, memoryviews) are gone. Who keeps many
    batches gets more of them in memory of their own. A process that is forked shares the images and does not
    count: it copies what it wants to keep.

    Attributes:
        images: contiguous, and black where masked. With output "rgb" uint8 [B, S, S, 3]; with "yuv420" uint8
            [B, S * S * 3 / 2], see `planes`.
        labels: int32 [B], from 0; -1 where masked.
        mask: bool [B]; False where the slot holds no sample: padding, or in evaluation a bad record.
        position: where a stream goes on after this batch; see `Client.stream(start=...)`.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int32]
    mask: NDArray[np.bool_]
    position: Position

    def planes(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        """Y [B, S, S], Cb and Cr [B, S / 2, S / 2] of a batch with output "yuv420", views of `images`: JFIF's
        full range, 128 is no colour, and a sample of Cb or Cr lies amid its 2x2 pixels.

        Raises:
            ConfigError: the batch is RGB.
        """
        y, cb, cr = split_planes(self.images)
        return y, cb, cr


class Assembly:
    """A batch in the making. Several threads may write pieces of it at a time: these do not overlap, or they
    hold the same bytes. A piece that a worker may be writing is written by nobody else.

    Attributes:
        landing: the first slot of each piece that a thread of this process is writing now.
        slots: of the global step that belong to this consumer; B in number.
        images, labels: as in Batch.
        records: int64 [B], what fills each slot; -1 for padding.
        status: uint8 [B], SlotStatus of each slot.
        bad: the bad records that were met.
        buffer: of the arena, which `images` lies in; None: in memory of its own.
    """

    __slots__ = ("bad", "buffer", "images", "labels", "landing", "records", "slots", "status")

    def __init__(self, slots: range, images: NDArray[np.uint8], buffer: int | None = None) -> None:
        self.slots = slots
        self.images = images
        self.buffer = buffer
        self.records: NDArray[np.int64] = _NONE  # until the first piece comes
        self.labels: NDArray[np.int32]
        self.status: NDArray[np.uint8]
        self.bad: list[BadRecordInfo] = []
        self.landing: list[int] = []

    @property
    def mask(self) -> NDArray[np.bool_]:
        """bool [B], a fresh array: where there is a sample."""
        # Far fewer instructions than a comparison by NumPy, few of which are in a cache when a batch comes.
        return np.frombuffer(bytearray(self.status.tobytes().translate(_HAS_SAMPLE)), np.bool_)

    def mismatch(self, slots: tuple[int, ...], chunk: Chunk) -> str | None:
        """Why a chunk cannot be the answer for these slots, or None."""
        expected = 0 if chunk.placed else len(slots) * self.images[0].nbytes
        packed = chunk.compression is not Compression.NONE
        fits = 0 < chunk.pixel_bytes < expected if packed else chunk.pixel_bytes == expected
        if len(chunk.records) == len(slots) and fits:
            return None
        return (
            f"{len(chunk.records)} slots with {chunk.pixel_bytes} bytes of {'packed ' if packed else ''}"
            f"pixels came, asked for were {len(slots)} slots with {expected} bytes"
        )

    def places(self, slots: tuple[int, ...]) -> list[memoryview]:
        """Where the pixels of these slots go, one after another: views of bytes, one a run of neighbours."""
        return [self.images[at].reshape(-1).data for at, _ in self._runs(slots)]

    def note(self, slots: tuple[int, ...], chunk: Chunk) -> None:
        """Takes over all of a chunk but its pixels, which are in their places."""
        if chunk.placed and len(slots) == len(self.slots) and chunk.labels.flags.writeable:
            self.records, self.labels, self.status = chunk.records, chunk.labels, chunk.status
            self.bad.extend(chunk.bad)
            return
        if self.records is _NONE:
            count = len(self.slots)
            self.records, self.labels = np.empty(count, np.int64), np.empty(count, np.int32)
            self.status = np.empty(count, np.uint8)
        for at, of_chunk in self._runs(slots):
            self.labels[at] = chunk.labels[of_chunk]
            self.records[at] = chunk.records[of_chunk]
            self.status[at] = chunk.status[of_chunk]
        self.bad.extend(chunk.bad)

    def copy(self, slots: tuple[int, ...], images: NDArray[np.uint8]) -> int:
        """Takes over pixels of these slots that came to another place, which this batch left meanwhile;
        returns how many bytes."""
        for at, _ in self._runs(slots):
            self.images[at] = images[at]
        return len(slots) * int(images[0].nbytes)

    def leave(self) -> int:
        """Moves to memory of its own, since what a worker was late with, and another made meanwhile, may
        still be arriving: it goes on into the old array. Returns how many bytes were copied."""
        self.images = self.images.copy()
        self.buffer = None
        return self.images.nbytes

    def _runs(self, slots: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
        """Runs of neighbouring slots: where they are in this batch, and where in the chunk."""
        offset = self.slots.start
        if slots[-1] - slots[0] == len(slots) - 1:  # they ascend; nearly all are one run
            yield slice(slots[0] - offset, slots[0] - offset + len(slots)), slice(0, len(slots))
            return
        begin = 0
        while begin < len(slots):
            end = begin + 1
            while end < len(slots) and slots[end] == slots[end - 1] + 1:
                end += 1
            first = slots[begin] - offset
            yield slice(first, first + end - begin), slice(begin, end)
            begin = end


class Landing(NamedTuple):
    """Where the pixels of one arriving chunk go, in their order: views of bytes of `images`, which were those
    of `assembly` when it began to arrive."""

    assembly: Assembly
    slot: int
    images: NDArray[np.uint8]
    places: list[memoryview]
