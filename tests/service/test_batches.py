"""What consumers get from real workers does not depend on who made it, or for how many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder.errors import BadRecord, PositionMismatch, WorkersDisagree

RECORDS = 120
SMALL: dict[str, Any] = {"batch_size": 12, "image_size": 32, "seed": 3}


@pytest.fixture
def both(pair: Any) -> feeder.Client:
    return feeder.connect([worker.address for worker in pair])


def labels(stream: feeder.Stream) -> list[int]:
    with stream:
        return [int(label) for batch in stream for label in batch.labels[batch.mask]]


def global_steps(client: feeder.Client, consumers: int, **arguments: Any) -> list[tuple[bytes, ...]]:
    """All steps as the consumers together get them: images, labels and mask."""
    parts = []
    for consumer in range(consumers):
        stream = client.stream(
            "data",
            **{**SMALL, "batch_size": 12 // consumers, **arguments},
            consumer_index=consumer,
            consumer_count=consumers,
        )
        with stream:
            parts.append(list(stream))
    return [
        tuple(
            np.concatenate(arrays).tobytes()
            for arrays in zip(*((b.images, b.labels, b.mask) for b in step), strict=True)
        )
        for step in zip(*parts, strict=True)
    ]


def test_an_epoch_is_every_record_once_with_its_own_picture(both: feeder.Client) -> None:
    stream = both.stream("data", **SMALL, epochs=2)
    seen = labels(stream)
    assert sorted(seen[:RECORDS]) == sorted(seen[RECORDS:]) == list(range(RECORDS))
    assert seen[:RECORDS] != seen[RECORDS:]
    totals = stream.ledger().totals
    assert (totals.delivered, totals.lost, totals.repeated) == (2 * RECORDS, 0, 0)


def test_two_workers_give_what_one_gives(both: feeder.Client, pair: Any, digest_batches: Any) -> None:
    with both.stream("data", **SMALL, epochs=2) as stream:
        of_two = digest_batches(stream)
        stats = stream.stats()
        assert all(worker.images for worker in stats.workers.values())
    for worker in pair:
        with feeder.connect(worker.address).stream("data", **SMALL, epochs=2) as stream:
            assert digest_batches(stream) == of_two
    assert len(set(of_two)) == 20


def test_global_steps_are_the_same_for_any_number_of_consumers(both: feeder.Client) -> None:
    one = global_steps(both, 1, epochs=1)
    assert global_steps(both, 2, epochs=1) == one
    assert global_steps(both, 4, epochs=1) == one


def test_resume_with_any_number_of_consumers_gives_the_steps_that_would_have_come(
    both: feeder.Client,
) -> None:
    whole = global_steps(both, 4, epochs=2)
    with both.stream("data", **{**SMALL, "batch_size": 3}, consumer_count=4, epochs=2) as stream:
        for _ in range(13):
            batch = next(stream)
        saved = batch.position.to_dict()
    for consumers in (1, 2, 4):
        assert global_steps(both, consumers, epochs=2, start=saved) == whole[13:]
    with pytest.raises(PositionMismatch, match="global_batch"):
        both.stream("data", **{**SMALL, "batch_size": 5}, start=saved)


def test_evaluation_on_three_consumers_is_every_record_once(both: feeder.Client) -> None:
    seen: list[int] = []
    counts = set()
    for consumer in range(3):
        stream = both.stream(
            "data", batch_size=7, image_size=32, augment="eval", consumer_index=consumer, consumer_count=3
        )
        counts.add(len(stream))
        seen += labels(stream)
        totals = stream.ledger().totals
        assert (totals.lost, totals.repeated, totals.expected) == (0, 0, totals.delivered)
    assert counts == {6}  # ceil(120 / 21)
    assert sorted(seen) == list(range(RECORDS))


def test_wrap_runs_on_into_the_next_pass(both: feeder.Client) -> None:
    stream = both.stream("data", batch_size=50, image_size=32, remainder="wrap", epochs=3)
    seen = labels(stream)
    counts = np.bincount(seen, minlength=RECORDS)
    assert counts.min() == 3
    assert stream.ledger().totals.lost == 0


def test_large_batches_and_large_images_pass(both: feeder.Client) -> None:
    # Pitfall P19: fixed limits on message sizes.
    with both.stream("data", batch_size=240, image_size=224, remainder="wrap") as stream:
        batch = next(stream)
        assert batch.images.nbytes == 240 * 224 * 224 * 3
        assert batch.mask.all()
    with both.stream("data", batch_size=8, image_size=512) as stream:
        assert next(stream).images.shape == (8, 512, 512, 3)


def test_a_record_larger_than_grpcs_default_limit(
    make_shards: Any, make_jpeg: Callable[[int], bytes], start_worker: Any, tmp_path: Path
) -> None:
    images = [make_jpeg(number) for number in range(4)]
    images[2] += bytes(5 << 20)  # what follows the end of the picture does not count
    worker = start_worker(make_shards(tmp_path / "large", images))
    stream = feeder.connect(worker.address).stream("data", batch_size=4, image_size=32, epochs=1)
    assert sorted(labels(stream)) == [0, 1, 2, 3]


def test_a_unix_socket_is_an_address(shards: Path, start_worker: Any, tmp_path: Path) -> None:
    worker = start_worker(shards, listen=f"unix:{tmp_path}/w.sock")
    assert worker.address == f"unix:{tmp_path}/w.sock"
    assert len(labels(feeder.connect(worker.address).stream("data", **SMALL, epochs=1))) == RECORDS


def test_workers_with_other_shards_disagree(
    pair: Any, make_shards: Any, make_jpeg: Callable[[int], bytes], start_worker: Any, tmp_path: Path
) -> None:
    other = start_worker(make_shards(tmp_path / "other", [make_jpeg(number) for number in range(RECORDS)], 2))
    client = feeder.connect([pair[0].address, other.address])
    with pytest.raises(WorkersDisagree, match=f"{pair[0].address} .*{other.address}"):
        client.stream("data", **SMALL)


def test_decoders_mix_where_their_pixels_are_equal(
    pair: Any, shards: Path, start_worker: Any, digest_batches: Any
) -> None:
    portable = start_worker(shards, "--decoder", "portable")
    client = feeder.connect([pair[0].address, portable.address])
    ours, theirs = (info.pixel_fingerprint for info in client.workers.values())
    if ours != theirs:
        with pytest.raises(WorkersDisagree, match="different pixels"):
            client.stream("data", **SMALL)
        return
    with feeder.connect(pair[0].address).stream("data", **SMALL, epochs=1) as stream:
        alone = digest_batches(stream)
    with client.stream("data", **SMALL, epochs=1) as stream:
        assert digest_batches(stream) == alone


BAD = {5: b"", 41: b"<html>not found</html>", 77: b"\xff\xd8\xff\xe0 cut"}


@pytest.fixture
def spoiled(
    make_shards: Any, make_jpeg: Callable[[int], bytes], start_worker: Any, tmp_path: Path
) -> feeder.Client:
    """120 records of which three are bad."""
    folder = make_shards(tmp_path / "bad", [BAD.get(n, make_jpeg(n)) for n in range(RECORDS)])
    return feeder.connect(start_worker(folder).address)


def test_bad_records_are_replaced_and_nothing_else_changes(
    both: feeder.Client, spoiled: feeder.Client
) -> None:
    with both.stream("data", **SMALL, epochs=1) as stream:
        good = list(stream)
    with spoiled.stream("data", **SMALL, epochs=1) as stream:
        replaced = list(stream)
        ledger = stream.ledger()
    differing = 0
    for ours, theirs in zip(replaced, good, strict=True):
        assert ours.mask.all()
        for slot, label in enumerate(theirs.labels):
            same = (ours.images[slot] == theirs.images[slot]).all() and ours.labels[slot] == label
            assert same == (int(label) not in BAD)
            differing += not same
    assert differing == len(BAD)
    totals = ledger.totals
    assert (totals.replaced, totals.delivered, totals.lost, totals.repeated) == (3, RECORDS - 3, 0, 0)
    named = {entry["record"] for entry in ledger.to_dict()["bad"]}
    assert named == set(BAD)


def test_bad_records_are_masked_in_evaluation(spoiled: feeder.Client) -> None:
    stream = spoiled.stream("data", batch_size=10, image_size=32, augment="eval")
    seen = labels(stream)
    assert sorted(seen) == sorted(set(range(RECORDS)) - set(BAD))
    totals = stream.ledger().totals
    assert (totals.masked, totals.lost) == (3, 0)


def test_bad_records_fail_by_name_if_asked_to(spoiled: feeder.Client) -> None:
    with spoiled.stream("data", **SMALL, epochs=1, on_bad="fail") as stream:
        with pytest.raises(BadRecord, match=r"train-0000\d-of-00003: record \d+: ") as caught:
            list(stream)
        assert caught.value.index in {5 % 40, 41 % 40, 77 % 40}
    # The workers go on.
    assert len(labels(spoiled.stream("data", **SMALL, epochs=1))) == RECORDS
