"""A data set: the records of many shards under one numbering, each one ranged read away."""

from __future__ import annotations

import hashlib
import os
import resource
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import google_crc32c

from feeder.errors import BadRecord, Closed, ConfigError, StorageError
from feeder.records.build import ensure_indexes
from feeder.records.example import ExampleError, RecordKeys, parse_example, zero_based
from feeder.records.index import ShardIndex, ShardState
from feeder.records.shards import expand
from feeder.records.storage import retry
from feeder.records.tfrecord import FOOTER_BYTES, HEADER_BYTES

__all__ = ["MAX_OPEN_SHARDS", "Dataset", "Record", "ShardInfo", "fingerprint"]

MAX_OPEN_SHARDS = 4096
"""Most shard files kept open. Lanes walk through all shards at once, so one that is not kept costs an open
each time, which takes a round trip on network storage."""

FRAMING_BYTES = HEADER_BYTES + FOOTER_BYTES
"""What a record takes in a shard beyond its payload."""

_crc32c: Callable[[bytes], int] = google_crc32c.value


class Record(NamedTuple):
    """One usable record.

    Attributes:
        image: the encoded image, at least one byte; a slice of the record, not a copy.
        label: class from 0.
    """

    image: memoryview
    label: int


@dataclass(frozen=True)
class ShardInfo:
    """What a data set knows of one shard.

    Attributes:
        name: file name, which errors and quarantine lists use.
        path: file.
        records: entries in the index, bad ones and the one that stands for a damaged tail included.
        nbytes: payload bytes of all of them.
        damage: why the shard cannot be read to its end, or None.
    """

    name: str
    path: Path
    records: int
    nbytes: int
    damage: str | None


class _Shard:
    """A shard and its columns; memoryviews, because indexing those is what Python does fastest."""

    __slots__ = ("crc", "damage", "image_bytes", "image_start", "label", "path", "start", "state")

    def __init__(self, path: Path, index: ShardIndex) -> None:
        self.path = path
        self.state = index.state
        self.damage = index.damage
        self.start = index.start.data
        self.label = index.label.data
        self.crc = index.crc.data
        self.image_start = index.image_start.data
        self.image_bytes = index.image_bytes.data


class _OpenFile:
    __slots__ = ("fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 1


class _OpenFiles:
    """Descriptors of recently read shards, at most `limit` beyond those in use at this moment.

    A descriptor is closed only while nobody reads from it, so that its number cannot come to mean another
    file in the middle of a read.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._files: OrderedDict[int, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False
        self.bytes_read = 0
        self.retries = 0

    def acquire(self, number: int, open_fd: Callable[[], int]) -> _OpenFile:
        """The file of shard `number`, which stays open until release()."""
        with self._lock:
            if self._closed:
                raise Closed("the data set is closed")
            file = self._files.get(number)
            if file is not None:
                file.users += 1
                self._files.move_to_end(number)
                return file
        file = _OpenFile(open_fd())  # without the lock: storage may take its time
        with self._lock:
            other = self._files.get(number)
            if other is None and not self._closed:
                self._files[number] = file
                self._shrink(self._limit)
                return file
            os.close(file.fd)
            if self._closed:
                raise Closed("the data set is closed")
            assert other is not None
            other.users += 1
            return other

    def release(self, number: int, file: _OpenFile, nbytes: int, *, reusable: bool = True) -> None:
        """Ends a use of `file` in which `nbytes` were read; a file that failed is not used again."""
        with self._lock:
            self.bytes_read += nbytes
            file.users -= 1
            if not reusable and self._files.get(number) is file:
                del self._files[number]
            if file.users == 0 and self._files.get(number) is not file:
                os.close(file.fd)

    def count_retry(self) -> None:
        with self._lock:
            self.retries += 1

    def close(self) -> None:
        """Closes all files; those in use when their readers release them."""
        with self._lock:
            self._closed = True
            for file in self._files.values():
                if file.users == 0:
                    os.close(file.fd)
            self._files.clear()

    def _shrink(self, limit: int) -> None:
        surplus = len(self._files) - limit
        if surplus > 0:
            for number in [number for number, file in self._files.items() if file.users == 0][:surplus]:
                os.close(self._files.pop(number).fd)


def fingerprint(indexes: Sequence[ShardIndex]) -> str:
    """Hex sha256 of the content of shards, in this order; names, places and times of files play no part."""
    digest = hashlib.sha256(b"feeder data set 1")
    for index in indexes:
        digest.update(bytes.fromhex(index.content))
    return digest.hexdigest()


class Dataset:
    """Random access to the records of a sorted list of shards.

    Records are numbered from 0 over all shards. Numbers are stable: a bad record keeps its number, and what
    is lost behind a break in a shard counts as one bad record.

    Attributes:
        name: what clients call the data set.
        fingerprint: hex sha256 over all lengths, labels, image places and payload crcs, in order. Equal for
            copies in other places, different for other content.
        shards: one entry for each shard, in order.
        nbytes: payload bytes of all records.
        bad: records that the index calls unusable; reading one says why.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[Path],
        indexes: Sequence[ShardIndex],
        keys: RecordKeys,
        max_open: int,
    ) -> None:
        self.name = name
        self.fingerprint = fingerprint(indexes)
        self.shards = tuple(
            ShardInfo(path.name, path, len(index), int(index.length.sum(dtype="u8")), index.damage)
            for path, index in zip(shards, indexes, strict=True)
        )
        self.nbytes = sum(shard.nbytes for shard in self.shards)
        self.bad = sum(int((index.label < 0).sum()) for index in indexes)
        self._keys = keys
        self._shards = [_Shard(path, index) for path, index in zip(shards, indexes, strict=True)]
        self._starts = list(accumulate((len(index) for index in indexes), initial=0))
        self._records = self._starts.pop()
        self._files = _OpenFiles(max_open)
        self._closing = threading.Event()

    @classmethod
    def open(
        cls,
        name: str,
        patterns: Sequence[str],
        *,
        keys: RecordKeys = RecordKeys(),  # noqa: B008 (frozen)
        index_dir: Path | None = None,
        build: bool = True,
        jobs: int | None = None,
        progress: bool = False,
        max_open: int | None = None,
    ) -> Self:
        """Opens all shards that match, with their indexes; builds those that are missing or stale.

        Args:
            name: what clients call the data set.
            patterns: each a file, a glob, or a folder, which stands for all shards in it.
            keys: where a record keeps its image and label.
            index_dir: folder for the indexes; None keeps each beside its shard.
            build: False makes a missing or stale index an error.
            jobs: threads that build indexes; None takes as many as there are usable cores.
            progress: show a bar on stderr while indexes are built.
            max_open: shard files kept open between reads; None takes half of what the process may open, at
                most 4096.

        Raises:
            ConfigError: nothing matches, what matches has no record, or an index is missing and not built.
            BadShard: a file is no TFRecord file, or a compressed one.
            StorageError: a shard cannot be read or an index not be written.
        """
        shards = expand(patterns)
        indexes = ensure_indexes(shards, keys, index_dir=index_dir, build=build, jobs=jobs, progress=progress)
        if not any(len(index) for index in indexes):
            some = ", ".join(str(path) for path in shards[:5]) + (", ..." if len(shards) > 5 else "")
            raise ConfigError(f"data set {name!r}: no record in any of its {len(shards)} shards ({some})")
        if max_open is None:
            allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            max_open = (
                MAX_OPEN_SHARDS if allowed == resource.RLIM_INFINITY else min(MAX_OPEN_SHARDS, allowed // 2)
            )
        return cls(name, shards, indexes, keys, max_open)

    def __len__(self) -> int:
        return self._records

    @property
    def bytes_read(self) -> int:
        """Bytes read from shards so far, indexing not counted."""
        return self._files.bytes_read

    @property
    def storage_retries(self) -> int:
        """Times that a read was tried again after storage failed."""
        return self._files.retries

    def locate(self, record: int) -> tuple[str, int]:
        """Shard name and number within the shard of a record in [0, len)."""
        number, index = self._place(record)
        return self.shards[number].name, index

    def read(self, record: int) -> Record:
        """Reads and checks one record in [0, len). May be called from any thread; waits without the GIL.

        Raises:
            BadRecord: its bytes are damaged or hold no usable image and label.
            StorageError: it cannot be read now, or the shard is another one than was indexed.
            Closed: after close().
        """
        number, index = self._place(record)
        shard = self._shards[number]
        label = shard.label[index]
        length = shard.start[index + 1] - shard.start[index] - FRAMING_BYTES
        if label < 0 and shard.damage is not None and index == len(shard.label) - 1:
            raise BadRecord(shard.path.name, index, f"at offset {shard.start[index]}: {shard.damage}")
        payload = self._payload(number, shard, index, length)
        if _crc32c(payload) != shard.crc[index]:
            payload = self._again(number, shard, index, length)
        if label < 0:
            raise BadRecord(shard.path.name, index, self._reason(payload))
        start = shard.image_start[index]
        return Record(memoryview(payload)[start : start + shard.image_bytes[index]], label)

    def close(self) -> None:
        """Closes all files; reads under way end, later ones raise Closed. May be called twice."""
        self._closing.set()
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _place(self, record: int) -> tuple[int, int]:
        if not 0 <= record < self._records:
            raise IndexError(f"record {record} of data set {self.name!r}, which has {self._records}")
        number = bisect_right(self._starts, record) - 1
        return number, record - self._starts[number]

    def _payload(self, number: int, shard: _Shard, index: int, length: int) -> bytes:
        """The payload of a record, of the indexed length; its crc is not checked."""
        offset = shard.start[index] + HEADER_BYTES
        return retry(
            lambda: self._read_once(number, shard, offset, length),
            f"{shard.path}: record {index}",
            pause=self._pause,
            on_retry=self._files.count_retry,
        )

    def _read_once(self, number: int, shard: _Shard, offset: int, length: int) -> bytes:
        file = self._files.acquire(number, lambda: _open_shard(shard))
        done = 0
        ok = False
        try:
            payload = os.pread(file.fd, length, offset)
            done = len(payload)
            while done < length:  # a short read is legal anywhere, the end of the file is not
                more = os.pread(file.fd, length - done, offset + done)
                if not more:
                    raise StorageError(f"{shard.path}: ends at byte {offset + done}: it shrank")
                payload += more
                done = len(payload)
            ok = True
        finally:
            self._files.release(number, file, done, reusable=ok)
        return payload

    def _again(self, number: int, shard: _Shard, index: int, length: int) -> bytes:
        """Reads a record whose crc was wrong once more: were the bytes hurt on the way, or in the file?"""
        try:
            with open(shard.path, "rb", buffering=0) as file:
                state = ShardState.of(os.fstat(file.fileno()))
        except OSError as error:
            raise StorageError(f"{shard.path}: cannot open: {error.strerror}") from error
        _check_unchanged(shard, state)
        if (
            shard.label[index] >= 0 and state != shard.state
        ):  # it was good, and something has touched the file
            raise StorageError(f"{shard.path}: was changed in place: restart to index it anew")
        payload = self._payload(number, shard, index, length)
        crc = _crc32c(payload)
        if crc != shard.crc[index]:
            raise BadRecord(
                shard.path.name,
                index,
                f"crc32c of the payload is {crc:08x}, the shard says {shard.crc[index]:08x} "
                f"({length} bytes at offset {shard.start[index] + HEADER_BYTES})",
            )
        return payload

    def _reason(self, payload: bytes) -> str:
        """Why a payload that the index calls bad is bad."""
        try:
            zero_based(parse_example(payload, self._keys).label, self._keys)
        except ExampleError as error:
            return str(error)
        return "was bad when the shard was indexed: run feeder index --force"

    def _pause(self, delay_s: float) -> None:
        if self._closing.wait(delay_s):
            raise Closed("the data set was closed while a read was retried")


def _open_shard(shard: _Shard) -> int:
    fd = os.open(shard.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check_unchanged(shard, ShardState.of(os.fstat(fd)))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_unchanged(shard: _Shard, state: ShardState) -> None:
    """The change time is left out: it moves with a chmod, and the crc of each record is checked anyway."""
    indexed = shard.state
    if (state.size, state.mtime_ns, state.inode) != (indexed.size, indexed.mtime_ns, indexed.inode):
        raise StorageError(f"{shard.path}: is not the file that was indexed: restart to index it anew")
