"""The caches of a worker, with the threads that fill them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from feeder import figures
from feeder.batch import ChunkMaker, warm
from feeder.cache import (
    ENCODED,
    Cache,
    EncodedShelf,
    Filler,
    Folder,
    Offer,
    Size,
    check_budget,
    default_folder,
    encoded_filler,
    encoded_folder,
    resolve,
)
from feeder.decode import Decoder
from feeder.errors import Closed
from feeder.records import Dataset
from feeder.spec import StreamSpec
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.config import WorkerConfig

__all__ = ["Caching", "EncodedCaching", "Filled", "open_caching", "open_encoded_caching"]

log = logging.getLogger(__name__)


class Filled:
    """A cache, and what fills it while it serves."""

    def __init__(self, cache: Cache, filler: Filler) -> None:
        self._cache = cache
        self._filler = filler

    @property
    def budget(self) -> int:
        """Bytes that the cache may take."""
        return self._cache.budget

    def budget_of(self, size: Size) -> int:
        """Bytes that it may take where this is asked for.

        Raises:
            ConfigError: next to nothing.
        """
        return _budget(self._cache.folder.path, self._cache.folder.option, size)

    def resize(self, budget: int) -> None:
        """See Cache.resize."""
        if budget != self._cache.budget:
            self._cache.resize(budget)

    def info(self) -> pb.CacheInfo:
        """For Describe."""
        counters = self._cache.counters()
        return pb.CacheInfo(
            hits=counters.hits,
            misses=counters.misses,
            filled=counters.filled,
            dropped=counters.dropped,
            bytes=counters.bytes,
            segments=counters.segments,
            budget_bytes=self._cache.budget,
            full=self._cache.full,
        )

    def close(self) -> None:
        """Seals what is open and leaves the folder; what was filled stays for the next worker."""
        self._filler.close()
        self._cache.close()


class Caching(Filled):
    """A cache of decoded planes."""

    def __init__(
        self, cache: Cache, decoder: Decoder, datasets: Mapping[str, Dataset], warm_up: bool
    ) -> None:
        self._datasets = dict(datasets)
        self._decoder = decoder
        self._warm_up = warm_up
        super().__init__(cache, Filler(cache, decoder.keep, self._offers(cache) if warm_up else None))

    def resize(self, budget: int) -> None:
        """See Cache.resize; where there is more room, warming up begins again."""
        grows = budget > self.budget
        super().resize(budget)
        if grows and self._warm_up:
            self._filler.warm(self._offers(self._cache))

    def maker(self, dataset: Dataset, spec: StreamSpec) -> ChunkMaker:
        """Makes chunks of a data set from the cache, and offers it what it lacks. One that the cache was not
        made for, since it came later, is decoded."""
        if self._datasets.get(dataset.name) is not dataset:
            return ChunkMaker(dataset, self._decoder, spec)
        return ChunkMaker(dataset, self._decoder, spec, self._cache.shelf(dataset.name), self._filler)

    def _offers(self, cache: Cache) -> Iterator[Offer]:
        for name, dataset in self._datasets.items():
            with contextlib.suppress(Closed):  # it is not served any more
                yield from warm(dataset, self._decoder, cache.shelf(name))


class EncodedCaching(Filled):
    """A cache of the encoded records of data sets in object stores, which asks it before the store."""

    def __init__(self, cache: Cache, datasets: Mapping[str, Dataset]) -> None:
        super().__init__(cache, encoded_filler(cache))
        for name, dataset in datasets.items():
            dataset.keeper = EncodedShelf(cache.shelf(name), self._filler)


def open_caching(
    config: WorkerConfig, datasets: Mapping[str, Dataset], decoder: Decoder, pixels: str
) -> Caching | None:
    """The cache that a worker was asked for; None where it was not, or has no decoder for it.

    Args:
        pixels: fingerprint of what the decoder makes.

    Raises:
        ConfigError: the folder cannot be used, or is in use with another budget.
        StorageError: the folder cannot be locked.
    """
    if config.cache is None:
        return None
    if not decoder.keeps:
        log.warning("no cache: only the native decoder can keep planes, this one is %s", decoder.name)
        return None
    folder = config.cache_dir or default_folder()
    cache = _open_cache(folder, "--cache", config.cache, pixels, datasets)
    return Caching(cache, decoder, datasets, config.warm)


def open_encoded_caching(config: WorkerConfig, datasets: Mapping[str, Dataset]) -> EncodedCaching | None:
    """The cache of encoded records that a worker was asked for; None where it was not, or nothing is far.

    Raises:
        ConfigError: the folder cannot be used, or is in use with another budget.
        StorageError: the folder cannot be locked.
    """
    if config.encoded is None:
        return None
    remote = {name: dataset for name, dataset in datasets.items() if dataset.is_remote}
    if not remote:
        log.warning("no cache of encoded records: no data set is in an object store")
        return None
    folder = config.encoded_dir or encoded_folder()
    return EncodedCaching(_open_cache(folder, "--encoded-cache", config.encoded, ENCODED, remote), remote)


def _open_cache(path: Path, option: str, size: Size, holds: str, datasets: Mapping[str, Dataset]) -> Cache:
    budget = _budget(path, option, size)  # checked before the folder is made
    cache = Cache(Folder(path, option), budget, holds, datasets)
    log.info("cache: at most %s in %s", figures.size(budget), path)
    return cache


def _budget(path: Path, option: str, size: Size) -> int:
    budget, note = resolve(size, path)
    check_budget(budget)
    if note:
        log.warning(
            "cache: %s: give it more room (docker run --shm-size), or keep the cache elsewhere (%s-dir)",
            note,
            option,
        )
    return budget
