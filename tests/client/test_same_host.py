"""Streams over scripted workers that write into the client's memory: who writes when, and what it is used
for."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import feeder
from feeder.client import engine, sharing, trouble
from feeder.client.arena import SPARE_BUFFERS
from feeder.errors import ProtocolError, Refused
from feeder.order import Order
from feeder.wire.codec import encode_placed, encode_reply
from feeder.wire.messages import Chunk, ChunkRequest, Failed, FailureKind

RECORDS = 40
TINY: dict[str, Any] = {"batch_size": 8, "image_size": 4}
BATCH_BYTES = 8 * 4 * 4 * 3
DEADLINE_S = 20.0
Make = Callable[..., Any]


@pytest.fixture
def near(scripted: Make, tmp_path: Path) -> Make:
    """Makes scripted workers with a side socket."""

    def make(script: Any = None) -> Any:
        return scripted(script, side=tmp_path / "run")

    return make


def values(stream: feeder.Stream, at: feeder.Position) -> list[int]:
    """What each image of the batch at a position holds."""
    return [int(r) + 1 for r in Order(at.spec, RECORDS).records(at.epoch, at.taken, np.arange(8))]


def right(stream: feeder.Stream, batch: feeder.Batch, at: feeder.Position) -> bool:
    expected = np.reshape(values(stream, at), (8, 1, 1, 1))
    return bool((batch.images == expected).all())


def taken(stream: feeder.Stream, count: int) -> Iterator[feeder.Batch]:
    for _ in range(count):
        at = stream.position
        batch = next(stream)
        assert right(stream, batch, at)
        yield batch


def until(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(int(DEADLINE_S / 0.01)):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it did not come true")


@pytest.mark.parametrize("transport", ["shm", "auto"])
def test_batches_are_written_in_place(near: Make, transport: Any) -> None:
    a, b = near(), near()
    with feeder.connect([a.address, b.address]).stream("data", **TINY, transport=transport) as stream:
        places = set()
        for batch in taken(stream, 40):
            places.add(batch.images.ctypes.data)
            assert batch.images.ctypes.data % mmap.PAGESIZE == 0
            assert batch.images.flags.c_contiguous
            assert batch.images.flags.writeable
        del batch
        stats = stream.stats()
        assert (stats.received_bytes, stats.copied_bytes, stats.transport) == (0, 0, "shm")
        assert {worker.transport for worker in stats.workers.values()} == {"shm"}
        assert len(places) <= 64 + SPARE_BUFFERS  # they are used again
        assert a.destinations == a.asked > 0
        assert b.destinations == b.asked > 0


def test_grpc_asks_for_no_place(near: Make) -> None:
    worker = near()
    with feeder.connect(worker.address).stream("data", **TINY, transport="grpc") as stream:
        assert len(list(taken(stream, 5))) == 5
        stats = stream.stats()
        assert stats.transport == "grpc"
        assert stats.copied_bytes == stats.received_bytes >= 5 * BATCH_BYTES
        assert worker.destinations == 0


def test_one_near_and_one_far(near: Make, scripted: Make) -> None:
    a, b = near(), scripted()
    with feeder.connect([a.address, b.address]).stream("data", **TINY) as stream:
        for _ in taken(stream, 40):
            pass
        stats = stream.stats()
        assert [stats.workers[worker.address].transport for worker in (a, b)] == ["shm", "grpc"]
        assert stats.transport == "mixed"
        assert stats.received_bytes == stats.copied_bytes > 0


def test_kept_batches_stay_as_they_are_and_others_come_all_the_same(near: Make) -> None:
    worker = near()
    with feeder.connect(worker.address).stream(
        "data", **TINY, transport="shm", prefetch_bytes=BATCH_BYTES
    ) as stream:
        start = stream.position
        batches = list(taken(stream, 20))
        at = start
        for batch in batches:
            assert right(stream, batch, at)
            at = batch.position
        assert sum(batch.images.base is not None for batch in batches) == 1 + SPARE_BUFFERS
        assert batches[-1].images.flags.owndata
        images = batches[0].images
        images[:] = 0  # the caller's own
        del batches, batch, images
        gc.collect()
        list(taken(stream, 1))  # was asked for before the memory was free again
        assert next(taken(stream, 1)).images.base is not None
        del stream


def test_a_worker_without_a_socket_is_refused_where_shm_must_be(
    scripted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble, "REFUSAL_GRACE_S", 0.2)
    client = feeder.connect(scripted().address)
    with (
        client.stream("data", **TINY, transport="shm") as stream,
        pytest.raises(
            Refused, match=r"as transport='shm' wants: it has no socket for that; use transport='auto'"
        ),
    ):
        next(stream)


def test_a_socket_that_cannot_be_reached_is_no_harm(near: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "REFUSAL_GRACE_S", 0.2)
    worker = near()
    worker.arenas.close()  # as seen from another container: no such file
    client = feeder.connect(worker.address)
    with client.stream("data", **TINY) as stream:
        assert len(list(taken(stream, 5))) == 5
        assert stream.stats().transport == "grpc"
    with (
        client.stream("data", **TINY, transport="shm") as stream,
        pytest.raises(Refused, match="No such file or directory"),
    ):
        next(stream)
    worker.arenas = None


def test_no_memory_for_an_arena_is_no_harm(near: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from feeder.client import arena

    monkeypatch.setattr(arena, "memory_limit", lambda: 100)
    with feeder.connect(near().address).stream("data", **TINY) as stream:
        assert len(list(taken(stream, 5))) == 5
        assert stream.stats().transport == "grpc"


def test_a_worker_that_does_not_know_the_arena_any_more(near: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "REFUSAL_GRACE_S", 0.2)
    worker = near()
    monkeypatch.setattr(worker.arenas, "claim", lambda _: None)
    client = feeder.connect(worker.address)
    with client.stream("data", **TINY) as stream:
        assert len(list(taken(stream, 5))) == 5
        assert stream.stats().transport == "grpc"
    with (
        client.stream("data", **TINY, transport="shm") as stream,
        pytest.raises(Refused, match="did not know the arena any more"),
    ):
        next(stream)


def test_an_answer_with_pixels_is_as_good(near: Make) -> None:
    def alternating(worker: Any, request: ChunkRequest) -> bytes:
        return bytes(worker.chunk(request) if worker.asked % 2 else worker.placed(request))

    with feeder.connect(near(alternating).address).stream("data", **TINY, transport="shm") as stream:
        assert len(list(taken(stream, 20))) == 20
        assert stream.stats().retired == 0


def test_a_failure_frees_the_place(near: Make) -> None:
    failed: set[tuple[int, ...]] = set()

    def once(worker: Any, request: ChunkRequest) -> bytes:
        key = (request.epoch, request.taken, *request.slots)
        if key not in failed:
            failed.add(key)
            return encode_reply(Failed(request.id, FailureKind.STORAGE, "try again"))
        return bytes(worker.answer(request))

    worker = near(once)
    with feeder.connect(worker.address).stream("data", **TINY, transport="shm") as stream:
        assert len(list(taken(stream, 3))) == 3
        assert worker.destinations == worker.asked
        assert (stream.stats().retired, stream.stats().copied_bytes) == (0, 0)


def test_a_place_that_was_not_given_is_a_fault_of_the_worker(scripted: Make) -> None:
    def liar(worker: Any, request: ChunkRequest) -> bytes:
        nothing = np.zeros(len(request.slots), np.int64)
        return encode_placed(request.id, nothing, nothing.astype(np.int32), nothing.astype(np.uint8), ())

    with (
        feeder.connect(scripted(liar).address).stream("data", **TINY) as stream,
        pytest.raises(ProtocolError, match="is in no place that it was given"),
    ):
        next(stream)


def test_a_late_worker_never_writes_into_what_somebody_has(
    near: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SUSPECT_AFTER_S", 0.3)
    passed_by, scribbled, done = threading.Event(), threading.Event(), threading.Event()
    owed: list[ChunkRequest] = []

    def late(worker: Any, request: ChunkRequest) -> bytes | None:
        """As if it was stopped, and goes on later in the middle of what it was asked for."""
        owed.append(request)
        if len(owed) == worker.max_outstanding:
            assert passed_by.wait(DEADLINE_S)
            for one in owed:
                worker.write(one, 255)
            scribbled.set()
            done.wait(DEADLINE_S)
        return None

    a, b = near(late), near()
    with feeder.connect([a.address, b.address]).stream(
        "data", **TINY, transport="shm", prefetch_bytes=4 * BATCH_BYTES
    ) as stream:
        kept = []
        for _ in range(6):
            at = stream.position
            kept.append((at, next(stream)))
        assert len(owed) == a.max_outstanding
        assert stream.stats().copied_bytes > 0
        assert stream.stats().retired > 0
        passed_by.set()
        assert scribbled.wait(DEADLINE_S)
        for at, batch in kept:
            assert right(stream, batch, at)
        for _ in taken(stream, 12):  # nor is what it scribbled in any later batch
            pass
        for at, batch in kept:
            assert right(stream, batch, at)
        assert stream.stats().retired > 0
        done.set()


def test_what_is_half_here_is_written_by_nobody_else(near: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SUSPECT_AFTER_S", 0.3)
    far: list[ChunkRequest] = []
    seen: list[ChunkRequest] = []

    def silent(worker: Any, request: ChunkRequest) -> None:
        far.append(request)

    def noted(worker: Any, request: ChunkRequest) -> bytes:
        seen.append(request)
        return bytes(worker.answer(request))

    a, b = near(silent), near(noted)
    monkeypatch.setattr(a.arenas, "claim", lambda _: None)  # it is over the network
    with feeder.connect([a.address, b.address]).stream("data", **TINY, prefetch_bytes=BATCH_BYTES) as stream:
        taker = threading.Thread(target=next, args=(stream,))
        taker.start()
        until(lambda: bool(far))
        nothing = np.zeros(len(far[0].slots), np.int64)
        chunk = Chunk(
            far[0].id, nothing, nothing, nothing, (), memoryview(b""), len(nothing) * BATCH_BYTES // 8
        )
        landing = stream._engine.arriving(a.address, chunk)
        assert landing is not None
        taker.join(DEADLINE_S)  # b was asked for it, and gave it
        (again,) = (request for request in seen if request.slots == far[0].slots and not request.taken)
        assert again.destination is None
        assert [request.destination is None for request in seen].count(False) > 0
        stream._engine.given_up(landing)


def test_a_connection_that_ends_keeps_its_buffers_until_its_socket_ends(
    near: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "END_TIMEOUT_S", 0.1)
    writing, go_on = threading.Event(), threading.Event()

    def stuck(worker: Any, request: ChunkRequest) -> bytes | None:
        target = worker.arena.begin(request, (4, 4, 3))
        writing.set()
        assert go_on.wait(DEADLINE_S)
        if target is not None:
            target.out[slice(None) if target.places is None else target.places] = 255
            worker.arena.written()
        return None

    a, b = near(stuck), near()
    with feeder.connect([a.address, b.address]).stream(
        "data", **TINY, prefetch_bytes=2 * BATCH_BYTES
    ) as stream:
        stopper = threading.Thread(target=lambda: (writing.wait(DEADLINE_S), a._server.stop(0)))
        stopper.start()
        start = at = stream.position
        kept = list(taken(stream, 4))
        stopper.join()
        assert stream.stats().retired > 0
        go_on.set()
        until(lambda: stream.stats().retired == 0)
        for batch in kept:
            assert right(stream, batch, at)
            at = batch.position
        assert start != at
        del kept, batch
        for _ in taken(stream, 30):
            pass


def arenas_here() -> int:
    """Mappings and descriptors of arenas in this process, which holds the scripted workers, too."""
    gc.collect()
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it was that of the listing
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return (Path("/proc/self/maps").read_text() + "\n".join(links)).count("feeder-arena")


@pytest.mark.parametrize("ending", ["close", "drop", "load"])
def test_nothing_is_left_however_a_stream_ends(near: Make, ending: str) -> None:
    worker = near()
    until(lambda: arenas_here() == 0)  # those of the tests before

    def use() -> None:
        stream = feeder.connect(worker.address).stream("data", **TINY, transport="shm")
        for _ in taken(stream, 3):
            assert arenas_here() > 0
        if ending == "load":
            stream.load_state_dict(stream.state_dict())
        if ending != "drop":
            stream.close()

    use()
    until(lambda: arenas_here() == 0 and not worker.arenas._peers)
    fds = psutil.Process().num_fds()
    for _ in range(4):
        use()
    until(lambda: arenas_here() == 0 and not worker.arenas._peers)
    until(lambda: psutil.Process().num_fds() <= fds + 3)  # gRPC's own breathe
