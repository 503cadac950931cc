"""Every odd input through a worker and a client: what comes is what the files hold, bit for bit."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_corpus import SHARDS, Corpus, OddFile

import feeder
from feeder.batch import ChunkMaker
from feeder.cli import status
from feeder.decode import decode_crop, open_decoder
from feeder.errors import BadRecord, DataError
from feeder.records import Dataset, RecordKeys
from feeder.wire.address import parse_address

KEYS = RecordKeys(label_base=0)
SIZE = 40
BATCH = 8
COLOUR_TOLERANCE = 6


def images_of(dataset: Dataset) -> list[np.ndarray | str]:
    """Each image of a data set, whole, or what is wrong with it."""
    found: list[np.ndarray | str] = []
    for number in range(len(dataset)):
        try:
            found.append(decode_crop(dataset.read(number).image, None, (SIZE, SIZE)))
        except BadRecord as error:
            found.append(error.reason)
        except DataError as error:
            found.append(str(error))
    return found


def whole_pass(client: feeder.Client, name: str, **arguments: Any) -> tuple[list[tuple[int, Any]], Any]:
    """(label, image) of all records that came, by label, and the account of the pass."""
    with client.stream(
        name, batch_size=BATCH, image_size=SIZE, augment="none", reduce=None, **arguments
    ) as stream:
        came = [
            (int(label), image)
            for batch in stream
            for label, image, there in zip(batch.labels, batch.images, batch.mask, strict=True)
            if there
        ]
        return sorted(came, key=itemgetter(0)), stream.ledger()


def check_whole(client: feeder.Client, expected: list[np.ndarray | str]) -> None:
    came, ledger = whole_pass(client, "images")
    good = {number: image for number, image in enumerate(expected) if not isinstance(image, str)}
    assert [label for label, _ in came] == list(good)
    for label, image in came:
        assert np.array_equal(image, good[label]), label
    reasons = {number: reason for number, reason in enumerate(expected) if isinstance(reason, str)}
    named = ledger.to_dict()["bad"]
    assert {bad["record"]: bad["reason"] for bad in named} == reasons
    assert {bad["shard"] for bad in named} == {"images"}
    totals = ledger.totals
    assert (totals.delivered, totals.masked) == (len(good), len(reasons))
    assert (totals.lost, totals.repeated) == (0, 0)


def train_steps(client: feeder.Client, dataset: Dataset) -> tuple[int, int]:
    """Two epochs of crops, each batch compared with one made here; how many slots, how many replaced."""
    decoder = open_decoder(1)
    try:
        with client.stream("images", batch_size=BATCH, image_size=SIZE, epochs=2, seed=11) as stream:
            at = stream.position
            maker = ChunkMaker(dataset, decoder, at.spec)
            slots = 0
            for batch in stream:
                out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
                made = maker.make(maker.fetch(at.epoch, at.taken, range(BATCH)), out)
                assert np.array_equal(batch.labels, made.labels)
                assert np.array_equal(batch.images, out)
                assert batch.mask.all()
                at = batch.position
                slots += BATCH
            totals = stream.ledger().totals
            assert (totals.delivered + totals.replaced, totals.lost) == (slots, 0)
            return slots, totals.replaced
    finally:
        decoder.close()


def check_shards(client: feeder.Client, served: Iterable[tuple[str, OddFile]]) -> None:
    for name, file in served:
        good = [wanted for wanted in file.records if wanted is not None]
        good.sort(key=lambda wanted: int(wanted.get("label", 0)))
        came, ledger = whole_pass(client, name)
        assert len(came) == len(good), file.name
        assert ledger.totals.masked == len(file.records) - len(good), file.name
        assert (ledger.totals.lost, ledger.totals.repeated) == (0, 0)
        for (label, image), wanted in zip(came, good, strict=True):
            assert label == wanted.get("label", label), file.name
            if "rgb" in wanted:
                middle = image[SIZE // 2, SIZE // 2].astype(int)
                assert np.abs(middle - wanted["rgb"]).max() <= COLOUR_TOLERANCE, file.name


def test_every_odd_file_end_to_end(
    corpus: Corpus,
    tmp_path: Path,
    start_worker: Callable[..., Any],
    wait_for_cache: Callable[[Any, int], None],
) -> None:
    """Story: one worker serves all images as one data set, and each shard as one of its own. A client takes
    all images whole, then two epochs of crops, then all images again, now from cache and seek points; then
    each shard.

    Result: what this process makes of the same files without either; what is bad is masked or replaced, and
    named; the worker logs a few lines and goes on.
    """
    pytest.importorskip("feeder.decode._kernel", reason="seek points and the cache are the native decoder's")
    images = corpus.pack_images(tmp_path / "images")
    served = [
        (f"shard-{number}", file) for number, file in enumerate(corpus.of(*SHARDS)) if not file.unservable
    ]
    flags = list(itertools.chain(*(("--dataset", f"{name}={file.path}") for name, file in served)))
    flags += ["--label-base", "0", "--index-dir", str(tmp_path / "indexes")]
    flags += ["--cache-bytes", "256MiB", "--cache-dir", str(tmp_path / "cache")]
    worker = start_worker(tmp_path / "images", *flags, name="images")

    def counters() -> Any:
        return status.describe(parse_address(worker.address))

    with (
        feeder.connect(worker.address) as client,
        Dataset.open("images", [str(tmp_path / "images")], keys=KEYS) as dataset,
    ):
        expected = images_of(dataset)
        assert len(expected) == len(images)
        check_whole(client, expected)
        slots, replaced = train_steps(client, dataset)
        assert slots >= 2 * (len(images) - BATCH)
        assert replaced > 10
        wait_for_cache(worker, len(images) // 2)
        check_whole(client, expected)
        after = counters()
        assert after.cache.hits > len(images) // 2
        stream = client.stream("images", batch_size=len(images), image_size=SIZE, on_bad="fail")
        with stream, pytest.raises(BadRecord, match=r"images: record \d+: .{8}"):
            next(stream)
        check_shards(client, served)
    assert counters().counters.bad_records > 0
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    log = worker.log.read_text()
    assert "Traceback" not in log
    assert 1 <= log.count("bad record: ") <= 40  # so many a minute and no more
