"""Evaluation counts each record once, however many hosts share however few files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import feeder
from feeder.order import Order
from feeder.order.lanes import default_lanes
from feeder.spec import StreamSpec

IMAGES = 131


@pytest.fixture(scope="module")
def worker(pack_colours: Callable[..., Path], module_worker: Callable[..., str]) -> tuple[str, Counter[int]]:
    """A worker with the same images in 3 and in 128 files; how often each label is there."""
    sets = {f"in{shards}": f"{pack_colours(IMAGES, shards=shards)}/*" for shards in (3, 128)}
    return module_worker(**sets), Counter(number % 10 for number in range(IMAGES))


@pytest.mark.parametrize("consumers", [1, 2, 4, 8])
@pytest.mark.parametrize("dataset", ["in3", "in128"])
def test_every_record_counts_once(worker: tuple[str, Counter[int]], dataset: str, consumers: int) -> None:
    address, labels = worker
    seen: Counter[int] = Counter()
    steps = set()
    with feeder.connect(address) as client:
        for index in range(consumers):
            with client.stream(
                dataset,
                batch_size=16 // consumers,
                consumer_index=index,
                consumer_count=consumers,
                image_size=8,
                augment="eval",
            ) as stream:
                batches = list(stream)
                steps.add(len(batches))
                for batch in batches:
                    seen.update(batch.labels[batch.mask].tolist())
                booked = stream.ledger().totals
                assert booked.expected == sum(int(batch.mask.sum()) for batch in batches)
                assert (booked.lost, booked.repeated) == (0, 0)
    assert steps == {9}  # all hosts take as many steps, though one has less to do
    assert seen == labels


@pytest.mark.parametrize(("batch", "hosts"), [(256, 1), (1024, 8), (4096, 32), (32_768, 128), (65_536, 512)])
def test_the_validation_set_of_imagenet_is_50000_of_50000(batch: int, hosts: int) -> None:
    lanes = default_lanes(50_000, batch, hosts)
    spec = StreamSpec("validation", batch, lanes, augment="eval", remainder="pad")
    order = Order(spec, 50_000)
    counted = np.zeros(50_000, np.int64)
    for step in range(order.steps_per_epoch):
        for host in range(hosts):
            slots = np.array(order.consumer_slots(host, hosts), np.int64)
            records = order.records(0, step * spec.per_lane, slots)
            np.add.at(counted, records[records >= 0], 1)
    assert (counted == 1).all()
