"""How the bytes of one record come from an indexed shard: by range, by range and unpacked, or as a file."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

from feeder.errors import StorageError
from feeder.records.folder import ImageFolder
from feeder.records.index import ShardIndex, ShardState
from feeder.records.unpack import unpack_page

__all__ = ["Access", "PageCache", "open_access", "slowness"]

PAGE_CACHE_BYTES = 256 << 20
"""Unpacked pages that a data set keeps, all shards together."""

LARGE_PAGE_BYTES = 8 << 20
"""Pages above this are unpacked by one thread at a time, so that memory is bounded by few of them."""

SLOW_PAGE_BYTES = 4 << 20
"""Pages above this, where a record takes more than about a millisecond, are worth a warning."""

_EXTRA_BYTES = 256 << 10


class Access(Protocol):
    """One indexed shard. Its methods may be called from any thread."""

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


class _Ranges:
    """A file whose records lie in it as they are."""

    def __init__(self, path: Path, index: ShardIndex) -> None:
        self._path = path
        self._state = index.state
        self._offset = index.offset.data
        self._length = index.length.data

    def open(self) -> int:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _compare(self._path, ShardState.of(os.fstat(fd)), self._state)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def read(self, fd: int, index: int) -> tuple[bytes, int]:
        data = _read_range(self._path, fd, self._offset[index], self._length[index])
        return data, len(data)

    def check(self, index: int) -> bool:
        try:
            state = ShardState.of(os.stat(self._path))
        except OSError as error:
            raise StorageError(f"{self._path}: cannot open: {error.strerror}") from error
        _compare(self._path, state, self._state)
        return state == self._state

    def place(self, index: int) -> tuple[str, int]:
        return self._path.name, index


class PageCache:
    """Unpacked pages that were read last, bounded in bytes; a page larger than all of it is not kept."""

    def __init__(self, limit: int = PAGE_CACHE_BYTES) -> None:
        self._limit = limit
        self._pages: OrderedDict[tuple[Path, int], memoryview] = OrderedDict()
        self._used = 0
        self._lock = threading.Lock()
        self.large = threading.Lock()

    def get(self, key: tuple[Path, int]) -> memoryview | None:
        """A page, by shard and offset."""
        with self._lock:
            page = self._pages.get(key)
            if page is not None:
                self._pages.move_to_end(key)
            return page

    def put(self, key: tuple[Path, int], page: memoryview) -> None:
        """Keeps a page, for which those used longest ago go."""
        with self._lock:
            if key in self._pages or len(page) > self._limit:
                return
            self._pages[key] = page
            self._used += len(page)
            while self._used > self._limit:
                self._used -= len(self._pages.popitem(last=False)[1])

    def drop(self, key: tuple[Path, int]) -> None:
        """Forgets a page."""
        with self._lock:
            self._used -= len(self._pages.pop(key, b""))


class _Packed(_Ranges):
    """A Parquet file with compressed pages.

    Where a record can be unpacked without much around it (see feeder.records.snappy), that is done each time;
    a page that has to be unpacked as a whole is kept in the cache.
    """

    def __init__(self, path: Path, index: ShardIndex, cache: PageCache) -> None:
        super().__init__(path, index)
        self._codec = index.codec
        self._unpacked = index.unpacked.data
        self._start = index.image_start.data
        self._bytes = index.image_bytes.data
        self._cache = cache

    def read(self, fd: int, index: int) -> tuple[bytes, int]:
        unpacked, start, size = self._unpacked[index], self._start[index], self._bytes[index]
        if not unpacked:
            return super().read(fd, index)
        if unpacked <= 2 * size + _EXTRA_BYTES:
            page, count = self._unpack(fd, index, unpacked)
            return bytes(page[start : start + size]), count
        key = (self._path, self._offset[index])
        count = 0
        kept = self._cache.get(key)
        if kept is None:
            with self._cache.large if unpacked > LARGE_PAGE_BYTES else contextlib.nullcontext():
                kept = self._cache.get(key)  # perhaps it came while we waited
                if kept is None:
                    kept, count = self._unpack(fd, index, unpacked)
                    self._cache.put(key, kept)
        return bytes(kept[start : start + size]), count

    def check(self, index: int) -> bool:
        # What is wrong may be wrong in the cache alone.
        self._cache.drop((self._path, self._offset[index]))
        return super().check(index)

    def _unpack(self, fd: int, index: int, unpacked: int) -> tuple[memoryview, int]:
        stored = _read_range(self._path, fd, self._offset[index], self._length[index])
        return unpack_page(stored, unpacked, self._codec), len(stored)


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


def open_access(path: Path, index: ShardIndex, cache: PageCache) -> Access:
    """The access to a shard that fits its format and codec.

    Raises:
        StorageError: an image folder is not the one that was indexed.
    """
    if index.format == "folder":
        folder = ImageFolder.read(path)
        if folder.state != index.state:
            raise StorageError(f"{path}: changed since it was indexed: start again")
        return _Files(folder, index)
    return _Packed(path, index, cache) if len(index.unpacked) else _Ranges(path, index)


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


_OTHER_FILE = "is not the file that was indexed: restart to index it anew"


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
