"""Which chunks are made once for several streams of one spec: events in, decisions out; no thread, no clock.

    begun --made--> kept --by all that were to come to it, or by newer ones--> dropped

Each stream is at a place of its own, the step that it asked for last. A chunk is shared where another stream
is still to come to it; where there is none, it is made for the one that asked, and nothing is kept. Where a
stream is so far behind that a chunk was dropped before it came to it, nothing more is kept for it until it is
past that chunk: what is there of the time before waits for it as long as nobody nearer needs the room.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.batch import MadeChunk
from feeder.spec import StreamSpec
from feeder.worker.answers import Make
from feeder.worker.scheduler import Job

__all__ = ["MadeOnce", "Share", "SharedChunks", "Turn"]

Turn: TypeAlias = Literal["make", "copy", "wait"]
"""What is to be done for a request: make the chunk, copy the one that is there, or nothing, since it is
copied for all that wait once it is made."""

OVERHEAD_BYTES = 2048
"""Of memory, that a kept chunk takes besides its pixels, about: some images are smaller than that."""

_Place: TypeAlias = tuple[int, int]  # (epoch, taken) of a step
_Key: TypeAlias = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class MadeOnce:
    """A chunk of n slots that several streams get.

    Attributes:
        made: what is in its slots.
        pixels: uint8 [n, ...], one image a slot.
    """

    made: MadeChunk
    pixels: NDArray[np.uint8]

    @classmethod
    def by(cls, make: Make, slots: int, spec: StreamSpec) -> Self:
        """Made in memory of the worker's own: a client may change its arena."""
        images = np.empty((slots, *spec.image_shape), np.uint8)
        return cls(make(images, None), images)

    def copy(self, out: NDArray[np.uint8], places: NDArray[np.int64] | None = None) -> MadeChunk:
        """Does what ChunkMaker.make does, without decoding anything."""
        out[slice(None) if places is None else places] = self.pixels
        return self.made


@dataclass(slots=True, eq=False)
class Share:
    """A chunk that more than one stream wants.

    Attributes:
        jobs: those that wait until it is made; the first is who makes it.
        chunk: None until it is made.
    """

    key: _Key
    nbytes: int
    group: _Group = field(repr=False)
    jobs: list[Job]
    #: Streams that are still to come to it.
    wanting: set[int]
    chunk: MadeOnce | None = None

    @property
    def place(self) -> _Place:
        return self.key[:2]


@dataclass(slots=True, eq=False)
class _Group:
    """The streams of one spec."""

    spec: StreamSpec
    members: dict[int, _Member] = field(default_factory=dict)
    chunks: dict[_Key, Share] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Member:
    group: _Group
    slots: range
    place: _Place = (-1, -1)
    #: Of the newest chunk that was dropped before it came to it.
    missed: _Place = (-1, -1)

    def comes_to(self, key: _Key) -> bool:
        """Whether it is worth while to keep a chunk for it."""
        if not self.missed <= self.place <= key[:2]:
            return False
        return self.slots.start <= key[2][0] and key[2][-1] < self.slots.stop


class SharedChunks:
    """The chunks that several streams of a worker want.

    Args:
        budget_bytes: of what is kept; 0: nothing, and nothing is shared.

    Attributes:
        nbytes: of what is kept now.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.nbytes = 0
        self._groups: dict[StreamSpec, _Group] = {}
        self._members: dict[int, _Member] = {}
        self._kept: dict[Share, None] = {}  # oldest first

    def resize(self, budget_bytes: int) -> None:
        """Keeps no more than this from now on; what a smaller budget has no room for is dropped at once."""
        self.budget_bytes = budget_bytes
        self._fit()

    def open(self, stream: int, spec: StreamSpec, slots: range) -> None:
        """A stream begins, which asks for these slots of every step."""
        group = self._groups.setdefault(spec, _Group(spec))
        self._members[stream] = group.members[stream] = _Member(group, slots)

    def close(self, stream: int) -> None:
        """A stream ends; what was kept for it alone is dropped."""
        member = self._members.pop(stream, None)
        if member is None:
            return
        group = member.group
        del group.members[stream]
        for share in list(group.chunks.values()):
            self._got(share, stream)
        if not group.members:
            del self._groups[group.spec]

    def begin(self, job: Job) -> tuple[Turn, Share | None]:
        """A request's turn has come: what to do for it, and the chunk that it shares; None where it shares
        nothing."""
        member, request = self._members.get(job.stream), job.request
        if member is None:
            return "make", None
        place = request.epoch, request.taken
        member.place = max(member.place, place)
        group = member.group
        if len(group.members) == 1 and not group.chunks:
            return "make", None
        key = (*place, request.slots)
        share = group.chunks.get(key)
        if share is not None:
            if share.chunk is None:
                share.jobs.append(job)
            self._got(share, job.stream)
            return "copy" if share.chunk is not None else "wait", share
        nbytes = job.nbytes + OVERHEAD_BYTES
        if nbytes > self.budget_bytes:
            return "make", None
        wanting = {
            stream for stream, other in group.members.items() if other is not member and other.comes_to(key)
        }
        if not wanting:
            return "make", None
        share = group.chunks[key] = Share(key, nbytes, group, [job], wanting)
        return "make", share

    def made(self, share: Share, chunk: MadeOnce) -> list[Job]:
        """The chunk is there: the jobs to copy it for."""
        share.chunk = chunk
        jobs, share.jobs = share.jobs, []
        if share.wanting:
            self._kept[share] = None
            self.nbytes += share.nbytes
            self._fit()
        else:
            self._forget(share)
        return jobs

    def failed(self, share: Share) -> list[Job]:
        """The chunk could not be made: the jobs that fail of it."""
        self._forget(share)
        jobs, share.jobs = share.jobs, []
        return jobs

    def abandon(self, share: Share) -> bool:
        """Whether nobody waits for a chunk in the making any more; then it is not to be made."""
        if share.chunk is not None or any(job.stream in self._members for job in share.jobs):
            return False
        self._forget(share)
        return True

    def _got(self, share: Share, stream: int) -> None:
        share.wanting.discard(stream)
        if share in self._kept and not share.wanting:
            self._drop(share)

    def _fit(self) -> None:
        while self.nbytes > self.budget_bytes:
            self._evict(next(iter(self._kept)))

    def _evict(self, share: Share) -> None:
        for stream in share.wanting:
            member = share.group.members[stream]
            if member.place < share.place:
                member.missed = max(member.missed, share.place)
        self._drop(share)

    def _drop(self, share: Share) -> None:
        del self._kept[share]
        self.nbytes -= share.nbytes
        self._forget(share)

    def _forget(self, share: Share) -> None:
        if share.group.chunks.get(share.key) is share:
            del share.group.chunks[share.key]
