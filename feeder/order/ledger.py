"""What became of every slot of an epoch: counted from what was delivered, one bit a record.

For each finished epoch: delivered + replaced + masked + dropped + lost = expected. In a sound stream lost and
repeated are 0. They are found out, not assumed: each record that was asked for sets its bit when it comes; a
bit that is set already makes it a repetition, a bit that is never set a loss. A slot filled by another record
as its own is an error.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError, ProtocolError
from feeder.order.bitmap import Bitmap, Bits, bits_of
from feeder.order.lanes import Int64s, Order

__all__ = ["EpochCounts", "Ledger", "SlotStatus"]

MAX_EPOCHS = 1000
"""Finished epochs that are kept one by one; the totals hold all."""
MAX_BAD = 100
"""Bad records that are kept by name."""
STEPS_AHEAD = 16
"""Steps whose records are calculated at a time."""
MAX_KINDS = 50
"""Kinds of reasons that are counted apart; the others are counted as OTHER."""
OTHER = "other reasons"

# What tells one record from the next: where it is, its name, bytes that came, numbers, checksums.
_PARTICULAR = (
    (re.compile(r"^at offset \d+: "), ""),
    (re.compile(r" *\([^()]*\)"), ""),
    (re.compile(r"\bb'[^']*'|\bb\"[^\"]*\""), "b'...'"),
    (re.compile(r"\b(?:[0-9a-f]{8}|0x[0-9A-Fa-f]+|\d+)\b"), "N"),
)


def kind_of(reason: str) -> str:
    """A reason without what tells one record from the next, so that it can be counted; at most 100 letters.

    "JPEG of 12 bits a sample, only 8 are supported" is "JPEG of N bits a sample, only N are supported".
    """
    for pattern, instead in _PARTICULAR:
        reason = pattern.sub(instead, reason)
    return reason.strip()[:100]


class SlotStatus(IntEnum):
    """What fills a slot; the numbers are those of feeder.proto."""

    OWN = 0
    SUBSTITUTE = 1
    BAD = 2
    PADDING = 3


# NumPy takes three times as long to compare an array with a member of an enumeration.
_OWN, _PADDING = int(SlotStatus.OWN), int(SlotStatus.PADDING)


@dataclass
class EpochCounts:
    """Slots of one consumer in one epoch (or in all).

    Attributes:
        expected: records that the consumer's lanes hold for the epoch, from where it was taken up.
        delivered: came as their own, for the first time.
        replaced: bad; the slot holds the next good record of the lane.
        masked: bad; the slot is masked.
        dropped: left over by remainder "drop".
        lost: never came.
        repeated: slots whose record had come before. A substitute comes for the record that it replaces.
        padding: masked slots that stand for no record.
    """

    expected: int = 0
    delivered: int = 0
    replaced: int = 0
    masked: int = 0
    dropped: int = 0
    lost: int = 0
    repeated: int = 0
    padding: int = 0

    def add(self, other: EpochCounts) -> None:
        """Adds other's counts to these."""
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __copy__(self) -> EpochCounts:
        return EpochCounts(**vars(self))

    @property
    def remaining(self) -> int:
        """Expected, and neither come nor given up so far."""
        return self.expected - self.delivered - self.replaced - self.masked - self.dropped - self.lost

    def to_dict(self) -> dict[str, int]:
        """The counts by name."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        parts = [f"{self.delivered:,} delivered"]
        parts += [
            f"{getattr(self, name):,} {name}"
            for name in ("replaced", "masked", "dropped")
            if getattr(self, name)
        ]
        text = (
            f"{self.expected:,} expected: {', '.join(parts)}, {self.lost:,} lost, {self.repeated:,} repeated"
        )
        return text + (f", {self.remaining:,} to come" if self.remaining else "")


_NAMES = tuple(field.name for field in dataclasses.fields(EpochCounts))


# What booking a step may change, besides the bitmap.
_STATE = (
    *("_counts", "_past", "_finished", "_epoch", "_open", "_passes", "_due", "_booked"),
    *("_bad", "_bad_not_listed", "_bad_reasons"),
)
_COUNTED = ("_counts", "_booked")
"""What a step of the running epoch changes, where no bad record was met."""


class Ledger:
    """The account of one consumer of one stream. Not thread-safe.

    Under remainder "wrap", where all passes are one endless epoch, a lane's pass is closed when its next one
    begins; there is one running account and no finished epochs.
    """

    def __init__(
        self,
        order: Order,
        consumer_index: int = 0,
        consumer_count: int = 1,
        *,
        epoch: int = 0,
        taken: int = 0,
    ) -> None:
        """An account that begins at a position: its first epoch expects only what is left of it.

        Raises:
            ConfigError: no such step or consumer.
        """
        order.check(epoch, taken)
        self._order = order
        self._consumer = (consumer_index, consumer_count)
        self._slots = order.consumer_slots(consumer_index, consumer_count)
        self._ahead: dict[tuple[int, int], tuple[bytes, Bits | None]] = {}
        self._whole = np.arange(self._slots.start, self._slots.stop)
        self._wraps = order.spec.remainder == "wrap"
        lanes = order.consumer_lanes(consumer_index, consumer_count)
        starts = [order.lane_start(lane) for lane in range(lanes.start, lanes.stop + 1)]
        self._first = starts[0]
        self._starts = np.array(starts, np.int64) - self._first
        self._seen = Bitmap(starts[-1] - starts[0])
        self._finished: deque[tuple[int, EpochCounts]] = deque(maxlen=MAX_EPOCHS)
        self._past = EpochCounts()
        self._bad: dict[int, dict[str, Any]] = {}
        self._bad_not_listed = 0
        self._bad_reasons: dict[str, int] = {}
        self._booked = 0
        lengths = np.diff(self._starts)
        # Under "wrap" the pass of each lane, and how many of its records are still to come.
        self._passes = taken // np.maximum(lengths, 1)
        self._due = lengths - taken % np.maximum(lengths, 1)
        self._epoch, self._counts, self._open = epoch, self._expect(taken), True

    @property
    def epoch(self) -> int:
        """The epoch that is being accounted, or comes next."""
        return self._epoch

    @property
    def current(self) -> EpochCounts:
        """A copy of the counts of the running epoch."""
        return copy.copy(self._counts)

    @property
    def finished(self) -> list[tuple[int, EpochCounts]]:
        """(epoch, counts) of finished epochs, the last 1000."""
        return list(self._finished)

    @property
    def totals(self) -> EpochCounts:
        """The counts of all epochs, the running one included."""
        totals = copy.copy(self._past)
        totals.add(self._counts)
        return totals

    @property
    def booked(self) -> int:
        """How often `account` has booked something."""
        return self._booked

    def account(
        self,
        epoch: int,
        taken: int,
        slots: Int64s | None,
        given: Int64s,
        status: NDArray[np.uint8],
        bad: Iterable[tuple[int, str, int, str]] = (),
    ) -> None:
        """Books slots of one step as handed over: a chunk, or the consumer's whole part of the step.

        A step of the next epoch finishes the running one. Under "wrap", book whole steps in their order. All
        is booked or nothing: where a KeyboardInterrupt comes on the way, `booked` says which.

        Args:
            epoch, taken: the step.
            slots: int64 [n], slots of the global step that belong to this consumer; None: all of them.
            given: int64 [n], the record that fills each slot; -1 for padding.
            status: uint8 [n] of `SlotStatus`.
            bad: (record, shard, index, reason) of each bad record that was met, as for `note_bad`.

        Raises:
            ProtocolError: what was given cannot be an answer to these slots.
            ConfigError: no such step, or none that this account can take next.
        """
        bad = tuple(bad)
        if slots is None:
            if not bad and self._account_whole(epoch, taken, given, status):
                return
            slots = self._whole
        elif slots.size and not (slots.min() in self._slots and slots.max() in self._slots):
            raise ConfigError(
                f"slots of consumer {self._consumer[0]} are in [{self._slots.start}, {self._slots.stop}), "
                f"got {slots.min()} to {slots.max()}"
            )
        asked = self._order.records(epoch, taken, slots)
        marked = asked - self._first
        real = asked >= 0
        wrong = (status > _PADDING) | ((status == _PADDING) == real)
        wrong |= (status == _OWN) & (given != asked)
        if wrong.any():
            place = int(wrong.argmax())
            raise ProtocolError(
                f"epoch {epoch}, taken {taken}, slot {slots[place]}: record {given[place]} with status "
                f"{status[place]} came for record {asked[place]}"
            )
        wraps = self._wraps
        if epoch > self._epoch + self._open and not wraps:
            raise ConfigError(f"the account stands in epoch {self._epoch}, got a step of epoch {epoch}")
        clears = epoch > self._epoch or wraps
        bits = self._seen.saved(None if clears else marked[real])
        changing = _STATE if clears or bad or not self._open else _COUNTED
        state = {name: copy.copy(getattr(self, name)) for name in changing}
        try:
            if wraps:
                passes = self._order.epochs_of(epoch, taken, slots)
                for number in np.unique(passes):
                    here = passes == number
                    self._book_pass(int(number), slots[here], marked[here], status[here])
            else:
                self._book_step(epoch, marked, status, real)
            for found in bad:
                self.note_bad(*found)
            self._booked += 1
        except BaseException:
            self._seen.restore(bits)
            for name, value in state.items():
                setattr(self, name, value)
            raise

    def _account_whole(self, epoch: int, taken: int, given: Int64s, status: NDArray[np.uint8]) -> bool:
        """Books the consumer's whole part of a step where all is as it nearly always is: a step of the
        running epoch, with its own records, none of which has come before. Returns False, and does nothing,
        where it is not."""
        if epoch != self._epoch or not self._open or self._wraps or any(status.tobytes()):
            return False
        asked, bits = self._asked_whole(epoch, taken)
        if given.tobytes() != asked or bits is None or self._seen.has_any(bits):
            return False
        delivered, booked = self._counts.delivered, self._booked
        try:
            self._seen.set(bits)
            self._counts.delivered = delivered + given.size
            self._booked = booked + 1
        except BaseException:
            self._seen.reset(bits)
            self._counts.delivered, self._booked = delivered, booked
            raise
        return True

    def _asked_whole(self, epoch: int, taken: int) -> tuple[bytes, Bits | None]:
        """The records that the consumer's whole part of a step asks for, int64, and their bits; None where
        some are padding. Of some steps ahead at a time, since that costs little more than of one."""
        if (epoch, taken) not in self._ahead:
            per_lane = self._order.spec.per_lane
            steps = min(STEPS_AHEAD, self._order.steps_per_epoch - taken // per_lane)
            records = self._order.records_of_steps(epoch, taken, self._whole, max(1, steps))
            lowest: Int64s = np.min(records, axis=1)
            self._ahead = {
                (epoch, taken + step * per_lane): (
                    asked.tobytes(),
                    bits_of(asked - self._first) if lowest[step] >= 0 else None,
                )
                for step, asked in enumerate(records)
            }
        return self._ahead[epoch, taken]

    def finish_epoch(self, epoch: int) -> None:
        """Closes the running epoch: what has not come by now is lost.

        Does nothing where it is closed already, and under "wrap".
        """
        if epoch > self._epoch:
            raise ConfigError(f"the account stands in epoch {self._epoch}, cannot finish epoch {epoch}")
        if epoch < self._epoch or self._wraps:
            return
        if not self._open:
            self._counts.add(self._expect(0))
        self._counts.lost = self._counts.remaining
        self._finished.append((epoch, self._counts))
        self._past.add(self._counts)
        self._seen.clear(0, int(self._starts[-1]))
        # The next epoch expects nothing before its first slot: the stream may end here.
        self._epoch, self._counts, self._open = epoch + 1, EpochCounts(), False

    def note_bad(self, record: int, shard: str, index: int, reason: str) -> None:
        """Names a bad record. The first 100 are listed, with how often they were found; others are
        counted. All are counted by reason, too.
        """
        if record in self._bad:
            known = self._bad[record]
            self._bad[record] = {**known, "times": known["times"] + 1}  # `account` may go back to the old one
            return
        kind = kind_of(reason)
        if kind not in self._bad_reasons and len(self._bad_reasons) >= MAX_KINDS:
            kind = OTHER
        self._bad_reasons[kind] = self._bad_reasons.get(kind, 0) + 1
        if len(self._bad) < MAX_BAD:
            self._bad[record] = {
                "record": record,
                "shard": shard,
                "index": index,
                "reason": reason,
                "times": 1,
            }
        else:
            self._bad_not_listed += 1

    def to_dict(self) -> dict[str, Any]:
        """The whole account as JSON-safe values."""
        return {
            "consumer_index": self._consumer[0],
            "consumer_count": self._consumer[1],
            "remainder": self._order.spec.remainder,
            "totals": self.totals.to_dict(),
            "finished": [{"epoch": epoch, **counts.to_dict()} for epoch, counts in self._finished],
            "current": {"epoch": self._epoch, **self._counts.to_dict(), "remaining": self._counts.remaining},
            "bad": list(map(dict, self._bad.values())),
            "bad_not_listed": self._bad_not_listed,
            "bad_reasons": dict(self._bad_reasons),
        }

    def __str__(self) -> str:
        bad = len(self._bad) + self._bad_not_listed
        return f"{self.totals}" + (f"; {bad:,} bad record{'s' if bad != 1 else ''}" if bad else "")

    def __repr__(self) -> str:
        return f"<Ledger: {self}>"

    def _expect(self, taken: int) -> EpochCounts:
        """The counts at the start of an epoch that is taken up after `taken` samples of each lane."""
        lengths = np.diff(self._starts)
        spec = self._order.spec
        if spec.remainder == "wrap":
            return EpochCounts(expected=int(self._due.sum()))
        counts = EpochCounts(expected=int(np.maximum(lengths - taken, 0).sum()))
        if spec.remainder == "drop":
            counts.dropped = int((lengths - self._order.steps_per_epoch * spec.per_lane).sum())
        return counts

    def _book_step(
        self, epoch: int, marked: Int64s, status: NDArray[np.uint8], real: NDArray[np.bool_]
    ) -> None:
        if epoch > self._epoch:
            self.finish_epoch(self._epoch)
        if epoch < self._epoch:
            self._counts.repeated += int(real.sum())
            return
        if not self._open:
            self._counts.add(self._expect(0))
            self._open = True
        self._counts.padding += int(real.size - real.sum())
        self._book(marked[real], status[real])

    def _book(self, marked: Int64s, status: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Counts slots by the records that they stand for (from the consumer's first); which were new?"""
        new = self._seen.add(marked)
        kinds = np.bincount(status[new], minlength=3)
        self._counts.delivered += int(kinds[SlotStatus.OWN])
        self._counts.replaced += int(kinds[SlotStatus.SUBSTITUTE])
        self._counts.masked += int(kinds[SlotStatus.BAD])
        self._counts.repeated += int(marked.size - new.sum())
        return new

    def _book_pass(self, number: int, slots: Int64s, marked: Int64s, status: NDArray[np.uint8]) -> None:
        """`_book` for slots of one pass under "wrap", closing the passes that it ends."""
        for lane in np.unique((slots - self._slots.start) // self._order.spec.per_lane):
            ahead = number - int(self._passes[lane])
            if ahead > 0:
                start, stop = int(self._starts[lane]), int(self._starts[lane + 1])
                self._counts.lost += int(self._due[lane]) + (ahead - 1) * (stop - start)
                self._counts.expected += ahead * (stop - start)
                self._seen.clear(start, stop)
                self._passes[lane], self._due[lane] = number, stop - start
        lanes = np.searchsorted(self._starts, marked, side="right") - 1
        late = self._passes[lanes] > number
        self._counts.repeated += int(late.sum())
        new = self._book(marked[~late], status[~late])
        np.subtract.at(self._due, lanes[~late][new], 1)
