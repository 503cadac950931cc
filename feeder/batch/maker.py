"""Makes chunks in two halves: `fetch` waits for storage, `make` works on the processor.

`fetch` in turn is `ask`, which does not wait, and `finish`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from feeder.cache import Filler, Found, Offer, Shelf
from feeder.decode import GREW, REFUSED, USED, Decoder, SeekPoints, reductions
from feeder.errors import BadRecord
from feeder.order import Order, SlotStatus, eval_windows, smallest_window, train_windows, whole_windows
from feeder.records import Dataset, Reading
from feeder.spec import StreamSpec

__all__ = ["Asked", "BadChunk", "ChunkMaker", "Fetched", "FoundBad", "MadeChunk"]

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
class Asked:
    """A chunk of n slots whose records are on their way where they come from an object store.

    Attributes:
        slots: int64 [n] of the global step at (epoch, taken).
        records: int64 [n], what the order names; -1 is padding.
        found: what the cache has of them.
        lacking: int64 [m], positions of those records that it has not.
        reading: what was asked for; None: nothing, the records are on disk or in the cache.
    """

    epoch: int
    taken: int
    slots: NDArray[np.int64]
    records: NDArray[np.int64]
    found: Found | None
    lacking: NDArray[np.int64]
    reading: Reading | None


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """The images of a chunk of n slots, encoded or as planes.

    Attributes:
        slots: int64 [n] of the global step at (epoch, taken).
        records: int64 [n], what the order names; -1 is padding.
        images: encoded bytes, or planes of the cache; None where the slot is padding or the record could not
            be read.
        sizes: int32 [n, 2], (width, height) in pixels of the full image where `images` has planes; else 0.
        scales: uint8 [n], the scale of the planes where `images` has them; else 0.
        labels: int32 [n].
        bad: by position in the chunk, the records whose bytes are bad already here.
        digests: uint32 [n] of the records; 0 where there is no image.
        seek: what is known of the images, or None; `make` extends it.
        found: what keeps the planes.
    """

    epoch: int
    taken: int
    slots: NDArray[np.int64]
    records: NDArray[np.int64]
    images: list[memoryview | None]
    sizes: NDArray[np.int32]
    scales: NDArray[np.uint8]
    labels: NDArray[np.int32]
    bad: dict[int, FoundBad]
    digests: NDArray[np.uint32]
    seek: SeekPoints | None
    found: Found | None


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Images that are decoded in one call, with where they go: parts of what Fetched has."""

    images: list[memoryview]
    records: NDArray[np.int64]
    sizes: NDArray[np.int32]
    scales: NDArray[np.uint8]
    epochs: int | NDArray[np.int64]
    out: NDArray[np.uint8]
    places: NDArray[np.int64] | None
    seek: SeekPoints | None

    def part(self, first: int, last: int) -> _Run:
        if last - first == len(self.images):
            return self
        return _Run(
            self.images[first:last],
            self.records[first:last],
            self.sizes[first:last],
            self.scales[first:last],
            self.epochs if isinstance(self.epochs, int) else self.epochs[first:last],
            self.out if self.places is not None else self.out[first:last],
            None if self.places is None else self.places[first:last],
            None if self.seek is None else self.seek.part(first, last),
        )


@dataclass(frozen=True, slots=True, eq=False)
class MadeChunk:
    """What was written for the n slots of a chunk.

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
    points, which a data set opened with `seek` has, and a cache change nothing but the cost.

    Args:
        dataset: where the records are.
        decoder: makes pixels of them; with a cache, one that keeps planes.
        spec: of the stream.
        shelf: what the cache has of the data set, or None.
        filler: is offered what the cache lacks.

    Raises:
        ConfigError: the spec does not fit the data set (see Order).
    """

    def __init__(
        self,
        dataset: Dataset,
        decoder: Decoder,
        spec: StreamSpec,
        shelf: Shelf | None = None,
        filler: Filler | None = None,
    ) -> None:
        self.dataset = dataset
        self.decoder = decoder
        self.spec = spec
        self.order = Order(spec, len(dataset))
        self._seek = dataset.seek if decoder.seeks else None
        self._shelf = shelf
        self._filler = filler

    def fetch(self, epoch: int, taken: int, slots: Sequence[int] | NDArray[np.int64]) -> Fetched:
        """Reads the records of some slots of the step at (epoch, taken).

        Raises:
            ConfigError: no such step or slot.
            StorageError: reading failed; the records may be fine.
        """
        return self.finish(self.ask(epoch, taken, slots))

    def ask(self, epoch: int, taken: int, slots: Sequence[int] | NDArray[np.int64]) -> Asked:
        """Asks object stores for the records of some slots of the step at (epoch, taken); does not wait.

        Raises:
            ConfigError: no such step or slot.
        """
        wanted = np.asarray(slots, np.int64)
        records = self.order.records(epoch, taken, wanted)
        found = None if self._shelf is None else self._shelf.find(records, self._scales)
        lacking = (records >= 0).nonzero()[0] if found is None else found.lacking
        reading = self.dataset.ask(records[lacking].tolist())
        return Asked(epoch, taken, wanted, records, found, lacking, reading)

    def finish(self, asked: Asked) -> Fetched:
        """Reads what was asked for.

        Raises:
            StorageError: reading failed; the records may be fine.
        """
        records, found, lacking = asked.records, asked.found, asked.lacking
        count = len(records)
        images: list[memoryview | None] = [None] * count if found is None else found.planes.copy()
        labels = self.dataset.labels(records)
        digests = np.zeros(count, np.uint32)
        bad: dict[int, FoundBad] = {}
        files = self._seek
        seek = None if files is None else SeekPoints.nothing(count)
        for position, record in zip(lacking.tolist(), records[lacking].tolist(), strict=True):
            try:
                images[position], _, digest = self.dataset.read(record, asked.reading)
            except BadRecord as error:
                bad[position] = FoundBad(record, error.shard, error.index, error.reason)
                labels[position] = MASKED_LABEL
                continue
            digests[position] = digest
            if files is not None and seek is not None:
                files.load(record, digest, seek.points[position])
        return Fetched(
            asked.epoch,
            asked.taken,
            asked.slots,
            records,
            images,
            np.zeros((count, 2), np.int32) if found is None else found.sizes,
            np.zeros(count, np.uint8) if found is None else found.scales,
            labels,
            bad,
            digests,
            seek,
            found,
        )

    def make(
        self, fetched: Fetched, out: NDArray[np.uint8], places: NDArray[np.int64] | None = None
    ) -> MadeChunk:
        """Decodes into `out`.

        Args:
            fetched: n slots of a step.
            out: uint8 [n, *spec.image_shape], C-contiguous; [m, ...] with `places`. Other images of it are
                not touched.
            places: int64 [n], which image of `out` each slot is; None: they are its images in turn.

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
        images = cast("list[memoryview]", fetched.images)  # which the runs are
        everything = _Run(images, records, fetched.sizes, fetched.scales, epochs, out, places, fetched.seek)
        for first, last in _runs(fetched.images):
            for position, reason in enumerate(self._decode(everything.part(first, last)), first):
                if reason is not None:
                    record = int(records[position])
                    bad[position] = FoundBad(record, *self.dataset.locate(record), reason)
        self._keep(fetched)
        if self.spec.remainder == "pad":
            padding = records < 0
            self._blank(out, padding if places is None else places[padding])
            status[padding] = SlotStatus.PADDING
        if not bad:
            return MadeChunk(records, labels, status, ())
        return self._without_bad(fetched, out, places, MadeChunk(records, labels, status, ()), bad, epochs)

    def windows(
        self, epochs: int | NDArray[np.int64], records: NDArray[np.int64], sizes: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """What part of each image is shown.

        Args:
            epochs: one for all, or int64 [n], see `Order.epochs_of`.
            records: int64 [n].
            sizes: int32 [n, 2], (width, height) in pixels.

        Returns:
            windows int32 [n, 4], (x, y, width, height) in pixels; bool [n], whether they are mirrored.
        """
        spec = self.spec
        if spec.augment == "train":
            return train_windows(spec.sampler, spec.seed, epochs, records, sizes)
        flips = np.zeros(len(records), np.bool_)
        if spec.augment == "eval":
            return eval_windows(spec.sampler, spec.image_size, sizes), flips
        return whole_windows(sizes), flips

    def _decode(self, run: _Run) -> list[str | None]:
        """Decodes images that are there; returns for each why it is bad, or None."""
        sizes, scales = run.sizes, run.scales
        encoded = (scales == 0).nonzero()[0].tolist()
        if encoded:
            sizes, scales = sizes.copy(), scales.copy()
            sizes[encoded], headers = self.decoder.sizes([run.images[position] for position in encoded])
            if any(headers):
                # Rare: leave out those without a readable header, and take the others in runs.
                reasons: list[str | None] = [None] * len(run.images)
                headed: list[memoryview | None] = list(run.images)
                for position, reason in zip(encoded, headers, strict=True):
                    if reason is not None:
                        reasons[position], headed[position] = reason, None
                for first, last in _runs(headed):
                    reasons[first:last] = self._decode(run.part(first, last))
                return reasons
            scales[encoded] = self._scales(sizes[encoded])
        spec = self.spec
        windows, flips = self.windows(run.epochs, run.records, sizes)
        reasons = self.decoder.decode(
            run.images,
            windows,
            flips,
            self._slots(run.out),
            resample=spec.resample,
            antialias=spec.antialias,
            reductions=scales,
            seek=run.seek,
            kept=None if len(encoded) == len(run.images) else run.scales > 0,
            places=run.places,
        )
        if self._shelf is not None and self._filler is not None and encoded:
            self._filler.offer(
                Offer(
                    self._shelf,
                    int(run.records[position]),
                    run.images[position],
                    (int(sizes[position, 0]), int(sizes[position, 1])),
                    int(scales[position]),
                )
                for position in encoded
                if reasons[position] is None
            )
        return reasons

    def _slots(self, out: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Images of a batch as the decoder's slots."""
        return out if self.spec.output == "rgb" else out.reshape(len(out), -1, self.spec.image_size)

    def _blank(self, out: NDArray[np.uint8], places: NDArray[np.bool_] | NDArray[np.int64] | int) -> None:
        """Makes images black, which is 128 in chroma."""
        out[places] = 0
        if self.spec.output == "yuv420":
            out[places, self.spec.image_size**2 :] = 128

    def _scales(self, sizes: NDArray[np.int32]) -> NDArray[np.uint8]:
        """The scales to decode images of some sizes at: uint8 [n], each 1, 2, 4 or 8."""
        spec = self.spec
        if spec.reduce is None:
            return np.ones(len(sizes), np.uint8)
        smallest = smallest_window(spec.augment, spec.sampler, sizes, spec.image_size)
        return reductions(spec.reduce, smallest, sizes, spec.image_size)

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
        places: NDArray[np.int64] | None,
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
            place = position if places is None else int(places[position])
            if self.spec.remainder == "pad":
                self._blank(out, place)
                labels[position] = MASKED_LABEL
                made.status[position] = SlotStatus.BAD
                continue
            records[position], labels[position] = self._substitute(
                fetched, position, epoch_of[position], out[place : place + 1], found
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
            alone = _Run(
                [image],
                np.array([record], np.int64),
                np.zeros((1, 2), np.int32),
                np.zeros(1, np.uint8),
                epoch,
                out,
                None,
                None,
            )
            (reason,) = self._decode(alone)
            if reason is None:
                return record, label
            found[record, epoch] = FoundBad(record, *self.dataset.locate(record), reason)
        own = found.pop((int(fetched.records[position]), epoch))
        raise BadChunk([own, *found.values()], _NO_SUBSTITUTE)


def _runs(images: Sequence[memoryview | None]) -> Iterator[tuple[int, int]]:
    """(first position, position behind the last) of each run without None between."""
    first = 0
    for last, image in enumerate((*images, None)):
        if image is None:
            if first < last:
                yield first, last
            first = last + 1
