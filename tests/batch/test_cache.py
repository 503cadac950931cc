"""What is made never depends on what the cache holds, whatever is bad in the data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder.batch import BadChunk, ChunkMaker, warm
from feeder.cache import Cache, Folder, Shelf
from feeder.decode import Decoder
from feeder.records import Dataset
from feeder.spec import StreamSpec
from feeder.wire.codec import parse_reply
from feeder.wire.messages import Chunk, ChunkRequest
from feeder.worker.pipeline import Pipeline
from feeder.worker.quarantine import Quarantine
from feeder.worker.stream import Stream

pytest.importorskip("feeder.decode._kernel", reason="only the native decoder keeps planes")

SIZE = 32
RECORDS = 24

MakeImage = Callable[..., bytes]


@pytest.fixture
def images(make_image: MakeImage) -> list[bytes]:
    """Of some hundred pixels; 5 and 17 are damaged below the middle, 9 has no header, 20 is no image."""
    found = [make_image(number, 140 + 8 * number, 120 + 5 * number) for number in range(RECORDS)]
    for number in (5, 17):
        found[number] = found[number][: len(found[number]) * 2 // 3]
    found[9] = found[9][:200]
    found[20] = b"no image at all"
    return found


@pytest.fixture
def dataset(
    write_shards: Callable[[list[bytes]], Path], make_payload: Callable[..., bytes], images: list[bytes]
) -> Iterator[Dataset]:
    folder = write_shards([make_payload(image, number + 1) for number, image in enumerate(images)])
    with Dataset.open("d", [str(folder)]) as opened:
        yield opened


@pytest.fixture
def cache(dataset: Dataset, tmp_path: Path) -> Iterator[Cache]:
    opened = Cache(Folder(tmp_path / "cache"), 32 << 20, "native-1", {"d": dataset})
    yield opened
    opened.close()


def spec(**changes: Any) -> StreamSpec:
    return StreamSpec(**({"dataset": "d", "global_batch": 8, "lanes": 4, "image_size": SIZE} | changes))


def steps(maker: ChunkMaker, epochs: int = 3) -> list[tuple[Any, ...]]:
    """All that some epochs give, comparable."""
    result: list[tuple[Any, ...]] = []
    for epoch in range(epochs):
        for taken in (0, 2, 4):
            out = np.full((8, *maker.spec.image_shape), 99, np.uint8)
            try:
                made = maker.make(maker.fetch(epoch, taken, range(8)), out)
            except BadChunk as error:
                result.append((str(error), error.found))
            else:
                result.append(
                    (
                        made.records.tolist(),
                        made.labels.tolist(),
                        made.status.tolist(),
                        made.bad,
                        out.tobytes(),
                    )
                )
    return result


def keep(cache: Cache, dataset: Dataset, decoder: Decoder, records: list[int], reduction: int = 1) -> int:
    """How many of the records the cache took."""
    shelf, taken = cache.shelf("d"), 0
    for record in records:
        image = dataset.read(record).image
        (planes,) = decoder.keep([image], np.array([reduction], np.uint8))
        if planes is None:
            shelf.refuse(record)
        elif not shelf.has(record, reduction):
            width, height = decoder.sizes([image])[0][0].tolist()
            assert cache.add(shelf, record, reduction, (width, height), planes)
            taken += 1
    cache.seal()
    return taken


@pytest.mark.parametrize("reduce", [None, "auto", 40])
@pytest.mark.parametrize("augment", ["train", "eval", "none"])
@pytest.mark.parametrize(("on_bad", "output"), [("replace", "rgb"), ("fail", "rgb"), ("replace", "yuv420")])
def test_nothing_depends_on_what_is_cached(
    dataset: Dataset, decoder: Decoder, cache: Cache, augment: str, reduce: Any, on_bad: str, output: str
) -> None:
    settings = spec(augment=augment, reduce=reduce, on_bad=on_bad, output=output)
    expected = steps(ChunkMaker(dataset, decoder, settings))
    assert any(len(step) == 2 or step[3] for step in expected)
    maker = ChunkMaker(dataset, decoder, settings, cache.shelf("d"))
    assert steps(maker) == expected
    random = np.random.default_rng(0)
    for reduction in (1, 2, 4):
        keep(cache, dataset, decoder, random.permutation(RECORDS)[:12].tolist(), reduction)
        assert steps(maker) == expected
    assert cache.counters().hits
    for reduction in (1, 2, 4):
        keep(cache, dataset, decoder, list(range(RECORDS)), reduction)
    assert steps(maker) == expected


@pytest.mark.parametrize("remainder", ["wrap", "pad"])
def test_nor_where_epochs_run_on_or_end_in_padding(
    dataset: Dataset, decoder: Decoder, cache: Cache, remainder: str
) -> None:
    settings = spec(global_batch=10, lanes=5, remainder=remainder, augment="eval")
    maker = ChunkMaker(dataset, decoder, settings, cache.shelf("d"))
    plain = ChunkMaker(dataset, decoder, settings)
    keep(cache, dataset, decoder, list(range(0, RECORDS, 2)))
    for taken in (0, 2, 4):
        outs = [np.full((10, SIZE, SIZE, 3), 99, np.uint8) for _ in range(2)]
        one, other = (
            each.make(each.fetch(0, taken, range(10)), out)
            for each, out in zip((plain, maker), outs, strict=True)
        )
        assert (outs[0] == outs[1]).all()
        assert one.status.tolist() == other.status.tolist()
        assert one.labels.tolist() == other.labels.tolist()
        assert one.bad == other.bad


def test_a_hit_is_not_read(dataset: Dataset, decoder: Decoder, cache: Cache) -> None:
    keep(cache, dataset, decoder, list(range(RECORDS)))
    before = dataset.bytes_read
    maker = ChunkMaker(dataset, decoder, spec(reduce=None), cache.shelf("d"))
    fetched = maker.fetch(0, 0, range(8))
    hits = int((fetched.sizes[:, 0] > 0).sum())
    assert hits >= 5
    if hits == 8:
        assert dataset.bytes_read == before


def test_planes_outlive_their_eviction(dataset: Dataset, decoder: Decoder, cache: Cache) -> None:
    settings = spec(reduce=None)
    expected = steps(ChunkMaker(dataset, decoder, settings))
    keep(cache, dataset, decoder, list(range(RECORDS)))
    maker = ChunkMaker(dataset, decoder, settings, cache.shelf("d"))
    fetched = maker.fetch(0, 0, range(8))
    cache.folder.evict(cache.folder.names())
    cache.refresh()
    assert not cache.counters().segments
    out = np.zeros((8, SIZE, SIZE, 3), np.uint8)
    maker.make(fetched, out)
    assert out.tobytes() == expected[0][4]
    assert steps(maker) == expected


def test_warming_offers_what_is_missing_and_good(dataset: Dataset, decoder: Decoder, cache: Cache) -> None:
    shelf: Shelf = cache.shelf("d")
    keep(cache, dataset, decoder, [3, 4])
    offers = list(warm(dataset, decoder, shelf))
    assert [offer.record for offer in offers] == [
        record for record in range(RECORDS) if record not in (3, 4, 9, 20)
    ]
    assert {offer.reduction for offer in offers} == {1}
    sizes, _ = decoder.sizes([offer.image for offer in offers])
    assert [offer.size for offer in offers] == [tuple(size) for size in sizes.tolist()]


@pytest.mark.parametrize(("readers", "callers"), [(1, 1), (2, 1), (2, 2)])
def test_a_worker_s_reader_makes_what_it_finds_in_the_cache_as_a_whole(
    dataset: Dataset, decoder: Decoder, cache: Cache, readers: int, callers: int
) -> None:
    """Where there is another to read meanwhile; and callers what it does not; the pixels are the same."""
    makers: dict[tuple[int, int], str] = {}

    class Watched(ChunkMaker):
        def make(self, fetched: Any, out: Any, places: Any = None) -> Any:
            makers[fetched.epoch, fetched.taken] = threading.current_thread().name.split("-")[1]
            return super().make(fetched, out, places)

    bare = ChunkMaker(dataset, decoder, spec(reduce=None))
    places = [(epoch, taken) for epoch in range(50) for taken in (0, 2, 4)]
    records = [bare.order.records(epoch, taken, np.arange(8)).tolist() for epoch, taken in places]
    good = next(number for number, of_step in enumerate(records) if not {5, 9, 17, 20} & {*of_step})
    assert keep(cache, dataset, decoder, records[good]) == 8
    maker = Watched(dataset, decoder, spec(reduce=None), cache.shelf("d"))
    pipeline, stream = Pipeline(readers, callers, Quarantine()), Stream(1)
    try:
        pipeline.open(stream, maker, "job", range(8))
        for epoch, taken in (places[good], places[good + 1]):
            pipeline.ask(stream, ChunkRequest(1, epoch, taken, tuple(range(8))))
            answer = stream.next(lambda: True)
            stream.sent()
            assert answer is not None
            chunk = parse_reply(answer.data)
            assert isinstance(chunk, Chunk)
            out = np.empty((8, *maker.spec.image_shape), np.uint8)
            made = bare.make(bare.fetch(epoch, taken, range(8)), out)
            assert (chunk.records == made.records).all()
            assert bytes(chunk.pixels) == out.tobytes()
            until_s = time.monotonic() + 30
            while {info.name: info.here for info in pipeline.stages()}["make"]:  # it takes a caller's place
                assert time.monotonic() < until_s
                time.sleep(0.001)
        assert pipeline.counters().decode_s > 0
    finally:
        stream.close()
        pipeline.close_stream(stream)
        pipeline.close()
    assert makers == {places[good]: "read" if readers > 1 else "make", places[good + 1]: "make"}
