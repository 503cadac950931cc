"""The data sets of a worker, which may change while streams run."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from feeder.records import Dataset

__all__ = ["Catalog"]


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
