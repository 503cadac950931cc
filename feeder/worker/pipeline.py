"""From requests to answers: readers fetch ahead, callers keep the decode pool busy, streams take turns.

scheduler -> readers (storage, crc, parse) -> ready, bounded -> callers (decode into the message) -> stream

A reader does not wait for an object store: it asks for the records of the chunks that come next, in their
order, and goes on with those that came. A chunk that it finds in the cache as a whole it makes itself. One
that several streams want is made once, and copied for each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feeder.batch import BadChunk, ChunkMaker, Fetched, FoundBad, MadeChunk
from feeder.spec import StreamSpec
from feeder.wire.codec import encode_reply
from feeder.wire.messages import ChunkRequest, ClientReport, Draining
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.access import Pace
from feeder.worker.answers import OpenStream, answer, bad_infos, check, failed
from feeder.worker.arenas import Arena
from feeder.worker.in_flight import Coming, InFlight, Work
from feeder.worker.quarantine import Quarantine
from feeder.worker.scheduler import Job, Scheduler
from feeder.worker.served import Served
from feeder.worker.shared_chunks import MadeOnce, SharedChunks, Turn
from feeder.worker.stages import Counters, Stages
from feeder.worker.stream import Answer, Stream

if TYPE_CHECKING:
    from feeder.worker.tracing import StageSpans

__all__ = ["Pipeline"]


class Pipeline:
    """Makes the chunks that all streams ask for.

    Args:
        readers: threads that read records.
        callers: threads that each have one chunk decoded at a time, on the decoder's own pool.
        quarantine: is told of bad records.
        share_bytes: most that is kept of chunks that several streams want; 0: each makes its own.
        spans: is told of traced requests that were answered; None: nobody is.
    """

    def __init__(
        self,
        readers: int,
        callers: int,
        quarantine: Quarantine,
        share_bytes: int = 0,
        spans: StageSpans | None = None,
    ) -> None:
        self._quarantine = quarantine
        self._spans = spans
        self._scheduler = Scheduler()
        self._shared = SharedChunks(share_bytes)
        self._open: dict[int, OpenStream] = {}
        self._counters = Counters()
        self._stages = Stages()
        self._lock = threading.Lock()
        # Readers that wait for something to read, and what wakes one of them.
        self._resting = 0
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._reading = 0
        # What can be made, or copied where nothing was fetched; None: nothing will come. The number counts
        # what no caller has taken up.
        self._ready: SimpleQueue[tuple[Work, Fetched | None] | None] = SimpleQueue()
        self._ready_count = 0
        self._in_flight = InFlight()
        self._prefer_came = False
        self._readers = readers
        self._callers = callers
        self._making = 0
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
            self._count_making(0, time.perf_counter())
            return replace(self._counters)

    def stages(self) -> list[pb.StageInfo]:
        """Where chunks' time went since the start, and where chunks are now."""
        with self._lock:
            return self._stages.infos(
                {
                    "queue": self._scheduler.pending,
                    "read": self._reading + len(self._in_flight),
                    "ready": self._ready_count,
                    "make": self._making,
                    "send": sum(opened.stream.unsent for opened in self._open.values()),
                }
            )

    def served(self) -> dict[int, Served]:
        """A snapshot: what each open stream was given, by its number."""
        with self._lock:
            return {
                number: replace(opened.served, owed=self._scheduler.owed(number), spent=opened.stream.spent)
                for number, opened in self._open.items()
            }

    @property
    def kept_bytes(self) -> int:
        """Of chunks that are kept because several streams want them."""
        return self._shared.nbytes

    def keep(self, nbytes: int) -> None:
        """Keeps at most so much of chunks that several streams want from now on."""
        with self._lock:
            self._shared.resize(nbytes)

    def open(
        self, stream: Stream, maker: ChunkMaker, job: str, slots: range, arena: Arena | None = None
    ) -> None:
        """Takes requests of a stream from now on; does nothing for one whose call ended meanwhile.

        Args:
            job: that it belongs to; jobs take turns.
            slots: of every step, that its consumer asks for.
            arena: of the stream's client; it ends with the stream.
        """
        with self._lock:
            if not stream.closed:
                self._open[stream.number] = OpenStream(stream, maker, arena, Served(arena is not None))
                self._scheduler.open(stream.number, maker.spec.image_bytes, job)
                self._shared.open(stream.number, maker.spec, slots)
            elif arena is not None:
                arena.end()

    def close_stream(self, stream: Stream) -> None:
        """Drops what a stream still asked for; does nothing the second time."""
        with self._lock:
            opened = self._open.pop(stream.number, None)
            self._scheduler.close(stream.number)
            self._shared.close(stream.number)
            unwanted = [coming.reading for coming in self._in_flight if self._dropped(coming.work)]
            self._wake_readers()
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
            opened = self._open.get(stream.number)
            if opened is not None:
                self._scheduler.ask(stream.number, request, time.perf_counter())
                opened.served.epoch, opened.served.taken = request.epoch, request.taken
                self._wake_reader()

    def report(self, stream: Stream, report: ClientReport) -> None:
        """Takes what the client of an open stream says of itself."""
        with self._lock:
            opened = self._open.get(stream.number)
            if opened is not None:
                opened.served.report, opened.served.reported_s = report, time.monotonic()

    def answers(self, stream: Stream, pace: Pace | None = None) -> Iterator[bytes]:
        """The FeedReplies of an open stream, until it ends; each counts as sent when the next is asked for.
        Several calls may carry them, each the next one that is there.

        Args:
            pace: what the stream may be sent of; chunks wait for it.

        Raises:
            FeederError: what the stream failed with.
        """
        while (answer := stream.next(lambda: self._owes(stream))) is not None:
            try:
                yield from self._send(stream, answer, pace)
            finally:
                stream.sent()

    def _send(self, stream: Stream, answer: Answer, pace: Pace | None) -> Iterator[bytes]:
        job = answer.job
        if job is None:
            yield answer.data
            return
        if pace is not None and (delay_s := pace.delay_s(answer.images)):
            stream.pause(delay_s)
        with self._lock:
            self._begin_send(answer, job)
        yield answer.data
        with self._lock:
            self._end_send(stream, answer, job)
        if job.request.trace and self._spans is not None:
            self._spans.sent(job, failed=not answer.images)

    def _begin_send(self, answer: Answer, job: Job) -> None:
        """With the lock."""
        self._scheduler.answered(job)
        if answer.images:
            self._stages.leave(job, "make", answer.made_s)

    def _end_send(self, stream: Stream, answer: Answer, job: Job) -> None:
        """With the lock."""
        self._scheduler.sent(job)
        self._wake_reader()
        if answer.images:
            self._stages.leave(job, "send", time.perf_counter())
            opened = self._open.get(stream.number)
            if opened is not None:
                opened.served.chunks += 1
                opened.served.images += answer.images
            self._counters.images += answer.images
            self._counters.chunks += 1
            self._counters.bytes_sent += len(answer.data)
            self._counters.bytes_placed += answer.placed_bytes
            if answer.shared_bytes:
                self._counters.images_shared += answer.images
                self._counters.bytes_shared += answer.shared_bytes

    def _give(self, stream: Stream, answer: Answer) -> None:
        """Hands an answer to those who send; or to the socket, which costs less than to wake them, if it has
        no pixels and nothing is before it."""
        job = answer.job
        if job is None or not answer.placed_bytes or not stream.claim():
            stream.put(answer)
            return
        with self._lock:
            self._begin_send(answer, job)
            self._end_send(stream, answer, job)
        stream.post(answer.data)
        if job.request.trace and self._spans is not None:
            self._spans.sent(job, failed=False)

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
            unwanted = [coming.reading for coming in self._in_flight]
            self._wake_readers()
        for _ in range(self._callers):
            self._ready.put(None)
        for reading in unwanted:
            reading.cancel()
        for thread in self._threads:
            thread.join()
        self._ready = SimpleQueue()
        self._in_flight.clear()

    def _owes(self, stream: Stream) -> bool:
        with self._lock:
            return self._scheduler.owed(stream.number) > 0

    def _read(self) -> None:
        while (work := self._next_to_read()) is not None:
            ready = self._read_one(*work)
            if ready is not None:
                self._make_one(*ready)
            del work, ready  # a thread that waits keeps nothing of a stream

    def _read_one(self, work: Work, coming: Coming | None) -> tuple[Work, Fetched | None] | None:
        """Returns what the reader is to make, where others read: to wake a caller costs as much as it did."""
        started_s = time.perf_counter()
        ready: tuple[Work, Fetched | None] | None = None
        asked, mine = None, False
        try:
            if coming is None:
                check(work.opened, work.job.request)
                turn, work = self._begin(work)
                if turn == "copy":
                    ready = work, None
                elif turn == "make":
                    request = work.job.request
                    asked = work.opened.maker.ask(request.epoch, request.taken, request.slots)
                    if asked.reading is None:
                        ready = work, work.opened.maker.finish(asked)
                        mine = self._readers > 1 and not asked.lacking.size
            elif self._is_wanted(work):
                ready = work, work.opened.maker.finish(coming.asked)
        except Exception as error:  # noqa: BLE001  # a worker outlives whatever one request does
            self._fail(work, error)
        started = None
        with self._lock:
            ended_s = time.perf_counter()
            self._counters.read_s += ended_s - started_s
            self._reading -= 1
            if ready is not None:
                self._stages.leave(work.job, "read", ended_s)
                self._prefer_came = coming is None
                if mine:
                    self._begin_make(work.job, ended_s)
                else:
                    self._ready_count += 1
                    self._ready.put(ready)
            elif asked is not None and asked.reading is not None:
                started = Coming(work, asked, asked.reading)
                self._in_flight.add(started)
            if ready is None or mine:
                self._wake_reader()
        if started is not None:
            started.reading.when_done(partial(self._note_came, started))
            if not self._is_wanted(work):
                started.reading.cancel()
        return ready if mine else None

    def _begin(self, work: Work) -> tuple[Turn, Work]:
        with self._lock:
            turn, share = self._shared.begin(work.job)
            if turn == "wait":  # while another is read and made
                self._stages.leave(work.job, "read", time.perf_counter())
        return turn, work if share is None else replace(work, share=share)

    def _is_wanted(self, work: Work) -> bool:
        """Whether anybody waits for a chunk in the making; where nobody does, it is not to be made."""
        if work.share is None:
            return not work.opened.stream.closed
        with self._lock:
            return not self._dropped(work)

    def _dropped(self, work: Work) -> bool:
        return work.opened.stream.closed if work.share is None else self._shared.abandon(work.share)

    def _note_came(self, coming: Coming) -> None:
        with self._lock:
            self._in_flight.note_came(coming)
            self._wake_reader()

    def _wake_reader(self) -> None:
        """Where a reader may have work now. To wake one for nothing costs more than a chunk's bookkeeping."""
        if self._resting and self._may_read():
            self._resting -= 1
            self._wakes.put(None)

    def _may_read(self) -> bool:
        """Whether there may be something to read, and there is room for it."""
        has_room = self._ready_count + self._reading < self._readers + self._callers
        return has_room and (self._scheduler.waiting or bool(self._in_flight.came))

    def _wake_readers(self) -> None:
        """All that wait: room came free, or the end has come."""
        for _ in range(self._resting):
            self._wakes.put(None)
        self._resting = 0

    def _remote(self) -> set[int]:
        return {number for number, opened in self._open.items() if opened.maker.dataset.is_remote}

    def _next_to_read(self) -> tuple[Work, Coming | None] | None:
        """A chunk to ask for, or to read where there is nobody to ask; or one that came."""
        while True:
            with self._lock:
                if self._stopping:
                    return None
                if self._may_read():
                    # To ask comes first, which is done at once, and turns it is where both take time.
                    may_ask = self._in_flight.may_ask
                    came = self._in_flight.came and (self._prefer_came or not may_ask)
                    job = None if came else self._scheduler.take(() if may_ask else self._remote())
                    if job is not None:
                        self._stages.leave(job, "queue", time.perf_counter())
                        self._reading += 1
                        return Work(self._open[job.stream], job), None
                    if self._in_flight.came:
                        coming = self._in_flight.take()
                        self._reading += 1
                        return coming.work, coming
                self._resting += 1
            self._wakes.get()

    def _make(self) -> None:
        while (ready := self._ready.get()) is not None:
            with self._lock:
                if self._stopping:
                    return
                self._ready_count -= 1
                self._begin_make(ready[0].job, time.perf_counter())
                self._wake_reader()
            self._make_one(*ready)
            del ready  # a thread that waits keeps no segment of the cache mapped

    def _begin_make(self, job: Job, now_s: float) -> None:
        """With the lock; `_make_one` must follow."""
        self._count_making(+1, now_s)
        self._stages.leave(job, "ready", now_s)

    def _make_one(self, work: Work, fetched: Fetched | None) -> None:
        started_s = time.perf_counter()
        self._answer(work, fetched)
        with self._lock:
            ended_s = time.perf_counter()
            self._counters.decode_s += ended_s - started_s
            self._count_making(-1, ended_s)

    def _answer(self, work: Work, fetched: Fetched | None) -> None:
        if fetched is None:
            self._copy(work)
            return
        if not self._is_wanted(work):
            return
        make = partial(self._decode, work.opened.maker, fetched)
        try:
            if work.share is None:
                self._give(work.opened.stream, answer(work.opened, work.job, make))
                return
            chunk = MadeOnce.by(make, len(work.job.request.slots), work.opened.maker.spec)
        except Exception as error:  # noqa: BLE001  # a worker outlives whatever one request does
            self._fail(work, error)
            return
        with self._lock:
            jobs = self._shared.made(work.share, chunk)
            made_s = time.perf_counter()
            for job in jobs:
                if job is not work.job:
                    self._stages.leave(job, "ready", made_s)
            works = [
                Work(self._open[job.stream], job, work.share) for job in jobs if job.stream in self._open
            ]
        for other in works:
            self._copy(other, first=other.job is work.job)

    def _copy(self, work: Work, *, first: bool = False) -> None:
        """Answers with a chunk that is there; `first`: it was made for this job."""
        assert work.share is not None
        assert work.share.chunk is not None
        chunk = work.share.chunk
        try:
            copied = answer(work.opened, work.job, chunk.copy)
        except Exception as error:  # noqa: BLE001
            self._fail(replace(work, share=None), error)
        else:
            self._give(
                work.opened.stream,
                copied if first else copied._replace(shared_bytes=chunk.pixels.nbytes),
            )

    def _decode(
        self,
        maker: ChunkMaker,
        fetched: Fetched,
        out: NDArray[np.uint8],
        places: NDArray[np.int64] | None = None,
    ) -> MadeChunk:
        made = maker.make(fetched, out, places)
        if made.bad:
            self._note_bad(maker.spec, made.bad)
        return made

    def _count_making(self, change: int, now_s: float) -> None:
        """With readers among them, more may make than there are callers; then none counts as idle."""
        self._counters.idle_s += max(0, self._callers - self._making) * (now_s - self._idle_counted_s)
        self._idle_counted_s = now_s
        self._making += change

    def _fail(self, work: Work, error: Exception) -> None:
        """Answers whoever waits for a chunk that cannot be made."""
        if isinstance(error, BadChunk):
            self._note_bad(work.opened.maker.spec, error.found)
        reply = failed(work.opened, work.job, error)
        jobs = [work.job]
        with self._lock:
            if work.share is not None:
                jobs = self._shared.failed(work.share)
            streams = [(self._open[job.stream].stream, job) for job in jobs if job.stream in self._open]
        for stream, job in streams:
            stream.put(Answer(encode_reply(replace(reply, id=job.request.id)), job))

    def _note_bad(self, spec: StreamSpec, found: tuple[FoundBad, ...]) -> None:
        self._quarantine.add(bad_infos(spec, found))
        with self._lock:
            self._counters.bad_records += len(found)
