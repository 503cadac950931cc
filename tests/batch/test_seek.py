"""What is made never depends on which seek points are known, whatever is bad in the data or in the points."""

from __future__ import annotations

import dataclasses
import io
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from odd_corpus import Corpus
from PIL import Image

from feeder.batch import BadChunk, ChunkMaker, MadeChunk
from feeder.cli.learn import learn
from feeder.decode import SEEK_BYTES, Decoder, open_decoder
from feeder.records import Dataset, FormatName, SeekMode
from feeder.records.pack import pack
from feeder.records.seek import HEADER_BYTES, POINTS_BYTES, SLOT_BYTES
from feeder.spec import StreamSpec

pytest.importorskip("feeder.decode._kernel", reason="only the native decoder has seek points")

SIZE = 32
RECORDS = 24

Write = Callable[[list[bytes]], Path]
MakeImage = Callable[..., bytes]
MakePayload = Callable[[bytes, int], bytes]


@pytest.fixture
def images(make_image: MakeImage) -> list[bytes]:
    """Of several MCUs a row and several rows; no two of one size."""
    return [make_image(number, 140 + 8 * number, 120 + 5 * number) for number in range(RECORDS)]


@pytest.fixture
def write(write_shards: Callable[[list[bytes]], Path], make_payload: MakePayload) -> Write:
    """Writes images to shards; the label of record i is i."""
    return lambda images: write_shards([make_payload(image, n + 1) for n, image in enumerate(images)])


@contextmanager
def maker(folder: Path, decoder: Decoder, mode: SeekMode = "learn", **spec: Any) -> Iterator[ChunkMaker]:
    settings = {"dataset": "d", "global_batch": 8, "lanes": 4, "image_size": SIZE, "reduce": None} | spec
    with Dataset.open("d", [str(folder)], seek=mode) as dataset:
        yield ChunkMaker(dataset, decoder, StreamSpec(**settings))


def steps(made_by: ChunkMaker, epoch: int) -> list[tuple[Any, ...]]:
    """All that an epoch gives, comparable."""
    result = []
    for taken in (0, 2, 4):
        out = np.full((8, *made_by.spec.image_shape), 99, np.uint8)
        try:
            made = made_by.make(made_by.fetch(epoch, taken, range(8)), out)
        except BadChunk as error:
            result.append((str(error), error.found))
        else:
            result.append(everything(made, out))
    return result


def everything(made: MadeChunk, out: np.ndarray) -> tuple[Any, ...]:
    return made.records.tolist(), made.labels.tolist(), made.status.tolist(), made.bad, out.tobytes()


def points_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.feederseek"))


def test_both_sides_agree_on_the_size() -> None:
    assert SEEK_BYTES == POINTS_BYTES


@pytest.mark.parametrize(
    ("augment", "output"), [("train", "rgb"), ("eval", "rgb"), ("none", "rgb"), ("train", "yuv420")]
)
@pytest.mark.parametrize("reduce", [None, 12])
def test_points_are_learned_used_and_change_nothing(
    write: Write, decoder: Decoder, images: list[bytes], augment: str, output: str, reduce: int | None
) -> None:
    """Story: four epochs with learning, each by a worker that starts anew.

    Result: what comes without points; from the second epoch on points are used, unless all is reduced.
    """
    folder = write(images)
    used = []
    for epoch in range(4):
        settings = {"augment": augment, "reduce": reduce, "output": output}
        with maker(folder, decoder, "off", **settings) as plain:
            expected = steps(plain, epoch)
        with maker(folder, decoder, "learn", **settings) as learning:
            assert steps(learning, epoch) == expected
        counters = learning.dataset.seek.counters
        used.append(counters.used)
        assert (counters.refused, counters.torn, counters.dropped) == (0, 0, 0)
        with maker(folder, decoder, "use", **settings) as using:
            assert steps(using, epoch) == expected
        assert using.dataset.seek.counters.learned == 0
    assert used[0] == 0
    if reduce is None and augment != "none":
        assert min(used[1:]) > RECORDS // 2
    if reduce is None:
        with Dataset.open("d", [str(folder)], seek="learn") as dataset:
            assert learn(dataset).learned == RECORDS
            again = learn(dataset)
            assert (again.learned, again.complete) == (0, RECORDS)


def test_what_is_learned_does_not_have_to_wait_for_a_restart(
    write: Write, decoder: Decoder, images: list[bytes]
) -> None:
    with maker(write(images), decoder) as learning, maker(write(images), decoder, "off") as plain:
        for epoch in range(3):
            assert steps(learning, epoch) == steps(plain, epoch)
        seek = learning.dataset.seek
        seek.close()
        assert seek.counters.learned >= RECORDS
        assert seek.counters.used > RECORDS


@pytest.mark.parametrize("format_name", ["webdataset", "parquet", "folder"])
def test_every_format_of_shards_has_points(
    tmp_path: Path, decoder: Decoder, images: list[bytes], format_name: FormatName
) -> None:
    """Points are of images, wherever these lie."""
    photos = tmp_path / "photos"
    (photos / "cat").mkdir(parents=True)
    for number, image in enumerate(images):
        (photos / "cat" / f"{number}.jpg").write_bytes(image)
    folder = photos
    if format_name != "folder":
        folder = tmp_path / "shards"
        pack(photos, folder, shards=2, format_name=format_name)
    for epoch in range(2):
        with maker(folder, decoder, "off") as plain, maker(folder, decoder, "learn") as learning:
            assert steps(learning, epoch) == steps(plain, epoch)
    counters = learning.dataset.seek.counters
    assert counters.used > RECORDS // 2
    assert (counters.refused, counters.torn, counters.dropped) == (0, 0, 0)


def scan_of(image: bytes) -> int:
    """Where the entropy-coded data starts."""
    return image.index(b"\xff\xda") + 14


def damages(image: bytes, seed: int) -> list[bytes]:
    """The image hurt in ways that are found at one row or another, or never."""
    rng = random.Random(seed)
    scan = scan_of(image)
    hurt = [image[: rng.randrange(scan, len(image))]]
    for count in (1, 3):
        data = bytearray(image)
        for _ in range(count):
            data[rng.randrange(scan, len(image) - 2)] ^= 1 << rng.randrange(8)
        hurt.append(bytes(data))
    at = rng.randrange(scan, len(image) - 2)
    hurt.append(image[:at] + b"\xff\xd0" + image[at:])  # a marker that has no place there
    at = rng.randrange(scan, len(image) - 2)
    hurt.append(image[:at] + bytes(20) + image[at + 20 :])
    return hurt


@pytest.mark.parametrize("on_bad", ["replace", "fail"])
@pytest.mark.parametrize("seed", range(4))
def test_damage_is_found_as_without_points(
    write: Write, decoder: Decoder, images: list[bytes], on_bad: str, seed: int
) -> None:
    """Whatever crops came before, and so whatever is known."""
    hurt = [
        random.Random(seed + 100 * number).choice(damages(image, seed + 100 * number))
        for number, image in enumerate(images)
    ]
    spec: dict[str, Any] = {"on_bad": on_bad, "sampler": "inception"}
    folder, complete = write(hurt), write(hurt)
    with Dataset.open("d", [str(complete)], seek="learn") as dataset:
        counts = learn(dataset)
        assert counts.learned + counts.bad == RECORDS
        assert counts.damaged > RECORDS // 4
    bad = set()
    for epoch in random.Random(seed).sample(range(100), 6):
        with maker(folder, decoder, "off", **spec) as plain:
            expected = steps(plain, epoch)
        bad.add(sum(len(step[-2]) if len(step) > 2 else 1 for step in expected))
        for place in (folder, complete):
            with maker(place, decoder, "learn", **spec) as learning:
                assert steps(learning, epoch) == expected
            assert learning.dataset.seek.counters.refused == 0
    assert max(bad) > 0


def test_formats_that_have_no_points(
    write: Write, decoder: Decoder, images: list[bytes], corpus: Corpus
) -> None:
    """PNG, GIF, WebP, BMP, progressive, CMYK, odd sampling, broken headers: as without."""
    mixed = list(images)
    others = random.Random(0).sample(corpus.of("images"), RECORDS)
    for number, odd in zip(range(1, RECORDS, 2), others, strict=False):
        mixed[number] = odd.data or b"?"
    for format_name, number in (("PNG", 0), ("GIF", 2), ("WEBP", 4), ("BMP", 6)):
        out = io.BytesIO()
        Image.open(io.BytesIO(images[number])).save(out, format_name)
        mixed[number] = out.getvalue()
    out = io.BytesIO()
    Image.open(io.BytesIO(images[8])).save(out, "JPEG", progressive=True)
    mixed[8] = out.getvalue()
    folder = write(mixed)
    for epoch in range(3):
        with maker(folder, decoder, "off") as plain, maker(folder, decoder, "learn") as learning:
            assert steps(learning, epoch) == steps(plain, epoch)
    with Dataset.open("d", [str(folder)], seek="learn") as dataset:
        first = learn(dataset)
        again = learn(dataset)
        assert first.learned == RECORDS - first.bad
        assert dataclasses.replace(again, learned=first.learned, damaged=first.damaged) == first
        assert again.learned == 0


def forge(path: Path, points_of: Callable[[int, list[bytes]], bytes]) -> None:
    """Replaces the points of each slot, with a crc and a digest that fit."""
    data = bytearray(path.read_bytes())
    slots = range(HEADER_BYTES, len(data), SLOT_BYTES)
    before = [bytes(data[at + 24 : at + SLOT_BYTES]) for at in slots]
    for number, at in enumerate(slots):
        data[at + 24 : at + SLOT_BYTES] = points_of(number, before)
        struct.pack_into("<I", data, at, google_crc32c.value(bytes(data[at + 4 : at + SLOT_BYTES])))
    path.write_bytes(data)


FORGED: dict[str, Callable[[int, list[bytes]], bytes]] = {
    "of another image": lambda number, before: before[(number + 1) % len(before)],
    "random": lambda number, before: random.Random(number).randbytes(POINTS_BYTES),
    "ones": lambda number, before: b"\xff" * POINTS_BYTES,
    "all points some bits later": lambda number, before: (
        before[number][:8]
        + bytes(byte ^ 0x15 if place % 8 == 0 else byte for place, byte in enumerate(before[number][8:]))
    ),
}


@pytest.mark.parametrize("kind", FORGED)
def test_points_that_contradict_the_image_are_refused_and_replaced(
    write: Write, decoder: Decoder, images: list[bytes], kind: str
) -> None:
    """Even with a right crc and digest, as only malice makes them."""
    folder = write(images)
    with Dataset.open("d", [str(folder)], seek="learn") as dataset:
        learn(dataset)
    for path in points_files(folder):
        forge(path, FORGED[kind])
    refused = []
    for epoch in range(4):
        with maker(folder, decoder, "off") as plain, maker(folder, decoder, "learn") as learning:
            assert steps(learning, epoch) == steps(plain, epoch)
        refused.append(learning.dataset.seek.counters.refused)
        assert learning.dataset.seek.counters.torn == 0
    assert refused == [RECORDS, 0, 0, 0]


def test_torn_slots_are_learned_anew(write: Write, decoder: Decoder, images: list[bytes]) -> None:
    folder = write(images)
    with maker(folder, decoder) as learning:
        steps(learning, 0)
    for path in points_files(folder):
        data = bytearray(path.read_bytes())
        for at in range(HEADER_BYTES, len(data), 2 * SLOT_BYTES):
            data[at + 700 : at + SLOT_BYTES] = bytes(reversed(data[at : at + SLOT_BYTES - 700]))
        path.write_bytes(data)
    torn = []
    for epoch in (1, 2):
        with maker(folder, decoder, "off") as plain, maker(folder, decoder, "learn") as learning:
            assert steps(learning, epoch) == steps(plain, epoch)
        torn.append(learning.dataset.seek.counters.torn)
    assert torn == [RECORDS // 2, 0]


def test_the_portable_decoder_leaves_points_alone(write: Write, images: list[bytes]) -> None:
    folder = write(images)
    portable = open_decoder(1, "portable")
    try:
        with maker(folder, portable) as learning, maker(folder, portable, "off") as plain:
            assert learning.fetch(0, 0, range(8)).seek is None
            assert steps(learning, 0) == steps(plain, 0)
    finally:
        portable.close()
    assert points_files(folder) == []


def test_many_threads_learn_at_once(write: Write, decoder: Decoder, images: list[bytes]) -> None:
    """Two makers over one data set, four threads each, the same records at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    folder = write(images)
    with maker(folder, decoder, "off") as plain:
        expected = {epoch: steps(plain, epoch) for epoch in range(4)}
    with maker(folder, decoder) as one, ThreadPoolExecutor(4) as pool:
        two = ChunkMaker(one.dataset, decoder, one.spec)
        runs = [(made_by, epoch) for _ in range(3) for epoch in range(4) for made_by in (one, two)]
        for (_, epoch), got in zip(runs, pool.map(lambda run: steps(*run), runs), strict=True):
            assert got == expected[epoch]
    assert one.dataset.seek.counters.refused == 0
