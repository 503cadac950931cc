"""Seek points on disk: what was stored comes back, and whatever is wrong with a file says nothing at all."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import psutil
import pytest

from feeder.errors import Closed
from feeder.records import Dataset, RecordKeys, SeekCounters, SeekFiles, SeekMode
from feeder.records.index import ShardState
from feeder.records.seek import COMPLETE, HEADER_BYTES, POINTS_BYTES, SLOT_BYTES, WAITING, seek_path
from feeder.records.shards import is_shard_name
from feeder.records.sidecar import load_index

Payload = Callable[[bytes, int], bytes]
Write = Callable[[Path, list[bytes]], Path]

NAMES = ("train-00000-of-00002", "train-00001-of-00002")
RECORDS = range(8)


def points_of(record: int) -> np.ndarray:
    """Points that tell the record."""
    return np.random.default_rng(record).integers(0, 256, POINTS_BYTES, np.uint8)


@pytest.fixture
def folder(tmp_path: Path, make_payload: Payload, write_shard: Write) -> Path:
    """Shards of 5 and 3 records."""
    data = tmp_path / "data"
    data.mkdir()
    payloads = [make_payload(b"image %d" % number, number + 1) for number in RECORDS]
    write_shard(data / NAMES[0], payloads[:5])
    write_shard(data / NAMES[1], payloads[5:])
    return data


@contextlib.contextmanager
def opened(folder: Path, mode: SeekMode = "learn", **more: Any) -> Iterator[tuple[Dataset, SeekFiles]]:
    with Dataset.open("toy", [str(folder)], seek=mode, **more) as dataset:
        assert dataset.seek is not None
        yield dataset, dataset.seek


def load(dataset: Dataset, record: int) -> np.ndarray | None:
    """What is known of a record, or None."""
    assert dataset.seek is not None
    points = np.zeros(POINTS_BYTES, np.uint8)
    dataset.seek.load(record, dataset.read(record).digest, points)
    return points if points.any() else None


def store(dataset: Dataset, *records: int) -> None:
    assert dataset.seek is not None
    digests = [dataset.read(record).digest for record in records]
    dataset.seek.store(
        np.array(records), np.array(digests, np.uint32), np.array([points_of(record) for record in records])
    )


def known(dataset: Dataset) -> list[int]:
    """Records of which something is known, after a check that it is right."""
    found = {record: load(dataset, record) for record in RECORDS}
    for record, points in found.items():
        if points is not None:
            np.testing.assert_array_equal(points, points_of(record))
    return [record for record, points in found.items() if points is not None]


def learn_all(folder: Path) -> list[Path]:
    """Stores points of all records; returns the files, which are complete now."""
    with opened(folder) as (dataset, _):
        store(dataset, *RECORDS)
    return [seek_path(folder / name) for name in NAMES]


def test_what_was_stored_comes_back(folder: Path) -> None:
    with opened(folder) as (dataset, _):
        assert known(dataset) == []
        store(dataset, 1, 6)
        store(dataset, 4)
    with opened(folder) as (dataset, seek):
        assert known(dataset) == [1, 4, 6]
        assert seek.counters == SeekCounters()
        store(dataset, *RECORDS)
    assert seek.counters == SeekCounters(learned=8)
    for mode in ("learn", "use"):
        with opened(folder, mode) as (dataset, _):
            assert known(dataset) == list(RECORDS)


def test_the_layout_is_as_documented(folder: Path) -> None:
    """Read without the package: this is what other programs may rely on."""
    first, second = learn_all(folder)
    with Dataset.open("toy", [str(folder)]) as dataset:
        digests = [dataset.read(record).digest for record in RECORDS]
        assert digests == [google_crc32c.value(dataset.read(r).image.obj) for r in RECORDS]
        assert digests == [dataset.digest(record) for record in RECORDS]
    shard = folder / NAMES[1]
    index = load_index(folder / f"{NAMES[1]}.feederidx", ShardState.of(os.stat(shard)), RecordKeys())
    data = second.read_bytes()
    assert data[:8] == b"feedseek"
    crc, version, slot, zero, records = struct.unpack_from("<IIIIQ", data, 8)
    assert (version, slot, zero, records) == (1, 1024, 0, 3)
    assert crc == google_crc32c.value(data[12:4096])
    assert data[32:64].hex() == index.content
    assert not any(data[64:4096])
    for number, record in enumerate(range(5, 8)):
        entry = data[4096 + 1024 * number :][:1024]
        crc, digest, flags = struct.unpack_from("<III", entry)
        assert (crc, digest, flags) == (google_crc32c.value(entry[4:]), digests[record], 0)
        assert not any(entry[12:24])
        assert entry[24:] == points_of(record).tobytes()
    assert len(data) == 4096 + 3 * 1024
    assert first.stat().st_mode & 0o777 == 0o644


def test_complete_is_kept(folder: Path) -> None:
    with opened(folder) as (dataset, seek):
        seek.write(2, dataset.digest(2), points_of(2), flags=COMPLETE)
        seek.write(3, dataset.digest(3), points_of(3))
        points = np.zeros(POINTS_BYTES, np.uint8)
        assert [seek.load(record, dataset.digest(record), points) for record in (2, 3, 4)] == [
            True,
            False,
            False,
        ]
        seek.write(4, dataset.digest(4), np.zeros(POINTS_BYTES, np.uint8), flags=COMPLETE)
        assert seek.load(4, dataset.digest(4), points)  # there is nothing to be known, and that is known
        assert known(dataset) == [2, 3]


def test_off_and_use_leave_no_file(folder: Path) -> None:
    with Dataset.open("toy", [str(folder)]) as dataset:
        assert dataset.seek is None
    with opened(folder, "use") as (dataset, seek):
        assert known(dataset) == []
        store(dataset, *RECORDS)
        with pytest.raises(OSError, match="only reads"):
            seek.write(0, dataset.digest(0), points_of(0))
    assert seek.counters == SeekCounters()
    assert not list(folder.glob("*.feederseek"))


def test_points_lie_where_the_indexes_lie(folder: Path, tmp_path: Path) -> None:
    with opened(folder, index_dir=tmp_path / "indexes") as (dataset, _):
        store(dataset, 0)
    names = {path.name.rpartition(".")[0] for path in (tmp_path / "indexes").iterdir()}
    assert len(names) == 2
    assert len(list((tmp_path / "indexes").glob("*.feederseek"))) == 1
    assert sorted(path.name for path in folder.iterdir()) == list(NAMES)
    assert not is_shard_name(f"{NAMES[0]}.feederseek")


def test_their_folder_is_made_where_all_indexes_lie_beside_the_shards(folder: Path, tmp_path: Path) -> None:
    with opened(folder):
        pass
    with opened(folder, index_dir=tmp_path / "new" / "points") as (dataset, seek):
        seek.write(0, dataset.digest(0), points_of(0))
    assert [path.suffix for path in (tmp_path / "new" / "points").iterdir()] == [".feederseek"]


def flip(byte: int) -> Callable[[bytes], bytes]:
    return lambda slot: slot[:byte] + bytes([slot[byte] ^ 1]) + slot[byte + 1 :]


SLOT_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "its crc": flip(0),
    "its digest": flip(5),
    "its flags": flip(8),
    "its padding": flip(20),
    "its first point": flip(24),
    "its last byte": flip(1023),
    "a torn write, front": lambda slot: slot[:512] + bytes(512),
    "a torn write, back": lambda slot: bytes(512) + slot[512:],
    "ones": lambda slot: b"\xff" * 1024,
    "a crc over nothing": lambda slot: struct.pack("<I", google_crc32c.value(bytes(1020))) + bytes(1020),
}


@pytest.mark.parametrize("kind", SLOT_DAMAGE)
def test_a_damaged_slot_says_nothing_and_heals(folder: Path, kind: str) -> None:
    first, _ = learn_all(folder)
    data = bytearray(first.read_bytes())
    data[4096 + 2048 : 4096 + 3072] = SLOT_DAMAGE[kind](bytes(data[4096 + 2048 : 4096 + 3072]))
    first.write_bytes(data)
    with opened(folder) as (dataset, seek):
        assert known(dataset) == [0, 1, 3, 4, 5, 6, 7]
        assert seek.counters.torn == 1
        store(dataset, 2)
    with opened(folder) as (dataset, seek):
        assert known(dataset) == list(RECORDS)
        assert seek.counters == SeekCounters()


def test_a_slot_of_another_record_says_nothing(folder: Path) -> None:
    first, _ = learn_all(folder)
    data = bytearray(first.read_bytes())
    data[4096 : 4096 + 1024] = data[4096 + 1024 : 4096 + 2048]
    first.write_bytes(data)
    with opened(folder, "use") as (dataset, seek):
        assert known(dataset) == list(RECORDS)[1:]
        assert seek.counters.torn == 1


@pytest.mark.parametrize("size", [HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 2 * SLOT_BYTES + 700])
def test_a_truncated_file_says_nothing_beyond_its_end(folder: Path, size: int) -> None:
    first, _ = learn_all(folder)
    os.truncate(first, size)
    with opened(folder) as (dataset, seek):
        assert known(dataset) == [*range((size - HEADER_BYTES) // SLOT_BYTES), 5, 6, 7]
        assert seek.counters.torn == (1 if (size - HEADER_BYTES) % SLOT_BYTES else 0)
        store(dataset, 4)
        store(dataset, 3, 2)
    with opened(folder) as (dataset, seek):
        assert {2, 3, 4} < set(known(dataset))


UNFIT: dict[str, Callable[[bytes, bytes], bytes]] = {
    "empty": lambda own, other: b"",
    "cut in the header": lambda own, other: own[:100],
    "another shard's": lambda own, other: other,
    "a flipped header": lambda own, other: flip(40)(own),
    "another format": lambda own, other: flip(12)(own),
    "no such file at all": lambda own, other: random.Random(0).randbytes(9000),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_an_unfit_file_is_replaced(folder: Path, kind: str) -> None:
    first, second = learn_all(folder)
    hurt = UNFIT[kind](first.read_bytes(), second.read_bytes())
    first.write_bytes(hurt)
    with opened(folder, "use") as (dataset, _):
        assert known(dataset) == [5, 6, 7]
    assert first.read_bytes() == hurt
    inode = first.stat().st_ino
    with open(first, "r+b") as held:  # as by a process that still serves what this was made for
        with opened(folder) as (dataset, seek):
            assert known(dataset) == [5, 6, 7]
            store(dataset, 0, 2)
        held.write(b"late")
    assert seek.counters == SeekCounters(learned=2)
    assert first.stat().st_ino != inode
    with opened(folder) as (dataset, _):
        assert known(dataset) == [0, 2, 5, 6, 7]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_shard_with_other_content_starts_anew(
    folder: Path, make_payload: Payload, write_shard: Write
) -> None:
    """Record 1 changes; record 0 is the same, and its points go with the file."""
    learn_all(folder)
    payloads = [make_payload(b"image %d" % number, number + 1) for number in range(5)]
    payloads[1] = make_payload(b"changed", 2)
    write_shard(folder / NAMES[0], payloads)
    with opened(folder) as (dataset, seek):
        assert known(dataset) == [5, 6, 7]
        assert seek.counters == SeekCounters()


def test_a_copy_of_shards_takes_points_along(folder: Path, tmp_path: Path) -> None:
    learn_all(folder)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in NAMES:
        shutil.copyfile(folder / name, copy / name)
        shutil.copyfile(seek_path(folder / name), seek_path(copy / name))
    with opened(copy, "use") as (dataset, _):
        assert known(dataset) == list(RECORDS)


def test_a_folder_in_its_place_is_no_error(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    seek_path(folder / NAMES[0]).mkdir()
    with caplog.at_level(logging.WARNING), opened(folder) as (dataset, seek):
        assert known(dataset) == []
        store(dataset, *RECORDS)
    assert seek.counters == SeekCounters(learned=3, dropped=5)
    assert len(caplog.records) == 1
    assert NAMES[0] in caplog.text
    assert "Is a directory" in caplog.text


@pytest.fixture
def public_folder(folder: Path) -> Iterator[Path]:
    """A copy of `folder` that every user may read, indexed."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        public = Path(place) / "data"
        shutil.copytree(folder, public)
        Dataset.open("toy", [str(public)]).close()
        yield public


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere: be somebody else for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("learned", [False, True])
def test_a_folder_that_cannot_be_written_is_said_once(
    public_folder: Path, learned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What is there is used; nothing is kept, on disk or in memory."""
    if learned:
        for path in learn_all(public_folder):
            path.chmod(0o444)
    public_folder.chmod(0o555)
    before = sorted(path.name for path in public_folder.iterdir())
    expected = list(RECORDS) if learned else []
    with caplog.at_level(logging.WARNING), unprivileged(), opened(public_folder) as (dataset, seek):
        assert known(dataset) == expected
        store(dataset, *RECORDS)
        assert known(dataset) == expected
    assert seek.counters == SeekCounters(dropped=8)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Permission denied" in caplog.text
    assert "--index-dir" in caplog.text
    assert sorted(path.name for path in public_folder.iterdir()) == before
    public_folder.chmod(0o755)


@contextlib.contextmanager
def no_larger_files(size: int) -> Iterator[None]:
    """The system refuses to let any file grow beyond `size`, as it does on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("size", "kept"),
    [(100, []), (HEADER_BYTES, []), (HEADER_BYTES + 2 * SLOT_BYTES + 500, [0, 1, 5, 6])],
)
def test_a_full_disk_drops_points_and_hurts_nothing(folder: Path, size: int, kept: list[int]) -> None:
    Dataset.open("toy", [str(folder)]).close()
    with no_larger_files(size), opened(folder) as (dataset, seek):
        assert known(dataset) == []
        store(dataset, *RECORDS)
        dataset.seek.close()
        assert known(dataset) == kept
    assert seek.counters.learned == len(kept)
    assert seek.counters.dropped == 8 - len(kept)
    learn_all(folder)
    with opened(folder, "use") as (dataset, seek):
        assert known(dataset) == list(RECORDS)
        assert seek.counters == SeekCounters()


def test_what_comes_too_fast_is_dropped_and_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage hangs: whoever stores does not wait for it."""
    pwrite, hanging, free = os.pwrite, threading.Event(), threading.Event()

    def hang(fd: int, data: bytes, offset: int) -> int:
        hanging.set()
        assert free.wait(30)
        return pwrite(fd, data, offset)

    with opened(folder) as (dataset, seek):
        monkeypatch.setattr(os, "pwrite", hang)
        store(dataset, 0)
        assert hanging.wait(30)
        for _ in range(WAITING):
            store(dataset, 1)
        for _ in range(3):
            store(dataset, 2, 3)
        assert seek.counters == SeekCounters(dropped=6)
        free.set()
    assert seek.counters == SeekCounters(learned=1 + WAITING, dropped=6)
    with opened(folder) as (dataset, seek):
        assert known(dataset) == [0, 1]


def test_storage_that_fails_to_read_says_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn_all(folder)
    with opened(folder) as (dataset, seek):
        assert known(dataset) == list(RECORDS)
        digest = dataset.digest(1)
        points = np.zeros(POINTS_BYTES, np.uint8)

        def failing(fd: int, count: int, offset: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", failing)
            assert not seek.load(1, digest, points)
        assert not points.any()
        assert seek.counters == SeekCounters(torn=1)
        assert known(dataset) == list(RECORDS)


def test_after_close(folder: Path) -> None:
    with opened(folder) as (dataset, seek):
        digest = dataset.digest(0)
        store(dataset, 0)
    seek.store(np.array([1]), np.array([digest], np.uint32), points_of(1)[None])
    assert seek.counters == SeekCounters(learned=1, dropped=1)
    with pytest.raises(Closed):
        seek.load(0, digest, np.zeros(POINTS_BYTES, np.uint8))
    seek.close()


WRITER = """
import sys
import numpy as np
from feeder.records import Dataset

def points_of(record):
    return np.random.default_rng(record).integers(0, 256, 1000, np.uint8)

print("ready", flush=True)
sys.stdin.readline()
with Dataset.open("toy", [sys.argv[1]], seek="learn") as dataset:
    print("open", flush=True)
    for turn in range(int(sys.argv[2])):
        for record in range(len(dataset)):
            digest = dataset.digest(record)
            points = np.zeros(1000, np.uint8)
            dataset.seek.load(record, digest, points)
            assert not points.any() or (points == points_of(record)).all(), record
            dataset.seek.write(record, digest, points_of(record))
    assert dataset.seek.counters.torn == 0 or sys.argv[3] == "killed", dataset.seek.counters
"""


def start_writer(folder: Path, turns: int, how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(turns), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_processes_share_files_from_their_start_on(folder: Path) -> None:
    """Four processes make, read and write the same files at the same time."""
    Dataset.open("toy", [str(folder)]).close()
    processes = [start_writer(folder, 100, "whole") for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    with opened(folder, "use") as (dataset, seek):
        assert known(dataset) == list(RECORDS)
        assert seek.counters == SeekCounters()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_killed_process_leaves_nothing_wrong(folder: Path) -> None:
    Dataset.open("toy", [str(folder)]).close()
    for _ in range(3):
        process = start_writer(folder, 1_000_000, "killed")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "open\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(random.Random().random() / 10)
        process.kill()
        process.communicate()
        with opened(folder) as (dataset, _):
            known(dataset)
            store(dataset, *RECORDS)
        with opened(folder) as (dataset, seek):
            assert known(dataset) == list(RECORDS)
            assert seek.counters == SeekCounters()
        for path in folder.glob("*.feederseek"):
            path.unlink()


def test_threads_read_and_write_at_once(folder: Path) -> None:
    with opened(folder, max_open=1) as (dataset, seek):
        wrong: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                for record in random.Random(seed).choices(RECORDS, k=300):
                    store(dataset, record)
                    points = load(dataset, record)
                    if points is not None:
                        np.testing.assert_array_equal(points, points_of(record))
            except BaseException as error:
                wrong.append(error)
                raise

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong
    assert seek.counters.learned + seek.counters.dropped == 6 * 300
    assert seek.counters.torn == 0
    with opened(folder, "use") as (dataset, _):
        assert known(dataset)


def test_descriptors_are_bounded_and_gone_after_close(
    tmp_path: Path, make_payload: Payload, write_shard: Write
) -> None:
    for shard in range(20):
        write_shard(tmp_path / f"s{shard:02d}", [make_payload(b"x", shard + 1)])
    process = psutil.Process()
    Dataset.open("warm", [str(tmp_path)]).close()
    before = process.num_fds()
    with opened(tmp_path, max_open=8) as (dataset, seek):
        for record in random.Random(1).choices(range(20), k=200):
            seek.write(record, dataset.read(record).digest, points_of(record))
            assert process.num_fds() <= before + 8
            assert load(dataset, record) is not None
    assert process.num_fds() == before


def test_heap_per_record_is_that_of_the_index(
    tmp_path: Path, make_payload: Payload, framed: Callable[[bytes], bytes]
) -> None:
    """200,000 records whose points are all read and written: at most 24 bytes of heap each, as without."""
    record = framed(make_payload(b"x", 1))
    for shard in range(4):
        (tmp_path / f"train-{shard:05d}-of-00004").write_bytes(record * 50_000)
    Dataset.open("built", [str(tmp_path)]).close()
    points = np.arange(POINTS_BYTES).astype(np.uint8)
    tracemalloc.start()
    try:
        with opened(tmp_path) as (dataset, seek):
            for number in range(0, 200_000, 400):
                digest = dataset.read(number).digest
                seek.load(number, digest, np.zeros(POINTS_BYTES, np.uint8))
                seek.store(np.array([number]), np.array([digest], np.uint32), points[None])
            seek.close()
            assert seek.counters.learned + seek.counters.dropped == 500
            used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used <= 24 * 200_000
    files = list(tmp_path.glob("*.feederseek"))
    assert sum(path.stat().st_blocks for path in files) * 512 < 500 * 5 * SLOT_BYTES  # sparse
