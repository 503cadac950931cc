"""What a worker holds does not grow with what it has served."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

import feeder
from feeder.records.pack import pack

EPOCHS = 20
SOAK_EPOCHS = 300
SETTLED = 4
"""Epochs after which buffers, file descriptors and the allocator's arenas have reached their size."""

SLACK_BYTES = 4 << 20
"""Allocators keep a little more or less at each look. A record leaked each epoch is 2 MB after 20."""


@pytest.mark.parametrize("epochs", [EPOCHS, pytest.param(SOAK_EPOCHS, marks=pytest.mark.soak)])
@pytest.mark.timeout(1800)
def test_memory_is_flat_over_epochs_of_real_files(
    epochs: int, imagenet_sample: Path, tmp_path: Path, start_worker: Callable[..., Any]
) -> None:
    shards = tmp_path / "shards"
    pack(imagenet_sample, shards, shards=4)
    worker = start_worker(shards)
    process = psutil.Process(worker.process.pid)
    resident, descriptors, threads = [], [], []
    with feeder.connect(worker.address) as client:
        stream = client.stream("data", batch_size=60, epochs=epochs, image_size=64)
        for number, _ in enumerate(stream, 1):
            if number % 10 == 0:
                resident.append(process.memory_info().rss)
                descriptors.append(process.num_fds())
                threads.append(process.num_threads())
        assert stream.ledger().totals.lost == 0
    assert len(resident) == epochs
    late = len(resident) // 4
    assert median(resident[-late:]) <= median(resident[SETTLED : SETTLED + late]) + SLACK_BYTES
    assert max(descriptors[SETTLED:]) == min(descriptors[SETTLED:])
    assert max(threads[SETTLED:]) <= max(threads[:SETTLED])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_cache_that_is_full_stays_as_it_is_over_epochs(
    imagenet_sample: Path,
    tmp_path: Path,
    start_worker: Callable[..., Any],
    wait_for_cache: Callable[[Any, int], None],
) -> None:
    pytest.importorskip("feeder.decode._kernel", reason="the cache is the native decoder's")
    shards, cache = tmp_path / "shards", tmp_path / "cache"
    pack(imagenet_sample, shards, shards=4)
    worker = start_worker(shards, "--cache-bytes", "1GiB", "--cache-dir", str(cache), "--warm")
    wait_for_cache(worker, 500)
    deadline_s = time.monotonic() + 60
    while "cache: warmed up: " not in worker.log.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    process = psutil.Process(worker.process.pid)
    seen = []
    with feeder.connect(worker.address) as client:
        stream = client.stream("data", batch_size=60, epochs=14, image_size=64)
        for number, _ in enumerate(stream, 1):
            if number % 10 == 0:
                segments = sorted(path.name for path in cache.glob("*.arrow"))
                memory = process.memory_info()
                own = memory.rss - memory.shared  # not what is mapped of the segments
                seen.append((own, process.num_fds(), process.num_threads(), segments))
    settled = seen[SETTLED:]
    assert len(settled) == 10
    assert max(one[0] for one in settled) <= settled[0][0] + 2 * SLACK_BYTES
    for part in (1, 2, 3):
        assert all(one[part] == settled[0][part] for one in settled), part
