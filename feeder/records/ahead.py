"""Reading a shard ahead of whoever uses what was read, in a thread of its own.

Where a core is idle, reading and checking go on side by side; where none is, a plain window costs less, since
what another core has read is no longer in this one's cache.
"""

from __future__ import annotations

import os
import queue
import threading

import numpy as np
import numpy.typing as npt

from feeder.records.stream import READ_BYTES, Source, Window

__all__ = ["AheadWindow", "pays"]

BLOCK_BYTES = 4 << 20
"""Size of one read. Smaller ones stay in the cache until they are used, but each is handed over, which costs
two switches of threads: on an idle host 4 MiB gained half, 1 MiB a third; on a busy one both lose."""

ROOM_BYTES = 1 << 20
"""Room in front of a block for the rest of the one before it, so that a record lies in one piece."""

BLOCKS = 3
"""One is read, one waits, one is used."""

_Block = npt.NDArray[np.uint8]


def pays(size: int) -> bool:
    """Whether to read so many bytes ahead: in more than one read, and now that a core is idle."""
    return size > READ_BYTES and 1 + max(1, round(os.getloadavg()[0])) <= len(os.sched_getaffinity(0))


class AheadWindow(Window):
    """A window whose bytes another thread reads, up to two blocks of 4 MiB ahead; close() ends it."""

    def __init__(self, source: Source, path: str, start: int = 0) -> None:
        super().__init__(source, path, start)
        self._free: queue.SimpleQueue[_Block] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[tuple[_Block, int] | BaseException] = queue.SimpleQueue()
        self._block: _Block | None = None
        self._closing = False
        for _ in range(BLOCKS):
            self._free.put(np.empty(ROOM_BYTES + BLOCK_BYTES, np.uint8))
        self._thread = threading.Thread(target=self._read, name="feeder-index-ahead", daemon=True)
        self._thread.start()

    def skip(self, count: int) -> int:
        done = 0
        while done < count and (there := self.have(min(count - done, ROOM_BYTES))):
            self.lo += there
            done += there
        return done

    def close(self) -> None:
        self._closing = True
        self._free.put(np.empty(0, np.uint8))  # wakes the thread
        self._thread.join()

    def _read(self) -> None:
        try:
            while True:
                block = self._free.get()
                if self._closing:
                    return
                got = self._source.read_into(block.data[ROOM_BYTES:])
                self._full.put((block, got))
                if not got:
                    return
        except BaseException as error:  # noqa: BLE001 (raised where the bytes are wanted)
            self._full.put(error)

    def _fill(self, kept: int, count: int) -> None:
        block, got = self._next()
        rest = self.bytes[self.lo : self.hi]
        if kept <= ROOM_BYTES and (kept + got >= count or not got):
            lo = ROOM_BYTES - kept
            block[lo:ROOM_BYTES] = rest
            self._use(block, lo, ROOM_BYTES + got)
            self._give_back(block)
            return
        # Longer than what fits: it gets a piece of memory of its own.
        whole = np.empty(count + BLOCK_BYTES, np.uint8)
        whole[:kept] = rest
        while True:
            whole[kept : kept + got] = block[ROOM_BYTES : ROOM_BYTES + got]
            kept += got
            self._free.put(block)
            if kept >= count or not got:
                break
            block, got = self._next()
        self._use(whole, 0, kept)
        self._give_back(None)

    def _give_back(self, instead: _Block | None) -> None:
        """Lets the thread fill the block that was used until now."""
        if self._block is not None:
            self._free.put(self._block)
        self._block = instead

    def _use(self, block: _Block, lo: int, hi: int) -> None:
        self.bytes, self.view, self.lo, self.hi = block, block.data, lo, hi

    def _next(self) -> tuple[_Block, int]:
        """A block, and how many bytes were read into it behind its room; 0 at the end, and only there."""
        came = self._full.get()
        if isinstance(came, BaseException):
            self._full.put(came)  # for whoever asks again
            raise came
        block, got = came
        if not got:
            self._full.put(came)
        self._end += got
        if self._left is not None:
            self._left -= got
        return block, got
