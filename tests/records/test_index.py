from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from odd_corpus import Corpus

from feeder.errors import BadShard, ConfigError, StorageError
from feeder.records import RecordKeys, sharing
from feeder.records.build import ensure_indexes
from feeder.records.claims import Claims
from feeder.records.formats import build_index
from feeder.records.index import ShardState
from feeder.records.sidecar import IndexUnusable, index_path, load_index, write_index

KEYS = RecordKeys()


@pytest.fixture
def shard(tmp_path: Path, make_payload: Callable[..., bytes], write_shard: Callable[..., Path]) -> Path:
    """Five good records, labels 10 to 14, images of 100 to 104 bytes."""
    payloads = [make_payload(bytes([number]) * (100 + number), 11 + number) for number in range(5)]
    return write_shard(tmp_path / "train-00000-of-00001", payloads)


def load(shard: Path, keys: RecordKeys = KEYS) -> object:
    return load_index(index_path(shard), ShardState.of(os.stat(shard)), keys)


def test_columns_say_where_everything_is(shard: Path) -> None:
    (index,) = ensure_indexes([shard], KEYS)
    data = shard.read_bytes()
    assert len(index) == 5
    assert index.damage is None
    assert index.label.tolist() == [10, 11, 12, 13, 14]
    for number in range(5):
        start = int(index.offset[number]) + int(index.image_start[number])
        assert data[start : start + int(index.image_bytes[number])] == bytes([number]) * (100 + number)
    assert [column.dtype.str for column in (index.offset, index.length, index.label, index.crc)] == [
        "<u2",  # a short shard: offsets and lengths are kept as narrow as they can be
        "<u2",
        "<i4",
        "<u4",
    ]


def test_loaded_index_equals_the_built_one_and_is_private(shard: Path) -> None:
    built = build_index(shard, KEYS)
    write_index(built, index_path(shard), KEYS.of("tfrecord"))
    loaded = load_index(index_path(shard), built.state, KEYS)
    for name in ("offset", "length", "label", "crc", "image_start", "image_bytes"):
        column = getattr(loaded, name)
        assert np.array_equal(column, getattr(built, name))
        assert column.flags.owndata
    assert (loaded.state, loaded.damage, loaded.content) == (built.state, built.damage, built.content)


def test_a_good_index_is_not_built_again(shard: Path) -> None:
    built: list[Path] = []
    for _ in range(2):
        ensure_indexes([shard], KEYS, on_built=lambda path, reason: built.append(path))
    assert built == [shard]
    ensure_indexes([shard], KEYS, force=True, on_built=lambda path, reason: built.append(path))
    assert built == [shard, shard]


def test_stale_after_every_kind_of_change(
    shard: Path, make_payload: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    ensure_indexes([shard], KEYS)
    load(shard)
    before = os.stat(shard)

    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(IndexUnusable, match="stale"):
        load(shard)
    ensure_indexes([shard], KEYS)

    with open(shard, "ab") as file:
        file.write(b"more")
    with pytest.raises(IndexUnusable, match="stale"):
        load(shard)
    ensure_indexes([shard], KEYS)

    copy = shard.with_name("copy")
    shutil.copy2(shard, copy)
    os.replace(copy, shard)
    with pytest.raises(IndexUnusable, match="stale"):
        load(shard)

    # Overwritten in place, same size, mtime put back: only the change time tells.
    ensure_indexes([shard], KEYS)
    before = os.stat(shard)
    with open(shard, "r+b") as file:
        file.write(shard.read_bytes()[::-1])
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.stat(shard)
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )
    with pytest.raises(IndexUnusable, match="stale"):
        load(shard)


def test_other_keys_need_another_index(shard: Path) -> None:
    ensure_indexes([shard], KEYS)
    with pytest.raises(IndexUnusable, match="other keys"):
        load(shard, RecordKeys(label_base=0))
    (index,) = ensure_indexes([shard], RecordKeys(label_base=0))
    assert index.label.tolist() == [11, 12, 13, 14, 15]


def test_every_truncation_and_many_bit_flips_are_noticed(shard: Path) -> None:
    """Or the flip is in padding, and the columns read are the right ones."""
    (good,) = ensure_indexes([shard], KEYS)
    path = index_path(shard)
    whole = path.read_bytes()
    columns = ("offset", "length", "label", "crc", "image_start", "image_bytes")
    want = [getattr(good, name).tolist() for name in columns]
    del good
    for cut in range(0, len(whole), 37):
        path.write_bytes(whole[:cut])
        with pytest.raises(IndexUnusable):
            load(shard)
    noticed = 0
    for bit in range(0, 8 * len(whole), 53):
        hurt = bytearray(whole)
        hurt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(hurt)
        try:
            index = load(shard)
        except IndexUnusable:
            noticed += 1
        else:
            assert [getattr(index, name).tolist() for name in columns] == want
    assert noticed > 100


def test_odd_arrow_files_are_not_taken_for_an_index(shard: Path, corpus: Corpus) -> None:
    for odd in corpus.of("arrow"):
        index_path(shard).write_bytes(odd.data)
        with pytest.raises(IndexUnusable):
            load(shard)
        (index,) = ensure_indexes([shard], KEYS)
        assert len(index) == 5


def test_build_can_be_forbidden(shard: Path) -> None:
    with pytest.raises(ConfigError, match="no index yet: run `feeder index`"):
        ensure_indexes([shard], KEYS, build=False)
    ensure_indexes([shard], KEYS)
    ensure_indexes([shard], KEYS, build=False)


def test_index_dir_keeps_shards_of_two_folders_apart(
    tmp_path: Path, make_payload: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    shards = []
    for number, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        shards.append(write_shard(tmp_path / name / "shard", [make_payload(b"x", 1 + number)]))
    kept = tmp_path / "deep" / "indexes"
    assert [index.label.tolist() for index in ensure_indexes(shards, KEYS, index_dir=kept)] == [[0], [1]]
    assert len(list(kept.iterdir())) == 2
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["shard"]
    ensure_indexes(shards, KEYS, index_dir=kept, build=False)


def test_an_index_beside_the_shard_serves_where_the_folder_of_indexes_has_none(
    shard: Path, tmp_path: Path
) -> None:
    ensure_indexes([shard], KEYS)
    kept = tmp_path / "indexes"
    (index,) = ensure_indexes([shard], KEYS, index_dir=kept, build=False)
    assert index.label.tolist() == [10, 11, 12, 13, 14]
    assert not kept.exists()
    os.utime(shard, ns=(1, 1))
    with pytest.raises(ConfigError, match="no index yet"):
        ensure_indexes([shard], KEYS, index_dir=kept, build=False)
    ensure_indexes([shard], KEYS, index_dir=kept)
    ensure_indexes([shard], KEYS, index_dir=kept, build=False)
    assert index_path(shard, kept).exists()


def test_what_another_process_indexes_is_waited_for_and_said(
    shard: Path, caplog: pytest.LogCaptureFixture
) -> None:
    claim = Claims(shard.parent).take(index_path(shard))
    assert claim is not None
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.extend(ensure_indexes([shard], KEYS)))
    with caplog.at_level(logging.INFO):
        with claim:
            waiting.start()
            deadline_s = time.monotonic() + 60
            while f"others index 1, such as {shard.name} (by " not in caplog.text:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            write_index(build_index(shard, KEYS), index_path(shard), KEYS.of("tfrecord"))
        waiting.join(60)
    assert len(got) == 1
    assert "0 of 1 shards here" in caplog.text


def test_bad_records_keep_their_number(
    tmp_path: Path,
    make_payload: Callable[..., bytes],
    write_shard: Callable[..., Path],
    framed: Callable[[bytes], bytes],
) -> None:
    good = make_payload(b"image", 5)
    flipped = bytearray(framed(good))
    flipped[30] ^= 1
    path = tmp_path / "shard"
    path.write_bytes(framed(good) + bytes(flipped) + framed(b"no example") + framed(good) + framed(good)[:-1])
    (index,) = ensure_indexes([path], KEYS)
    assert index.label.tolist() == [4, -1, -1, 4, -1]
    assert index.length.tolist()[-1] == 0
    assert index.damage is not None
    assert "1 bytes of a record" in index.damage


def test_content_is_that_of_the_records_not_of_the_file(
    tmp_path: Path, make_payload: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    one = write_shard(tmp_path / "one", [make_payload(b"aaaa", 1)])
    same = write_shard(tmp_path / "same", [make_payload(b"aaaa", 1)])
    other_image = write_shard(tmp_path / "image", [make_payload(b"aaab", 1)])
    other_label = write_shard(tmp_path / "label", [make_payload(b"aaaa", 2)])
    contents = [index.content for index in ensure_indexes([one, same, other_image, other_label], KEYS)]
    assert contents[0] == contents[1]
    assert len(set(contents)) == 3
    (other_base,) = ensure_indexes([one], RecordKeys(label_base=0))
    assert other_base.content not in contents


@pytest.mark.parametrize("jobs", [1, 4])
def test_many_shards_in_parallel(
    tmp_path: Path, jobs: int, make_payload: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    shards = [
        write_shard(tmp_path / f"s{number:02d}", [make_payload(b"x" * 50, 1 + number)] * number)
        for number in range(20)
    ]
    indexes = ensure_indexes(shards, KEYS, jobs=jobs, progress=True)
    assert [index.label.tolist() for index in indexes] == [[number] * number for number in range(20)]


def test_the_first_unreadable_shard_stops_the_build_and_is_named(
    tmp_path: Path, make_payload: Callable[..., bytes], write_shard: Callable[..., Path]
) -> None:
    shards = [write_shard(tmp_path / f"s{number}", [make_payload(b"x", 1)]) for number in range(8)]
    shards[3].write_bytes(b"\x1f\x8b\x08" + bytes(50))
    with pytest.raises(BadShard, match="s3: is compressed with gzip"):
        ensure_indexes(shards, KEYS, jobs=2)
    assert not list(tmp_path.glob(".*"))


def test_a_shard_that_changes_while_it_is_indexed(shard: Path) -> None:
    def touch(count: int) -> None:
        os.utime(shard, ns=(1, 1))

    with pytest.raises(StorageError, match="changed while it was indexed"):
        build_index(shard, KEYS, advance=touch)
    assert not index_path(shard).exists()


def test_no_place_for_an_index_names_the_remedy(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("feeder.records.storage.tempfile.mkstemp", refuse)
    with pytest.raises(StorageError, match="--index-dir"):
        ensure_indexes([shard], KEYS)


def test_a_crash_before_the_rename_leaves_the_old_index(shard: Path) -> None:
    """Killed between writing and renaming: the old index is whole, the rest is hidden and in nobody's way."""
    (before,) = ensure_indexes([shard], KEYS)
    program = (
        "import os, sys, feeder.records.sidecar as i\n"
        "from pathlib import Path\n"
        "i.os.replace = lambda *a: os._exit(9)\n"
        "from feeder.records.build import ensure_indexes\n"
        "ensure_indexes([Path(sys.argv[1])], i.RecordKeys(), force=True)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(shard)], timeout=60).returncode == 9
    leftovers = [path for path in shard.parent.iterdir() if path.suffix == ".tmp"]
    assert len(leftovers) == 1
    assert leftovers[0].name.startswith(".")
    (after,) = ensure_indexes([shard], KEYS, build=False)
    assert after.content == before.content
    ensure_indexes([shard], KEYS, force=True)
    assert not leftovers[0].exists()


def test_two_builders_at_once(shard: Path) -> None:
    contents: list[str] = []

    def build_it() -> None:
        for _ in range(5):
            contents.append(ensure_indexes([shard], KEYS, force=True)[0].content)

    threads = [threading.Thread(target=build_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(contents) == 20
    assert len(set(contents)) == 1
    assert sorted(path.name for path in shard.parent.iterdir()) == [shard.name, index_path(shard).name]


def test_interrupted_builds_end_their_threads(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sharing, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ensure_indexes([shard], KEYS)


def test_jobs_must_be_positive_and_shards_regular_files(shard: Path) -> None:
    with pytest.raises(ConfigError, match="jobs"):
        ensure_indexes([shard], KEYS, jobs=0)
    fifo = shard.with_name("fifo")
    os.mkfifo(fifo)
    with pytest.raises(ConfigError, match="no regular file"):
        ensure_indexes([fifo], KEYS)
    with pytest.raises(StorageError, match="cannot read"):
        ensure_indexes([shard.with_name("gone")], KEYS)
