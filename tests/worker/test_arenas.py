"""The worker's end of the side socket, and of the memory that comes over it."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from feeder.client.arena import Arena as ClientArena
from feeder.client.arena import hand_over
from feeder.errors import ConfigError, ServiceError
from feeder.wire.messages import ChunkRequest
from feeder.wire.side import receive_token, side_socket
from feeder.worker import arenas as module
from feeder.worker.arenas import Arenas

SIDE = 4
IMAGE = SIDE * SIDE * 3
BATCH = 8 * IMAGE
DEADLINE_S = 20.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def arenas(folder: Path) -> Iterator[Arenas]:
    made = Arenas(folder, 2, 1 << 20)
    yield made
    made.close()
    assert list(folder.iterdir()) == []


@pytest.fixture
def client() -> ClientArena:
    return ClientArena(BATCH, 1)


def request(slots: tuple[int, ...], buffer: int = 0, offset: int = 0) -> ChunkRequest:
    return ChunkRequest(1, 0, 0, slots, (buffer, offset))


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("feeder-arena")


def test_the_socket_is_the_users_own(arenas: Arenas, folder: Path) -> None:
    assert stat.S_IMODE(os.stat(arenas.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_what_is_written_is_in_the_clients_buffer(arenas: Arenas, client: ClientArena) -> None:
    handover = hand_over(client, arenas.path)
    arena = arenas.claim(handover.token)
    assert arena is not None
    assert arenas.claim(handover.token) is None  # for one call
    batch = client.array(2, (8, SIDE, SIDE, 3))
    batch[:] = 7
    wanted = request((11, 13, 14), 2, 3 * IMAGE)
    arena.check(wanted, IMAGE)
    target = arena.begin(wanted, (SIDE, SIDE, 3))
    assert target is not None
    assert target.places is not None
    assert target.places.tolist() == [0, 2, 3]
    for number, place in enumerate(target.places):
        target.out[place] = number
    arena.written()
    assert batch[:, 0, 0, 0].tolist() == [7, 7, 7, 0, 7, 1, 2, 7]
    arena.end()
    assert handover.ended(DEADLINE_S)
    handover.close()


@pytest.mark.parametrize(
    ("slots", "buffer", "offset"),
    [
        ((0,), 5, 0),
        ((0,), 2**32 - 1, 0),
        ((0,), 0, 4096 - IMAGE + 1),
        ((0,), 0, 2**64 - 1),
        ((0, 4096 // IMAGE), 0, 0),
        ((0, 2**32 - 1), 0, 0),
    ],
)
def test_places_outside_of_the_arena_are_refused_by_name(
    arenas: Arenas, client: ClientArena, slots: tuple[int, ...], buffer: int, offset: int
) -> None:
    handover = hand_over(client, arenas.path)
    arena = arenas.claim(handover.token)
    assert arena is not None
    arena.check(request(slots[:1], 0, 4096 - IMAGE), IMAGE)
    with pytest.raises(ConfigError, match=f"at {offset} of buffer {buffer}; the arena has 5 buffers of 4096"):
        arena.check(request(slots, buffer, offset), IMAGE)
    handover.close()


def test_who_ends_waits_for_who_writes(arenas: Arenas, client: ClientArena) -> None:
    handover = hand_over(client, arenas.path)
    arena = arenas.claim(handover.token)
    assert arena is not None
    target = arena.begin(request((0,)), (SIDE, SIDE, 3))
    assert target is not None
    handover.cancel()
    until(lambda: arena._ended)
    assert not handover.ended(0.1)
    assert arena.begin(request((1,)), (SIDE, SIDE, 3)) is None
    arena.written()
    assert handover.ended(DEADLINE_S)
    handover.close()


def test_a_client_that_goes_leaves_nothing(arenas: Arenas) -> None:
    process = psutil.Process()
    gc.collect()  # what the tests before have left to it
    fds, maps = process.num_fds(), mapped()
    for _ in range(3):
        client = ClientArena(BATCH, 1)
        handover = hand_over(client, arenas.path)
        arena = arenas.claim(handover.token)
        assert arena is not None
        assert mapped() == maps + 2
        handover.close()
        del client
        until(lambda arena=arena: arena._memory is None)  # type: ignore[misc]
        del arena
    until(lambda: process.num_fds() <= fds and mapped() <= maps)


def test_the_number_of_arenas_is_bounded(arenas: Arenas, client: ClientArena) -> None:
    handovers = [hand_over(client, arenas.path) for _ in range(2)]
    with pytest.raises(ServiceError, match="2 arenas are mapped, as many as --max-streams"):
        hand_over(client, arenas.path)
    handovers.pop().close()
    until(lambda: len(arenas._peers) == 1)
    handovers.append(hand_over(client, arenas.path))
    for handover in handovers:
        handover.close()


def test_their_bytes_are_bounded(arenas: Arenas) -> None:
    large = ClientArena(205_000, 1)
    with (
        contextlib.closing(hand_over(large, arenas.path)),
        pytest.raises(ServiceError, match="--arena-bytes is 1048576"),
    ):
        hand_over(ClientArena(100, 1), arenas.path)


def test_memory_without_seals_is_refused_by_name(arenas: Arenas, client: ClientArena) -> None:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, client.offer.nbytes)
    original, client.fd = client.fd, fd
    with pytest.raises(ServiceError, match="must be sealed against shrinking"):
        hand_over(client, arenas.path)
    client.fd = original
    os.close(fd)


def test_another_user_is_refused_by_name(
    arenas: Arenas, client: ClientArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "peer_uid", lambda _: 4321)
    monkeypatch.setattr(arenas, "_own", 1234)
    with pytest.raises(ServiceError, match="runs as user 1234 and shares no memory with user 4321"):
        hand_over(client, arenas.path)


def test_who_offers_nothing_is_let_go(arenas: Arenas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIDE_TIMEOUT_S", 0.1)
    with side_socket() as silent:
        silent.settimeout(DEADLINE_S)
        silent.connect(arenas.path)
        assert silent.recv(1) == b""


def test_too_many_who_offer_nothing_are_refused(arenas: Arenas) -> None:
    connections = []
    for _ in range(2 + module.SPARE_PEERS + 1):
        connections.append(side_socket())
        connections[-1].settimeout(DEADLINE_S)
        connections[-1].connect(arenas.path)
    with pytest.raises(ServiceError, match="too many connections"):
        receive_token(connections[-1])
    for connection in connections:
        connection.close()


def test_who_says_more_loses_the_arena(arenas: Arenas, client: ClientArena) -> None:
    handover = hand_over(client, arenas.path)
    handover._connection.send(b"more")
    assert handover.ended(DEADLINE_S)
    handover.close()


def test_close_ends_all(folder: Path, client: ClientArena) -> None:
    threads = threading.active_count()
    arenas = Arenas(folder, 2, 1 << 20)
    handover = hand_over(client, arenas.path)
    arenas.close()
    assert handover.ended(DEADLINE_S)
    assert threading.active_count() == threads
    assert list(folder.iterdir()) == []
    handover.close()


def test_sockets_of_dead_workers_go_and_others_stay(folder: Path, arenas: Arenas) -> None:
    script = (
        "import os, sys, signal; from pathlib import Path; from feeder.worker.arenas import Arenas; "
        "print(Arenas(Path(sys.argv[1]), 1, 1).path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True, timeout=60
    )
    stale = Path(done.stdout.strip())
    assert stale.exists()
    (folder / "other").write_text("not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as unnamed:
        unnamed.bind(str(folder / "young.new"))  # bound, and not listening yet
        Arenas(folder, 1, 1).close()
        assert {path.name for path in folder.iterdir()} == {Path(arenas.path).name, "other", "young.new"}
        os.utime(folder / "young.new", (0, 0))
        Arenas(folder, 1, 1).close()
    assert {path.name for path in folder.iterdir()} == {Path(arenas.path).name, "other"}
    (folder / "other").unlink()


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="a folder of your own that nobody else can write to"):
        Arenas(folder, 1, 1)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ConfigError, match="a folder of your own"):
        Arenas(tmp_path / "link", 1, 1)
    with pytest.raises(ConfigError, match="at most 107 bytes"):
        Arenas(tmp_path / ("x" * 100), 1, 1)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot make the side socket here"):
        Arenas(tmp_path / "file", 1, 1)
