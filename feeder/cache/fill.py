"""Fills the cache while it serves: takes what was decoded anyway, in turns with what warms it up."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from feeder import figures
from feeder.cache.shelf import Shelf
from feeder.cache.store import Cache
from feeder.errors import Closed

__all__ = ["Filler", "Offer", "PlanesOf"]

log = logging.getLogger(__name__)

QUEUE_BYTES = 64 << 20
"""Of encoded images that wait; what comes when it is full is left for the next epoch."""

BATCH = 8
"""Images decoded at a time, in one call: so much is between a request to end and the end."""

IDLE_S = 1.0
"""After so long without an offer what is open is sealed, so that a small data set is served, too; at least so
often the folder is looked at, for what others sealed or evicted."""

PROGRESS_S = 10.0

TROUBLE_PAUSE_S = 30.0

PlanesOf: TypeAlias = Callable[
    [Sequence[bytes | memoryview], npt.NDArray[np.uint8]], Sequence[bytes | memoryview | None]
]
"""From encoded images and their scales, uint8 [n], to the planes of each; None where none can be kept."""


class Offer(NamedTuple):
    """An image whose planes may be kept.

    Attributes:
        shelf: of its data set.
        record: number in the data set.
        image: encoded bytes.
        size: (width, height) in pixels.
        reduction: 1, 2, 4 or 8.
    """

    shelf: Shelf
    record: int
    image: bytes | memoryview
    size: tuple[int, int]
    reduction: int


class Filler:
    """A thread that alone changes a cache. It leaves the cache open when it ends.

    Args:
        cache: what is filled.
        planes: decodes; called from the thread, a few images at a time.
        warm: what `warm` is told at once; None: nothing.
    """

    def __init__(self, cache: Cache, planes: PlanesOf, warm: Iterable[Offer] | None = None) -> None:
        self._cache = cache
        self._planes = planes
        self._warm: Iterator[Offer] | None = None
        self._warmed = 0
        self._progress_s = 0.0
        self._queue: deque[Offer] = deque()
        self._queued = 0
        self._changed = threading.Condition()
        self._stopping = False
        if warm is not None:
            self.warm(warm)
        self._thread = threading.Thread(target=self._run, name="feeder-fill", daemon=True)
        self._thread.start()

    def offer(self, offers: Iterable[Offer]) -> None:
        """Takes images whose planes are not in the cache, as many as may wait; never blocks for long."""
        if self._cache.full:
            return
        with self._changed:
            for offer in offers:
                if self._queued + len(offer.image) > QUEUE_BYTES:
                    break
                self._queue.append(offer)
                self._queued += len(offer.image)
            self._changed.notify()

    def warm(self, offers: Iterable[Offer]) -> None:
        """Has these offers taken, in turns with those that come, until there is no more room; they take the
        place of what it warms up with now."""
        with self._changed:
            self._warm, self._warmed, self._progress_s = iter(offers), 0, time.monotonic()
            self._changed.notify()

    def close(self) -> None:
        """Ends the thread after the images that it is at; what still waits is dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._cache.refresh()
                batch = self._next()
                if batch:
                    self._fill(batch)
                else:
                    self._cache.seal()
            except Closed:
                return
            except OSError as error:
                log.warning("cache: filling rests for %g s: %s", TROUBLE_PAUSE_S, error)
                self._rest(TROUBLE_PAUSE_S)
            except Exception:  # the worker serves without it
                log.exception("cache: filling has ended")
                return

    def _rest(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)

    def _next(self) -> list[Offer]:
        """What came, else what warms up, else nothing after a while."""
        batch: list[Offer] = []
        with self._changed:
            if self._warm is None:
                self._changed.wait_for(lambda: self._queue or self._warm or self._stopping, IDLE_S)
            while self._queue and len(batch) < BATCH:
                offer = self._queue.popleft()
                self._queued -= len(offer.image)
                batch.append(offer)
            warm = self._warm
        if not batch and warm is not None and not self._stopping:
            batch = self._next_warm(warm)
        return batch

    def _next_warm(self, warm: Iterator[Offer]) -> list[Offer]:
        batch: list[Offer] = []
        try:
            batch.extend(itertools.islice(warm, BATCH))
        except Exception:  # what came before stays, and what is decoded anyway is still taken
            log.exception("cache: warming up has ended")
        self._warmed += len(batch)
        done = len(batch) < BATCH or self._cache.full
        if done or time.monotonic() > self._progress_s + PROGRESS_S:
            self._progress_s = time.monotonic()
            counters = self._cache.counters()
            log.info(
                "cache: %s up: %d records looked at, %s in %d segment%s",
                "warmed" if done else "warming",
                self._warmed,
                figures.size(counters.bytes),
                counters.segments,
                "s" * (counters.segments != 1),
            )
        if done:
            with self._changed:
                if self._warm is warm:
                    self._warm = None
        return batch

    def _fill(self, batch: Sequence[Offer]) -> None:
        wanted = [offer for offer in batch if not offer.shelf.has(offer.record, offer.reduction)]
        if not wanted or self._cache.full:
            return
        scales = np.array([offer.reduction for offer in wanted], np.uint8)
        try:
            decoded = self._planes([offer.image for offer in wanted], scales)
        except (Closed, OSError):
            raise
        except Exception:  # the cache was not touched: what comes next may be better
            log.exception("cache: filling leaves %d out and rests for %g s", len(wanted), TROUBLE_PAUSE_S)
            self._rest(TROUBLE_PAUSE_S)
            return
        for offer, planes in zip(wanted, decoded, strict=True):
            if planes is None:
                offer.shelf.refuse(offer.record)
            elif not self._cache.add(offer.shelf, offer.record, offer.reduction, offer.size, planes):
                return
