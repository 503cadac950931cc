from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError, ProtocolError
from feeder.order import EpochCounts, Ledger, Order, SlotStatus
from feeder.order.bitmap import Bitmap
from feeder.spec import Remainder, StreamSpec


def make(records: int = 50, batch: int = 8, lanes: int = 4, remainder: Remainder = "drop") -> Order:
    return Order(StreamSpec("d", batch, lanes, remainder=remainder), records)


def hand_over(
    ledger: Ledger,
    order: Order,
    epoch: int,
    number: int,
    slots: range,
    bad: set[int] | None = None,
    *,
    named: bool = False,
    whole: bool = False,
) -> None:
    """Books slots of a step as a sound worker fills them: bad records replaced, or masked in evaluation; the
    account is told which if they are `named`, and not which slots if they are the `whole` part."""
    taken = number * order.spec.per_lane
    given, status, found = [], [], []
    for slot, record in zip(slots, order.records(epoch, taken, np.array(slots)).tolist(), strict=True):
        kind = SlotStatus.OWN if record >= 0 else SlotStatus.PADDING
        if record in (bad or ()):
            found.append((record, "train-00000", record, "crc differs"))
            kind = SlotStatus.BAD if order.spec.remainder == "pad" else SlotStatus.SUBSTITUTE
            if kind == SlotStatus.SUBSTITUTE:
                record = next(r for r in order.substitutes(epoch, taken, slot) if r not in (bad or ()))
        given.append(record)
        status.append(kind)
    filled = np.array(given), np.array(status, np.uint8)
    ledger.account(epoch, taken, None if whole else np.array(slots), *filled, found if named else ())


def adds_up(counts: EpochCounts) -> bool:
    parts = counts.delivered + counts.replaced + counts.masked + counts.dropped + counts.lost
    return parts + counts.remaining == counts.expected


@settings(deadline=None, max_examples=60)
@given(
    st.integers(8, 300),
    st.sampled_from(["drop", "pad"]),
    st.sampled_from([1, 2, 4]),
    st.sets(st.integers(0, 300), max_size=3),
)
def test_sound_epochs_lose_and_repeat_nothing(
    records: int, remainder: Remainder, consumers: int, bad: set[int]
) -> None:
    order = make(records, remainder=remainder)
    bad = {record for record in bad if record < records}
    if any(len(bad) >= order.lane_length(lane) for lane in range(4)):
        bad = set()
    sums = EpochCounts()
    for consumer in range(consumers):
        ledger = Ledger(order, consumer, consumers)
        for epoch in range(2):
            for number in range(order.steps_per_epoch):
                hand_over(ledger, order, epoch, number, order.consumer_slots(consumer, consumers), bad)
            ledger.finish_epoch(epoch)
        assert [epoch for epoch, _ in ledger.finished] == [0, 1]
        for _, counts in ledger.finished:
            assert adds_up(counts)
            assert counts.lost == counts.repeated == counts.remaining == 0
            sums.add(counts)
    assert sums.expected == 2 * records
    slots = 2 * order.steps_per_epoch * 8
    assert sums.delivered + sums.replaced + sums.masked + sums.padding == slots
    if remainder == "pad":
        assert (sums.masked, sums.dropped, sums.replaced) == (2 * len(bad), 0, 0)


def test_data_set_smaller_than_a_batch_pads_every_epoch() -> None:
    order = make(5, remainder="pad")
    ledger = Ledger(order)
    for epoch in range(3):
        hand_over(ledger, order, epoch, 0, range(8))
        ledger.finish_epoch(epoch)
        hand_over(ledger, order, epoch, 0, range(8))  # late, and counted in the epoch after
    assert [counts.padding for _, counts in ledger.finished] == [3, 3, 3]
    assert [counts.repeated for _, counts in ledger.finished] == [0, 5, 5]
    assert ledger.totals == EpochCounts(expected=15, delivered=15, padding=9, repeated=15)


def test_a_step_that_never_came_is_lost_and_one_that_came_twice_is_repeated() -> None:
    order = make(48)
    ledger = Ledger(order)
    for number in (0, 1, 1, 3, 4, 5):
        hand_over(ledger, order, 0, number, range(8))
    hand_over(ledger, order, 1, 0, range(8))
    ((epoch, counts),) = ledger.finished
    assert epoch == 0
    assert (counts.expected, counts.delivered, counts.lost, counts.repeated) == (48, 40, 8, 8)
    hand_over(ledger, order, 0, 2, range(8))  # too late
    assert ledger.current.repeated == 8
    assert ledger.totals.lost == 8


def test_an_epoch_that_is_finished_without_a_slot_is_lost() -> None:
    order = make(50)
    ledger = Ledger(order)
    for epoch in range(2):
        ledger.finish_epoch(epoch)
    assert ledger.totals == EpochCounts(expected=100, dropped=4, lost=96)


def test_another_record_than_the_order_names_is_an_error() -> None:
    order = make(48)
    ledger = Ledger(order)
    given = order.records(0, 0, np.arange(8))
    asked = given[3]
    given[3] = order.records(0, 2, np.array([3]))[0]
    with pytest.raises(ProtocolError, match=f"slot 3: record {given[3]} .* came for record {asked}"):
        ledger.account(0, 0, np.arange(8), given, np.zeros(8, np.uint8))
    assert ledger.totals == EpochCounts(expected=48)


def test_chunks_of_a_step_may_come_in_any_order() -> None:
    order = make(48)
    ledger = Ledger(order, 1, 2)
    for number in range(6):
        for slots in (range(6, 8), range(4, 6)):
            hand_over(ledger, order, 0, number, slots)
    assert ledger.current == EpochCounts(expected=24, delivered=24)


def test_a_resumed_epoch_expects_only_what_remained() -> None:
    order = make(50)
    ledger = Ledger(order, epoch=3, taken=8)
    assert ledger.current == EpochCounts(expected=50 - 4 * 8, dropped=2)
    for number in (4, 5):
        hand_over(ledger, order, 3, number, range(8))
    ledger.finish_epoch(3)
    assert ledger.finished == [(3, EpochCounts(expected=18, delivered=16, dropped=2))]
    padded = make(50, remainder="pad")
    ledger = Ledger(padded, taken=12)
    hand_over(ledger, padded, 0, 6, range(8))
    assert ledger.current == EpochCounts(expected=2, delivered=2, padding=6)


@pytest.mark.parametrize(("records", "consumers"), [(7, 1), (50, 1), (50, 2), (203, 4)])
def test_wrap_accounts_each_pass_of_each_lane(records: int, consumers: int) -> None:
    order = make(records, remainder="wrap")
    for consumer in range(consumers):
        ledger = Ledger(order, consumer, consumers)
        slots = order.consumer_slots(consumer, consumers)
        for number in range(100):
            hand_over(ledger, order, 0, number, slots)
            assert adds_up(ledger.totals)
        counts = ledger.totals
        assert (counts.delivered, counts.lost, counts.repeated) == (100 * len(slots), 0, 0)
        assert counts.remaining <= records
        hand_over(ledger, order, 0, 99, slots)
        assert ledger.totals.repeated == len(slots)


def test_wrap_finds_a_skipped_step_once_the_lanes_wrap() -> None:
    order = make(48, remainder="wrap")
    for first in (0, 4):
        ledger = Ledger(order, taken=2 * first)
        for number in range(first, first + 12):
            if number != first + 1:
                hand_over(ledger, order, 0, number, range(8))
        assert (ledger.totals.lost, ledger.totals.repeated) == (8, 0)
        assert adds_up(ledger.totals)


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        (None, SlotStatus.PADDING, "came for record"),
        (None, 4, "with status 4"),
        (49, SlotStatus.OWN, "record 49 with status 0"),  # of the other consumer
        (-1, SlotStatus.OWN, "record -1 with status 0"),
    ],
)
def test_answers_that_cannot_be_are_refused(given: int | None, status: int, words: str) -> None:
    order = make()
    ledger = Ledger(order, 0, 2)
    records = order.records(0, 0, np.array([2]))
    with pytest.raises(ProtocolError, match=words):
        ledger.account(
            0, 0, np.array([2]), records if given is None else np.array([given]), np.array([status], np.uint8)
        )


def test_steps_and_slots_of_others_are_refused() -> None:
    order = make()
    ledger = Ledger(order, 0, 2)
    with pytest.raises(ConfigError, match=r"consumer 0 are in \[0, 4\)"):
        hand_over(ledger, order, 0, 0, range(4, 8))
    with pytest.raises(ConfigError, match="stands in epoch 0, got a step of epoch 2"):
        hand_over(ledger, order, 2, 0, range(4))
    with pytest.raises(ConfigError, match="cannot finish epoch 1"):
        ledger.finish_epoch(1)


def test_account_as_json_and_as_one_line() -> None:
    order = make()
    ledger = Ledger(order)
    for number in range(6):
        hand_over(ledger, order, 0, number, range(8), {5})
    ledger.finish_epoch(0)
    for record in range(150):
        ledger.note_bad(record, "train-00000", record, "crc differs")
        ledger.note_bad(0, "train-00000", 0, "crc differs")
    saved = json.loads(json.dumps(ledger.to_dict()))
    assert len(saved["bad"]) == 100
    assert saved["bad_not_listed"] == 50
    assert saved["bad"][0] == {
        "record": 0,
        "shard": "train-00000",
        "index": 0,
        "reason": "crc differs",
        "times": 151,
    }
    assert saved["bad_reasons"] == {"crc differs": 150}
    assert saved["finished"][0]["epoch"] == 0
    line = str(ledger)
    assert "\n" not in line
    for part in ("0 lost, 0 repeated", "2 dropped", "150 bad records"):
        assert part in line
    assert repr(ledger) == f"<Ledger: {line}>"


def test_reasons_are_counted_without_what_is_particular_to_a_record() -> None:
    ledger = Ledger(make())
    reasons = [
        "at offset 2560: no label (cls;json), but jpg (sample '000001')",
        "at offset 512: no label (cls;json), but jpg (sample '000000')",
        "crc32c of the payload is ff24d969, the shard says 2747a653 (817 bytes, stored at offset 12)",
        "crc32c of the payload is 1f24d969, the shard says a747a653 (81 bytes, stored at offset 1)",
        "JPEG of 12 bits a sample, only 8 are supported",
        "not an image: starts with b'<html>'",
    ]
    for record, reason in enumerate(reasons):
        ledger.note_bad(record, "train-00000", record, reason)
        ledger.note_bad(record, "train-00000", record, reason)
    assert ledger.to_dict()["bad_reasons"] == {
        "no label, but jpg": 2,
        "crc32c of the payload is N, the shard says N": 2,
        "JPEG of N bits a sample, only N are supported": 1,
        "not an image: starts with b'...'": 1,
    }
    for record in range(10, 1000):
        ledger.note_bad(record, "train-00000", record, f"{chr(0x4E00 + record)} is wrong")
    counted = ledger.to_dict()["bad_reasons"]
    assert len(counted) == 51
    assert counted["other reasons"] == 990 - 46
    assert sum(counted.values()) == 996


def test_one_bad_record_is_one() -> None:
    ledger = Ledger(make())
    ledger.note_bad(3, "train-00000", 3, "crc differs")
    assert str(ledger).endswith("; 1 bad record")


def test_finished_epochs_are_bounded_and_totals_are_not() -> None:
    order = make(8)
    ledger = Ledger(order)
    for epoch in range(1005):
        hand_over(ledger, order, epoch, 0, range(8))
    ledger.finish_epoch(1004)
    assert len(ledger.finished) == 1000
    assert ledger.totals.delivered == 8 * 1005
    ledger.finish_epoch(1004)  # once more does nothing
    assert ledger.epoch == 1005


def test_bitmap_takes_an_eighth_of_a_byte_a_record() -> None:
    assert Bitmap(1_281_167).nbytes == 160_146


@settings(deadline=None)
@given(
    st.integers(1, 70),
    st.lists(st.one_of(st.lists(st.integers(0, 69)), st.tuples(st.integers(0, 70), st.integers(0, 70)))),
)
def test_bitmap_is_a_set(size: int, events: list[list[int] | tuple[int, int]]) -> None:
    bitmap, twin = Bitmap(size), set[int]()
    for event in events:
        if isinstance(event, tuple):
            start, stop = (min(place, size) for place in event)
            bitmap.clear(start, stop)
            twin -= set(range(start, stop))
            continue
        numbers = [number for number in event if number < size]
        fresh = []
        for number in numbers:
            fresh.append(number not in twin)
            twin.add(number)
        assert bitmap.add(np.array(numbers, np.int64)).tolist() == fresh
        assert len(bitmap) == len(twin)


class Interrupt:
    """A KeyboardInterrupt that comes at the n-th line that the ledger runs."""

    def __init__(self, line: int) -> None:
        self._left = line

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(("order/ledger.py", "order/bitmap.py")):
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self._trace


@given(
    st.integers(12, 100),  # more than bad ones in each lane
    st.sampled_from(["drop", "pad", "wrap"]),
    st.sampled_from([1, 2, 4]),
    st.sets(st.integers(0, 100), max_size=2),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=12),
)
def test_a_whole_part_counts_as_its_slots_do(
    records: int, remainder: Remainder, consumers: int, bad: set[int], extra: list[tuple[bool, int]]
) -> None:
    """In any order of steps, some of them twice."""
    order = make(records, remainder=remainder)
    slots = order.consumer_slots(consumers - 1, consumers)
    one, other = (Ledger(order, consumers - 1, consumers) for _ in range(2))
    steps, epoch = max(1, order.steps_per_epoch), 0
    for number in range(3 * order.steps_per_epoch):
        epoch = 0 if remainder == "wrap" else number // steps
        places = [(epoch, number if remainder == "wrap" else number % steps)]
        if number < len(extra) and remainder != "wrap" and extra[number][0]:
            places.append((epoch, extra[number][1] % steps))
        for place in places:
            hand_over(one, order, *place, slots, bad, named=True)
            hand_over(other, order, *place, slots, bad, named=True, whole=True)
            assert one.to_dict() == other.to_dict()
    if remainder != "wrap":
        one.finish_epoch(epoch)
        other.finish_epoch(epoch)
    assert one.to_dict() == other.to_dict()


@pytest.mark.parametrize(
    "wrong", [{"given": 0}, {"given": -1}, {"status": 4}, {"status": SlotStatus.PADDING}]
)
@pytest.mark.parametrize("remainder", ["drop", "pad", "wrap"])
def test_a_whole_part_that_cannot_be_is_refused(remainder: Remainder, wrong: dict[str, int]) -> None:
    order = make(remainder=remainder)
    ledger = Ledger(order)
    given, status = order.records(0, 0, np.arange(8)), np.zeros(8, np.uint8)
    before = ledger.to_dict()
    given[5] = given[wrong["given"]] if wrong.get("given") == 0 else wrong.get("given", given[5])
    status[5] = wrong.get("status", 0)
    with pytest.raises(ProtocolError, match="slot 5: "):
        ledger.account(0, 0, None, given, status)
    assert ledger.to_dict() == before


def test_padding_is_not_its_own() -> None:
    order = make(records=20, remainder="pad")
    ledger = Ledger(order)
    last = (order.steps_per_epoch - 1) * order.spec.per_lane
    given = order.records(0, last, np.arange(8))
    assert given.min() < 0
    with pytest.raises(ProtocolError, match="record -1 with status 0"):
        ledger.account(0, last, None, given, np.zeros(8, np.uint8))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("remainder", ["drop", "pad", "wrap"])
def test_an_interrupt_at_any_line_leaves_a_step_booked_or_not(remainder: Remainder, whole: bool) -> None:
    order = make(records=21, remainder=remainder)  # lanes of 5 and 6 records: passes end within steps
    steps = [
        (0, number) if remainder == "wrap" else divmod(number, order.steps_per_epoch) for number in range(5)
    ]
    sound, ledger = Ledger(order), Ledger(order)
    bad, interrupts = {2} if whole else {2, 6, 7, 15}, 0
    for number, (epoch, step) in enumerate(steps):
        for line in range(1, 1000):
            before = ledger.to_dict()
            try:
                with Interrupt(line):
                    hand_over(ledger, order, epoch, step, range(8), bad, named=True, whole=whole)
                break
            except KeyboardInterrupt:
                interrupts += 1
                if ledger.booked > number:
                    break
                assert ledger.to_dict() == before
        hand_over(sound, order, epoch, step, range(8), bad, named=True)
        assert ledger.to_dict() == sound.to_dict()
        assert ledger.booked == number + 1
    assert interrupts > 15 * len(steps)
    assert sound.to_dict()["bad"]
    assert sound.totals.repeated == 0
