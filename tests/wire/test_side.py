"""What goes over the side socket, and what is refused there."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.errors import ProtocolError, Refused
from feeder.wire.messages import ArenaOffer
from feeder.wire.side import (
    SEALS,
    check_memory,
    may_share,
    peer_uid,
    receive_offer,
    receive_token,
    send_offer,
    send_refusal,
    send_token,
)

PAGE = mmap.PAGESIZE
OFFER = ArenaOffer(2, PAGE)

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends
    for end in ends:
        end.close()


def memory(size: int, seals: int = SEALS) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_an_arena_is_offered_and_taken(pair: Pair) -> None:
    client, worker = pair
    fd = memory(2 * PAGE)
    send_offer(client, fd, OFFER)
    received = receive_offer(worker)
    assert received is not None
    offer, theirs = received
    assert offer == OFFER
    assert os.fstat(theirs).st_ino == os.fstat(fd).st_ino
    assert not os.get_inheritable(theirs)
    check_memory(theirs, offer)
    send_token(worker, b"token")
    assert receive_token(client) == b"token"
    for one in (fd, theirs):
        os.close(one)


def test_a_refusal_says_why(pair: Pair) -> None:
    client, worker = pair
    send_refusal(worker, "not today")
    with pytest.raises(Refused, match="not today"):
        receive_token(client)


@pytest.mark.parametrize("answer", [b"", b"\xff\xff\xff"])
def test_an_answer_that_is_none(pair: Pair, answer: bytes) -> None:
    client, worker = pair
    worker.send(answer)
    with pytest.raises(ProtocolError):
        receive_token(client)


def test_the_end_is_no_offer(pair: Pair) -> None:
    client, worker = pair
    client.close()
    assert receive_offer(worker) is None


@pytest.mark.parametrize("descriptors", [0, 2])
def test_an_offer_brings_one_descriptor(pair: Pair, descriptors: int) -> None:
    client, worker = pair
    fd = memory(2 * PAGE)
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(client, [b"\x08\x01\x10\x02\x18\x80\x20"], [fd] * descriptors)
    with pytest.raises(ProtocolError, match="one packet with one descriptor"):
        receive_offer(worker)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)


@pytest.mark.parametrize(
    ("packet", "message"), [(b"\xff\xff", "no ArenaOffer"), (b"\x08\x02", "speaks protocol 2")]
)
def test_an_offer_that_is_none_leaves_no_descriptor(pair: Pair, packet: bytes, message: str) -> None:
    client, worker = pair
    fd = memory(2 * PAGE)
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(client, [packet], [fd])
    with pytest.raises(ProtocolError, match=message):
        receive_offer(worker)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)


@pytest.mark.parametrize(
    ("size", "seals", "offer", "message"),
    [
        (2 * PAGE, 0, OFFER, "must be sealed against shrinking"),
        (2 * PAGE, SEALS & ~fcntl.F_SEAL_SHRINK, OFFER, "must be sealed against shrinking"),
        (2 * PAGE, SEALS & ~fcntl.F_SEAL_SEAL, OFFER, "must be sealed against shrinking"),
        (2 * PAGE, SEALS | fcntl.F_SEAL_WRITE, OFFER, "not against writing"),
        (PAGE, SEALS, OFFER, f"and a file of {PAGE} bytes"),
        (3 * PAGE, SEALS, OFFER, f"and a file of {3 * PAGE} bytes"),
        (2 * PAGE, SEALS, ArenaOffer(2, PAGE - 1), "whole pages"),
        (2 * PAGE, SEALS, ArenaOffer(2, 0), "whole pages"),
        (2 * PAGE, SEALS, ArenaOffer(0, PAGE), "1 to 4096 buffers"),
        (2 * PAGE, SEALS, ArenaOffer(1 << 31, PAGE), "1 to 4096 buffers"),
    ],
)
def test_memory_that_could_change_or_is_not_there(
    size: int, seals: int, offer: ArenaOffer, message: str
) -> None:
    fd = memory(size, seals)
    with pytest.raises(Refused, match=message):
        check_memory(fd, offer)
    os.close(fd)


def test_a_file_is_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * PAGE))
    with open(path, "r+b") as file, pytest.raises(Refused, match="an arena must be"):
        check_memory(file.fileno(), OFFER)
    read, write = os.pipe()
    with pytest.raises(Refused, match="must be a memfd"):
        check_memory(read, OFFER)
    os.close(read)
    os.close(write)


def test_huge_pages_are_no_ordinary_ones() -> None:
    try:
        fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"the kernel has no huge pages ({error.strerror})")
    huge = os.fstatvfs(fd).f_bsize
    os.ftruncate(fd, huge)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    with pytest.raises(Refused, match="ordinary pages"):
        check_memory(fd, ArenaOffer(1, huge))
    os.close(fd)


def test_who_may_share(pair: Pair) -> None:
    assert peer_uid(pair[0]) == os.geteuid()
    assert may_share(1000, 1000)
    assert may_share(0, 1000)
    assert may_share(1000, 0)
    assert not may_share(1000, 1001)
