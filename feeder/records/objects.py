"""Shards that are objects in a store: their names, reading them from start to end, and many ranges of them.

Ranges that lie near each other become one request, which costs as much time as some hundred kilobytes.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from feeder.records.index import ShardState
from feeder.records.requests import Requests
from feeder.records.stores import OpenObject, Store

__all__ = [
    "GAP_BYTES",
    "SPAN_BYTES",
    "ObjectBlob",
    "ObjectShard",
    "Range",
    "Reading",
    "Seekable",
    "Shard",
    "Span",
    "all_states",
    "merge",
]

GAP_BYTES = 128 << 10
"""Bytes between two ranges that are read for nothing rather than asking twice."""

SPAN_BYTES = 8 << 20
"""Largest request that several ranges become."""

BLOCK_BYTES = 4 << 20
BLOCKS_AHEAD = 4
BLOCKS_KEPT = 8
"""Reading from start to end: size of a request, how many run ahead, and how many are held."""


@dataclass(frozen=True)
class ObjectShard:
    """An object that is a shard. As text it is its URL without what may be secret.

    Attributes:
        url: what may be shown of its URL.
        path: what the store calls it.
        store: where it is.
    """

    url: str
    path: str = field(repr=False)
    store: Store = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The last part of its URL."""
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """What its name ends with, from the last dot on."""
        return os.path.splitext(self.name)[1]

    @property
    def folder(self) -> str:
        """Its URL without the last part."""
        return self.url.rpartition("/")[0]

    def __str__(self) -> str:
        return self.url

    def open(self) -> OpenObject:
        """Asks the store for it, and for its state."""
        return self.store.open(self.path)


Shard: TypeAlias = Path | ObjectShard
"""Where a shard is."""


class Range(NamedTuple):
    """Bytes that are wanted of one of several objects."""

    shard: int
    offset: int
    length: int


class Span(NamedTuple):
    """Bytes that one request asks for.

    Attributes:
        shard, start, stop: which object, and which of its bytes.
        wanted: positions of the ranges that lie in it.
    """

    shard: int
    start: int
    stop: int
    wanted: list[int]


def merge(ranges: Sequence[Range], *, gap: int = GAP_BYTES, most: int = SPAN_BYTES) -> list[Span]:
    """The requests that some ranges take: neighbours go together, in the order of their first bytes.

    Args:
        ranges: in any order; they may overlap.
        gap: most bytes that lie between two neighbours.
        most: bytes of a request that several become; a single range may be longer.
    """
    spans: list[Span] = []
    for position in sorted(range(len(ranges)), key=lambda position: ranges[position]):
        shard, offset, length = ranges[position]
        stop = offset + length
        if spans:
            last = spans[-1]
            end = max(stop, last.stop)
            near = offset - last.stop <= gap and end - last.start <= most
            if shard == last.shard and (end == last.stop or near):
                last.wanted.append(position)
                spans[-1] = last._replace(stop=end)
                continue
        spans.append(Span(shard, offset, stop, [position]))
    return spans


class Reading:
    """Ranges that were asked for, each under the number of a record.

    Attributes:
        kept: records that need not be asked for, as they are stored and unpacked.
        nbytes: that come.
    """

    def __init__(
        self,
        records: Sequence[int],
        ranges: Sequence[Range],
        ask: Callable[[int, int, int], Future[bytes]],
        kept: Mapping[int, bytes] | None = None,
    ) -> None:
        self.kept = kept or {}
        self._parts: dict[int, tuple[Future[bytes], int, int]] = {}
        self._futures: list[Future[bytes]] = []
        self.nbytes = 0
        try:
            for shard, start, stop, wanted in merge(ranges):
                future = ask(shard, start, stop - start)
                self._futures.append(future)
                self.nbytes += stop - start
                for position in wanted:
                    _, offset, length = ranges[position]
                    self._parts[records[position]] = future, offset - start, length
        except BaseException:
            self.cancel()
            raise
        self._left = len(self._futures)
        self._lock = threading.Lock()

    @property
    def merged(self) -> int:
        """Ranges that came with another one's request."""
        return len(self._parts) - len(self._futures)

    def when_done(self, then: Callable[[], None]) -> None:
        """Calls `then` once, from any thread, when everything came or failed."""
        if not self._futures:
            then()

        def one(_: Future[bytes]) -> None:
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last:
                then()

        for future in self._futures:
            future.add_done_callback(one)

    def take(self, record: int) -> bytes | None:
        """The bytes of a record, waited for if need be; None where they were not asked for.

        Raises:
            StorageError: they cannot be read.
            Closed: the data set was closed.
        """
        part = self._parts.get(record)
        if part is None:
            return None
        future, start, length = part
        data = future.result()  # has a deadline of its own
        return data if len(data) == length else data[start : start + length]

    def cancel(self) -> None:
        """Nobody wants the bytes any more: what was not asked of the store yet never is."""
        for future in self._futures:
            future.cancel()


class ObjectBlob:
    """An object that is read from start to end, mostly: the blocks to come are asked for meanwhile.

    Not safe to use from several threads.

    Attributes:
        size: in bytes.
        state: of the object when it was opened.
    """

    def __init__(self, shard: ObjectShard, requests: Requests) -> None:
        self._shard = shard
        self._requests = requests
        self._file = requests.submit(shard.open, str(shard)).result()
        self.state: ShardState = self._file.state
        self.size = self.state.size
        self._blocks: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._last = -1

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fills the start of `view`; returns how many bytes came, 0 only at the end.

        Raises:
            StorageError: they cannot be read.
        """
        if offset >= self.size or not view:
            return 0
        number, start = divmod(offset, BLOCK_BYTES)
        ahead = BLOCKS_AHEAD if number in (self._last, self._last + 1) else 0
        self._last = number
        for wanted in range(number, number + ahead + 1):
            self._ask(wanted)
        data = self._blocks[number].result()
        part = memoryview(data)[start : start + len(view)]
        view[: len(part)] = part
        return len(part)

    def unchanged(self) -> bool:
        """Whether the object is still the one that was opened.

        Raises:
            StorageError: it cannot be looked at.
        """
        now: OpenObject = self._requests.submit(self._shard.open, str(self._shard)).result()
        return now.state == self.state

    def close(self) -> None:
        """Gives up what was asked for ahead."""
        for future in self._blocks.values():
            future.cancel()
        self._blocks.clear()

    def _ask(self, number: int) -> None:
        start = number * BLOCK_BYTES
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return
        length = min(BLOCK_BYTES, self.size - start)
        if length <= 0:
            return
        file = self._file
        self._blocks[number] = self._requests.submit(
            lambda: file.read(start, length), f"{self._shard}: bytes {start} to {start + length}", length
        )
        while len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)[1].cancel()


class Seekable(io.RawIOBase):
    """A blob as a file for libraries that want one; closing it leaves the blob alone."""

    def __init__(self, blob: ObjectBlob) -> None:
        self._blob = blob
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves there."""
        self._at = offset + (0, self._at, self._blob.size)[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fills the buffer, but for the end of the object."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and (got := self._blob.read_into(view[done:], self._at)):
            done += got
            self._at += got
        return done


def all_states(shards: Iterable[ObjectShard], requests: Requests) -> dict[ObjectShard, ShardState]:
    """The states of objects, all asked for at once.

    Raises:
        StorageError: one is missing, or cannot be asked for.
    """
    asked = {shard: requests.submit(shard.open, str(shard)) for shard in shards}
    return {shard: future.result().state for shard, future in asked.items()}
