"""Data sets that are small, uneven, spoiled or replaced, through real workers."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_corpus import Corpus

import feeder

COLOUR_TOLERANCE = 6


@pytest.fixture
def client(corpus: Corpus, tmp_path: Path, start_worker: Callable[..., Any]) -> Iterator[feeder.Client]:
    """Of two workers that serve the data sets "one", "uneven" and "mixed"."""
    flags = ["--label-base", "0", "--index-dir", str(tmp_path / "indexes")]
    flags += ["--dataset", f"uneven={corpus.folder / 'datasets/uneven'}"]
    flags += ["--dataset", f"mixed={corpus.folder / 'tfrecord/mixed_good_and_bad.tfrecord'}"]
    workers = [start_worker(corpus.folder / "datasets/one_shard", *flags, name="one") for _ in range(2)]
    with feeder.connect([worker.address for worker in workers]) as client:
        yield client


def parts(client: feeder.Client, name: str, consumers: int, batch_size: int, **arguments: Any) -> list[Any]:
    """For each consumer its batches."""
    found = []
    for consumer in range(consumers):
        stream = client.stream(
            name,
            batch_size=batch_size,
            image_size=16,
            consumer_index=consumer,
            consumer_count=consumers,
            **arguments,
        )
        with stream:
            expected = len(stream)
            found.append(list(stream))
            assert len(found[-1]) == expected
    return found


def labels(batches: list[Any]) -> list[int]:
    return [int(label) for batch in batches for label in batch.labels[batch.mask]]


def test_counts_are_equal_whatever_the_shards_hold(client: feeder.Client) -> None:
    """One shard for four consumers; uneven shards, one empty; most bad records in one consumer's part."""
    one = parts(client, "one", 4, 2, augment="eval")
    assert {len(batches) for batches in one} == {2}
    assert sorted(label for batches in one for label in labels(batches)) == list(range(10))

    for _ in range(2):
        uneven = parts(client, "uneven", 4, 5, augment="eval")
        assert {len(batches) for batches in uneven} == {2}
        assert sorted(label for batches in uneven for label in labels(batches)) == list(range(24))
    epochs = parts(client, "uneven", 4, 5, epochs=3)
    assert {len(batches) for batches in epochs} == {3}  # one full step of 20 an epoch
    for step in range(3):
        seen = [label for batches in epochs for label in labels(batches[step : step + 1])]
        assert len(set(seen)) == len(seen) == 20

    mixed = parts(client, "mixed", 2, 1, augment="eval")
    assert {len(batches) for batches in mixed} == {3}
    assert [sorted(labels(batches)) for batches in mixed] == [[0, 2], [5]]
    replaced = parts(client, "mixed", 2, 1, epochs=2)
    assert [len(labels(batches)) for batches in replaced] == [6, 6]
    assert {label for batches in replaced for label in labels(batches)} == {0, 2, 5}
    with client.stream("mixed", batch_size=2, image_size=16, augment="eval") as stream:
        assert labels(list(stream)) == [0, 2, 5]
        account = stream.ledger().to_dict()
    assert (account["totals"]["masked"], len(account["bad"])) == (3, 3)
    assert sorted(account["bad_reasons"].values()) == [1, 1, 1]


def test_a_data_set_that_was_replaced_is_never_served_from_the_cache(
    corpus: Corpus,
    tmp_path: Path,
    start_worker: Callable[..., Any],
    wait_for_cache: Callable[[Any, int], None],
) -> None:
    """Story: v1 is served until it is in the cache; v2 takes its place with the same name, size and mtime.

    Result: v2's pictures.
    """
    pytest.importorskip("feeder.decode._kernel")
    name = "train-00000-of-00001.tfrecord"
    versions = [file for file in corpus.of("datasets") if "/stale/" in file.name]
    data = tmp_path / "data"
    data.mkdir()
    for file in sorted(versions, key=lambda file: file.name):
        shutil.copyfile(file.path, data / name)
        os.utime(data / name, ns=(10**18, 10**18))
        flags = [
            "--label-base",
            "0",
            "--cache-dir",
            str(tmp_path / "cache"),
            "--cache-bytes",
            "8MiB",
            "--warm",
        ]
        worker = start_worker(data, *flags, "--warm")
        for _ in range(2):
            (batches,) = parts(feeder.connect(worker.address), "data", 1, 8, augment="eval")
            (batch,) = batches
            for label, image in zip(batch.labels, batch.images, strict=True):
                wanted = file.records[label]
                assert wanted is not None
                assert np.abs(image[8, 8].astype(int) - wanted["rgb"]).max() <= COLOUR_TOLERANCE
        wait_for_cache(worker, len(file.records))
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
