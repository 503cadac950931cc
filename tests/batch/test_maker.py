"""Chunks: a pure function of data, spec and place, whatever is bad in the data."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from feeder.batch import BadChunk, ChunkMaker, FoundBad, MadeChunk
from feeder.client.pixels import yuv420_to_rgb
from feeder.decode import Decoder, reductions
from feeder.errors import ConfigError, StorageError
from feeder.order import Order, SlotStatus, eval_windows, smallest_window, train_windows
from feeder.records import Dataset, Reading, Record
from feeder.spec import StreamSpec

SIZE = 32
OpenDataset = Callable[[Sequence[bytes]], Dataset]
Damaged = Callable[[int, Callable[[bytes], bytes]], bytes]
Made = tuple[MadeChunk, np.ndarray]


def spec(**changes: Any) -> StreamSpec:
    return StreamSpec(
        **({"dataset": "d", "global_batch": 8, "lanes": 4, "image_size": SIZE, "seed": 7} | changes)
    )


def make(maker: ChunkMaker, epoch: int, taken: int, slots: Sequence[int]) -> Made:
    out = np.full((len(slots), *maker.spec.image_shape), 99, np.uint8)
    return maker.make(maker.fetch(epoch, taken, slots), out), out


def decode(decoder: Decoder, record: Record, window: np.ndarray, flip: bool = False) -> np.ndarray:
    out = np.empty((1, SIZE, SIZE, 3), np.uint8)
    assert decoder.decode([record.image], window[None], np.array([flip]), out) == [None]
    return out[0]


def broken(payloads: list[bytes], numbers: dict[int, bytes]) -> list[bytes]:
    return [numbers.get(number, payload) for number, payload in enumerate(payloads)]


def record_at(order: Order, taken: int, slot: int) -> int:
    return int(order.records(0, taken, np.array([slot]))[0])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"remainder": "pad", "augment": "eval"},
        {"output": "yuv420"},
        {"output": "yuv420", "remainder": "pad", "augment": "eval"},
    ],
)
def test_slots_go_to_the_places_that_are_named(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes], damaged: Damaged, changes: dict[str, Any]
) -> None:
    hurt = damaged(9, lambda image: image[: len(image) // 2])
    payloads = broken(good[:22], {5: b"no image", 9: hurt})  # under "pad" two slots are left over
    maker = ChunkMaker(open_dataset(payloads), decoder, spec(**changes))
    places = np.array([9, 1, 4, 0, 6, 7, 3, 10])
    statuses: set[int] = set()
    for taken in range(0, maker.order.steps_per_epoch * maker.spec.per_lane, maker.spec.per_lane):
        made, out = make(maker, 0, taken, range(8))
        scattered = np.full((11, *maker.spec.image_shape), 99, np.uint8)
        twin = maker.make(maker.fetch(0, taken, range(8)), scattered, places)
        assert (scattered[places] == out).all()
        assert (np.delete(scattered, places, axis=0) == 99).all()
        assert (twin.records.tolist(), twin.status.tolist()) == (made.records.tolist(), made.status.tolist())
        assert twin.bad == made.bad
        statuses |= set(made.status.tolist())
    assert statuses & {SlotStatus.SUBSTITUTE, SlotStatus.BAD}


@pytest.mark.parametrize("augment", ["train", "eval", "none"])
def test_pixels_are_those_of_the_order_and_its_windows(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes], augment: str
) -> None:
    dataset = open_dataset(good)
    maker = ChunkMaker(dataset, decoder, spec(augment=augment, reduce=None))
    made, out = make(maker, 1, 2, range(8))
    records = Order(maker.spec, 24).records(1, 2, np.arange(8))
    sizes = np.full((8, 2), (60, 48), np.int32)
    flips = np.zeros(8, np.bool_)
    windows = np.full((8, 4), (0, 0, 60, 48), np.int32)
    if augment == "train":
        windows, flips = train_windows("torchvision", 7, 1, records, sizes)
    elif augment == "eval":
        windows = eval_windows("torchvision", SIZE, sizes)
    assert made.records.tolist() == made.labels.tolist() == records.tolist()
    assert made.labels.dtype == np.int32
    assert made.status.tolist() == [SlotStatus.OWN] * 8
    assert made.bad == ()
    for slot, record in enumerate(records.tolist()):
        alone = decode(decoder, dataset.read(record), windows[slot], flips[slot])
        np.testing.assert_array_equal(out[slot], alone)


def test_reduced_decoding_follows_its_rule(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes]
) -> None:
    """reduce=12 halves images of 60 x 48 pixels once at least; the pixels then differ from the full ones."""
    dataset = open_dataset(good)
    sizes = np.array([(60, 48)], np.int32)
    smallest = smallest_window("none", "torchvision", sizes, SIZE)
    assert reductions(12, smallest, sizes, SIZE).tolist() == [4]
    _, full = make(ChunkMaker(dataset, decoder, spec(augment="none", reduce=None)), 0, 0, range(8))
    _, reduced = make(ChunkMaker(dataset, decoder, spec(augment="none", reduce=12)), 0, 0, range(8))
    assert not np.array_equal(full, reduced)
    _, automatic = make(ChunkMaker(dataset, decoder, spec(augment="none", reduce="auto")), 0, 0, range(8))
    np.testing.assert_array_equal(full, automatic)


def test_a_step_is_the_same_however_it_is_cut(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes]
) -> None:
    maker = ChunkMaker(open_dataset(good), decoder, spec())
    whole, pixels = make(maker, 0, 4, range(8))
    cuts = [range(0, 3), range(3, 4), range(4, 8)]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            for cut, (made, out) in zip(
                cuts, pool.map(lambda cut: make(maker, 0, 4, cut), cuts), strict=True
            ):
                np.testing.assert_array_equal(out, pixels[cut.start : cut.stop])
                np.testing.assert_array_equal(made.labels, whole.labels[cut.start : cut.stop])


BAD_PAYLOADS: dict[str, Callable[[Damaged], bytes]] = {
    "text": lambda damaged: damaged(5, lambda image: b"<html>not found</html>"),
    "truncated": lambda damaged: damaged(5, lambda image: image[: len(image) // 2]),
    "no image key": lambda damaged: b"",
}


@pytest.mark.parametrize("kind", BAD_PAYLOADS)
def test_a_bad_record_is_replaced_and_no_other_sample_changes(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes], damaged: Damaged, kind: str
) -> None:
    clean = ChunkMaker(open_dataset(good), decoder, spec(augment="none"))
    hurt = ChunkMaker(
        open_dataset(broken(good, {5: BAD_PAYLOADS[kind](damaged)})), decoder, spec(augment="none")
    )
    seen = 0
    for taken in (0, 2, 4):
        before, pixels = make(clean, 0, taken, range(8))
        after, out = make(hurt, 0, taken, range(8))
        for slot in range(8):
            if before.records[slot] != 5:
                assert after.records[slot] == before.records[slot]
                assert after.status[slot] == SlotStatus.OWN
                np.testing.assert_array_equal(out[slot], pixels[slot])
                continue
            seen += 1
            substitute = next(iter(clean.order.substitutes(0, taken, slot)))
            assert after.records[slot] == after.labels[slot] == substitute
            assert after.status[slot] == SlotStatus.SUBSTITUTE
            alone = decode(decoder, clean.dataset.read(substitute), np.array([0, 0, 60, 48], np.int32))
            np.testing.assert_array_equal(out[slot], alone)
            (bad,) = after.bad
            assert (bad.record, bad.shard, bad.index) == (5, "part-00000-of-00002", 5)
            assert bad.reason
    assert seen == 1


def test_a_substitute_gets_the_crop_of_its_own_number(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes]
) -> None:
    """Two slots that show one record in one epoch show the same window of it."""
    hurt = ChunkMaker(open_dataset(broken(good, {5: b""})), decoder, spec(lanes=1, global_batch=24))
    made, out = make(hurt, 3, 0, range(24))
    slot = int(np.flatnonzero(made.status == SlotStatus.SUBSTITUTE)[0])
    other = int(np.flatnonzero((made.records == made.records[slot]) & (made.status == SlotStatus.OWN))[0])
    np.testing.assert_array_equal(out[slot], out[other])


def test_candidates_that_are_bad_too_are_passed_over(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes], damaged: Damaged
) -> None:
    """Record 5, then the next in line by its crc, then the one after by its pixels."""
    order = Order(spec(), 24)
    taken, slot = next(
        (taken, slot) for taken in (0, 2, 4) for slot in range(8) if record_at(order, taken, slot) == 5
    )
    first, second, third, *_ = order.substitutes(0, taken, slot)
    payloads = broken(good, {5: b"", first: b"?", second: damaged(second, lambda image: b"GIF89a")})
    made, _ = make(ChunkMaker(open_dataset(payloads), decoder, spec()), 0, taken, [slot])
    assert made.records.tolist() == made.labels.tolist() == [third]
    assert [bad.record for bad in made.bad] == [5, first, second]


def test_a_lane_without_good_record_fails_and_names_the_slots_own(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes]
) -> None:
    maker = ChunkMaker(open_dataset(broken(good, dict.fromkeys(range(6), b""))), decoder, spec())
    own = record_at(maker.order, 0, 0)
    with pytest.raises(
        BadChunk, match=rf"record {own}: .*; and no other record of its lane is good"
    ) as caught:
        make(maker, 0, 0, range(8))
    assert caught.value.found[0].record == own
    assert sorted(bad.record for bad in caught.value.found) == list(range(6))


def test_fail_names_the_record(open_dataset: OpenDataset, decoder: Decoder, good: list[bytes]) -> None:
    maker = ChunkMaker(open_dataset(broken(good, {17: b""})), decoder, spec(on_bad="fail", shuffle=False))
    make(maker, 0, 2, range(8))
    with pytest.raises(BadChunk, match="part-00001-of-00002: record 5: ") as caught:
        make(maker, 0, 4, range(8))
    assert [bad.record for bad in caught.value.found] == [17]


def test_evaluation_masks_what_is_bad_and_what_is_missing(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes]
) -> None:
    """24 records, 4 lanes, 20 slots a step: the second step has 1 record a lane, and padding."""
    settings = spec(global_batch=20, augment="eval", remainder="pad", shuffle=False)
    maker = ChunkMaker(open_dataset(broken(good, {11: b"", 3: b""})), decoder, settings)
    first, out = make(maker, 0, 0, range(20))
    assert first.records.tolist() == [lane * 6 + place for lane in range(4) for place in range(5)]
    assert np.flatnonzero(first.status == SlotStatus.BAD).tolist() == [3]
    assert first.labels[3] == -1
    assert not out[3].any()
    second, out = make(maker, 0, 5, range(20))
    expected = np.full(20, -1)
    expected[::5] = [5, 11, 17, 23]
    assert second.records.tolist() == expected.tolist()
    assert second.status[::5].tolist() == [SlotStatus.OWN, SlotStatus.BAD, SlotStatus.OWN, SlotStatus.OWN]
    masked = second.status != SlotStatus.OWN
    assert (
        np.flatnonzero(second.status == SlotStatus.PADDING).tolist() == np.flatnonzero(expected < 0).tolist()
    )
    assert (second.labels[masked] == -1).all()
    assert not out[masked].any()
    assert out[~masked].any(axis=(1, 2, 3)).all()


def test_wrap_draws_each_pass_anew(open_dataset: OpenDataset, decoder: Decoder, good: list[bytes]) -> None:
    """Lanes of 6 records, 4 a step: the second step runs into the second pass."""
    maker = ChunkMaker(open_dataset(good), decoder, spec(global_batch=16, remainder="wrap", shuffle=False))
    first, pixels = make(maker, 0, 0, range(16))
    second, later = make(maker, 0, 4, range(16))
    assert second.records[:4].tolist() == [4, 5, 0, 1]
    assert first.records[:2].tolist() == [0, 1]
    assert not np.array_equal(pixels[:2], later[2:4])


class Unreachable:
    """A data set whose storage fails for one record."""

    seek = None

    def __init__(self, dataset: Dataset, record: int) -> None:
        self._dataset, self._record = dataset, record

    def __len__(self) -> int:
        return len(self._dataset)

    def ask(self, records: Iterable[int]) -> Reading | None:
        return self._dataset.ask(records)

    def read(self, record: int, reading: Reading | None = None) -> Record:
        if record == self._record:
            raise StorageError("the disk is on fire")
        return self._dataset.read(record, reading)

    def labels(self, records: np.ndarray) -> np.ndarray:
        return self._dataset.labels(records)

    def locate(self, record: int) -> tuple[str, int]:
        return self._dataset.locate(record)


def test_storage_errors_never_make_a_record_bad(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes]
) -> None:
    order = Order(spec(), 24)
    taken, slot = next(
        (taken, slot) for taken in (0, 2, 4) for slot in range(8) if record_at(order, taken, slot) == 5
    )
    dataset = open_dataset(broken(good, {5: b""}))
    own = ChunkMaker(Unreachable(dataset, 5), decoder, spec())  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="on fire"):
        own.fetch(0, taken, [slot])
    candidate = next(iter(order.substitutes(0, taken, slot)))
    substitute = ChunkMaker(Unreachable(dataset, candidate), decoder, spec())  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="on fire"):
        make(substitute, 0, taken, [slot])


@pytest.mark.parametrize(
    ("epoch", "taken", "slots"), [(0, 1, [0]), (0, 6, [0]), (0, 0, [8]), (2**63, 0, [0])]
)
def test_places_that_do_not_exist_are_refused(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes], epoch: int, taken: int, slots: list[int]
) -> None:
    maker = ChunkMaker(open_dataset(good), decoder, spec())
    with pytest.raises(ConfigError):
        maker.fetch(epoch, taken, slots)


def test_bad_chunks_travel_between_processes() -> None:
    error = BadChunk([FoundBad(3, "s", 1, "crc"), FoundBad(4, "s", 2, "text")], "; and so on")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "s: record 1: crc; and so on"
    assert copy.found == error.found


@pytest.mark.parametrize("augment", ["train", "eval"])
def test_yuv420_shows_what_rgb_shows(
    open_dataset: OpenDataset, decoder: Decoder, good: list[bytes], damaged: Damaged, augment: str
) -> None:
    """The same records, windows and flips; what holds no sample is black."""
    hurt = damaged(9, lambda image: image[: len(image) // 2])
    dataset = open_dataset(broken(good[:22], {5: b"no image", 9: hurt}))
    settings = {"augment": augment, "remainder": "pad" if augment == "eval" else "drop"}
    rgb = ChunkMaker(dataset, decoder, spec(**settings))
    yuv = ChunkMaker(dataset, decoder, spec(**settings, output="yuv420"))
    masked = 0
    for taken in range(0, rgb.order.steps_per_epoch * rgb.spec.per_lane, rgb.spec.per_lane):
        one, pixels = make(rgb, 0, taken, range(8))
        other, planes = make(yuv, 0, taken, range(8))
        assert (one.records.tolist(), one.status.tolist()) == (other.records.tolist(), other.status.tolist())
        assert 2 * planes.nbytes == pixels.nbytes
        again = yuv420_to_rgb(planes).astype(int)
        for slot in range(8):
            if one.status[slot] >= SlotStatus.BAD:
                masked += 1
                assert not again[slot].any()
            # Noise with colours of its own: chroma alone is lost.
            gray = [image[slot] @ (0.299, 0.587, 0.114) for image in (pixels, again)]
            assert np.abs(gray[0] - gray[1]).mean() < 5
    assert (masked > 0) == (augment == "eval")
