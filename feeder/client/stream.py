"""The iterator that a training loop sees."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NoReturn

from feeder.client.batch import Batch
from feeder.client.engine import Engine
from feeder.client.session import WorkerState
from feeder.errors import Closed, ProtocolError
from feeder.order import Ledger, Order, Position

__all__ = ["Stream", "StreamStats", "WorkerStats"]


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker's part in a stream, since it began.

    Attributes:
        state: "live", "joining" (takes its part with the next epoch), "suspect" (owes and was silent too
            long), "draining" or "down"; "closed" where it was connected until the stream ended or was closed.
        images: that it made and that were used.
        chunks: that they came in.
        outstanding: requests that it has not answered yet.
        reconnects: connections after the first.
        failovers: requests that it did not fulfil, or not in time, and that went to another worker.
        hedges: those of them that went there because it was later than usual.
        error: why it is not connected; empty while it is, and where it was until the end.
        transport: how its pixels come, or last came: "shm" (it writes them into this process's memory) or
            "grpc"; empty before it was connected.
        beside: it is on this host, see `beside` of `Client.stream`.
        late_after_s: silence after which what it owes is asked from others, too.
        connections: over which it sends pixels, or would if they did not come otherwise, or did until the
            stream ended; 0 while it is down.
        compression: of the last chunk that it sent: "none", "lz4" or "zstd"; empty before.
        saved_bytes: of pixels that it need not send, thanks to compression.
    """

    state: WorkerState | Literal["closed"]
    images: int
    chunks: int
    outstanding: int
    reconnects: int
    failovers: int
    hedges: int
    error: str
    transport: str
    beside: bool
    late_after_s: float
    connections: int
    compression: str
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Counts of a stream since it was made, or since its position was last set.

    Attributes:
        images: slots handed out, masked ones included.
        batches: handed out.
        wait_s: seconds that the consumer waited for them.
        received_bytes: of pixels that came over the connections, compressed as they were.
        saved_bytes: of pixels that need not come, thanks to compression.
        copied_bytes: of pixels that this process copied: those that came over the connections, and those of
            batches where a worker that was late may still have written. 0 with "shm", as long as no worker
            fails.
        retired: buffers that are not used again until a worker that was late says that it leaves them alone.
        transport: how they come from all workers that were connected: "shm", "grpc", or "mixed".
        workers: by address.
    """

    images: int
    batches: int
    wait_s: float
    received_bytes: int
    saved_bytes: int
    copied_bytes: int
    retired: int
    transport: str
    workers: Mapping[str, WorkerStats]


class Stream(Iterator[Batch]):
    """This consumer's batches, in order; made by `Client.stream`.

    Connects when the first batch is asked for, and from then on keeps a few batches ready ahead of the
    consumer. It ends when its epochs are through: iterating over it again gives nothing more. One that is
    dropped without `close()` gives back its threads and connections, too.
    """

    def __init__(
        self,
        order: Order,
        start: Position,
        consumer: tuple[int, int],
        epochs: int | None,
        make_engine: Callable[[Order, Position, int | None], Engine],
    ) -> None:
        self._pid = os.getpid()
        self._order = order
        self._consumer = consumer
        self._epochs = epochs
        self._make_engine = make_engine
        self._closed = False
        #: Two threads that share a stream take turns.
        self._turn = threading.Lock()
        self._begin(start)

    def _begin(self, start: Position) -> None:
        start.check(self._order.spec, self._order.total, start.fingerprint)
        steps = None
        if self._epochs is not None:
            steps = max(0, self._order.steps(self._epochs) - start.steps_before(self._order))
        self._length = steps
        #: Position and batches handed out. One attribute, so that no KeyboardInterrupt comes between them.
        self._at = start, 0
        self._ended = False
        self._ledger = Ledger(self._order, *self._consumer, epoch=start.epoch, taken=start.taken)
        self._begin_engine()

    def _begin_engine(self) -> None:
        position, self._first = self._at  # the first batch of the engine is this one of the stream
        steps = None if self._length is None else self._length - self._first
        engine = self._make_engine(self._order, position, steps)
        self._finalizer = weakref.finalize(self, engine.stop)
        self._finalizer.atexit = False  # the engine sees to the end of the interpreter itself
        self._engine = engine

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Batch:
        """The next batch; waits for it. After a KeyboardInterrupt, `position` says what comes next.

        Raises:
            WorkerUnavailable: nothing came for `stall_timeout_s` seconds. The next call waits again.
            Refused, WorkersDisagree: no worker serves this stream, or another session has its job and index.
            BadRecord: under on_bad="fail", in place of the batch that holds it; each later call raises it
                again.
            StorageError, ServiceError: all workers failed to make the batch, several times.
            ProtocolError: a worker gave other records than the order names; this ends the stream.
            Closed: after `close()`, or in a child process.
        """
        self._check_usable()
        with self._turn:
            return self._take()

    def _take(self) -> Batch:
        if self._ended:
            raise StopIteration
        if not self._engine.sound:
            self._finalizer.detach()
            self._engine.close()
            self._begin_engine()
            self._check_usable()  # else who closes the stream meanwhile may have missed the new one
        at, number = self._at
        assembly = self._engine.take(number - self._first)
        if assembly is None:
            self._ended = True
            if number:
                self._ledger.finish_epoch(self._ledger.epoch)  # what has not come by now is lost
            self._engine.close()
            raise StopIteration
        after = at.advance(self._order)
        if self._ledger.booked == number:  # else a KeyboardInterrupt came after that
            bad = [(one.record, one.shard, one.index, one.reason) for one in assembly.bad]
            try:
                self._ledger.account(at.epoch, at.taken, None, assembly.records, assembly.status, bad)
            except ProtocolError:
                self.close()  # the position stays before this batch; the engine has gone past it
                raise
        self._at = after, number + 1
        self._engine.release(number + 1 - self._first)
        return Batch(assembly.images, assembly.labels, assembly.mask, after)

    def __len__(self) -> int:
        """Batches from where the stream began (or was last set) to its end.

        Raises:
            TypeError: the stream is endless.
        """
        if self._length is None:
            raise TypeError("this stream is endless; give epochs= for one that has a length")
        return self._length

    @property
    def position(self) -> Position:
        """Where a stream would go on after the last batch that was handed out."""
        return self._at[0]

    def state_dict(self) -> dict[str, Any]:
        """`position` as JSON-safe values, for a checkpoint."""
        return self.position.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a saved position, at any time: what was prefetched is dropped, stats and ledger begin
        anew. Where another thread is in `next()`, that comes to its end first.

        Raises:
            PositionMismatch: it belongs to other data, another global batch or another spec.
            ConfigError: it is not what `state_dict` gives.
            Closed: after `close()`, or in a child process.
        """
        self._check_usable()
        position = Position.from_dict(state)
        position.check(self._order.spec, self._order.total, self.position.fingerprint)
        with self._turn:
            self._finalizer.detach()
            self._engine.close()
            self._begin(position)

    def stats(self) -> StreamStats:
        """Counts so far, and each worker's state now."""
        engine, (_, batches) = self._engine, self._at
        transports = engine.transports
        workers = {}
        for name, (link, view) in engine.workers().items():
            error = link.error
            workers[name] = WorkerStats(
                state="closed" if engine.closed and error is None else view.state,
                images=view.images,
                chunks=view.chunks,
                outstanding=view.outstanding,
                reconnects=link.reconnects,
                failovers=view.failovers,
                hedges=view.hedges,
                error="" if error is None else str(error),
                transport=transports.get(name, ""),
                beside=view.beside,
                late_after_s=view.late_after_s,
                connections=link.connections,
                compression="" if link.compression is None else link.compression.name.lower(),
                saved_bytes=link.saved_bytes,
            )
        kinds = sorted(set(transports.values()) or {"grpc"})
        return StreamStats(
            images=batches * len(self._order.consumer_slots(*self._consumer)),
            batches=batches,
            wait_s=engine.pace.wait_s,
            received_bytes=engine.making.received_bytes,
            saved_bytes=engine.making.saved_bytes,
            copied_bytes=engine.making.copied_bytes,
            retired=engine.retired,
            transport=kinds[0] if len(kinds) == 1 else "mixed",
            workers=workers,
        )

    def ledger(self) -> Ledger:
        """The account of every slot handed out so far; it goes on counting."""
        return self._ledger

    def close(self) -> None:
        """Ends the stream and its threads, within 5 s. May be called twice."""
        self._closed = True
        self._engine.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a stream cannot be pickled or copied: make one in the process that iterates, with start= the "
            "position of this one to go on there"
        )

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise Closed(
                "this stream belongs to the parent process and cannot be used after fork: connect in the "
                "process that iterates, and start processes by spawn or forkserver"
            )
        if self._closed:
            raise Closed("the stream was closed; make a new one with start= its position to go on")
