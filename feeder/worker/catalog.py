"""The data sets of a worker, which may change while streams run."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping

from feeder.errors import BadRecord, ConfigError
from feeder.figures import size
from feeder.records import Dataset, SeekMode
from feeder.worker.config import WorkerConfig

__all__ = ["Catalog", "open_dataset"]

log = logging.getLogger(__name__)


def open_dataset(config: WorkerConfig, seek: SeekMode, name: str, patterns: tuple[str, ...]) -> Dataset:
    """Opens a data set, and sees that it can be used.

    Raises:
        ConfigError: no shard matches, or every record is bad.
        BadShard, StorageError: a shard or its index cannot be used.
    """
    dataset = Dataset.open(
        name,
        patterns,
        keys=config.keys,
        format_name=config.format_name,
        index_dir=config.index_dir,
        build=config.build_index,
        progress=sys.stderr.isatty(),
        seek=seek,
    )
    try:
        _require_usable(dataset)
    except BaseException:
        dataset.close()
        raise
    _warn_of_slow_shards(dataset)
    log.info(
        "data set %s: %d records in %d shard%s, %d bad, %s, fingerprint %s",
        name,
        len(dataset),
        len(dataset.shards),
        "s" * (len(dataset.shards) != 1),
        dataset.bad,
        size(dataset.nbytes),
        dataset.fingerprint[:12],
    )
    return dataset


class Catalog:
    """Lends data sets to streams; one that is not served any more stays open until its last stream ends.

    Safe to use from any thread.
    """

    def __init__(self, datasets: Mapping[str, Dataset]) -> None:
        self._lock = threading.Lock()
        self._current = dict(datasets)
        self._loans: dict[int, Dataset] = {}
        self._leaving: list[Dataset] = []

    @property
    def current(self) -> Mapping[str, Dataset]:
        """Those that are served now, by name; never changed."""
        return self._current

    def lend(self, stream: int, name: str) -> Dataset | None:
        """A data set for a stream that gives it back; None: no such is served."""
        with self._lock:
            dataset = self._current.get(name)
            if dataset is not None:
                self._loans[stream] = dataset
            return dataset

    def give_back(self, stream: int) -> None:
        """The stream has ended; does nothing where it has borrowed nothing, or given it back."""
        with self._lock:
            self._loans.pop(stream, None)
            idle = self._take_idle()
        _close(idle)

    def change(self, datasets: Mapping[str, Dataset]) -> None:
        """Serves these from now on."""
        with self._lock:
            kept = {id(dataset) for dataset in datasets.values()}
            self._leaving += [dataset for dataset in self._current.values() if id(dataset) not in kept]
            self._current = dict(datasets)
            idle = self._take_idle()
        _close(idle)

    def close_remote(self) -> None:
        """Closes those of object stores, so that nobody waits any longer for a store that does not answer."""
        with self._lock:
            remote = [one for one in (*self._leaving, *self._current.values()) if one.is_remote]
        _close(remote)

    def close(self) -> None:
        """Closes all of them; no stream is left, or it is cut."""
        with self._lock:
            left, self._leaving, self._current = [*self._leaving, *self._current.values()], [], {}
        _close(left)

    def _take_idle(self) -> list[Dataset]:
        lent = {id(dataset) for dataset in self._loans.values()}
        idle = [dataset for dataset in self._leaving if id(dataset) not in lent]
        self._leaving = [dataset for dataset in self._leaving if id(dataset) in lent]
        return idle


def _close(datasets: list[Dataset]) -> None:
    for dataset in datasets:
        dataset.close()


def _require_usable(dataset: Dataset) -> None:
    """Raises ConfigError where every record is bad: a wrong key, most likely."""
    if dataset.bad == len(dataset):
        try:
            dataset.read(0)
        except BadRecord as error:
            raise ConfigError(
                f"data set {dataset.name!r}: none of its {len(dataset)} records can be used ({error}): "
                f"check --image-key, --label-key and --label-base"
            ) from error


def _warn_of_slow_shards(dataset: Dataset) -> None:
    slow = [(shard.name, shard.slow) for shard in dataset.shards if shard.slow is not None]
    if slow:
        name, reason = slow[0]
        log.warning(
            "data set %s is slow to read (%d of %d shards), such as %s: %s",
            dataset.name,
            len(slow),
            len(dataset.shards),
            name,
            reason,
        )
