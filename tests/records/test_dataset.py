from __future__ import annotations

import errno
import os
import random
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from odd_corpus import Corpus

from feeder.errors import BadRecord, Closed, ConfigError, StorageError
from feeder.records import Dataset, RecordKeys, storage

Payload = Callable[[bytes, int], bytes]
Write = Callable[[Path, list[bytes]], Path]


def image(number: int) -> bytes:
    """Bytes that tell the record."""
    return f"image {number} ".encode() * (1 + number % 7)


@pytest.fixture
def folder(tmp_path: Path, make_payload: Payload, write_shard: Write) -> Path:
    """Shards of 7, 5, 0, 1 and 11 records; record n has image(n) and label n."""
    first = 0
    for shard, count in enumerate((7, 5, 0, 1, 11)):
        payloads = [make_payload(image(number), number + 1) for number in range(first, first + count)]
        write_shard(tmp_path / f"train-{shard:05d}-of-00005", payloads)
        first += count
    return tmp_path


@pytest.fixture
def dataset(folder: Path) -> Iterator[Dataset]:
    with Dataset.open("toy", [str(folder)]) as dataset:
        yield dataset


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "RETRY_DELAYS_S", (0.001, 0.001, 0.001))


def test_every_record_by_number(dataset: Dataset) -> None:
    assert len(dataset) == 24
    assert [shard.records for shard in dataset.shards] == [7, 5, 0, 1, 11]
    for number in random.Random(0).sample(range(24), 24):
        record = dataset.read(number)
        assert bytes(record.image) == image(number)
        assert record.label == number
    assert dataset.nbytes == sum(shard.nbytes for shard in dataset.shards) == dataset.bytes_read
    assert dataset.locate(0) == ("train-00000-of-00005", 0)
    assert dataset.locate(12) == ("train-00003-of-00005", 0)
    assert dataset.locate(23) == ("train-00004-of-00005", 10)
    for number in (-1, 24):
        with pytest.raises(IndexError):
            dataset.read(number)
        with pytest.raises(IndexError):
            dataset.locate(number)


def test_labels_of_many_are_those_of_each(folder: Path, make_payload: Payload, write_shard: Write) -> None:
    write_shard(folder / "train-00003-of-00005", [make_payload(image(12), 0)])  # classes begin with 1
    with Dataset.open("toy", [str(folder)]) as dataset:
        numbers = random.Random(1).choices(range(-1, 24), k=100)
        found = dataset.labels(np.array(numbers))
        assert found.dtype == np.int32
        assert found.tolist() == [-1 if number == -1 else dataset.label(number) for number in numbers]
        assert [dataset.label(number) for number in range(24)] == [*range(12), -1, *range(13, 24)]
        assert dataset.labels(np.array([], np.int64)).tolist() == []


def test_the_image_is_a_view_of_the_record(dataset: Dataset) -> None:
    view = dataset.read(3).image
    assert view.readonly
    assert isinstance(view.obj, bytes)
    assert len(view.obj) > len(view)


def test_the_fingerprint_is_that_of_the_content(folder: Path, tmp_path: Path, make_payload: Payload) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for shard in folder.glob("train-*"):
        shutil.copy(shard, elsewhere / shard.name)
    with Dataset.open("a", [str(folder)]) as one, Dataset.open("b", [str(elsewhere)]) as other:
        assert one.fingerprint == other.fingerprint
        assert len(bytes.fromhex(one.fingerprint)) == 32
    with Dataset.open("c", [f"{folder}/train-0000[0-3]*"]) as fewer:
        assert fewer.fingerprint != one.fingerprint
    with Dataset.open("d", [str(folder)], keys=RecordKeys(label_base=0)) as other_labels:
        assert other_labels.fingerprint != one.fingerprint


def test_same_name_size_and_mtime_but_other_content(corpus: Corpus, tmp_path: Path) -> None:
    """Story: v1 is indexed and read; v2 takes its place, with the same name, size and mtime.

    Result: another fingerprint and v2's images for whoever opens anew; a storage error, not a bad record, for
    who is still open.
    """
    name = "train-00000-of-00001.tfrecord"
    keys = RecordKeys(label_base=0)
    shutil.copy2(corpus.folder / "datasets/stale/v1" / name, tmp_path / name)
    os.utime(tmp_path / name, ns=(10**18, 10**18))
    with Dataset.open("v1", [str(tmp_path)], keys=keys) as v1:
        old = [bytes(v1.read(number).image) for number in range(8)]
        with open(tmp_path / name, "r+b") as file:  # in place: even the inode stays
            file.write((corpus.folder / "datasets/stale/v2" / name).read_bytes())
        os.utime(tmp_path / name, ns=(10**18, 10**18))
        with pytest.raises(StorageError, match="changed in place"):
            v1.read(0)
    with Dataset.open("v2", [str(tmp_path)], keys=keys) as v2:
        assert v2.fingerprint != v1.fingerprint
        assert all(bytes(v2.read(number).image) != old[number] for number in range(8))


def test_a_shard_that_is_replaced_gone_or_cut_is_a_storage_error(folder: Path) -> None:
    with Dataset.open("toy", [str(folder)], max_open=1) as dataset:
        shard = folder / "train-00001-of-00005"
        shutil.copy(shard, folder / "copy")
        dataset.read(0)  # keeps only shard 0 open
        os.replace(folder / "copy", shard)
        with pytest.raises(StorageError, match="not the file that was indexed"):
            dataset.read(7)
        shard.unlink()
        with pytest.raises(StorageError, match="No such file"):
            dataset.read(7)
        os.truncate(folder / "train-00000-of-00005", 100)
        with pytest.raises(StorageError, match="shrank"):
            dataset.read(6)


def test_a_flipped_bit_is_a_bad_record_and_leaves_the_others_alone(folder: Path) -> None:
    shard = folder / "train-00000-of-00005"
    data = bytearray(shard.read_bytes())
    data[40] ^= 4
    shard.write_bytes(data)
    with Dataset.open("toy", [str(folder)]) as dataset:
        with pytest.raises(BadRecord, match="crc32c of the payload") as caught:
            dataset.read(0)
        assert (caught.value.shard, caught.value.index) == ("train-00000-of-00005", 0)
        assert [dataset.read(number).label for number in range(1, 24)] == list(range(1, 24))


def test_bytes_hurt_on_the_way_are_read_again(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", hurt_first(pread))
    assert bytes(dataset.read(5).image) == image(5)


def hurt_first(pread: Callable[[int, int, int], bytes]) -> Callable[[int, int, int], bytes]:
    calls = 0

    def hurt(fd: int, count: int, offset: int) -> bytes:
        nonlocal calls
        calls += 1
        data = pread(fd, count, offset)
        return bytes([data[0] ^ 1]) + data[1:] if calls == 1 else data

    return hurt


def test_short_reads_are_continued(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: pread(fd, min(count, 7), offset))
    assert [bytes(dataset.read(number).image) for number in range(24)] == [image(n) for n in range(24)]


def test_storage_errors_are_retried_counted_and_then_raised(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    failures = 3

    def flaky(fd: int, count: int, offset: int) -> bytes:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, count, offset)

    monkeypatch.setattr(os, "pread", flaky)
    assert bytes(dataset.read(5).image) == image(5)
    assert dataset.storage_retries == 3
    failures = 4
    with pytest.raises(
        StorageError, match=r"train-00000-of-00005: record 5: .*Input/output error \(4 attempts\)"
    ):
        dataset.read(5)
    assert dataset.storage_retries == 6
    assert bytes(dataset.read(5).image) == image(5)


def test_close_ends_a_retry_at_once(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "RETRY_DELAYS_S", (60.0,))
    reading = threading.Event()

    def failing(fd: int, count: int, offset: int) -> bytes:
        reading.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", failing)
    raised: list[BaseException] = []

    def read() -> None:
        try:
            dataset.read(0)
        except Closed as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert reading.wait(10)
    dataset.close()
    thread.join(10)
    assert len(raised) == 1


def test_read_after_close(dataset: Dataset) -> None:
    dataset.read(0)
    dataset.close()
    dataset.close()
    with pytest.raises(Closed):
        dataset.read(0)
    assert dataset.locate(0) == ("train-00000-of-00005", 0)


def test_files_are_bounded_and_gone_after_close(
    tmp_path: Path, make_payload: Payload, write_shard: Write
) -> None:
    for shard in range(40):
        write_shard(tmp_path / f"s{shard:02d}", [make_payload(image(shard), shard + 1)])
    process = psutil.Process()
    Dataset.open("warm", [str(tmp_path)]).close()
    before = process.num_fds()
    with Dataset.open("toy", [str(tmp_path)], max_open=8) as dataset:
        assert process.num_fds() == before  # the indexes hold none
        for number in random.Random(1).choices(range(40), k=200):
            assert dataset.read(number).label == number
            assert process.num_fds() <= before + 8
    assert process.num_fds() == before


def test_many_threads_few_files(folder: Path) -> None:
    """Eight threads over one open file: descriptors come and go all the time, every byte is right."""
    process = psutil.Process()
    with Dataset.open("toy", [str(folder)], max_open=1) as dataset:
        before = process.num_fds()
        wrong: list[Any] = []

        def read(seed: int) -> None:
            try:
                for number in random.Random(seed).choices(range(24), k=400):
                    record = dataset.read(number)
                    if bytes(record.image) != image(number) or record.label != number:
                        wrong.append(number)
            except BaseException as error:
                wrong.append(error)
                raise

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        most = 0
        while any(thread.is_alive() for thread in threads):
            most = max(most, process.num_fds())
        for thread in threads:
            thread.join(60)
        assert not wrong
        assert most <= before + 1 + 8 + 8  # kept, in use, and opened while another thread opened it too
        assert dataset.bytes_read > 0


def test_close_while_others_read(folder: Path) -> None:
    process = psutil.Process()
    for _ in range(10):
        before = process.num_fds()
        dataset = Dataset.open("toy", [str(folder)], max_open=2)
        started = threading.Barrier(5)
        unexpected: list[BaseException] = []

        def read(dataset: Dataset, started: threading.Barrier, unexpected: list[BaseException]) -> None:
            started.wait(10)
            try:
                for number in range(24 * 50):
                    dataset.read(number % 24)
            except Closed:
                pass
            except BaseException as error:
                unexpected.append(error)
                raise

        threads = [threading.Thread(target=read, args=(dataset, started, unexpected)) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait(10)
        dataset.close()
        for thread in threads:
            thread.join(30)
        assert not unexpected
        assert process.num_fds() == before


def test_heap_per_record(tmp_path: Path, make_payload: Payload, framed: Callable[[bytes], bytes]) -> None:
    """200,000 records cost at most 24 bytes of heap each, fixed costs of the shards included."""
    record = framed(make_payload(b"x", 1))
    for shard in range(4):
        (tmp_path / f"train-{shard:05d}-of-00004").write_bytes(record * 50_000)
    Dataset.open("built", [str(tmp_path)]).close()
    tracemalloc.start()
    try:
        with Dataset.open("toy", [str(tmp_path)]) as dataset:
            assert len(dataset) == 200_000
            for number in range(0, 200_000, 1000):
                dataset.read(number)
            used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used <= 24 * 200_000


def test_an_index_that_is_hurt_after_the_start_changes_nothing(folder: Path) -> None:
    with Dataset.open("toy", [str(folder)]) as dataset:
        indexes = sorted(folder.glob("*.feederidx"))
        for path in indexes[:2]:
            os.truncate(path, 0)
        for path in indexes[2:]:
            path.write_bytes(bytes(path.stat().st_size))
        for number in range(24):
            assert dataset.read(number).label == number
            assert bytes(dataset.read(number).image) == image(number)


def test_large_offsets_and_late_images_take_wider_columns(
    tmp_path: Path, framed: Any, example_class: Any
) -> None:
    payloads = []
    for number in range(3):
        example = example_class()
        features = example.features.feature
        features["a/mask"].bytes_list.value.append(bytes(70_000))
        features["image/encoded"].bytes_list.value.append(image(number))
        features["image/class/label"].int64_list.value.append(number + 1)
        payloads.append(example.SerializeToString(deterministic=True))
    (tmp_path / "wide").write_bytes(b"".join(map(framed, payloads)))
    with Dataset.open("wide", [str(tmp_path)]) as dataset:
        assert [bytes(dataset.read(number).image) for number in range(3)] == [image(n) for n in range(3)]


def test_bad_records_are_counted(tmp_path: Path, make_payload: Payload, write_shard: Write) -> None:
    write_shard(tmp_path / "shard", [make_payload(b"x", 1), b"no example", make_payload(b"x", 0)])
    with Dataset.open("toy", [str(tmp_path)]) as dataset:
        assert dataset.bad == 2


def test_an_empty_data_set_lists_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"'none': no record in any of its 1 shards .*empty\.tfrecord"):
        Dataset.open("none", [str(tmp_path)])


def test_missing_indexes_can_be_an_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match="feeder index"):
        Dataset.open("toy", [str(folder)], build=False)
