"""The memory of an arena: whose it is, and when it goes back."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import socket
from pathlib import Path

import numpy as np
import psutil
import pytest

from feeder.client import arena as arena_module
from feeder.client.arena import SPARE_BUFFERS, Arena, Handover, hand_over
from feeder.errors import ServiceError
from feeder.wire.side import SEALS

SHAPE = (2, 5, 7, 3)
NBYTES = 2 * 5 * 7 * 3


def test_buffers_are_pages_of_their_own() -> None:
    arena = Arena(mmap.PAGESIZE + 1, 2)
    assert arena.count == 2 + SPARE_BUFFERS
    assert arena.offer.buffer_bytes == 2 * mmap.PAGESIZE
    arrays = [arena.array(number, (mmap.PAGESIZE + 1,)) for number in range(arena.count)]
    for number, array in enumerate(arrays):
        array[:] = number + 1
    for number, array in enumerate(arrays):
        assert (array == number + 1).all()
        assert array.ctypes.data % mmap.PAGESIZE == 0
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_the_memory_is_sealed() -> None:
    arena = Arena(NBYTES, 1)
    assert fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    for size in (0, arena.offer.nbytes + mmap.PAGESIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)


def test_a_buffer_goes_back_when_all_that_looks_at_it_is_gone() -> None:
    arena = Arena(NBYTES, 1)
    array = arena.array(3, SHAPE)
    image = array[1]
    flat = memoryview(array).cast("B")
    turned = image.transpose(2, 0, 1)[::-1]
    del array
    gc.collect()
    assert not arena.dropped
    del image, flat
    gc.collect()
    assert not arena.dropped
    del turned
    gc.collect()
    assert list(arena.dropped) == [3]


def test_a_tensor_is_one_that_looks_at_it() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    arena = Arena(NBYTES, 1)
    array = arena.array(0, SHAPE)
    tensor = torch.from_numpy(array).permute(0, 3, 1, 2)
    del array
    gc.collect()
    assert not arena.dropped
    del tensor
    gc.collect()
    assert list(arena.dropped) == [0]


def test_what_is_kept_outlives_the_arena() -> None:
    process = psutil.Process()
    before = process.num_fds()
    arena = Arena(NBYTES, 1)
    kept, dropped = arena.array(0, SHAPE), arena.array(1, SHAPE)
    kept[:] = 9
    del arena, dropped
    gc.collect()
    assert (kept == 9).all()
    del kept
    gc.collect()
    assert process.num_fds() == before


def test_the_limit_of_the_cgroup_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "memory_limit", lambda: 10 * mmap.PAGESIZE)
    assert Arena(mmap.PAGESIZE, 64).count == 5
    with pytest.raises(ServiceError, match="over half of the"):
        Arena(6 * mmap.PAGESIZE, 4)


def test_memory_that_is_not_there_is_noticed_before_anybody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    arena = Arena(NBYTES, 1)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ServiceError, match="No space left"):
        arena.array(0, SHAPE)
    monkeypatch.undo()
    assert arena.array(0, SHAPE).shape == SHAPE


@pytest.mark.parametrize(
    ("path", "message"),
    [("", "no side socket"), ("run/x.sock", "no absolute path"), ("/nowhere/x.sock", "No such file")],
)
def test_a_socket_that_is_not_on_this_host(path: str, message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        hand_over(Arena(NBYTES, 1), path)


def test_a_socket_of_another_kind_is_no_side_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(tmp_path / "x"))
        other.listen()
        with pytest.raises(ServiceError, match="rotocol"):
            hand_over(Arena(NBYTES, 1), str(tmp_path / "x"))


def test_one_that_another_thread_has_closed_has_ended() -> None:
    here, there = socket.socketpair()
    with there:
        handover = Handover(here, b"token")
        assert not handover.ended()
        handover.close()
        assert handover.ended(60.0)


def test_pages_are_not_taken_before_they_are_needed() -> None:
    arena = Arena(64 * mmap.PAGESIZE, 4)
    assert os.fstat(arena.fd).st_blocks == 0
    array = arena.array(0, (64 * mmap.PAGESIZE,))
    assert os.fstat(arena.fd).st_blocks * 512 == 64 * mmap.PAGESIZE
    assert not np.any(array)


def test_no_descriptor_left_is_no_fault_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(arena_module, "side_socket", none_left)
    with pytest.raises(ServiceError, match="Too many open files"):
        hand_over(Arena(NBYTES, 1), str(tmp_path / "x"))
