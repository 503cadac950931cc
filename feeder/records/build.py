"""Gets the indexes of many shards: loads those that are good, builds the others in parallel."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from tqdm import tqdm

from feeder.errors import ConfigError, StorageError
from feeder.records.folder import ImageFolder
from feeder.records.formats import build_index, refuse_compressed
from feeder.records.index import ShardIndex, ShardState
from feeder.records.keys import FormatName, RecordKeys
from feeder.records.sidecar import IndexUnusable, index_path, load_index, write_index

__all__ = ["ensure_indexes"]

MISSING_SHOWN = 3


class _Stopped(Exception):
    """Another shard failed, or the user pressed Ctrl-C; the index under way is given up."""


def ensure_indexes(
    shards: Sequence[Path],
    keys: RecordKeys,
    *,
    index_dir: Path | None = None,
    build: bool = True,
    force: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    format_name: FormatName | None = None,
    sequential: bool = False,
    on_built: Callable[[Path, str], None] | None = None,
) -> list[ShardIndex]:
    """The indexes of all shards, in their order.

    Shards are indexed by threads, not processes: reading holds no GIL, and what does (crc and parse, 20 to
    30 us a record) still leaves 3 GB/s and more for records of 100 kB, more than most storage gives.

    Args:
        shards: files to index.
        keys: where image and label are in a record.
        index_dir: folder for indexes, or None: beside the shards.
        build: False makes an unusable index an error.
        force: build all, also those whose index is good.
        jobs: threads; None takes the usable cores.
        progress: show a bar of bytes on stderr.
        format_name: of all shards; None finds it by their content.
        sequential: whether shards are welcome that are compressed as a whole, so that their records cannot be
            read one by one.
        on_built: called with the shard and the reason after each index that was written, from its thread.

    Raises:
        ConfigError: an index is unusable and may not be built.
        BadShard, StorageError: the first that a shard raised; the others are given up.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")
    indexes: dict[Path, ShardIndex] = {}
    unusable: dict[Path, str] = {}
    sizes: dict[Path, int] = {}
    for shard in shards:
        state = _state(shard)
        sizes[shard] = state.size
        try:
            if force:
                raise IndexUnusable("asked for")
            indexes[shard] = load_index(index_path(shard, index_dir), state, keys, format_name)
        except IndexUnusable as error:
            unusable[shard] = str(error)
    if unusable and not build:
        shown = "; ".join(list(unusable.values())[:MISSING_SHOWN])
        more = f"; and {len(unusable) - MISSING_SHOWN} more" if len(unusable) > MISSING_SHOWN else ""
        raise ConfigError(f"{shown}{more}: run `feeder index` on these shards first")
    if unusable:
        workers = min(jobs or len(os.sched_getaffinity(0)), len(unusable))
        total = sum(sizes[shard] for shard in unusable)
        stop = threading.Event()
        lock = threading.Lock()
        with tqdm(total=total, desc="indexing", unit="B", unit_scale=True, disable=not progress) as bar:

            def advance(count: int) -> None:
                if stop.is_set():
                    raise _Stopped
                with lock:
                    bar.update(count)

            def one(shard: Path) -> ShardIndex:
                path = index_path(shard, index_dir)
                index = build_index(
                    shard, keys, format_name=format_name, sequential=sequential, advance=advance
                )
                write_index(index, path, keys.of(index.format))
                if on_built is not None:
                    on_built(shard, unusable[shard])
                try:
                    return load_index(path, index.state, keys, format_name)
                except IndexUnusable as error:
                    raise StorageError(
                        f"{error}: it was written a moment ago, does another job write it too?"
                    ) from error

            # The longest first, so that no thread is left alone with a large one at the end.
            order = sorted(unusable, key=lambda shard: -sizes[shard])
            with ThreadPoolExecutor(workers, thread_name_prefix="feeder-index") as pool:
                futures = {shard: pool.submit(one, shard) for shard in order}
                try:
                    wait(futures.values(), return_when=FIRST_EXCEPTION)
                finally:
                    stop.set()
                    pool.shutdown(wait=True, cancel_futures=True)
            for failure in [future.exception() for future in futures.values() if not future.cancelled()]:
                if failure is not None and not isinstance(failure, _Stopped):
                    raise failure
            for shard, future in futures.items():
                indexes[shard] = future.result()
    if not sequential:
        for shard, index in indexes.items():
            refuse_compressed(shard, index.codec)
    return [indexes[shard] for shard in shards]


def _state(shard: Path) -> ShardState:
    try:
        found = os.stat(shard)
    except OSError as error:
        raise StorageError(f"{shard}: cannot read: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        return ImageFolder.read(shard).state
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(
            f"{shard}: is no regular file: a shard must be one, so that it can be read by position"
        )
    return ShardState.of(found)
