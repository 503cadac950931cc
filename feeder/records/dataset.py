"""A data set: the records of many shards under one numbering, each one ranged read away."""

from __future__ import annotations

import hashlib
import resource
import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from feeder.errors import BadRecord, Closed, ConfigError, StorageError
from feeder.records.access import Access, ObjectAccess, PageCache, open_access, slowness
from feeder.records.build import ensure_indexes, states_of
from feeder.records.crc32c import crc32c
from feeder.records.example import parse_example
from feeder.records.files import OpenFiles
from feeder.records.index import ShardIndex
from feeder.records.keys import BAD, FormatName, RecordKeys, Unusable, zero_based
from feeder.records.objects import ObjectShard, Range, Reading, Shard
from feeder.records.requests import RequestCounters, Requests
from feeder.records.seek import SeekFiles, SeekMode, seek_path
from feeder.records.shards import expand
from feeder.records.storage import retry
from feeder.records.stores import describe
from feeder.records.unpack import Garbled

__all__ = ["MAX_OPEN_SHARDS", "Dataset", "Keeper", "Record", "ShardInfo", "fingerprint"]

MAX_OPEN_SHARDS = 4096
"""Most shard files kept open. Lanes walk through all shards at once, so one that is not kept costs an open
each time, which takes a round trip on network storage."""


class Record(NamedTuple):
    """One usable record.

    Attributes:
        image: the encoded image, at least one byte; of a TFRecord a slice, not a copy.
        label: class from 0.
        digest: crc32c of the record, which tells its bytes from others.
    """

    image: memoryview
    label: int
    digest: int


@dataclass(frozen=True)
class ShardInfo:
    """What a data set knows of one shard.

    Attributes:
        name: file name, which errors and quarantine lists use.
        path: file or object.
        format: of its records.
        records: entries in the index, bad ones and the one that stands for a damaged tail included.
        nbytes: bytes of all of them: payloads of TFRecords, images of other formats.
        damage: why the shard cannot be read to its end, or None.
        slow: why its records take long to read one by one, or None.
    """

    name: str
    path: Shard
    format: FormatName
    records: int
    nbytes: int
    damage: str | None
    slow: str | None


class Keeper(Protocol):
    """Keeps records of objects near. Its methods may be called from any thread."""

    def find(self, records: Sequence[int]) -> Mapping[int, bytes]:
        """What is kept of some records: what their digests are over, unless it was damaged since."""

    def offer(self, record: int, stored: bytes) -> None:
        """Takes a record that was read and is good."""

    def drop(self, record: int) -> None:
        """Hears that what is kept of a record is damaged."""


class _Shard:
    """A shard and its columns; memoryviews, because indexing those is what Python does fastest."""

    __slots__ = (
        "access",
        "crc",
        "damage",
        "image_bytes",
        "image_start",
        "is_folder",
        "is_tfrecord",
        "label",
        "offset",
        "path",
        "reasons",
    )

    def __init__(
        self,
        path: Shard,
        index: ShardIndex,
        label: NDArray[np.int32],
        cache: PageCache,
        requests: Requests,
    ) -> None:
        self.path = str(path)
        self.access = open_access(path, index, cache, requests)
        self.is_folder = index.format == "folder"
        self.is_tfrecord = index.format == "tfrecord"
        self.reasons = index.reasons
        self.damage = index.damage
        self.offset = index.offset.data
        self.label = label.data
        self.crc = index.crc.data
        self.image_start = index.image_start.data
        self.image_bytes = index.image_bytes.data

    def refusal(self, index: int) -> str | None:
        """Why a bad record is bad, as far as that is known without reading it."""
        if self.damage is not None and index == len(self.label) - 1:
            return f"at offset {self.offset[index]}: {self.damage}"
        if self.is_tfrecord:
            return None
        reason = self.reasons[self.image_start[index]]
        return reason if self.is_folder else f"at offset {self.offset[index]}: {reason}"

    def image(self, payload: bytes, index: int) -> memoryview:
        """The image in what was read of a record: all of it where that is not a TFRecord's payload."""
        view = memoryview(payload)
        if not self.is_tfrecord:
            return view
        start = self.image_start[index]
        return view[start : start + self.image_bytes[index]]


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
        fingerprint: hex sha256 over the content of all shards, in order (see ShardIndex.content). Equal for
            copies in other places, different for other content.
        shards: one entry for each shard, in order.
        nbytes: bytes of all records (see ShardInfo).
        bad: records that the index calls unusable; reading one says why.
        seek: the seek points of the records, or None.
        is_remote: whether any shard is an object in a store.
        keeper: of records of such shards, or None; may be set before anything is read.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[Shard],
        indexes: Sequence[ShardIndex],
        keys: RecordKeys,
        max_open: int,
        seek: SeekMode = "off",
        index_dir: Path | None = None,
    ) -> None:
        self.name = name
        self.fingerprint = fingerprint(indexes)
        self.shards = tuple(
            ShardInfo(path.name, path, index.format, len(index), index.nbytes, index.damage, slowness(index))
            for path, index in zip(shards, indexes, strict=True)
        )
        self.nbytes = sum(shard.nbytes for shard in self.shards)
        self.bad = sum(int((index.label < 0).sum()) for index in indexes)
        self._keys = keys.of("tfrecord")
        self._contents = [index.content for index in indexes]
        self._states = {
            path: replace(index.state, ctime_ns=0) for path, index in zip(shards, indexes, strict=True)
        }
        cache = PageCache()
        self._requests = Requests(describe=describe)
        self.is_remote = any(isinstance(path, ObjectShard) for path in shards)
        self.keeper: Keeper | None = None
        self._starts = list(accumulate((len(index) for index in indexes), initial=0))
        self._records = self._starts.pop()
        # The last one is that of record -1.
        self._labels = np.concatenate([*(index.label for index in indexes), np.array([BAD], np.int32)])
        self._shards = [
            _Shard(path, index, self._labels[start : start + len(index)], cache, self._requests)
            for path, index, start in zip(shards, indexes, self._starts, strict=True)
        ]
        self._files = OpenFiles(max_open)
        self.seek = None
        if seek != "off":
            paths = [seek_path(path, index_dir) for path in shards]
            self.seek = SeekFiles(list(zip(paths, indexes, strict=True)), self._place, self._files, seek)
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
        format_name: FormatName | None = None,
        seek: SeekMode = "off",
    ) -> Self:
        """Opens all shards that match, with their indexes; builds those that are missing or stale.

        Args:
            name: what clients call the data set.
            patterns: each a file, a glob, a folder, which stands for all shards in it, or a folder of images;
                or the URL of an object, a glob or a folder, such as `s3://bucket/train-*`.
            keys: where a record keeps its image and label.
            index_dir: folder for the indexes; None keeps each beside its shard. Those of objects need one.
            build: False makes a missing or stale index an error.
            jobs: threads that build indexes; None takes as many as there are usable cores.
            progress: show a bar on stderr while indexes are built.
            max_open: files kept open between reads, those of seek points included; None takes half of what
                the process may open, at most 4096 (8192 with seek points).
            format_name: of all shards; None finds it by their content.
            seek: whether seek points are read, and kept where they grew; they lie where the indexes are.

        Raises:
            ConfigError: nothing matches, what matches has no record, or an index is missing and not built.
            BadShard: a file is of no format that is read, or compressed as a whole.
            StorageError: a shard cannot be read or an index not be written.
        """
        shards = expand(patterns, format_name)
        indexes = ensure_indexes(
            shards,
            keys,
            format_name=format_name,
            index_dir=index_dir,
            build=build,
            jobs=jobs,
            progress=progress,
        )
        if not any(len(index) for index in indexes):
            some = ", ".join(str(path) for path in shards[:5]) + (", ..." if len(shards) > 5 else "")
            raise ConfigError(f"data set {name!r}: no record in any of its {len(shards)} shards ({some})")
        if max_open is None:
            allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            wanted = MAX_OPEN_SHARDS if seek == "off" else 2 * MAX_OPEN_SHARDS
            max_open = wanted if allowed == resource.RLIM_INFINITY else min(wanted, allowed // 2)
        return cls(name, shards, indexes, keys, max_open, seek, index_dir)

    def __len__(self) -> int:
        return self._records

    def is_outdated(self, patterns: Sequence[str], format_name: FormatName | None = None) -> bool:
        """Whether the patterns that it was opened with name other shards now, or shards that have changed.
        A change time alone does not count, as in reading; nor does a store of objects, which is not asked.

        Raises:
            ConfigError, StorageError: as open().
        """
        if self.is_remote:
            return False
        found = states_of(expand(patterns, format_name))
        return {path: replace(state, ctime_ns=0) for path, state in found.items()} != self._states

    @property
    def bytes_read(self) -> int:
        """Bytes read from shards so far, indexing not counted."""
        return self._files.bytes_read + self._requests.counters.bytes

    @property
    def storage_retries(self) -> int:
        """Times that a read was tried again after storage failed."""
        return self._files.retries + self._requests.counters.retries

    @property
    def requests(self) -> RequestCounters:
        """What was asked of object stores so far, indexing not counted."""
        return self._requests.counters

    def locate(self, record: int) -> tuple[str, int]:
        """Shard name and number within the shard of a record in [0, len)."""
        number, index = self._place(record)
        return self._shards[number].access.place(index)

    def ask(self, records: Iterable[int]) -> Reading | None:
        """Asks object stores for records in [0, len), all at once; others are left out. Does not wait.

        Args:
            records: what read() is to be called for soon.

        Returns:
            For read(); None where there is nothing to ask for.

        Raises:
            Closed: after close().
        """
        if not self.is_remote:
            return None
        remote = [record for record in records if self._is_remote(record)]
        kept = self.keeper.find(remote) if self.keeper is not None and remote else {}
        wanted: list[int] = []
        ranges: list[Range] = []
        for record in remote:
            number, index = self._place(record)
            access = self._shards[number].access
            assert isinstance(access, ObjectAccess)
            if record not in kept and (part := access.wanted(index)) is not None:
                wanted.append(record)
                ranges.append(Range(number, *part))
        if not wanted and not kept:
            return None
        reading = Reading(wanted, ranges, self._ask, kept)
        if reading.merged:
            self._requests.count_merged(reading.merged)
        return reading

    def read(self, record: int, reading: Reading | None = None) -> Record:
        """Reads and checks one record in [0, len). May be called from any thread; waits without the GIL.

        Args:
            record: its number.
            reading: what ask() gave for it, among others.

        Raises:
            BadRecord: its bytes are damaged or hold no usable image and label.
            StorageError: it cannot be read now, or the shard is another one than was indexed.
            Closed: after close().
        """
        number, index = self._place(record)
        shard = self._shards[number]
        label = shard.label[index]
        if label < 0 and (reason := shard.refusal(index)) is not None:
            raise BadRecord(*shard.access.place(index), reason)
        if reading is None and self.is_remote:
            reading = self.ask([record])
        stored = None if reading is None else self._kept(record, reading, shard.crc[index])
        if stored is not None:
            return Record(shard.image(stored, index), label, shard.crc[index])
        came = None if reading is None else reading.take(record)
        payload, wrong = self._payload(number, shard, index, came)
        if wrong:
            payload = self._again(number, shard, index)
        if label < 0:
            raise BadRecord(*shard.access.place(index), self._reason(payload))
        if self.keeper is not None and isinstance(shard.access, ObjectAccess):
            self.keeper.offer(record, payload)
        return Record(shard.image(payload, index), label, shard.crc[index])

    def digest(self, record: int) -> int:
        """What `read` gives as the digest of a record in [0, len), known without reading it."""
        number, index = self._place(record)
        digest: int = self._shards[number].crc[index]
        return digest

    def label(self, record: int) -> int:
        """What `read` gives as the label of a record in [0, len), known without reading it; -1: bad."""
        number, index = self._place(record)
        label: int = self._shards[number].label[index]
        return label

    def labels(self, records: NDArray[np.int64]) -> NDArray[np.int32]:
        """The label of each record, int32 [n], as `label` gives it; -1 for -1, which is no record.

        Args:
            records: int64 [n], each in [-1, len).
        """
        return self._labels[records]

    def shard_starts(self) -> list[tuple[str, int, int]]:
        """For each shard its content (see ShardIndex), its first record, and how many records it has."""
        return [
            (content, start, shard.records)
            for content, start, shard in zip(self._contents, self._starts, self.shards, strict=True)
        ]

    def close(self) -> None:
        """Closes all files; reads under way end, later ones raise Closed. May be called twice."""
        if self.seek is not None:
            self.seek.close()
        self._closing.set()
        self._files.close()
        self._requests.close()

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

    def _is_remote(self, record: int) -> bool:
        """Whether a store has to be asked for a record, unless it is kept."""
        number, index = self._place(record)
        shard = self._shards[number]
        return isinstance(shard.access, ObjectAccess) and (
            shard.label[index] >= 0 or shard.refusal(index) is None
        )

    def _kept(self, record: int, reading: Reading, digest: int) -> bytes | None:
        """What is kept of a record, if it is what it was."""
        stored = reading.kept.get(record)
        if stored is not None and crc32c(stored) != digest:
            assert self.keeper is not None
            self.keeper.drop(record)
            return None
        return stored

    def _ask(self, number: int, offset: int, length: int) -> Future[bytes]:
        access = self._shards[number].access
        assert isinstance(access, ObjectAccess)
        return access.ask(offset, length)

    def _payload(
        self, number: int, shard: _Shard, index: int, came: bytes | None = None
    ) -> tuple[bytes, str]:
        """What is stored of a record, which perhaps `came` already, and what is wrong with it or ""."""
        access = shard.access
        try:
            if isinstance(access, ObjectAccess):
                payload = access.read(index, came)
            else:
                payload = retry(
                    partial(self._read_once, number, access, index),
                    f"{shard.path}: record {index}",
                    pause=self._pause,
                    on_retry=self._files.count_retry,
                )
        except Garbled as error:
            return b"", str(error)
        crc = crc32c(payload)
        if crc == shard.crc[index]:
            return payload, ""
        what, said = ("payload", "the shard says") if shard.is_tfrecord else ("image", "when indexed it was")
        return payload, (
            f"crc32c of the {what} is {crc:08x}, {said} {shard.crc[index]:08x} "
            f"({len(payload)} bytes, stored at offset {shard.offset[index]})"
        )

    def _read_once(self, number: int, access: Access, index: int) -> bytes:
        file = self._files.acquire(number, access.open)
        count = 0
        reusable = False
        try:
            payload, count = access.read(file.fd, index)
            reusable = True
        finally:
            self._files.release(number, file, count, reusable=reusable)
        return payload

    def _again(self, number: int, shard: _Shard, index: int) -> bytes:
        """Reads a record that was damaged once more: were its bytes hurt on the way, or in the file?"""
        untouched = shard.access.check(index)
        if shard.label[index] >= 0 and not untouched:  # it was good, and something has touched the file
            raise StorageError(f"{shard.path}: was changed in place: a restart of the worker indexes it anew")
        payload, wrong = self._payload(number, shard, index)
        if wrong:
            raise BadRecord(*shard.access.place(index), wrong)
        return payload

    def _reason(self, payload: bytes) -> str:
        """Why a payload that the index calls bad is bad."""
        try:
            zero_based(parse_example(payload, self._keys).label, self._keys)
        except Unusable as error:
            return str(error)
        return "was bad when the shard was indexed: run feeder index --force"

    def _pause(self, delay_s: float) -> None:
        if self._closing.wait(delay_s):
            raise Closed("the data set was closed while a read was retried")
