"""From requests to answers: readers fetch ahead, callers keep the decode pool busy, streams take turns.

scheduler -> readers (storage, crc, parse) -> ready, bounded -> callers (decode into the message) -> stream

A reader does not wait for an object store: it asks for the records of the chunks that come next, in their
order, and goes on with those that came.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from feeder.batch import Asked, BadChunk, ChunkMaker, Fetched, FoundBad
from feeder.decode import MessageBuffer
from feeder.errors import Closed, ConfigError, StorageError
from feeder.records import Reading
from feeder.wire import max_slots
from feeder.wire.codec import ChunkFrame, encode_placed, encode_reply
from feeder.wire.messages import BadRecordInfo, ChunkRequest, Draining, Failed, FailureKind
from feeder.worker.arenas import Arena, Target
from feeder.worker.quarantine import Quarantine
from feeder.worker.scheduler import Job, Scheduler
from feeder.worker.stream import Answer, Stream

__all__ = ["Counters", "Pipeline"]

log = logging.getLogger(__name__)

BUDGET_BYTES = 512 << 20
STREAM_BYTES = 128 << 20
"""Pixels that are made or wait to be sent: of all streams, and of one. 128 MiB are 27 chunks of 32 images of
224 pixels, a tenth of a second of what the fastest host takes."""

AHEAD_CHUNKS = 64
AHEAD_BYTES = 256 << 20
"""Chunks, and bytes of their records, that are asked for from object stores ahead of who decodes them."""

MAX_OUTSTANDING = 256
"""Requests of one stream that may be unanswered: 8,192 images in chunks of 32."""


@dataclass(slots=True)
class Counters:
    """Sums since the start; seconds are of threads, not of the clock."""

    images: int = 0
    chunks: int = 0
    bytes_sent: int = 0
    bytes_placed: int = 0
    bad_records: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Open:
    stream: Stream
    maker: ChunkMaker
    arena: Arena | None


@dataclass(frozen=True, slots=True, eq=False)
class _Coming:
    """A chunk whose records were asked for from an object store."""

    opened: _Open
    job: Job
    asked: Asked
    reading: Reading


@dataclass(frozen=True, slots=True)
class _Ready:
    opened: _Open
    job: Job
    fetched: Fetched


class Pipeline:
    """Makes the chunks that all streams ask for.

    Args:
        readers: threads that read records.
        callers: threads that each have one chunk decoded at a time, on the decoder's own pool.
        quarantine: is told of bad records.
    """

    def __init__(self, readers: int, callers: int, quarantine: Quarantine) -> None:
        self._quarantine = quarantine
        self._scheduler = Scheduler(BUDGET_BYTES, STREAM_BYTES, MAX_OUTSTANDING)
        self._open: dict[int, _Open] = {}
        self._counters = Counters()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._ready_changed = threading.Condition(self._lock)
        self._ready: deque[_Ready] = deque()
        self._reading = 0
        self._coming: set[_Coming] = set()  # those that came included
        self._coming_bytes = 0
        self._came: deque[_Coming] = deque()
        self._prefer_came = False
        self._read_ahead = readers + callers
        self._idle = 0
        self._idle_counted_s = time.perf_counter()
        self._stopping = False
        self._threads = [
            threading.Thread(target=loop, name=f"feeder-{name}-{number}", daemon=True)
            for loop, name, count in ((self._read, "read", readers), (self._make, "make", callers))
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def max_outstanding(self) -> int:
        """Requests of one stream that may be unanswered at a time."""
        return self._scheduler.max_outstanding

    def counters(self) -> Counters:
        """A snapshot."""
        with self._lock:
            self._count_idle(0)
            return replace(self._counters)

    def open(self, stream: Stream, maker: ChunkMaker, arena: Arena | None = None) -> None:
        """Takes requests of a stream from now on; does nothing for one whose call ended meanwhile.

        Args:
            arena: of the stream's client; it ends with the stream.
        """
        with self._lock:
            if not stream.closed:
                self._open[stream.number] = _Open(stream, maker, arena)
                self._scheduler.open(stream.number, maker.spec.image_bytes)
            elif arena is not None:
                arena.end()

    def close_stream(self, stream: Stream) -> None:
        """Drops what a stream still asked for; does nothing the second time."""
        with self._lock:
            opened = self._open.pop(stream.number, None)
            self._scheduler.close(stream.number)
            unwanted = [coming.reading for coming in self._coming if coming.opened.stream is stream]
            self._work.notify_all()
        if opened is not None and opened.arena is not None:
            opened.arena.end()
        for reading in unwanted:
            reading.cancel()

    def ask(self, stream: Stream, request: ChunkRequest) -> None:
        """Takes a request of an open stream.

        Raises:
            ConfigError: more requests are unanswered than Opened allowed.
        """
        with self._lock:
            if stream.number in self._open:
                self._scheduler.ask(stream.number, request)
                self._wake_reader()

    def answers(self, stream: Stream) -> Iterator[bytes]:
        """The FeedReplies of an open stream, until it ends; each counts as sent when the next is asked for.

        Raises:
            FeederError: what the stream failed with.
        """
        while (answer := stream.next(lambda: self._owes(stream))) is not None:
            if answer.job is None:
                yield answer.data
                continue
            with self._lock:
                self._scheduler.answered(answer.job)
            yield answer.data
            with self._lock:
                self._scheduler.sent(answer.job)
                self._wake_reader()
                if answer.images:
                    self._counters.images += answer.images
                    self._counters.chunks += 1
                    self._counters.bytes_sent += len(answer.data)
                    self._counters.bytes_placed += answer.placed_bytes

    def drain(self) -> None:
        """Tells every stream that the worker wants to go; each ends once nothing is owed."""
        with self._lock:
            streams = [opened.stream for opened in self._open.values()]
        for stream in streams:
            stream.put(Answer(encode_reply(Draining())))
            stream.finish()

    def close(self) -> None:
        """Ends all threads, after the chunks that they are working on."""
        with self._lock:
            self._stopping = True
            unwanted = [coming.reading for coming in self._coming]
            self._work.notify_all()
            self._ready_changed.notify_all()
        for reading in unwanted:
            reading.cancel()
        for thread in self._threads:
            thread.join()
        self._ready.clear()
        self._came.clear()
        self._coming.clear()

    def _owes(self, stream: Stream) -> bool:
        with self._lock:
            return self._scheduler.owed(stream.number) > 0

    def _read(self) -> None:
        while (work := self._next_to_read()) is not None:
            self._read_one(*work)
            del work  # a thread that waits keeps nothing of a stream

    def _read_one(self, opened: _Open, job: Job, coming: _Coming | None) -> None:
        started_s = time.perf_counter()
        fetched = asked = None
        try:
            if coming is not None:
                if not opened.stream.closed:
                    fetched = opened.maker.finish(coming.asked)
            else:
                asked = _ask(opened, job.request)
                if asked.reading is None:
                    fetched = opened.maker.finish(asked)
        except Exception as error:  # noqa: BLE001  # a worker outlives whatever one request does
            self._fail(opened, job, error)
        started = None
        with self._lock:
            self._counters.read_s += time.perf_counter() - started_s
            self._reading -= 1
            if fetched is not None:
                self._prefer_came = coming is None
                self._ready.append(_Ready(opened, job, fetched))
                self._ready_changed.notify()
            elif asked is not None and asked.reading is not None:
                started = _Coming(opened, job, asked, asked.reading)
                self._coming.add(started)
                self._coming_bytes += started.reading.nbytes
            if fetched is None:
                self._wake_reader()
        if started is not None:
            started.reading.when_done(partial(self._note_came, started))
            if opened.stream.closed:
                started.reading.cancel()

    def _note_came(self, coming: _Coming) -> None:
        with self._lock:
            self._came.append(coming)
            self._wake_reader()

    def _wake_reader(self) -> None:
        """Where a reader may have work now. To wake one for nothing costs more than a chunk's bookkeeping."""
        has_work = self._came or self._scheduler.waiting
        if has_work and len(self._ready) + self._reading < self._read_ahead:
            self._work.notify()

    def _may_ask(self) -> bool:
        return len(self._coming) < AHEAD_CHUNKS and self._coming_bytes < AHEAD_BYTES

    def _remote(self) -> set[int]:
        return {number for number, opened in self._open.items() if opened.maker.dataset.is_remote}

    def _next_to_read(self) -> tuple[_Open, Job, _Coming | None] | None:
        """A chunk to ask for, or to read where there is nobody to ask; or one that came."""
        with self._lock:
            while not self._stopping:
                if len(self._ready) + self._reading < self._read_ahead:
                    # To ask comes first, which is done at once, and turns it is where both take time.
                    may_ask = self._may_ask()
                    came = self._came and (self._prefer_came or not may_ask)
                    job = None if came else self._scheduler.take(() if may_ask else self._remote())
                    if job is not None:
                        self._reading += 1
                        return self._open[job.stream], job, None
                    if self._came:
                        coming = self._came.popleft()
                        self._coming.discard(coming)
                        self._coming_bytes -= coming.reading.nbytes
                        self._reading += 1
                        return coming.opened, coming.job, coming
                self._work.wait()
        return None

    def _make(self) -> None:
        while (ready := self._next_ready()) is not None:
            if not ready.opened.stream.closed:
                self._make_one(ready.opened, ready.job, ready.fetched)
            del ready  # a thread that waits keeps no segment of the cache mapped

    def _make_one(self, opened: _Open, job: Job, fetched: Fetched) -> None:
        started_s = time.perf_counter()
        try:
            opened.stream.put(self._chunk(opened, job, fetched))
        except Exception as error:  # noqa: BLE001  # a worker outlives whatever one request does
            self._fail(opened, job, error)
        with self._lock:
            self._counters.decode_s += time.perf_counter() - started_s

    def _next_ready(self) -> _Ready | None:
        with self._lock:
            self._count_idle(+1)
            while not self._ready and not self._stopping:
                self._ready_changed.wait()
            self._count_idle(-1)
            if self._stopping:
                return None
            ready = self._ready.popleft()
            self._wake_reader()
            return ready

    def _count_idle(self, change: int) -> None:
        now_s = time.perf_counter()
        self._counters.idle_s += self._idle * (now_s - self._idle_counted_s)
        self._idle_counted_s = now_s
        self._idle += change

    def _chunk(self, opened: _Open, job: Job, fetched: Fetched) -> Answer:
        maker, arena = opened.maker, opened.arena
        if arena is not None and job.request.destination is not None:
            with arena.writing(job.request, maker.spec.image_size) as target:
                if target is not None:
                    return self._placed(maker, job, fetched, target)
        spec = maker.spec
        slots = len(job.request.slots)
        frame = ChunkFrame(job.request.id, slots, spec.image_bytes)
        buffer = MessageBuffer(frame.size)
        message = np.frombuffer(buffer, np.uint8)
        out = message[frame.pixels_at :].reshape(slots, spec.image_size, spec.image_size, 3)
        made = maker.make(fetched, out)
        frame.fill(message, made.records, made.labels, made.status)
        del message, out  # finish() wants no view alive
        data = buffer.finish()
        if made.bad:
            data = frame.with_bad(data, self._note_bad(spec.dataset, made.bad))
        return Answer(data, job, slots)

    def _placed(self, maker: ChunkMaker, job: Job, fetched: Fetched, target: Target) -> Answer:
        made = maker.make(fetched, *target)
        bad = self._note_bad(maker.spec.dataset, made.bad) if made.bad else []
        slots = len(job.request.slots)
        data = encode_placed(job.request.id, made.records, made.labels, made.status, bad)
        return Answer(data, job, slots, slots * maker.spec.image_bytes)

    def _fail(self, opened: _Open, job: Job, error: Exception) -> None:
        kind, bad, message = FailureKind.INTERNAL, None, str(error)
        if isinstance(error, BadChunk):
            kind = FailureKind.BAD_RECORD
            bad = self._note_bad(opened.maker.spec.dataset, error.found)[0]
            bad = replace(bad, reason=error.reason)  # says also why nothing stands in for it
        elif isinstance(error, ConfigError):
            kind = FailureKind.INVALID
        elif isinstance(error, Closed):
            pass  # the worker ends
        elif isinstance(error, StorageError):
            kind = FailureKind.STORAGE
            log.warning("stream %d: chunk %d: %s", opened.stream.number, job.request.id, error)
        else:
            message = f"{type(error).__name__}: {error}"
            log.error("stream %d: chunk %d failed", opened.stream.number, job.request.id, exc_info=error)
        opened.stream.put(Answer(encode_reply(Failed(job.request.id, kind, message, bad)), job))

    def _note_bad(self, dataset: str, found: tuple[FoundBad, ...]) -> list[BadRecordInfo]:
        infos = [BadRecordInfo(dataset, bad.record, bad.shard, bad.index, bad.reason) for bad in found]
        self._quarantine.add(infos)
        with self._lock:
            self._counters.bad_records += len(infos)
        return infos


def _ask(opened: _Open, request: ChunkRequest) -> Asked:
    maker = opened.maker
    most = max_slots(maker.spec.image_bytes)
    if not 1 <= len(request.slots) <= most:
        raise ConfigError(
            f"a chunk request names between 1 and {most} slots for images of {maker.spec.image_size} pixels, "
            f"got {len(request.slots)}"
        )
    if any(this >= following for this, following in pairwise(request.slots)):
        raise ConfigError(f"slots of a chunk request must ascend, got {list(request.slots)}")
    if opened.arena is not None and request.destination is not None:
        opened.arena.check(request, maker.spec.image_bytes)
    return maker.ask(request.epoch, request.taken, request.slots)
