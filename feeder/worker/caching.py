"""The caches of a worker, with the threads that fill them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

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

__all__ = ["Caching", "EncodedCaching", "open_caching", "open_encoded_caching"]

log = logging.getLogger(__name__)


class Caching:
    """A cache of decoded planes that is filled while it serves."""

    def __init__(
        self, cache: Cache, decoder: Decoder, datasets: Mapping[str, Dataset], warm_up: bool
    ) -> None:
        self._cache = cache
        self._datasets = dict(datasets)
        self._decoder = decoder
        self._filler = Filler(cache, decoder.keep, self._offers(datasets) if warm_up else None)

    def maker(self, dataset: Dataset, spec: StreamSpec) -> ChunkMaker:
        """Makes chunks of a data set from the cache, and offers it what it lacks. One that the cache was not
        made for, since it came later, is decoded."""
        if self._datasets.get(dataset.name) is not dataset:
            return ChunkMaker(dataset, self._decoder, spec)
        return ChunkMaker(dataset, self._decoder, spec, self._cache.shelf(dataset.name), self._filler)

    def info(self) -> pb.CacheInfo:
        """For Describe."""
        return _info(self._cache)

    def close(self) -> None:
        """Seals what is open and leaves the folder; what was filled stays for the next worker."""
        self._filler.close()
        self._cache.close()

    def _offers(self, datasets: Mapping[str, Dataset]) -> Iterator[Offer]:
        for name, dataset in datasets.items():
            with contextlib.suppress(Closed):  # it is not served any more
                yield from warm(dataset, self._decoder, self._cache.shelf(name))


class EncodedCaching:
    """A cache of the encoded records of data sets in object stores, which asks it before the store."""

    def __init__(self, cache: Cache, datasets: Mapping[str, Dataset]) -> None:
        self._cache = cache
        self._filler = encoded_filler(cache)
        for name, dataset in datasets.items():
            dataset.keeper = EncodedShelf(cache.shelf(name), self._filler)

    def info(self) -> pb.CacheInfo:
        """For Describe."""
        return _info(self._cache)

    def close(self) -> None:
        """Seals what is open and leaves the folder; what was filled stays for the next worker."""
        self._filler.close()
        self._cache.close()


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
    budget, note = resolve(size, path)
    check_budget(budget)  # before the folder is made
    if note:
        log.warning(
            "cache: %s: give it more room (docker run --shm-size), or keep the cache elsewhere (%s-dir)",
            note,
            option,
        )
    cache = Cache(Folder(path, option), budget, holds, datasets)
    log.info("cache: at most %.1f MB in %s", budget / 1e6, path)
    return cache


def _info(cache: Cache) -> pb.CacheInfo:
    counters = cache.counters()
    return pb.CacheInfo(
        hits=counters.hits,
        misses=counters.misses,
        filled=counters.filled,
        dropped=counters.dropped,
        bytes=counters.bytes,
        segments=counters.segments,
        budget_bytes=cache.budget,
        full=cache.full,
    )
