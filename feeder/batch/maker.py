"""Makes chunks in two halves: `fetch` waits for storage, `make` works on the processor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feeder.decode import GREW, REFUSED, USED, Decoder, SeekPoints, reductions
from feeder.errors import BadRecord
from feeder.order import Order, SlotStatus, eval_windows, smallest_window, train_windows, whole_windows
from feeder.records import Dataset
from feeder.spec import StreamSpec

__all__ = ["BadChunk", "ChunkMaker", "Fetched", "FoundBad", "MadeChunk"]

MASKED_LABEL = -1

_NO_SUBSTITUTE = (
    "; and no other record of its lane is good: use a smaller batch, or pack without it "
    "(feeder verify lists it)"
)


@dataclass(frozen=True, slots=True)
class FoundBad:
    """A record that was found bad: its number in the data set, its shard, its number there, and why."""

    record: int
    shard: str
    index: int
    reason: str


class BadChunk(BadRecord):
    """A chunk that cannot be made because of a bad record that nothing may, or can, stand in for.

    Attributes:
        found: all that was found bad on the way; the first is the record that the error names.
    """

    def __init__(self, found: Sequence[FoundBad], note: str = "") -> None:
        first = found[0]
        super().__init__(first.shard, first.index, first.reason + note)
        self.found = tuple(found)
        self.note = note

    def __reduce__(self) -> tuple[type[BadChunk], tuple[tuple[FoundBad, ...], str]]:  # type: ignore[override]
        return type(self), (self.found, self.note)


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """The encoded images of a chunk of n slots.

    Attributes:
        slots: int64 [n] of the global step at (epoch, taken).
        records: int64 [n], what the order names; -1 is padding.
        images: encoded bytes, None where the slot is padding or the record could not be read.
        labels: int32 [n].
        bad: by position in the chunk, the records whose bytes are bad already here.
        digests: uint32 [n] of the records; 0 where there is no image.
        seek: what is known of the images, or None; `make` extends it.
    """

    epoch: int
    taken: int
    slots: NDArray[np.int64]
    records: NDArray[np.int64]
    images: list[memoryview | None]
    labels: NDArray[np.int32]
    bad: dict[int, FoundBad]
    digests: NDArray[np.uint32]
    seek: SeekPoints | None


@dataclass(frozen=True, slots=True, eq=False)
class MadeChunk:
    """What was written into the n slots of `out`.

    Attributes:
        records: int64 [n], what is in each slot: own, substitute, or the bad one that is masked; -1: padding.
        labels: int32 [n]; -1 where masked.
        status: uint8 [n], SlotStatus of each slot.
        bad: every record that was found bad on the way, candidates for a substitute included.
    """

    records: NDArray[np.int64]
    labels: NDArray[np.int32]
    status: NDArray[np.uint8]
    bad: tuple[FoundBad, ...]


class ChunkMaker:
    """Makes the chunks of one stream; safe to use from many threads at a time.

    What it makes is a pure function of data, spec and (epoch, taken, slots), as long as storage answers. Seek
    points, which a data set opened with `seek` has, change nothing but the cost.

    Raises:
        ConfigError: the spec does not fit the data set (see Order).
    """

    def __init__(self, dataset: Dataset, decoder: Decoder, spec: StreamSpec) -> None:
        self.dataset = dataset
        self.decoder = decoder
        self.spec = spec
        self.order = Order(spec, len(dataset))
        self._seek = dataset.seek if decoder.seeks else None

    def fetch(self, epoch: int, taken: int, slots: Sequence[int] | NDArray[np.int64]) -> Fetched:
        """Reads the records of some slots of the step at (epoch, taken).

        Raises:
            ConfigError: no such step or slot.
            StorageError: reading failed; the records may be fine.
        """
        wanted = np.asarray(slots, np.int64)
        records = self.order.records(epoch, taken, wanted)
        images: list[memoryview | None] = []
        labels: list[int] = []
        digests: list[int] = []
        bad: dict[int, FoundBad] = {}
        read = self.dataset.read
        files = self._seek
        seek = None if files is None else SeekPoints.nothing(len(wanted))
        for position, record in enumerate(records.tolist()):
            if record >= 0:
                try:
                    image, label, digest = read(record)
                except BadRecord as error:
                    bad[position] = FoundBad(record, error.shard, error.index, error.reason)
                else:
                    images.append(image)
                    labels.append(label)
                    digests.append(digest)
                    if files is not None and seek is not None:
                        files.load(record, digest, seek.points[position])
                    continue
            images.append(None)
            labels.append(MASKED_LABEL)
            digests.append(0)
        return Fetched(
            epoch,
            taken,
            wanted,
            records,
            images,
            np.array(labels, np.int32),
            bad,
            np.array(digests, np.uint32),
            seek,
        )

    def make(self, fetched: Fetched, out: NDArray[np.uint8]) -> MadeChunk:
        """Decodes into `out`, uint8 [n, image_size, image_size, 3], C-contiguous.

        Raises:
            BadChunk: a record is bad, and on_bad is "fail" or its lane holds no good record.
            StorageError: a substitute could not be read; it may be fine.
        """
        records, labels = fetched.records, fetched.labels
        status = np.zeros(len(records), np.uint8)
        epochs: int | NDArray[np.int64] = fetched.epoch
        if self.spec.remainder == "wrap":
            epochs = self.order.epochs_of(fetched.epoch, fetched.taken, fetched.slots)
        bad = dict(fetched.bad)
        for first, images in _runs(fetched.images):
            last = first + len(images)
            run_epochs = epochs if isinstance(epochs, int) else epochs[first:last]
            seek = None if fetched.seek is None else fetched.seek.part(first, last)
            reasons = self._decode(images, records[first:last], run_epochs, out[first:last], seek)
            for position, reason in enumerate(reasons, first):
                if reason is not None:
                    record = int(records[position])
                    bad[position] = FoundBad(record, *self.dataset.locate(record), reason)
        self._keep(fetched)
        if records.min() < 0:
            padding = records < 0
            out[padding] = 0
            status[padding] = SlotStatus.PADDING
        if not bad:
            return MadeChunk(records, labels, status, ())
        return self._without_bad(fetched, out, MadeChunk(records, labels, status, ()), bad, epochs)

    def _decode(
        self,
        images: list[memoryview],
        records: NDArray[np.int64],
        epochs: int | NDArray[np.int64],
        out: NDArray[np.uint8],
        seek: SeekPoints | None,
    ) -> list[str | None]:
        """Decodes images whose bytes were read; returns for each why it is bad, or None."""
        sizes, reasons = self.decoder.sizes(images)
        if any(reasons):
            # Rare: leave out those without a readable header, and take the others in runs.
            headed = [None if reason else image for image, reason in zip(images, reasons, strict=True)]
            for first, run in _runs(headed):
                last = first + len(run)
                run_epochs = epochs if isinstance(epochs, int) else epochs[first:last]
                part = None if seek is None else seek.part(first, last)
                reasons[first:last] = self._decode(
                    run, records[first:last], run_epochs, out[first:last], part
                )
            return reasons
        spec = self.spec
        if spec.augment == "train":
            windows, flips = train_windows(spec.sampler, spec.seed, epochs, records, sizes)
        else:
            flips = np.zeros(len(images), np.bool_)
            if spec.augment == "eval":
                windows = eval_windows(spec.sampler, spec.image_size, sizes)
            else:
                windows = whole_windows(sizes)
        scales = None
        if spec.reduce is not None:
            smallest = smallest_window(spec.augment, spec.sampler, sizes, spec.image_size)
            scales = reductions(spec.reduce, smallest, sizes, spec.image_size)
        return self.decoder.decode(
            images,
            windows,
            flips,
            out,
            resample=spec.resample,
            antialias=spec.antialias,
            reductions=scales,
            seek=seek,
        )

    def _keep(self, fetched: Fetched) -> None:
        """Hands on what decoding learned."""
        if self._seek is None or fetched.seek is None:
            return
        outcomes = fetched.seek.outcomes
        self._seek.count(
            used=int(np.count_nonzero(outcomes & USED)), refused=int(np.count_nonzero(outcomes & REFUSED))
        )
        grew = np.flatnonzero(outcomes & GREW)
        if len(grew):
            self._seek.store(fetched.records[grew], fetched.digests[grew], fetched.seek.points[grew])

    def _without_bad(
        self,
        fetched: Fetched,
        out: NDArray[np.uint8],
        made: MadeChunk,
        bad: dict[int, FoundBad],
        epochs: int | NDArray[np.int64],
    ) -> MadeChunk:
        positions = sorted(bad)
        if self.spec.on_bad == "fail":
            raise BadChunk([bad[position] for position in positions])
        epoch_of = (
            dict.fromkeys(positions, epochs) if isinstance(epochs, int) else dict(enumerate(epochs.tolist()))
        )
        # Whether a record is bad depends on its window too, and so on the epoch.
        found = {
            (int(fetched.records[position]), epoch_of[position]): bad[position] for position in positions
        }
        records, labels = made.records.copy(), made.labels.copy()
        for position in positions:
            if self.spec.remainder == "pad":
                out[position] = 0
                labels[position] = MASKED_LABEL
                made.status[position] = SlotStatus.BAD
                continue
            records[position], labels[position] = self._substitute(
                fetched, position, epoch_of[position], out[position : position + 1], found
            )
            made.status[position] = SlotStatus.SUBSTITUTE
        return MadeChunk(records, labels, made.status, tuple(found.values()))

    def _substitute(
        self,
        fetched: Fetched,
        position: int,
        epoch: int,
        out: NDArray[np.uint8],
        found: dict[tuple[int, int], FoundBad],
    ) -> tuple[int, int]:
        """Decodes the next good record of the slot's lane into `out`; bad ones on the way join `found`."""
        slot = int(fetched.slots[position])
        for record in self.order.substitutes(fetched.epoch, fetched.taken, slot):
            if (record, epoch) in found:
                continue
            try:
                image, label, _ = self.dataset.read(record)
            except BadRecord as error:
                found[record, epoch] = FoundBad(record, error.shard, error.index, error.reason)
                continue
            (reason,) = self._decode([image], np.array([record], np.int64), epoch, out, None)
            if reason is None:
                return record, label
            found[record, epoch] = FoundBad(record, *self.dataset.locate(record), reason)
        own = found.pop((int(fetched.records[position]), epoch))
        raise BadChunk([own, *found.values()], _NO_SUBSTITUTE)


def _runs(images: Sequence[memoryview | None]) -> Iterator[tuple[int, list[memoryview]]]:
    """(first position, images) of each run without None between."""
    run: list[memoryview] = []
    position = -1
    for position, image in enumerate(images):
        if image is not None:
            run.append(image)
        elif run:
            yield position - len(run), run
            run = []
    if run:
        yield position + 1 - len(run), run
