from __future__ import annotations

from collections import Counter
from itertools import islice
from math import sqrt

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.order import Order, default_lanes
from feeder.spec import MAX_LANES, Remainder, StreamSpec


def make(
    records: int,
    batch: int,
    lanes: int,
    remainder: Remainder = "drop",
    *,
    seed: int = 0,
    shuffle: bool = True,
) -> Order:
    return Order(StreamSpec("d", batch, lanes, seed=seed, remainder=remainder, shuffle=shuffle), records)


def step(order: Order, epoch: int, number: int) -> list[int]:
    """The records of a whole global step."""
    spec = order.spec
    return order.records(epoch, number * spec.per_lane, np.arange(spec.global_batch)).tolist()


def epoch_of(order: Order, epoch: int) -> list[int]:
    return [record for number in range(order.steps_per_epoch) for record in step(order, epoch, number)]


shapes = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda pair: (pair[0] * pair[1], pair[0]))
"""(global batch, lanes)"""


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 700), shapes, st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.booleans())
def test_padded_epoch_has_every_record_exactly_once(
    records: int, shape: tuple[int, int], seed: int, epoch: int, shuffle: bool
) -> None:
    order = make(records, *shape, "pad", seed=seed, shuffle=shuffle)
    came = epoch_of(order, epoch)
    assert sorted(record for record in came if record >= 0) == list(range(records))
    assert len(came) == -(-records // shape[0]) * shape[0]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 700), shapes, st.integers(0, 2**63 - 1), st.integers(0, 2**40))
def test_dropping_epoch_has_full_steps_of_different_records(
    records: int, shape: tuple[int, int], seed: int, epoch: int
) -> None:
    order = make(records, *shape, seed=seed)
    shortest = min(order.lane_length(lane) for lane in range(shape[1]))
    assert order.steps_per_epoch == records // shape[0] == shortest // order.spec.per_lane
    came = epoch_of(order, epoch)
    assert len(set(came)) == len(came) == order.steps_per_epoch * shape[0]
    assert not came or 0 <= min(came) <= max(came) < records


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 400), shapes, st.integers(1, 4), st.booleans())
def test_wrapping_lane_is_its_epochs_one_after_another(
    records: int, shape: tuple[int, int], passes: int, shuffle: bool
) -> None:
    """Each lane's stream is cut from the orders that a padding stream gives the same lane in epochs 0, 1,
    ...
    """
    assume(records >= shape[1])
    order = make(records, *shape, "wrap", shuffle=shuffle)
    padded = make(records, *shape, "pad", shuffle=shuffle)
    per_lane = order.spec.per_lane
    streams: list[list[int]] = [[] for _ in range(shape[1])]
    epochs: list[list[int]] = [[] for _ in range(shape[1])]
    slots = np.arange(shape[0])
    for number in range(order.steps(passes)):
        own_epochs = order.epochs_of(0, number * per_lane, slots).tolist()
        for slot, (record, epoch) in enumerate(zip(step(order, 0, number), own_epochs, strict=True)):
            streams[slot // per_lane].append(record)
            epochs[slot // per_lane].append(epoch)
    for lane, stream in enumerate(streams):
        length = order.lane_length(lane)
        assert len(stream) >= passes * length
        assert epochs[lane] == [place // length for place in range(len(stream))]
        whole = [
            record
            for epoch in range(len(stream) // length + 1)
            for record in epoch_of(padded, epoch)
            if order.lane_start(lane) <= record < order.lane_start(lane + 1)
        ]
        assert stream == whole[: len(stream)]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 10**12), st.integers(1, 400))
def test_lanes_cut_the_records_evenly(records: int, lanes: int) -> None:
    order = make(records, lanes, lanes)
    lengths = [order.lane_length(lane) for lane in range(lanes)]
    assert order.lane_start(0) == 0
    assert sum(lengths) == order.lane_start(lanes) == records
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("remainder", ["drop", "pad", "wrap"])
@pytest.mark.parametrize("records", [1000, 20_000])
def test_consumers_share_the_same_global_steps(records: int, remainder: Remainder) -> None:
    """P06, P08: with 1, 2 or 4 consumers each step holds the same records in the same slots, each slot
    once.
    """
    order = make(records, 64, 16, remainder)
    for number in range(min(order.steps(2), 40)):
        epoch = 0 if remainder == "wrap" else number // order.steps_per_epoch
        taken = (number if remainder == "wrap" else number % order.steps_per_epoch) * order.spec.per_lane
        whole = order.records(epoch, taken, np.arange(64)).tolist()
        for count in (1, 2, 4):
            parts = [order.consumer_slots(index, count) for index in range(count)]
            assert {len(part) for part in parts} == {64 // count}
            assert whole == [
                r for part in parts for r in order.records(epoch, taken, np.array(part)).tolist()
            ]


def test_any_slot_can_be_asked_alone_and_in_any_order() -> None:
    """Random access: what a chunk holds does not depend on what was asked before or beside it."""
    slots = np.random.default_rng(0).permutation(96)
    for remainder in ("drop", "pad", "wrap"):
        order = make(7_000, 96, 24, remainder)
        whole = np.array(step(order, 0, 5))
        assert np.array_equal(order.records(0, 20, slots), whole[slots])
        fresh = make(7_000, 96, 24, remainder)
        assert [int(fresh.records(0, 20, np.array([slot]))[0]) for slot in slots] == whole[slots].tolist()


@given(st.sampled_from([70, 90, 40_000]), st.sampled_from(["drop", "pad", "wrap"]), st.data())
def test_steps_at_a_time_are_those_one_by_one(
    records: int, remainder: Remainder, data: st.DataObject
) -> None:
    order = Order(StreamSpec("d", 12, 4, remainder=remainder), records)
    last = 10**6 if remainder == "wrap" else order.steps_per_epoch - 1
    first = data.draw(st.integers(0, last))
    steps = data.draw(st.integers(1, min(20, last - first + 1)))
    epoch = 0 if remainder == "wrap" else data.draw(st.integers(0, 3))
    slots = np.array(data.draw(st.lists(st.integers(0, 11), min_size=1)))
    found = order.records_of_steps(epoch, 3 * first, slots, steps)
    for number, records_of_step in enumerate(found, first):
        assert records_of_step.tolist() == order.records(epoch, 3 * number, slots).tolist()
    if remainder != "wrap":
        with pytest.raises(ConfigError, match="an epoch takes"):
            order.records_of_steps(epoch, 3 * first, slots, last - first + 2)


def test_each_epoch_has_an_order_of_its_own_within_the_same_lanes() -> None:
    order = make(4_000, 8, 8, "pad")
    first, second = (np.array(epoch_of(order, epoch)).reshape(-1, 8) for epoch in (0, 1))
    assert (first == second).mean() < 0.01
    for lane in range(8):
        assert set(first[:, lane]) == set(second[:, lane])


@pytest.mark.parametrize("records", [2_000, 40_000])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 0), (0, 1)),
        ((5, 3), (3, 5)),
        ((0, 2), (1, 1)),
        ((2**63 - 1, 0), (2**63 - 2, 1)),
        ((2**63 - 1, 1), (0, 0)),
        ((2**62, 0), (0, 2**62 - 1)),
    ],
)
def test_seed_and_epoch_never_alias(records: int, one: tuple[int, int], other: tuple[int, int]) -> None:
    """Seed + 1 in an epoch is unrelated to the same seed in the next one, also for seeds near 2**63."""
    orders = []
    for seed, epoch in (one, other):
        order = make(records, 16, 16, seed=seed)
        orders.append(
            np.array([step(order, epoch, number) for number in range(100)]) - np.arange(16) * records / 16
        )
    assert (orders[0] == orders[1]).sum() < 16 * 100 * 16 / records * 4 + 10
    assert abs(np.corrcoef(orders[0].ravel(), orders[1].ravel())[0, 1]) < 5 / sqrt(1600)


def test_lanes_have_unrelated_orders() -> None:
    order = make(16 * 1000, 16, 16)
    places = np.array([step(order, 0, number) for number in range(1000)]) - np.arange(16) * 1000
    assert np.abs(np.corrcoef(places.T) - np.eye(16)).max() < 5 / sqrt(1000)


def test_without_shuffle_a_lane_comes_in_shard_order() -> None:
    order = make(24, 4, 2, shuffle=False)
    assert step(order, 0, 0) == [0, 1, 12, 13]
    assert step(order, 9, 5) == [10, 11, 22, 23]


@pytest.mark.parametrize("remainder", ["drop", "pad", "wrap"])
@pytest.mark.parametrize("records", [50, 5_000])
def test_substitutes_are_the_rest_of_the_lane_in_its_own_order(records: int, remainder: Remainder) -> None:
    """P05: whatever is bad, a slot always finds another record of its lane, the same for everybody."""
    order = make(records, 8, 4, remainder)
    per_lane = order.spec.per_lane
    lane, taken = 2, 3 * per_lane
    ahead = order.substitutes(0, taken, lane * per_lane)
    following = [step(order, 0, 3)[lane * per_lane + 1], *step(order, 0, 4)[lane * per_lane :][:2]]
    assert list(islice(ahead, 3)) == following
    own = step(order, 0, 3)[lane * per_lane]
    candidates = list(order.substitutes(0, taken, lane * per_lane))
    assert len(candidates) == order.lane_length(lane) - 1
    assert {own, *candidates} == set(range(order.lane_start(lane), order.lane_start(lane + 1)))


def test_substitutes_under_wrap_come_from_the_running_pass() -> None:
    order, padded = make(40, 4, 4, "wrap"), make(40, 4, 4, "pad")
    assert list(order.substitutes(0, 23, 1)) == list(padded.substitutes(2, 3, 1))


def test_padding_has_no_substitutes() -> None:
    order = make(5, 4, 2, "pad")
    taken, slots = 2, np.arange(4)
    for slot, record in zip(slots.tolist(), order.records(0, taken, slots).tolist(), strict=True):
        assert bool(list(order.substitutes(0, taken, slot))) == (record >= 0)


def test_24_records_in_batches_of_20() -> None:
    lanes = default_lanes(24, 20, 4)
    assert lanes == 4
    dropping, padding, wrapping = (make(24, 20, lanes, remainder) for remainder in ("drop", "pad", "wrap"))
    assert (dropping.steps_per_epoch, padding.steps_per_epoch, wrapping.steps(1)) == (1, 2, 2)
    left = [set(range(24)) - set(epoch_of(dropping, epoch)) for epoch in range(30)]
    assert all(len(records) == 4 for records in left)
    assert len({record for records in left for record in records}) > 4  # other records each epoch
    assert Counter(epoch_of(padding, 0)) == {-1: 16, **dict.fromkeys(range(24), 1)}
    assert set(step(wrapping, 0, 0) + step(wrapping, 0, 1)) == set(range(24))


def test_one_shard_and_four_consumers() -> None:
    """P04: ten records serve four consumers with equal numbers of steps, every record once."""
    order = make(10, 8, default_lanes(10, 8, 4), "pad")
    came: list[int] = []
    for consumer in range(4):
        slots = np.array(order.consumer_slots(consumer, 4))
        for number in range(order.steps_per_epoch):
            came += order.records(0, number * order.spec.per_lane, slots).tolist()
    assert sorted(record for record in came if record >= 0) == list(range(10))


def test_data_set_smaller_than_a_batch() -> None:
    order = make(7, 16, 4)
    assert order.steps_per_epoch == 0
    with pytest.raises(ConfigError, match=r"7 records do not fill one global batch of 16.*'wrap'.*'pad'"):
        order.check_steps()
    with pytest.raises(ConfigError, match="do not fill one global batch"):
        order.records(0, 0, np.arange(16))
    padded = make(7, 16, 4, "pad")
    assert sorted(step(padded, 0, 0)) == [-1] * 9 + list(range(7))
    wrapped = make(7, 16, 4, "wrap")
    assert set(step(wrapped, 0, 0)) == set(range(7))
    for fine in (padded, wrapped):
        fine.check_steps()


def test_fewer_records_than_lanes() -> None:
    with pytest.raises(ConfigError, match="3 records cannot fill 4 lanes"):
        make(3, 4, 4, "wrap")
    assert sorted(step(make(3, 4, 4, "pad"), 0, 0)) == [-1, 0, 1, 2]


@pytest.mark.parametrize(
    ("epoch", "taken", "slots", "words"),
    [
        (-1, 0, [0], "epoch and taken must be in"),
        (2**62, 0, [0], "epoch and taken must be in"),
        (0, 1, [0], "multiple of 2"),
        (0, 12, [0], "takes 12 samples of each lane"),
        (0, 0, [-1], r"slots must be in \[0, 4\)"),
        (0, 0, [0, 4], r"slots must be in \[0, 4\)"),
    ],
)
def test_what_is_no_step_or_slot_is_refused(epoch: int, taken: int, slots: list[int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(24, 4, 2).records(epoch, taken, np.array(slots))


def test_wrap_knows_epoch_0_only() -> None:
    with pytest.raises(ConfigError, match="epoch stays 0"):
        make(24, 4, 2, "wrap").records(1, 0, np.arange(4))


@pytest.mark.parametrize("records", [0, -1, 2**40 + 1])
def test_order_needs_records(records: int) -> None:
    with pytest.raises(ConfigError, match="between 1 and"):
        make(records, 4, 2)


@pytest.mark.parametrize(("index", "count"), [(0, 3), (0, 0), (2, 2), (-1, 2)])
def test_consumers_must_divide_the_lanes(index: int, count: int) -> None:
    with pytest.raises(ConfigError, match="consumer"):
        make(24, 4, 4).consumer_slots(index, count)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 10**7), st.integers(1, 64), st.integers(1, 600))
def test_default_lanes_is_the_largest_that_fits(records: int, consumers: int, share: int) -> None:
    batch = share * consumers
    most = max(consumers, min(records // 4, max(256, 8 * consumers)))
    fitting = [n for n in range(1, most + 1) if batch % n == 0 and n % consumers == 0]
    assert default_lanes(records, batch, consumers) == max(fitting)


@pytest.mark.parametrize("records", [8, 40, 600, 1023])
@pytest.mark.parametrize("batch", [1, 8, 32, 256, 1000])
def test_default_lanes_leave_a_bad_record_its_substitutes(records: int, batch: int) -> None:
    order = make(records, batch, default_lanes(records, batch, 1), "wrap")
    assert all(len(list(order.substitutes(0, 0, slot))) >= 3 for slot in range(0, batch, 7))


def test_default_lanes_refuses_an_uneven_batch() -> None:
    with pytest.raises(ConfigError, match="20 slots for 3 consumers"):
        default_lanes(24, 20, 3)


def test_many_slots_of_many_passes_agree_with_one_at_a_time() -> None:
    """Lanes of one or two records, and of hundreds: one step holds several passes of a lane."""
    for records, batch, lanes in ((7, 64, 4), (1_100, 4_400, 2)):
        order = make(records, batch, lanes, "wrap")
        slots = np.arange(batch)
        whole = order.records(0, 3 * batch // lanes, slots).tolist()
        alone = [int(order.records(0, 3 * batch // lanes, slots[i : i + 1])[0]) for i in range(0, batch, 7)]
        assert whole[::7] == alone


def test_default_lanes_stay_within_what_a_spec_allows() -> None:
    assert default_lanes(2**40, 2**20, 2**14) == MAX_LANES
    with pytest.raises(ConfigError, match="at most 65536 lanes"):
        StreamSpec("d", 2**20, 2**17)
    with pytest.raises(ConfigError, match=r"global batch must be in \[1, 1048576\]"):
        StreamSpec("d", 2**40, 1)
