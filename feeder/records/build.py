"""Gets the indexes of many shards: loads those that are good, builds the others in parallel."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from feeder.errors import ConfigError, StorageError
from feeder.records.folder import ImageFolder
from feeder.records.formats import build_index, refuse_compressed
from feeder.records.index import ShardIndex, ShardState
from feeder.records.keys import FormatName, RecordKeys
from feeder.records.objects import ObjectShard, Shard, all_states
from feeder.records.requests import Requests
from feeder.records.sharing import SharedBuild
from feeder.records.sidecar import IndexUnusable, index_path, load_index, write_index
from feeder.records.stores import describe

__all__ = ["ensure_indexes", "states_of"]

MISSING_SHOWN = 3


def ensure_indexes(
    shards: Sequence[Shard],
    keys: RecordKeys,
    *,
    index_dir: Path | None = None,
    build: bool = True,
    force: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    format_name: FormatName | None = None,
    sequential: bool = False,
    on_built: Callable[[Shard, str], None] | None = None,
) -> list[ShardIndex]:
    """The indexes of all shards, in their order.

    An index is looked for in `index_dir` and beside its shard. Those that are missing are shared with other
    processes that want them now (see feeder.records.sharing). Shards are indexed by threads, not processes:
    neither reading holds the GIL nor the native scan of TFRecords.

    Args:
        shards: files or objects to index.
        keys: where image and label are in a record.
        index_dir: folder where indexes are built, or None: beside the shards; objects need one.
        build: False makes an unusable index an error.
        force: build all here, also those whose index is good.
        jobs: threads; None takes the usable cores.
        progress: show a bar of bytes on stderr, beside the line in the log every ten seconds.
        format_name: of all shards; None finds it by their content.
        sequential: whether shards are welcome that are compressed as a whole, so that their records cannot be
            read one by one.
        on_built: called with the shard and the reason after each index that was written, from its thread.

    Raises:
        ConfigError: an index is unusable and may not be built.
        BadShard, StorageError: the first that a shard raised; the others are given up. Or a folder where
            indexes are to be built cannot be written.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")
    indexes: dict[Shard, ShardIndex] = {}
    unusable: dict[Shard, str] = {}
    states = states_of(shards)
    for shard, state in states.items():
        try:
            if force:
                index_path(shard, index_dir)  # raises where there is no place for it
                raise IndexUnusable("asked for")
            indexes[shard] = _load(shard, index_dir, state, keys, format_name)
        except IndexUnusable as error:
            unusable[shard] = str(error)
    if unusable and not build:
        shown = "; ".join(list(unusable.values())[:MISSING_SHOWN])
        more = f"; and {len(unusable) - MISSING_SHOWN} more" if len(unusable) > MISSING_SHOWN else ""
        raise ConfigError(f"{shown}{more}: run `feeder index` on these shards first")

    requests = Requests(describe=describe)

    def build_one(shard: Shard, advance: Callable[[int], None], spare: bool) -> ShardIndex:
        path = index_path(shard, index_dir)
        index = build_index(
            shard,
            keys,
            format_name=format_name,
            sequential=sequential,
            advance=advance,
            spare=spare,
            requests=requests,
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

    if unusable:
        todo = {shard: states[shard].size for shard in unusable}
        total = sum(todo.values())
        with (
            requests,
            tqdm(total=total, desc="indexing", unit="B", unit_scale=True, disable=not progress) as bar,
        ):
            shared = SharedBuild(
                len(shards),
                jobs or len(os.sched_getaffinity(0)),
                build_one,
                lambda shard: _load(shard, index_dir, states[shard], keys, format_name),
                lambda shard: index_path(shard, index_dir),
                bar,
            )
            indexes |= shared.run(todo, claim=not force)
    if not sequential:
        for shard, index in indexes.items():
            refuse_compressed(shard, index.codec)
    return [indexes[shard] for shard in shards]


def _load(
    shard: Shard,
    index_dir: Path | None,
    state: ShardState,
    keys: RecordKeys,
    format_name: FormatName | None,
) -> ShardIndex:
    """The index in the folder of indexes, or else beside the shard.

    Raises:
        IndexUnusable: neither can be used; it says why of the first.
    """
    try:
        return load_index(index_path(shard, index_dir), state, keys, format_name)
    except IndexUnusable:
        if index_dir is not None and isinstance(shard, Path):
            with contextlib.suppress(IndexUnusable):
                return load_index(index_path(shard), state, keys, format_name)
        raise


def states_of(shards: Sequence[Shard]) -> dict[Shard, ShardState]:
    """What tells each shard, as it is now, from what it was.

    Raises:
        ConfigError: one is no regular file.
        StorageError: one cannot be looked at.
    """
    with Requests(describe=describe) as requests:
        objects = all_states((shard for shard in shards if isinstance(shard, ObjectShard)), requests)
    return {shard: objects[shard] if isinstance(shard, ObjectShard) else _state(shard) for shard in shards}


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
