"""What a worker takes of new settings while it runs: all of it, or nothing where a part is wrong."""

from __future__ import annotations

import dataclasses
import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from feeder.errors import FeederError
from feeder.records import Dataset
from feeder.wire.tls import server_context
from feeder.worker.access import Access, read_tokens
from feeder.worker.catalog import Catalog
from feeder.worker.config import WorkerConfig
from feeder.worker.front import Front

if TYPE_CHECKING:
    from feeder.worker.http import HttpSide

__all__ = ["Reloader"]

log = logging.getLogger(__name__)

LIVE = ("datasets", "tls_cert", "tls_key", "tls_client_ca", "tokens", "insecure", "drain_s")
"""Fields of WorkerConfig that are taken; all others need a restart."""


class Reloader:
    """Reads settings again, one time after another, on a thread of its own: opening data sets may take long.

    Args:
        config: what the worker runs with.
        open_dataset: opens one by its name and patterns, and sees that it can be used.

    Attributes:
        config: what it runs with now.
    """

    def __init__(
        self,
        config: WorkerConfig,
        front: Front,
        access: Access,
        catalog: Catalog,
        http: HttpSide | None,
        open_dataset: Callable[[str, tuple[str, ...]], Dataset],
    ) -> None:
        self.config = config
        self._front = front
        self._access = access
        self._catalog = catalog
        self._http = http
        self._open_dataset = open_dataset
        self._lock = threading.Lock()
        self._busy = self._wanted = self._closed = False

    def begin(self, again: Callable[[], WorkerConfig]) -> None:
        """Starts to read the settings again; where that is under way, it is done once more afterwards."""
        with self._lock:
            if self._closed:
                return
            if self._busy:
                self._wanted = True
                return
            self._busy = True
        threading.Thread(target=self._run, args=(again,), name="feeder-reload", daemon=True).start()

    def close(self) -> None:
        """Nothing is taken from now on. What is under way may go on for a while, to no effect."""
        with self._lock:
            self._closed = True

    def _run(self, again: Callable[[], WorkerConfig]) -> None:
        while True:
            try:
                self._reload(again())
            except FeederError as error:
                log.error("reload refused, the settings of before stay: %s", error)
            except Exception:
                log.exception("reload failed, the settings of before stay")
            with self._lock:
                if not self._wanted or self._closed:
                    self._busy = False
                    return
                self._wanted = False

    def _reload(self, told: WorkerConfig) -> None:
        changes = {name: getattr(told, name) for name in LIVE}
        config = dataclasses.replace(self.config, **changes)  # which sees that it goes together
        tls = None
        if config.tls_cert is not None:
            tls = server_context(config.tls_cert, config.tls_key, config.tls_client_ca)
        entries = None if config.tokens is None else read_tokens(config.tokens)
        if self._http is not None and (config.tls_cert is None) != (self.config.tls_cert is None):
            log.warning("reload: the HTTP port begins, or ends, to speak TLS with a restart only")
        opened: list[Dataset] = []
        try:
            datasets = self._datasets(config.datasets, opened)
            with self._lock:
                if self._closed:
                    raise FeederError("the worker ends")
                if self._http is not None and config.tls_cert is not None:
                    self._http.change_tls(config.tls_cert, config.tls_key)
                self._front.change_tls(tls)
                self._access.change(entries)
                self._catalog.change(datasets)
                before, self.config = self.config, config
        except BaseException:
            for dataset in opened:
                dataset.close()
            raise
        _say(before, config, told, tls)

    def _datasets(self, wanted: Mapping[str, tuple[str, ...]], opened: list[Dataset]) -> dict[str, Dataset]:
        datasets = {}
        for name, patterns in wanted.items():
            if self.config.datasets.get(name) == patterns:
                datasets[name] = self._catalog.current[name]
            else:
                datasets[name] = self._open_dataset(name, patterns)
                opened.append(datasets[name])
        return datasets


def _say(before: WorkerConfig, now: WorkerConfig, told: WorkerConfig, tls: ssl.SSLContext | None) -> None:
    names = [field.name for field in dataclasses.fields(WorkerConfig)]
    changed = [name for name in LIVE if getattr(before, name) != getattr(now, name)]
    waiting = [name for name in names if name not in LIVE and getattr(now, name) != getattr(told, name)]
    read = [*(["certificates"] if tls is not None else []), *(["tokens"] if now.tokens is not None else [])]
    log.info("reloaded%s%s", _list(", read again: ", read), _list("; changed: ", changed))
    if waiting:
        log.warning("a restart is needed for %s", ", ".join(map(_option, waiting)))


def _list(head: str, names: list[str]) -> str:
    return head + ", ".join(map(_option, names)) if names else ""


def _option(name: str) -> str:
    return name.replace("_", "-")
