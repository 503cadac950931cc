"""How the bytes of one record come from an indexed shard: by range, by range and unpacked, or as a file.

Ranges are of a file or of an object.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

from feeder.errors import StorageError
from feeder.records.folder import ImageFolder
from feeder.records.index import ShardIndex, ShardState
from feeder.records.objects import ObjectShard, Shard
from feeder.records.requests import Requests
from feeder.records.stores import OpenObject
from feeder.records.unpack import unpack_page

__all__ = ["Access", "ObjectAccess", "PageCache", "open_access", "slowness"]

PAGE_CACHE_BYTES = 256 << 20
"""Unpacked pages that a data set keeps, all shards together."""

LARGE_PAGE_BYTES = 8 << 20
"""Pages above this are unpacked by one thread at a time, so that memory is bounded by few of them."""

SLOW_PAGE_BYTES = 4 << 20
"""Pages above this, where a record takes more than about a millisecond, are worth a warning."""

_EXTRA_BYTES = 256 << 10


class Access(Protocol):
    """One indexed shard of files. Its methods may be called from any thread."""

    def open(self) -> int:
        """A new descriptor for read().

        Raises:
            StorageError: the shard is not the one that was indexed.
            OSError: it cannot be opened.
        """

    def read(self, fd: int, index: int) -> tuple[bytes, int]:
        """What the crc of a good or damaged record is over, and the number of bytes that were read for it.

        Raises:
            StorageError: the shard has shrunk.
            Garbled: what was read cannot be unpacked.
            OSError: it cannot be read.
        """

    def check(self, index: int) -> bool:
        """Whether the record's file is untouched since it was indexed, even its change time.

        Raises:
            StorageError: it is another file than was indexed, or cannot be looked at.
        """

    def place(self, index: int) -> tuple[str, int]:
        """Name of the file that holds the record, and the record's number there."""


class PageCache:
    """Unpacked pages that were read last, bounded in bytes; a page larger than all of it is not kept."""

    def __init__(self, limit: int = PAGE_CACHE_BYTES) -> None:
        self._limit = limit
        self._pages: OrderedDict[tuple[Shard, int], memoryview] = OrderedDict()
        self._used = 0
        self._lock = threading.Lock()
        self.large = threading.Lock()

    def get(self, key: tuple[Shard, int]) -> memoryview | None:
        """A page, by shard and offset."""
        with self._lock:
            page = self._pages.get(key)
            if page is not None:
                self._pages.move_to_end(key)
            return page

    def put(self, key: tuple[Shard, int], page: memoryview) -> None:
        """Keeps a page, for which those used longest ago go."""
        with self._lock:
            if key in self._pages or len(page) > self._limit:
                return
            self._pages[key] = page
            self._used += len(page)
            while self._used > self._limit:
                self._used -= len(self._pages.popitem(last=False)[1])

    def drop(self, key: tuple[Shard, int]) -> None:
        """Forgets a page."""
        with self._lock:
            self._used -= len(self._pages.pop(key, b""))


class _Plain:
    """Records that lie in their shard as they are."""

    def __init__(self, index: ShardIndex) -> None:
        self.offset = index.offset.data
        self.length = index.length.data

    def wants(self, index: int) -> bool:
        """Whether the range of a record has to be read for it."""
        return True

    def read(self, read: Callable[[int, int], bytes], index: int) -> tuple[bytes, int]:
        """What the crc of a record is over, and how many bytes `read`, from (offset, length), gave for it."""
        data = read(self.offset[index], self.length[index])
        return data, len(data)

    def forget(self, index: int) -> None:
        """Lets go of what was kept of the record's range."""


class _Packed(_Plain):
    """Records of a Parquet file with compressed pages.

    Where a record can be unpacked without much around it (see feeder.records.snappy), that is done each time;
    a page that has to be unpacked as a whole is kept in the cache.
    """

    def __init__(self, shard: Shard, index: ShardIndex, cache: PageCache) -> None:
        super().__init__(index)
        self._shard = shard
        self._codec = index.codec
        self._unpacked = index.unpacked.data
        self._start = index.image_start.data
        self._bytes = index.image_bytes.data
        self._cache = cache

    def wants(self, index: int) -> bool:
        return not self._is_whole(index) or self._cache.get(self._key(index)) is None

    def read(self, read: Callable[[int, int], bytes], index: int) -> tuple[bytes, int]:
        unpacked, start, size = self._unpacked[index], self._start[index], self._bytes[index]
        if not unpacked:
            return super().read(read, index)
        if not self._is_whole(index):
            page, count = self._unpack(read, index, unpacked)
            return bytes(page[start : start + size]), count
        key = self._key(index)
        count = 0
        kept = self._cache.get(key)
        if kept is None:
            with self._cache.large if unpacked > LARGE_PAGE_BYTES else contextlib.nullcontext():
                kept = self._cache.get(key)  # perhaps it came while we waited
                if kept is None:
                    kept, count = self._unpack(read, index, unpacked)
                    self._cache.put(key, kept)
        return bytes(kept[start : start + size]), count

    def forget(self, index: int) -> None:
        self._cache.drop(self._key(index))

    def _is_whole(self, index: int) -> bool:
        return self._unpacked[index] > 2 * self._bytes[index] + _EXTRA_BYTES

    def _key(self, index: int) -> tuple[Shard, int]:
        return self._shard, self.offset[index]

    def _unpack(self, read: Callable[[int, int], bytes], index: int, unpacked: int) -> tuple[memoryview, int]:
        stored = read(self.offset[index], self.length[index])
        return unpack_page(stored, unpacked, self._codec), len(stored)


class _Ranges:
    """A file, parts of which are read."""

    def __init__(self, path: Path, index: ShardIndex, layout: _Plain) -> None:
        self._path = path
        self._state = index.state
        self._layout = layout

    def open(self) -> int:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _compare(self._path, ShardState.of(os.fstat(fd)), self._state)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def read(self, fd: int, index: int) -> tuple[bytes, int]:
        return self._layout.read(partial(_read_range, self._path, fd), index)

    def check(self, index: int) -> bool:
        self._layout.forget(index)  # what is wrong may be wrong in the cache alone
        try:
            state = ShardState.of(os.stat(self._path))
        except OSError as error:
            raise StorageError(f"{self._path}: cannot open: {error.strerror}") from error
        _compare(self._path, state, self._state)
        return state == self._state

    def place(self, index: int) -> tuple[str, int]:
        return self._path.name, index


class ObjectAccess:
    """One indexed shard that is an object. Its methods may be called from any thread."""

    def __init__(self, shard: ObjectShard, index: ShardIndex, layout: _Plain, requests: Requests) -> None:
        self._shard = shard
        self._state = index.state
        self._layout = layout
        self._requests = requests
        self._file: OpenObject | None = None

    def wanted(self, index: int) -> tuple[int, int] | None:
        """Offset and length of what must be asked for to read a record; None: nothing."""
        layout = self._layout
        return (layout.offset[index], layout.length[index]) if layout.wants(index) else None

    def ask(self, offset: int, length: int) -> Future[bytes]:
        """Has bytes read by the requests."""
        where = f"{self._shard}: bytes {offset} to {offset + length}"
        return self._requests.submit(lambda: self._opened().read(offset, length), where, length)

    def read(self, index: int, came: bytes | None = None) -> bytes:
        """What the crc of a good or damaged record is over.

        Args:
            came: what `wanted` named, where it was asked for already.

        Raises:
            StorageError: it cannot be read, or the object is not the one that was indexed.
            Garbled: what was read cannot be unpacked.
            Closed: the data set is closed.
        """
        payload, _ = self._layout.read(
            lambda offset, length: self.ask(offset, length).result() if came is None else came, index
        )
        return payload

    def check(self, index: int) -> bool:
        """Whether the object is the one that was indexed, which is asked of the store.

        Raises:
            StorageError: it is not, or the store does not say.
        """
        self._layout.forget(index)
        self._file = None
        self._requests.submit(self._opened, str(self._shard)).result()
        return True

    def place(self, index: int) -> tuple[str, int]:
        """Name of the object, and the record's number in it."""
        return self._shard.name, index

    def _opened(self) -> OpenObject:
        file = self._file
        if file is None:
            file = self._shard.open()
            if file.state != self._state:
                now, indexed = file.state, self._state
                raise StorageError(
                    f"{self._shard}: is not the object that was indexed: it has {now.size} bytes and is "
                    f"{now.tag}, it had {indexed.size} and was {indexed.tag}: restart to index it anew"
                )
            self._file = file
        return file


class _Files:
    """An image folder, whose records are files."""

    def __init__(self, folder: ImageFolder, index: ShardIndex) -> None:
        self._folder = folder
        self._state = index.state
        self._number = index.offset.data
        self._bytes = index.length.data

    def open(self) -> int:
        return os.open(self._folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def read(self, fd: int, index: int) -> tuple[bytes, int]:
        size = self._bytes[index]
        name = self._folder.name(self._number[index])
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=fd)
        try:
            if os.fstat(file).st_size != size:
                raise StorageError(f"{self._folder.path}/{os.fsdecode(name)}: {_OTHER_FILE}")
            return _read_range(self._folder.path / os.fsdecode(name), file, 0, size), size
        finally:
            os.close(file)

    def check(self, index: int) -> bool:
        path = self._folder.path / os.fsdecode(self._folder.name(self._number[index]))
        try:
            found = os.stat(path)
        except OSError as error:
            raise StorageError(f"{path}: cannot open: {error.strerror}") from error
        if found.st_size != self._bytes[index] or found.st_mtime_ns > self._state.mtime_ns:
            raise StorageError(f"{path}: {_OTHER_FILE}")
        return found.st_ctime_ns <= self._state.ctime_ns

    def place(self, index: int) -> tuple[str, int]:
        return f"{self._folder.path.name}/{os.fsdecode(self._folder.name(self._number[index]))}", 0


def open_access(
    shard: Shard, index: ShardIndex, cache: PageCache, requests: Requests
) -> Access | ObjectAccess:
    """The access to a shard that fits its place, format and codec.

    Raises:
        StorageError: an image folder is not the one that was indexed.
    """
    if index.format == "folder":
        assert isinstance(shard, Path)
        folder = ImageFolder.read(shard)
        if folder.state != index.state:
            raise StorageError(f"{shard}: changed since it was indexed: start again")
        return _Files(folder, index)
    layout = _Packed(shard, index, cache) if len(index.unpacked) else _Plain(index)
    if isinstance(shard, ObjectShard):
        return ObjectAccess(shard, index, layout, requests)
    return _Ranges(shard, index, layout)


def slowness(index: ShardIndex) -> str | None:
    """Why records of a shard take long to read one by one, and what to do about it; None where they don't."""
    if index.format == "folder":
        return "each record is a file of its own: make shards of the folder with `feeder pack`"
    if not len(index.unpacked):
        return None
    around = int((index.unpacked.astype("i8") - index.image_bytes).max(initial=0))
    if around <= SLOW_PAGE_BYTES:
        return None
    return (
        f"single records cannot be read out of its {index.codec} pages, of which up to {around / 1e6:.0f} MB "
        f"must be unpacked for one: convert it with `feeder rewrite`, or write it without compression"
    )


_OTHER_FILE = "is not the file that was indexed: `feeder reload`, or a restart, indexes it anew"


def _compare(path: Path, now: ShardState, indexed: ShardState) -> None:
    """The change time is left out: it moves with a chmod, and the crc of each record is checked anyway."""
    if (now.size, now.mtime_ns, now.inode) != (indexed.size, indexed.mtime_ns, indexed.inode):
        raise StorageError(f"{path}: {_OTHER_FILE}")


def _read_range(path: Path, fd: int, offset: int, length: int) -> bytes:
    data = os.pread(fd, length, offset)
    while len(data) < length:  # a short read is legal anywhere, the end of the file is not
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            raise StorageError(f"{path}: ends at byte {offset + len(data)}: it shrank")
        data += more
    return data
