"""What a request is answered with: a chunk, in a message or in the client's memory, or why there is none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import lt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.batch import BadChunk, ChunkMaker, FoundBad, MadeChunk
from feeder.decode import MessageBuffer
from feeder.errors import Closed, ConfigError, StorageError
from feeder.spec import StreamSpec
from feeder.wire import max_slots
from feeder.wire.codec import ChunkFrame, encode_placed
from feeder.wire.messages import BadRecordInfo, ChunkRequest, Failed, FailureKind
from feeder.worker.arenas import Arena
from feeder.worker.packing import pack
from feeder.worker.scheduler import Job
from feeder.worker.served import Served
from feeder.worker.stream import Answer, Stream

__all__ = ["Make", "OpenStream", "answer", "bad_infos", "check", "failed", "images_of"]

log = logging.getLogger(__name__)

Make: TypeAlias = Callable[[NDArray[np.uint8], NDArray[np.int64] | None], MadeChunk]
"""Fills images at some places, as ChunkMaker.make does."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A stream whose requests are answered, what makes its chunks, its client's memory if any, and what it
    was given."""

    stream: Stream
    maker: ChunkMaker
    arena: Arena | None
    served: Served


def check(opened: OpenStream, request: ChunkRequest) -> None:
    """Sees that a request can be made a chunk of; whether there is such a step shows later.

    Raises:
        ConfigError: it cannot.
    """
    spec = opened.maker.spec
    most = max_slots(spec.image_bytes)
    if not 1 <= len(request.slots) <= most:
        raise ConfigError(
            f"a chunk request names between 1 and {most} slots for images of {spec.image_size} pixels, "
            f"got {len(request.slots)}"
        )
    if not all(map(lt, request.slots, request.slots[1:])):
        raise ConfigError(f"slots of a chunk request must ascend, got {list(request.slots)}")
    if opened.arena is not None and request.destination is not None:
        opened.arena.check(request, spec.image_bytes)


def answer(opened: OpenStream, job: Job, make: Make) -> Answer:
    """A checked request's chunk: in its place in the client's memory if it has one, else in a message.

    Raises:
        BadChunk, StorageError: what `make` raises.
    """
    spec, arena = opened.maker.spec, opened.arena
    slots = len(job.request.slots)
    if arena is not None and job.request.destination is not None:
        target = arena.begin(job.request, spec.image_shape)
        if target is not None:
            try:
                made = make(*target)
            finally:
                arena.written()
            bad = bad_infos(spec, made.bad) if made.bad else ()
            data = encode_placed(job.request.id, made.records, made.labels, made.status, bad)
            return Answer(data, job, slots, slots * spec.image_bytes, made_s=time.perf_counter())
    frame = ChunkFrame(job.request.id, slots, spec.image_bytes)
    buffer = MessageBuffer(frame.size)
    message = np.frombuffer(buffer, np.uint8)
    made = make(images_of(message[frame.pixels_at :], slots, spec), None)
    frame.fill(message, made.records, made.labels, made.status)
    packed = pack(message[frame.pixels_at :], job.request.compression)
    del message  # finish() wants no view alive
    data = buffer.finish()
    if made.bad or packed is not None:
        data = frame.changed(data, bad_infos(spec, made.bad), packed)
    return Answer(data, job, slots, made_s=time.perf_counter())


def failed(opened: OpenStream, job: Job, error: Exception) -> Failed:
    """What is said of a chunk that cannot be made; so does the log, where it may be the worker's fault."""
    kind, bad, message = FailureKind.INTERNAL, None, str(error)
    names = opened.stream.names | {"request": job.request.id}
    if isinstance(error, BadChunk):
        kind = FailureKind.BAD_RECORD
        bad = bad_infos(opened.maker.spec, error.found)[0]
        bad = replace(bad, reason=error.reason)  # says also why nothing stands in for it
    elif isinstance(error, ConfigError):
        kind = FailureKind.INVALID
    elif isinstance(error, Closed):
        pass  # the worker ends
    elif isinstance(error, StorageError):
        kind = FailureKind.STORAGE
        log.warning("stream %d: chunk %d: %s", opened.stream.number, job.request.id, error, extra=names)
    else:
        message = f"{type(error).__name__}: {error}"
        log.error(
            "stream %d: chunk %d failed", opened.stream.number, job.request.id, exc_info=error, extra=names
        )
    return Failed(job.request.id, kind, message, bad)


def bad_infos(spec: StreamSpec, found: tuple[FoundBad, ...]) -> list[BadRecordInfo]:
    """What a chunk says of the records that were found bad."""
    return [BadRecordInfo(spec.dataset, bad.record, bad.shard, bad.index, bad.reason) for bad in found]


def images_of(pixels: NDArray[np.uint8], slots: int, spec: StreamSpec) -> NDArray[np.uint8]:
    """uint8 [slots * image_bytes] as the images of a batch, uint8 [slots, *image_shape]."""
    return pixels.reshape(slots, *spec.image_shape)
