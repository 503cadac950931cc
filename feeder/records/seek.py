"""Seek points beside a shard: what decoding a record's image once makes known, so that the next time is less.

`<shard>.feederseek` is a sparse file, all integers little-endian:

    header, 4,096 bytes   "feedseek" | uint32 crc32c of the rest | uint32 format | uint32 bytes of a slot |
                          uint32 zero | uint64 records | sha256 of the index's content | zeros
    one slot a record     uint32 crc32c of the rest | uint32 digest of the record | uint32 1: complete, 3: as
    of 1,024 bytes        complete as a damaged image allows | 12 zero bytes | 1,000 bytes of points, which
                          only the decoder understands

A slot that was never written is zero and says nothing. One that is torn, flipped, or was written for other
bytes fails its crc or its digest, and says nothing either. So the file needs no lock, no order of writes and
no sync: any number of processes may read and write it, and any of them may be killed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feeder.errors import Closed
from feeder.records.crc32c import crc32c
from feeder.records.files import OpenFile, OpenFiles
from feeder.records.index import ShardIndex
from feeder.records.objects import Shard
from feeder.records.shards import SEEK_SUFFIX
from feeder.records.sidecar import sidecar_path
from feeder.records.storage import locked, temporary

__all__ = ["COMPLETE", "CUT", "POINTS_BYTES", "SeekCounters", "SeekFiles", "SeekMode", "seek_path"]

log = logging.getLogger(__name__)

SeekMode: TypeAlias = Literal["learn", "use", "off"]

FORMAT = 1
"""Changes with every change of the layout or of what the kernel's points mean; others are replaced."""

HEADER_BYTES = 4096
SLOT_BYTES = 1024
POINTS_BYTES = 1000
"""What a decoder may keep of one image."""

COMPLETE, CUT = 1, 2
"""Bits of what is said of points: nothing more can be known; they end early, because the image is damaged."""

WAITING = 64
"""Most chunks whose points wait to be written, 2 MiB of them; those of later ones are dropped and counted."""

CLOSE_S = 10.0
"""How long close() waits for what waits to be written."""

_MAGIC = b"feedseek"
_HEADER = struct.Struct("<IIIQ32s")
_SLOT = struct.Struct("<II12x")
_CRC = struct.Struct("<I")
_POINTS_AT = _CRC.size + _SLOT.size
_NOTHING = bytes(SLOT_BYTES)


@dataclass(frozen=True, slots=True)
class SeekCounters:
    """Sums since the start.

    Attributes:
        used: images that were decoded from points.
        learned: slots written.
        refused: images whose points contradicted them, and which were decoded without.
        torn: slots that could not be read, or were not what was once written for this record.
        dropped: slots not written, because too many waited or storage refused.
    """

    used: int = 0
    learned: int = 0
    refused: int = 0
    torn: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    records: NDArray[np.int64]
    digests: NDArray[np.uint32]
    points: NDArray[np.uint8]


class _Unfit(OSError):
    """A file is not the one that belongs to this shard's index."""


def seek_path(shard: Shard, index_dir: Path | None = None) -> Path:
    """Where the seek points of a shard are kept: where its index is."""
    return sidecar_path(shard, index_dir, SEEK_SUFFIX)


class SeekFiles:
    """The seek points of a data set's records, none of them held in memory; safe to use from many threads.

    A file comes into being when the first record of its shard is read. Where that is not allowed nothing is
    kept, said once in the log; points that are there are used all the same.

    Args:
        shards: where the file of each shard is, and the shard's index.
        place: from a record's number to its shard's and its number there.
        files: keeps descriptors; shards are known to it as -1, -2, ...
        mode: "learn" reads and writes, "use" only reads.
    """

    def __init__(
        self,
        shards: Sequence[tuple[Path, ShardIndex]],
        place: Callable[[int], tuple[int, int]],
        files: OpenFiles,
        mode: Literal["learn", "use"],
    ) -> None:
        self.mode = mode
        self._paths = [path for path, _ in shards]
        self._about = [(len(index), bytes.fromhex(index.content)) for _, index in shards]
        self._place = place
        self._files = files
        # By shard; what is in neither was not tried yet, or is in order.
        self._absent: set[int] = set()
        self._unwritable: dict[int, tuple[int | None, str, str]] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[_Waiting] = deque()
        self._closing = False
        self._warned = False
        self._counters = SeekCounters()
        self._writer: threading.Thread | None = None
        if mode == "learn":
            self._writer = threading.Thread(target=self._write_all, name="feeder-seek", daemon=True)
            self._writer.start()

    @property
    def counters(self) -> SeekCounters:
        """What happened so far."""
        return self._counters

    def load(self, record: int, digest: int, points: NDArray[np.uint8]) -> int:
        """Reads what is known of a record.

        Args:
            record: its number in the data set.
            digest: of the record as it was read.
            points: uint8 [1000]; left alone where nothing is known.

        Returns:
            COMPLETE where that is all that can be known of it, with CUT where its image is damaged; else 0.

        Raises:
            Closed: the data set is closed.
        """
        number, index = self._place(record)
        if number in self._absent:
            return 0
        try:
            file = self._acquire(number)
        except OSError as error:
            if self.mode == "learn":
                self._warn(error)
            return 0
        try:
            slot = os.pread(file.fd, SLOT_BYTES, HEADER_BYTES + index * SLOT_BYTES)
        except OSError:
            self._count(torn=1)
            return 0
        finally:
            self._files.release(~number, file, 0)
        if not slot or slot == _NOTHING:
            return 0
        if len(slot) == SLOT_BYTES and _CRC.unpack_from(slot)[0] == crc32c(slot[_CRC.size :]):
            written_for, flags = _SLOT.unpack_from(slot, _CRC.size)
            if written_for == digest:
                points.data[:] = slot[_POINTS_AT:]  # half the time of an assignment by NumPy
                return flags & (COMPLETE | CUT) if flags & COMPLETE else 0
        self._count(torn=1)
        return 0

    def store(
        self, records: NDArray[np.int64], digests: NDArray[np.uint32], points: NDArray[np.uint8]
    ) -> None:
        """Has points written by a thread of its own; does nothing in mode "use".

        Args:
            records: int64 [n], numbers in the data set.
            digests: uint32 [n], of the records as they were read.
            points: uint8 [n, 1000]; kept until it is written.
        """
        if self.mode != "learn":
            return
        with self._lock:
            if self._closing or len(self._waiting) >= WAITING:
                self._add(dropped=len(records))
                return
            self._waiting.append(_Waiting(records, digests, points))
            self._changed.notify()

    def write(self, record: int, digest: int, points: NDArray[np.uint8], *, flags: int = 0) -> None:
        """Writes what is known of a record now.

        Args:
            record: its number in the data set.
            digest: of the record as it was read.
            points: uint8 [1000].
            flags: what load() is to return.

        Raises:
            OSError: storage refuses, or the mode is "use".
            Closed: the data set is closed.
        """
        number, index = self._place(record)
        self._check_writable(number)
        rest = _SLOT.pack(digest, flags) + points.tobytes()
        slot = _CRC.pack(crc32c(rest)) + rest
        file = self._acquire(number)
        try:
            self._check_writable(number)  # opening has shown it
            if os.pwrite(file.fd, slot, HEADER_BYTES + index * SLOT_BYTES) != SLOT_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._paths[number]))
        finally:
            self._files.release(~number, file, 0)
        self._count(learned=1)

    def count(self, *, used: int, refused: int) -> None:
        """Notes what became of the points of some images."""
        if used or refused:
            self._count(used=used, refused=refused)

    def close(self) -> None:
        """Writes what waits; what comes later is dropped. May be called twice."""
        with self._lock:
            self._closing = True
            self._changed.notify()
        if self._writer is not None:
            self._writer.join(CLOSE_S)

    def _count(self, **more: int) -> None:
        with self._lock:
            self._add(**more)

    def _add(self, **more: int) -> None:
        counters = self._counters
        self._counters = replace(
            counters, **{name: getattr(counters, name) + count for name, count in more.items()}
        )

    def _write_all(self) -> None:
        while (chunk := self._next_waiting()) is not None:
            for record, digest, points in zip(
                chunk.records.tolist(), chunk.digests.tolist(), chunk.points, strict=True
            ):
                try:
                    self.write(record, digest, points)
                except OSError as error:
                    self._count(dropped=1)
                    self._warn(error)
                except Closed:
                    return  # close() waited long enough

    def _next_waiting(self) -> _Waiting | None:
        with self._lock:
            while not self._waiting and not self._closing:
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    def _warn(self, error: OSError) -> None:
        """Once: the other shards most likely are beside this one."""
        with self._lock:
            if self._warned:
                return
            self._warned = True
        log.warning(
            "seek points are not all kept: %s: %s: let the folder be writable and have room, or name "
            "another for indexes and points (--index-dir)",
            error.filename or "a shard's points",
            error.strerror or error,
        )

    def _check_writable(self, number: int) -> None:
        reason = self._unwritable.get(number)
        if reason is not None:
            raise OSError(*reason)

    def _acquire(self, number: int) -> OpenFile:
        return self._files.acquire(~number, lambda: self._open(number))

    def _open(self, number: int) -> int:
        """A descriptor of the shard's file, made anew in mode "learn" where it is missing or another's.

        Raises:
            OSError: there is none to be had; the shard is not tried again.
        """
        path, header = self._paths[number], _header(*self._about[number])
        reason: tuple[int | None, str, str] = (errno.EROFS, 'seek="use" only reads', str(path))
        if self.mode == "learn":
            try:
                try:
                    return _open_fitting(path, header, os.O_RDWR)
                except (FileNotFoundError, _Unfit):
                    _make(path, header)
                    return _open_fitting(path, header, os.O_RDWR)
            except OSError as error:
                reason = (error.errno, error.strerror or str(error), error.filename or str(path))
        self._unwritable[number] = reason
        try:
            return _open_fitting(path, header, os.O_RDONLY)
        except OSError:
            self._absent.add(number)
            raise OSError(*reason) from None


def _header(records: int, fingerprint: bytes) -> bytes:
    rest = _HEADER.pack(FORMAT, SLOT_BYTES, 0, records, fingerprint)
    rest = rest.ljust(HEADER_BYTES - len(_MAGIC) - _CRC.size, b"\0")
    return _MAGIC + _CRC.pack(crc32c(rest)) + rest


def _open_fitting(path: Path, header: bytes, flags: int) -> int:
    """Opens a file of points that starts with this header.

    Raises:
        _Unfit: it starts with something else.
        OSError: there is none, or it may not be opened.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe of that name would be waited for
    try:
        if os.pread(fd, HEADER_BYTES, 0) != header:
            raise _Unfit(errno.EINVAL, "belongs to another shard or version", str(path))
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _make(path: Path, header: bytes) -> None:
    """Puts an empty file in place, unless another process was faster.

    It takes the place of what is there instead of being written over it, since a process that still serves an
    older shard may write to that.
    """
    path.parent.mkdir(parents=True, exist_ok=True)  # of indexes that were all found beside their shards
    with locked(path.parent):
        with contextlib.suppress(FileNotFoundError, _Unfit):
            os.close(_open_fitting(path, header, os.O_RDONLY))
            return
        with temporary(path) as (fd, hidden):
            if os.write(fd, header) != HEADER_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fchmod(fd, 0o644)
            os.replace(hidden, path)
