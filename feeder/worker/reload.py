"""What a worker takes of new settings while it runs: all of it, or nothing where a part is wrong."""

from __future__ import annotations

import dataclasses
import logging
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from feeder.errors import ConfigError, FeederError
from feeder.records import Dataset
from feeder.wire.tls import HTTP, check_dates, server_context, validity
from feeder.worker.access import Access, read_tokens
from feeder.worker.caching import Filled
from feeder.worker.catalog import Catalog
from feeder.worker.config import WorkerConfig
from feeder.worker.doubts import doubts
from feeder.worker.front import Front
from feeder.worker.log_level import OURS, set_log_level
from feeder.worker.pipeline import Pipeline
from feeder.worker.verdict import Verdict, telling

if TYPE_CHECKING:
    from feeder.worker.http import HttpSide

__all__ = ["Reloader", "Running", "Tls", "open_tls"]

log = logging.getLogger(__name__)

LIVE = (
    *("datasets", "tls_cert", "tls_key", "tls_client_ca", "tokens", "insecure", "drain_s"),
    *("share_bytes", "log_level"),
)
"""Fields of WorkerConfig that are taken, and budgets of the caches that there are; others need a restart."""

_OPTIONS = {
    "datasets": "dataset",
    "keys": "image-key, label-key, label-base",
    "format_name": "format",
    "build_index": "index-build",
    "cache": "cache-bytes",
    "encoded": "encoded-cache-bytes",
    "encoded_dir": "encoded-cache-dir",
}
"""Of fields that are not called as their option."""


@dataclass(frozen=True, slots=True)
class Tls:
    """What connections begin with.

    Attributes:
        feed: at the gRPC port; None: with nothing.
        http: at the HTTP port; None: with nothing.
        ends: until when the certificate is valid; None: there is none.
    """

    feed: ssl.SSLContext | None = None
    http: ssl.SSLContext | None = None
    ends: datetime | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """The parts of a worker that a reload changes.

    Attributes:
        caches: by the field of WorkerConfig that has the budget; None: there is no such cache.
    """

    front: Front
    access: Access
    catalog: Catalog
    http: HttpSide | None
    pipeline: Pipeline
    caches: Mapping[str, Filled | None]


class Reloader:
    """Reads settings again, one time after another, on a thread of its own: opening data sets may take long.

    Args:
        config: what the worker runs with.
        tls: that its connections begin with.
        open_dataset: opens one by its name and patterns, and sees that it can be used.

    Attributes:
        config: what it runs with now.
        tls: what connections begin with now.
    """

    def __init__(
        self,
        config: WorkerConfig,
        tls: Tls,
        running: Running,
        open_dataset: Callable[[str, tuple[str, ...]], Dataset],
    ) -> None:
        self.config = config
        self.tls = tls
        self._running = running
        self._caches = {name: cache for name, cache in running.caches.items() if cache is not None}
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

    def refuse(self) -> None:
        """Says to who asks for a reload that it is too late."""
        with telling() as tell:
            tell(Verdict(False, "the worker ends"))

    def close(self) -> None:
        """Nothing is taken from now on. What is under way may go on for a while, to no effect."""
        with self._lock:
            self._closed = True

    def _run(self, again: Callable[[], WorkerConfig]) -> None:
        while True:
            with telling() as tell:
                tell(self._try(again))
            with self._lock:
                if not self._wanted or self._closed:
                    self._busy = False
                    return
                self._wanted = False

    def _try(self, again: Callable[[], WorkerConfig]) -> Verdict:
        try:
            return self._reload(again())
        except FeederError as error:
            log.error("reload refused, the settings of before stay: %s", error)
            return Verdict(False, str(error))
        except Exception as error:
            log.exception("reload failed, the settings of before stay")
            return Verdict(False, f"{type(error).__name__}: {error}")

    def _reload(self, told: WorkerConfig) -> Verdict:
        names = [*LIVE, *(name for name in self._caches if getattr(told, name) is not None)]
        changes = {name: getattr(told, name) for name in names}
        config = dataclasses.replace(self.config, **changes)  # which sees that it goes together
        tls = open_tls(config)
        if config.tls_cert is not None and (reason := check_dates(config.tls_cert, datetime.now(UTC))):
            raise ConfigError(f"the certificate {reason}")
        entries = None if config.tokens is None else read_tokens(config.tokens)
        budgets = {name: cache.budget_of(getattr(config, name)) for name, cache in self._caches.items()}
        running = self._running
        with ExitStack() as undo:
            datasets, renewed, stale = self._datasets(config.datasets, undo)
            for name, cache in self._caches.items():
                undo.callback(cache.resize, cache.budget)
                cache.resize(budgets[name])
            with self._lock:
                if self._closed:
                    raise FeederError("the worker ends")
                if running.http is not None:
                    running.http.change_tls(tls.http)
                running.front.change_tls(tls.feed)
                running.access.change(entries)
                running.catalog.change(datasets)
                running.pipeline.keep(config.share_bytes)
                before, self.config, self.tls = self.config, config, tls
                undo.pop_all()
        return self._say(before, told, renewed, stale)

    def _datasets(
        self, wanted: Mapping[str, tuple[str, ...]], undo: ExitStack
    ) -> tuple[dict[str, Dataset], list[str], list[str]]:
        """What is to be served; names of those that were served before, whose shards have changed; and what
        is wrong with the shards of such, which stay as they were: no certificate waits for them."""
        datasets: dict[str, Dataset] = {}
        renewed, stale = [], []
        for name, patterns in wanted.items():
            if self.config.datasets.get(name) != patterns:
                datasets[name] = self._open_dataset(name, patterns)
                undo.callback(datasets[name].close)
                continue
            datasets[name] = served = self._running.catalog.current[name]
            try:
                if served.is_outdated(patterns, self.config.format_name):
                    datasets[name] = self._open_dataset(name, patterns)
                    undo.callback(datasets[name].close)
                    renewed.append(name)
            except FeederError as error:
                stale.append(f"data set {name} stays as it was: {error}")
        return datasets, renewed, stale

    def _say(
        self, before: WorkerConfig, told: WorkerConfig, renewed: Sequence[str], stale: Sequence[str]
    ) -> Verdict:
        """Also has the new level of the log hold; what is said here is logged where either has it logged."""
        now = self.config
        names = [field.name for field in dataclasses.fields(WorkerConfig)]
        changed = [name for name in names if getattr(before, name) != getattr(now, name)]
        waiting = [name for name in names if getattr(now, name) != getattr(told, name)]
        files = {"certificates": now.tls_cert is not None, "tokens": now.tokens is not None}
        read = [name for name, there in files.items() if there]
        read += [f"data set {name}, whose shards have changed" for name in renewed]
        taken = f"reloaded{_list(', read again: ', read)}{_list('; changed: ', changed)}"
        if (ends := self.tls.ends) is not None:
            taken += f"; the certificate is valid until {ends:%Y-%m-%d %H:%M} UTC"
        restart = "; ".join(filter(None, [*stale, _list("a restart is needed for ", waiting)]))
        OURS.setLevel(min(OURS.getEffectiveLevel(), logging.getLevelNamesMapping()[now.log_level.upper()]))
        log.info("%s", taken)
        doubted = list(doubts(now, self._running.access))
        for line in filter(None, (restart, *doubted)):
            log.warning("%s", line)
        set_log_level(now.log_level)
        return Verdict(True, taken, restart, "\n".join(doubted))


def open_tls(config: WorkerConfig) -> Tls:
    """What the files that `config` names come to.

    Raises:
        ConfigError: one of them cannot be used.
    """
    if config.tls_cert is None:
        return Tls()
    return Tls(
        server_context(config.tls_cert, config.tls_key, config.tls_client_ca),
        server_context(config.tls_cert, config.tls_key, None, HTTP),
        validity(config.tls_cert)[1],
    )


def _list(head: str, names: list[str]) -> str:
    return head + ", ".join(_OPTIONS.get(name, name.replace("_", "-")) for name in names) if names else ""
