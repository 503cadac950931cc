"""The messages of Feed as plain objects, so that nobody else touches generated classes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.order import SlotStatus
from feeder.spec import StreamSpec
from feeder.wire import PROTOCOL

__all__ = [
    "ArenaOffer",
    "BadRecordInfo",
    "Chunk",
    "ChunkRequest",
    "ClientReport",
    "Compression",
    "Draining",
    "Failed",
    "FailureKind",
    "Join",
    "Open",
    "Opened",
    "Packed",
    "Reply",
    "Request",
    "SlotStatus",
]


class FailureKind(IntEnum):
    """Why a chunk could not be made; FAILURE_KIND_* of the protocol."""

    UNSPECIFIED = 0
    BAD_RECORD = 1
    STORAGE = 2
    INVALID = 3
    INTERNAL = 4


class Compression(IntEnum):
    """Of a chunk's pixels on their way; COMPRESSION_* of the protocol."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


@dataclass(frozen=True, slots=True)
class BadRecordInfo:
    """One record that was found bad: its number in the data set, its shard, its number there, and why."""

    dataset: str
    record: int
    shard: str
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Open:
    """First message of a stream: who asks, for what, over which data, and with which arena if any."""

    session: str
    spec: StreamSpec
    fingerprint: str
    pixel_fingerprint: str
    consumer_index: int = 0
    consumer_count: int = 1
    job: str = ""
    protocol: int = PROTOCOL
    arena: bytes = b""


@dataclass(frozen=True, slots=True)
class Join:
    """First and only message of a call that carries answers of another; `key` is what Opened said there."""

    key: bytes


class ChunkRequest(NamedTuple):
    """A client's wish for `slots` (ascending, in [0, global_batch)) of the step at (epoch, taken).

    `destination` is (buffer, offset in bytes) in the client's arena, of the first slot: slot s lies s minus
    the first slot images behind it. None: pixels come in the reply, compressed perhaps as `compression` says.
    `trace` is the traceparent of W3C Trace Context; empty: it is not traced.
    """

    id: int
    epoch: int
    taken: int
    slots: tuple[int, ...]
    destination: tuple[int, int] | None = None
    compression: Compression = Compression.NONE
    trace: str = ""


@dataclass(frozen=True, slots=True)
class ClientReport:
    """How a consumer fares: sums since its stream began, over all workers, and `ready` to `workers` of now.

    Attributes:
        steps: batches that it took.
        step_s: seconds that it was at work between them.
        wait_s: seconds that it waited for them.
        land_s: thread-seconds of receiving: copying and decompressing, not waiting for the socket.
        ready: batches that are complete.
        prefetch: most that there may be.
        images: slots of the batches that it took.
        masked: those without a sample.
        substituted: those whose record is bad, filled with the next good one.
        hedges: requests that went to another worker, too, because one was later than usual.
        retries: requests that went to another because one failed, was silent too long or was lost.
        workers: that take requests.
        bytes_copied: of pixels, from connections into batches and from batch to batch.
    """

    steps: int = 0
    step_s: float = 0.0
    wait_s: float = 0.0
    land_s: float = 0.0
    ready: int = 0
    prefetch: int = 0
    images: int = 0
    masked: int = 0
    substituted: int = 0
    hedges: int = 0
    retries: int = 0
    workers: int = 0
    bytes_copied: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """The stream is open; at most `max_outstanding` requests may be unanswered at a time, name destinations
    if `arena`, and ask for `compressions`; whether the worker takes `reports`. Further calls that say `join`
    may carry its answers, too; empty: none may."""

    worker_id: str
    max_outstanding: int
    arena: bool = False
    compressions: tuple[Compression, ...] = ()
    reports: bool = False
    join: bytes = b""


class Chunk(NamedTuple):
    """A made chunk of n slots, or the beginning of one that is still on its way.

    Attributes:
        id: of the request.
        records: int64 [n], number of the record that fills each slot, -1 for padding.
        labels: int32 [n], -1 where masked.
        status: uint8 [n], SlotStatus of each slot.
        bad: the records that were found bad on the way.
        pixels: of n images of equal size one after another, those that are here.
        pixel_bytes: of all of them, as they come.
        placed: they are at the request's destination; none are here, or will come. Then arrays that
            can be written to are the caller's to keep.
        compression: of the pixels, all together.
        packing_s: processor time that compressing them took.
    """

    id: int
    records: NDArray[np.int64]
    labels: NDArray[np.int32]
    status: NDArray[np.uint8]
    bad: tuple[BadRecordInfo, ...]
    pixels: memoryview
    pixel_bytes: int
    placed: bool = False
    compression: Compression = Compression.NONE
    packing_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Compressed pixels of a chunk, fewer bytes than they were."""

    compression: Compression
    pixels: bytes
    packing_s: float


@dataclass(frozen=True, slots=True)
class ArenaOffer:
    """What a client hands over beside a memfd: `buffers` batch buffers of `buffer_bytes` bytes each."""

    buffers: int
    buffer_bytes: int
    protocol: int = PROTOCOL

    @property
    def nbytes(self) -> int:
        """Of the whole arena."""
        return self.buffers * self.buffer_bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """A chunk that could not be made; `bad` is given where kind is BAD_RECORD."""

    id: int
    kind: FailureKind
    message: str
    bad: BadRecordInfo | None = None


@dataclass(frozen=True, slots=True)
class Draining:
    """The worker wants to go: it answers what it owes, and asks for no more requests."""


Request: TypeAlias = Open | Join | ChunkRequest | ClientReport
Reply: TypeAlias = Opened | Chunk | Failed | Draining
