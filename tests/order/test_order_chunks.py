from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.order import Order, assign, chunks, default_lanes, slots_by_worker
from feeder.spec import StreamSpec


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 32), st.integers(1, 5))
def test_each_slot_is_in_one_chunk_of_its_lane_s_worker(
    per_lane: int, lanes: int, max_slots: int, workers: int
) -> None:
    owners = assign(range(lanes), [f"w{number}" for number in range(workers)])
    slots = range(per_lane * lanes // 2 // per_lane * per_lane, per_lane * lanes)
    most = {f"w{number}": max(1, max_slots - number) for number in range(workers)}
    pieces = chunks(slots_by_worker(slots, per_lane, owners), most)
    assert sorted(slot for _, piece in pieces for slot in piece) == list(slots)
    for worker, piece in pieces:
        assert list(piece) == sorted(piece)
        assert all(owners[slot // per_lane] == worker for slot in piece)
    for worker in {worker for worker, _ in pieces}:
        sizes = [len(piece) for name, piece in pieces if name == worker]
        assert 0 < max(sizes) <= most[worker]
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-sum(sizes) // most[worker])
    assert [piece[0] for _, piece in pieces] == sorted(piece[0] for _, piece in pieces)


def test_one_shard_of_ten_records_and_four_workers() -> None:
    """P04: whoever makes them, two consumers get every record once, in equal numbers of steps."""
    lanes = default_lanes(10, 4, 2)
    order = Order(StreamSpec("one_shard", 4, lanes, remainder="pad"), 10)
    owners = assign(range(lanes), ["w0:1", "w1:1", "w2:1", "w3:1"])
    came, most = [], dict.fromkeys(owners.values(), 1)
    for consumer in range(2):
        slots = order.consumer_slots(consumer, 2)
        for step in range(order.steps_per_epoch):
            for _, piece in chunks(slots_by_worker(slots, order.spec.per_lane, owners), most):
                came += order.records(0, step * order.spec.per_lane, np.array(piece)).tolist()
    assert sorted(record for record in came if record >= 0) == list(range(10))


def test_chunks_are_few_and_even() -> None:
    assert [len(piece) for _, piece in chunks({"a": range(64)}, {"a": 16})] == [16] * 4
    assert [len(piece) for _, piece in chunks({"a": range(20)}, {"a": 16})] == [10, 10]
    assert chunks({"a": []}, {"a": 16}) == []


@pytest.mark.parametrize("max_slots", [0, -1, 65])
def test_chunk_size_is_bounded(max_slots: int) -> None:
    with pytest.raises(ConfigError, match=f"got max_slots {max_slots}"):
        chunks({"a": [0]}, {"a": max_slots})
