"""Which record comes in which slot of which step: a pure function that client and worker both compute.

Records 0..N-1 are cut into L contiguous lanes. Each global step takes the next q = B/L records of every lane,
in the lane's own order of the epoch; slot s of the step belongs to lane s // q. Neither the number of
consumers nor the workers play a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError
from feeder.order.hashing import Purpose, Words, fold, key_of
from feeder.order.permutation import SMALL, grid_of, permutation_table, permute, round_keys
from feeder.spec import MAX_LANES, StreamSpec

__all__ = ["Int64s", "Order", "default_lanes"]

Int64s: TypeAlias = NDArray[np.int64]

MAX_RECORDS = 2**40
"""Most records of a data set: what a permutation can span (a petabyte of the smallest useful images)."""

_MAX_EPOCH = 2**62
_DEFAULT_LANES = 256
_LANES_PER_CONSUMER = 8
_LEAST_RECORDS_A_LANE = 4
"""A bad record is replaced from its own lane: with four there, three are left to take its place. A lane of
one would end a stream over a small set at its first bad record."""

_SUBSTITUTES_AT_ONCE = 32
_EPOCHS_KEPT = 4


def default_lanes(records: int, global_batch: int, consumer_count: int) -> int:
    """The largest number of lanes, up to max(256, 8 consumers) and 2**16, that fits batch and consumers.

    It divides global_batch and is a multiple of consumer_count. Each lane has at least four records, so that
    a bad one has substitutes, unless the records are too few: each consumer has at least one lane.

    Raises:
        ConfigError: consumer_count does not divide global_batch.
    """
    if consumer_count < 1 or global_batch < 1 or global_batch % consumer_count:
        raise ConfigError(
            f"the global batch must be a multiple of the number of consumers, "
            f"got {global_batch} slots for {consumer_count} consumers"
        )
    wanted = min(MAX_LANES, max(_DEFAULT_LANES, _LANES_PER_CONSUMER * consumer_count))
    most = max(consumer_count, min(records // _LEAST_RECORDS_A_LANE, wanted))
    share = global_batch // consumer_count
    return max(per * consumer_count for per in range(1, most // consumer_count + 1) if share % per == 0)


class Order:
    """The order of one stream over a data set. Never changes once made; safe to share between threads.

    Holds O(lanes) numbers (at most 256 a lane, where lanes are that small) and computes any slot of any step
    in O(1).

    Attributes:
        spec: what the order depends on (seed, global_batch, lanes, shuffle, remainder).
        total: records of the data set.
    """

    def __init__(self, spec: StreamSpec, records: int) -> None:
        """An order over `records` records.

        Raises:
            ConfigError: no records, more than 2**40, or fewer records than lanes where remainder is "wrap".
        """
        if not 1 <= records <= MAX_RECORDS:
            raise ConfigError(
                f"data set {spec.dataset!r}: must hold between 1 and 2**40 records, got {records}"
            )
        if spec.remainder == "wrap" and records < spec.lanes:
            raise ConfigError(
                f"data set {spec.dataset!r}: {records} records cannot fill {spec.lanes} lanes, and remainder "
                f"'wrap' needs at least one record in each: use fewer lanes or a smaller batch"
            )
        self.spec: Final = spec
        self.total: Final = records
        self._starts: Final[Int64s] = np.array(
            [lane * records // spec.lanes for lane in range(spec.lanes + 1)], np.int64
        )
        lengths = np.diff(self._starts)
        grids = [grid_of(max(1, int(length))) for length in lengths]
        self._lengths: Final[Words] = lengths.astype(np.uint64)
        self._columns: Final[Words] = np.array([columns for columns, _ in grids], np.uint64)
        self._rows: Final[Words] = np.array([rows for _, rows in grids], np.uint64)
        self._small: Final[bool] = int(lengths.max()) <= SMALL
        self._all_lanes: Final[Int64s] = np.arange(spec.lanes, dtype=np.int64)
        self._epoch_permutations = lru_cache(maxsize=_EPOCHS_KEPT)(self._permutations_in)
        self._epoch_round_keys = lru_cache(maxsize=_EPOCHS_KEPT)(self._round_keys_in)

    def __repr__(self) -> str:
        return f"Order({self.spec!r}, {self.total})"

    def __reduce__(self) -> tuple[type[Order], tuple[StreamSpec, int]]:
        return Order, (self.spec, self.total)

    def lane_start(self, lane: int) -> int:
        """Number of the lane's first record; lane in [0, lanes]."""
        return int(self._starts[lane])

    def lane_length(self, lane: int) -> int:
        """Records of the lane: floor or ceiling of records / lanes."""
        return int(self._starts[lane + 1] - self._starts[lane])

    @cached_property
    def steps_per_epoch(self) -> int:
        """Global steps of one epoch: floor(N/B) under "drop", otherwise ceil(N/B).

        Under "wrap", where all passes are one endless epoch, it is the steps after which every record has
        come once.
        """
        whole, rest = divmod(self.total, self.spec.global_batch)
        return whole if self.spec.remainder == "drop" else whole + (rest > 0)

    def steps(self, epochs: int) -> int:
        """Steps of a stream over so many epochs; under "wrap" until every record has come that many times."""
        if self.spec.remainder != "wrap":
            return epochs * self.steps_per_epoch
        longest = -(-self.total // self.spec.lanes)
        return -(-epochs * longest // self.spec.per_lane)

    def check_steps(self) -> None:
        """Raises ConfigError where "drop" leaves an epoch no step at all: fewer records than a batch."""
        if self.steps_per_epoch == 0:
            raise ConfigError(
                f"data set {self.spec.dataset!r}: {self.total} records do not fill one global batch of "
                f"{self.spec.global_batch}, so remainder 'drop' leaves nothing: use a smaller batch, or "
                f"remainder 'wrap' (training) or 'pad' (evaluation)"
            )

    def check(self, epoch: int, taken: int) -> None:
        """Raises ConfigError unless (epoch, taken) is the start of a step of this order."""
        per_lane = self.spec.per_lane
        if not 0 <= epoch < _MAX_EPOCH or not 0 <= taken < _MAX_EPOCH:
            raise ConfigError(f"epoch and taken must be in [0, 2**62), got epoch {epoch}, taken {taken}")
        if taken % per_lane:
            raise ConfigError(
                f"taken must be a multiple of {per_lane}, what a lane gives in a step, got {taken}"
            )
        if self.spec.remainder == "wrap":
            if epoch:
                raise ConfigError(
                    f"under remainder 'wrap' the epoch stays 0 and taken runs on, got epoch {epoch}"
                )
        elif taken >= self.steps_per_epoch * per_lane:
            self.check_steps()
            raise ConfigError(
                f"an epoch takes {self.steps_per_epoch * per_lane} samples of each lane, got taken {taken}"
            )

    def records(self, epoch: int, taken: int, slots: Int64s) -> Int64s:
        """The records that fill slots of one global step.

        Args:
            epoch: from 0; always 0 under remainder "wrap".
            taken: samples that each lane gave in this epoch before the step: a multiple of per_lane.
            slots: int64 [n], each in [0, global_batch), in any order.

        Returns:
            int64 [n] of record numbers; -1 for padding (remainder "pad").

        Raises:
            ConfigError: no such step or slot.
        """
        self.check(epoch, taken)
        return self._records(epoch, taken, slots)

    def records_of_steps(self, epoch: int, taken: int, slots: Int64s, steps: int) -> Int64s:
        """The records that fill the same slots of some steps, from the one at (epoch, taken) on: many cost
        little more than one.

        Args:
            epoch, taken: as for `records`, which has the other rules, too.
            slots: int64 [n], each in [0, global_batch).
            steps: of this epoch, at least 1.

        Returns:
            int64 [steps, n] of record numbers; -1 for padding.

        Raises:
            ConfigError: no such steps or slot.
        """
        per_lane = self.spec.per_lane
        self.check(epoch, taken)
        self.check(epoch, taken + (steps - 1) * per_lane)
        each = np.repeat(taken + per_lane * np.arange(steps), len(slots))
        return self._records(epoch, each, np.tile(slots, steps)).reshape(steps, len(slots))

    def _records(self, epoch: int, taken: int | Int64s, slots: Int64s) -> Int64s:
        lanes, offsets, epochs = self._places(epoch, taken, slots)
        if self.spec.remainder == "pad":
            inside = offsets < self._starts[lanes + 1] - self._starts[lanes]
            if not inside.all():
                found = np.full(lanes.shape, -1, np.int64)
                found[inside] = self._at(offsets[inside], lanes[inside], epochs)
                return found
        return self._at(offsets, lanes, epochs)

    def epochs_of(self, epoch: int, taken: int, slots: Int64s) -> Int64s:
        """int64 [n]: the epoch that each slot's crop is drawn for: `epoch`, or under "wrap" the lane's
        pass.
        """
        self.check(epoch, taken)
        lanes, _, epochs = self._places(epoch, taken, slots)
        return np.full(lanes.shape, epochs, np.int64) if isinstance(epochs, int) else epochs

    def substitutes(self, epoch: int, taken: int, slot: int) -> Iterator[int]:
        """What may replace the slot's own record, the best first.

        The records after it in the lane's order of that epoch (under "wrap": of that pass), cyclic: each
        other record of the lane once. Empty for a padding slot.
        """
        self.check(epoch, taken)
        lanes, offsets, epochs = self._places(epoch, taken, np.array([slot], np.int64))
        lane, offset = int(lanes[0]), int(offsets[0])
        pass_number = epochs if isinstance(epochs, int) else int(epochs[0])
        return self._following(lane, offset, pass_number)

    def consumer_slots(self, consumer_index: int, consumer_count: int) -> range:
        """The slots of every global step that belong to one consumer, a contiguous range."""
        lanes = self.consumer_lanes(consumer_index, consumer_count)
        return range(lanes.start * self.spec.per_lane, lanes.stop * self.spec.per_lane)

    def consumer_lanes(self, consumer_index: int, consumer_count: int) -> range:
        """The lanes that belong to one consumer, a contiguous range.

        Raises:
            ConfigError: the number of consumers does not divide the lanes, or no such consumer.
        """
        lanes = self.spec.lanes
        if consumer_count < 1 or lanes % consumer_count:
            raise ConfigError(f"the number of consumers must divide the {lanes} lanes, got {consumer_count}")
        if not 0 <= consumer_index < consumer_count:
            raise ConfigError(f"consumer_index must be in [0, {consumer_count}), got {consumer_index}")
        each = lanes // consumer_count
        return range(consumer_index * each, (consumer_index + 1) * each)

    def _places(self, epoch: int, taken: int | Int64s, slots: Int64s) -> tuple[Int64s, Int64s, Int64s | int]:
        """Lane, offset within the lane's epoch and epoch of each slot; one int where all epochs are equal."""
        slots = np.asarray(slots, np.int64)
        if slots.size and slots.view(np.uint64).max() >= self.spec.global_batch:
            raise ConfigError(
                f"slots must be in [0, {self.spec.global_batch}), got {slots.min()} to {slots.max()}"
            )
        lanes, offsets = np.divmod(slots, self.spec.per_lane)
        offsets += taken
        if self.spec.remainder != "wrap":
            return lanes, offsets, epoch
        lengths = self._starts[lanes + 1] - self._starts[lanes]
        passes = offsets // lengths
        return lanes, offsets - passes * lengths, passes

    def _at(self, offsets: Int64s, lanes: Int64s, epochs: Int64s | int) -> Int64s:
        """The record at each offset of the lane's epoch; offsets are within the lane."""
        starts = self._starts[lanes]
        if not self.spec.shuffle or not offsets.size:
            return starts + offsets
        if not isinstance(epochs, int) and (epochs == epochs[0]).all():
            epochs = int(epochs[0])
        if self._small:
            if isinstance(epochs, int):
                return starts + self._epoch_permutations(epochs)[lanes, offsets]
            table = permutation_table(self._keys(epochs, lanes), self._lengths[lanes])
            return starts + table[np.arange(len(lanes)), offsets]
        if isinstance(epochs, int):
            keys = self._epoch_round_keys(epochs)[:, lanes]
        else:
            keys = round_keys(self._keys(epochs, lanes))
        lengths, columns, rows = self._lengths[lanes], self._columns[lanes], self._rows[lanes]
        starts += permute(offsets.view(np.uint64), lengths, columns, rows, keys).view(np.int64)
        return starts

    def _keys(self, epochs: Int64s | int, lanes: Int64s) -> Words:
        """uint64 [n]: the key of the permutation of each lane in its epoch."""
        if isinstance(epochs, int):
            epoch_keys = key_of(Purpose.PERMUTATION, self.spec.seed, epochs)
        else:
            epoch_keys = fold(key_of(Purpose.PERMUTATION, self.spec.seed), epochs.view(np.uint64))
        return fold(epoch_keys, lanes.view(np.uint64))

    def _permutations_in(self, epoch: int) -> NDArray[np.uint16]:
        """uint16 [lanes, longest]: the permutations of all lanes, where they are small; kept for the
        epoch.
        """
        return permutation_table(self._keys(epoch, self._all_lanes), self._lengths)

    def _round_keys_in(self, epoch: int) -> Words:
        """uint64 [half rounds, lanes]: the round keys of all lanes; kept for the epoch."""
        return round_keys(self._keys(epoch, self._all_lanes))

    def _following(self, lane: int, offset: int, epoch: int) -> Iterator[int]:
        length = self.lane_length(lane)
        if offset >= length:
            return
        for first in range(1, length, _SUBSTITUTES_AT_ONCE):
            ahead = np.arange(first, min(first + _SUBSTITUTES_AT_ONCE, length), dtype=np.int64)
            lanes = np.full(ahead.shape, lane, np.int64)
            yield from self._at((offset + ahead) % length, lanes, epoch).tolist()
