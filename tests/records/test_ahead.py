from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import StorageError
from feeder.records import RecordKeys, ahead, formats
from feeder.records.ahead import AheadWindow
from feeder.records.formats import build_index
from feeder.records.stream import open_window

KEYS = RecordKeys()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ahead") / "file"


@given(
    st.integers(0, 300),
    st.integers(1, 40),
    st.integers(1, 40),
    st.lists(st.tuples(st.booleans(), st.integers(0, 120)), max_size=30),
)
@settings(max_examples=100, deadline=None)
def test_it_is_a_window(
    file: Path, size: int, block: int, room: int, steps: Sequence[tuple[bool, int]]
) -> None:
    """Whatever is asked for, it says and holds what a plain window does."""
    file.write_bytes(os.urandom(size))
    fd = os.open(file, os.O_RDONLY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "BLOCK_BYTES", block)
        patch.setattr(ahead, "ROOM_BYTES", room)
        plain, tested = open_window(fd, "file"), open_window(fd, "file", kind=AheadWindow)
        try:
            for skips, count in steps:
                if skips:
                    assert tested.skip(count) == plain.skip(count)
                    assert tested.position == plain.position
                    continue
                there = plain.have(count)
                assert tested.have(count) == there
                assert tested.view[tested.lo : tested.lo + there] == plain.view[plain.lo : plain.lo + there]
                assert tested.bytes[tested.lo : tested.lo + there].tobytes() == bytes(
                    tested.view[tested.lo : tested.lo + there]
                )
                used = there // 2
                plain.lo += used
                tested.lo += used
        finally:
            tested.close()
            os.close(fd)


def test_the_same_index_with_and_without(
    tmp_path: Path,
    make_payload: Callable[..., bytes],
    write_shard: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records shorter and longer than a block, and a cut at the end."""
    monkeypatch.setattr(ahead, "BLOCK_BYTES", 100_000)
    monkeypatch.setattr(ahead, "ROOM_BYTES", 40_000)
    monkeypatch.setattr(formats, "pays", lambda size: True)
    sizes = [10, 30_000, 90_000, 250_000, 20, 39_000, 41_000, 500_000] * 2
    shard = write_shard(
        tmp_path / "shard", [make_payload(os.urandom(size), number + 1) for number, size in enumerate(sizes)]
    )
    with open(shard, "r+b") as file:
        file.truncate(shard.stat().st_size - 7)
    plain, tested = build_index(shard, KEYS), build_index(shard, KEYS, spare=True)
    assert tested.content == plain.content
    assert tested.offset.tolist() == plain.offset.tolist()
    assert tested.damage == plain.damage
    assert tested.damage is not None


def test_errors_come_to_who_reads_and_the_thread_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(ahead.BLOCK_BYTES * 5))
    fd = os.open(path, os.O_RDONLY)
    window = open_window(fd, "file", kind=AheadWindow)
    try:
        window.have(10)
        os.truncate(path, 1000)
        with pytest.raises(StorageError, match="shrank"):
            window.skip(ahead.BLOCK_BYTES * 5)
        with pytest.raises(StorageError, match="shrank"):
            window.have(ahead.BLOCK_BYTES)
    finally:
        window.close()
        os.close(fd)
    assert not [thread for thread in threading.enumerate() if thread.name == "feeder-index-ahead"]
