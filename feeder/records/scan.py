"""The records of a TFRecord shard, taken into its index.

Most are found natively and without the GIL, where the extension is built. It says nothing of a record that is
not sound, or not laid out as usual: that one is read here, as all are where there is no extension. The index
is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from feeder.records.example import parse_example
from feeder.records.index import COLUMNS, IndexBuilder
from feeder.records.keys import BAD, Keys, Unusable, zero_based
from feeder.records.stream import MAX_RECORD_BYTES, Torn, Window, open_window
from feeder.records.tfrecord import HEADER_BYTES, frames, looks_like_tfrecord

try:
    from feeder.records._frames import Scanner

    NATIVE = True
except ImportError:
    NATIVE = False

__all__ = ["find_middle", "scan_halves", "scan_tfrecord"]

ROWS = 1024
"""Most records that are taken natively at a time."""

MIN_HALVED_BYTES = 16 << 20
"""Shards that are worth a second thread; reading one takes some milliseconds."""

SEARCHED_BYTES = 1 << 20
"""Where a record has to begin to be found; it has ten times the bytes of an average record of ImageNet."""

MAX_CANDIDATES = 1000
"""Places in there that are looked at: a file of zeros has one at each byte."""


def scan_tfrecord(
    window: Window, keys: Keys, builder: IndexBuilder, max_record_bytes: int = MAX_RECORD_BYTES
) -> None:
    """Adds all records that a window is over to an index.

    Raises:
        Torn: where the framing breaks, after all records before it, or one is one too many.
        BadShard: the file is no TFRecord file.
        StorageError: it cannot be read.
    """
    one_by_one = frames(window, max_record_bytes=max_record_bytes)
    scanner = Scanner(keys.image, keys.label, keys.label_base, max_record_bytes) if NATIVE else None
    while True:
        if scanner is not None:
            _scan_natively(scanner, window, builder)
        frame = next(one_by_one, None)
        if frame is None:
            return
        label, image_start, image_bytes = BAD, 0, 0
        if frame.intact:
            try:  # cheaper than a context manager, once a record
                image_start, image_bytes, stored = parse_example(frame.payload, keys)
                label = zero_based(stored, keys)
            except Unusable:
                image_start = image_bytes = 0
        builder.add(frame.offset, len(frame.payload), label, frame.crc, image_start, image_bytes)


def _scan_natively(scanner: Scanner, window: Window, builder: IndexBuilder) -> None:
    """Adds records up to one that has to be looked at here, or the end."""
    rows = np.empty((ROWS, len(COLUMNS)), np.int64)
    while True:
        count, used, need = scanner.scan(window.bytes, window.lo, window.hi, window.position, rows)
        builder.add_rows(rows[:count])
        window.lo += used
        if count < ROWS and not (need and window.have(need) == need):
            return


class _Dropped(Exception):
    """What a thread was reading is of no use any more."""


def find_middle(fd: int, path: str, size: int) -> int | None:
    """Where a record of a file seems to begin, near its middle: a length field with a right crc stands there.

    It may be part of an image, too. None where there is none nearby, or two threads would gain nothing.

    Raises:
        StorageError: it cannot be read.
    """
    if not NATIVE or size < MIN_HALVED_BYTES:
        return None
    window = open_window(fd, path, start=size // 2)
    there = window.have(SEARCHED_BYTES)
    data = bytes(window.view[:there])
    at = -1
    for _ in range(MAX_CANDIDATES):
        at = data.find(bytes(4), at + 1)  # the upper half of a length
        if at < 0:
            break
        if at >= 4 and looks_like_tfrecord(data[at - 4 : at - 4 + HEADER_BYTES]):
            return size // 2 + at - 4
    return None


def scan_halves(
    fd: int,
    path: str,
    middle: int,
    keys: Keys,
    builder: IndexBuilder,
    max_record_bytes: int = MAX_RECORD_BYTES,
    advance: Callable[[int], object] | None = None,
) -> None:
    """Adds all records of a file to an index, as `scan_tfrecord` does, in two threads where that goes well.

    One scans from the start to `middle`, the other from there on. If the last record of the first half ends
    at `middle`, a scan from start to end would have come by, and found what the other has found. If not,
    `middle` is no start of a record, or the file is damaged before it: what the other found is dropped, and
    the first goes on.

    Args:
        fd: of the file.
        path: what errors call it.
        middle: where a record may begin; see `find_middle`.
        advance: as in open_window, from both threads; called with less than 0 for what was read and dropped.
    """
    drop = threading.Event()
    counted = [0, 0]

    def part(half: int, start: int, stop: int | None) -> Window:
        def count(got: int) -> None:
            if half and drop.is_set():
                raise _Dropped
            if advance is not None:
                advance(got)
            counted[half] += got

        return open_window(fd, path, start=start, stop=stop, advance=count)

    behind = IndexBuilder(builder.max_records)
    first = part(0, 0, middle)
    with ThreadPoolExecutor(1, thread_name_prefix="feeder-index-half") as pool:
        second = pool.submit(scan_tfrecord, part(1, middle, None), keys, behind, max_record_bytes)
        try:
            scan_tfrecord(first, keys, builder, max_record_bytes)
        except Torn as torn:
            drop.set()
            if first.position != torn.offset:  # not the framing, but one record too many
                raise
        except BaseException:
            drop.set()
            raise
    if drop.is_set():
        if advance is not None:
            advance(first.position - sum(counted))
        scan_tfrecord(part(0, first.position, None), keys, builder, max_record_bytes)
        return
    builder.add_rows(behind.rows)
    second.result()
