"""The life of a worker: startup, serve, drain, shutdown."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from feeder.decode import Decoder, Kind, open_decoder, pixel_digests
from feeder.errors import ConfigError
from feeder.records import Dataset
from feeder.wire import FEED, SERVICE
from feeder.wire.address import Address
from feeder.wire.channel import SERVER_OPTIONS
from feeder.wire.tls import check_dates
from feeder.worker.access import Access
from feeder.worker.arenas import Arenas, default_folder
from feeder.worker.caching import Filled, open_caching, open_encoded_caching
from feeder.worker.catalog import Catalog, open_dataset
from feeder.worker.config import WorkerConfig
from feeder.worker.cpus import decode_threads
from feeder.worker.descriptors import take_all
from feeder.worker.doubts import doubts
from feeder.worker.front import OTHERS_CONNECTIONS, SPARE_CONNECTIONS, Front
from feeder.worker.gate import Gate
from feeder.worker.memory import keep_freed_memory
from feeder.worker.pipeline import Pipeline
from feeder.worker.quarantine import Quarantine
from feeder.worker.refusals import Refusals
from feeder.worker.reload import Reloader, Running, open_tls
from feeder.worker.servicer import FeederServicer, Identity
from feeder.worker.sessions import UNSAID_CALLS, SessionRegistry
from feeder.worker.signals import RELOAD, Inbox, ended_at_once, hang_ups_noted
from feeder.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from feeder.worker.http import HttpSide
    from feeder.worker.tracing import StageSpans

__all__ = ["serve"]

log = logging.getLogger(__name__)

SPARE_THREADS = 8
"""gRPC threads beyond those that calls of Feed may take: for Describe, health, reflection, and calls that are
refused."""

SPARE_CALLS = 64
"""Calls beyond those threads that may wait for a thread; more are refused by gRPC itself."""

REFLECTION_STREAMS = 4
"""At a time, half of the spare threads: such a stream keeps its thread for as long as the client likes."""

STOP_GRACE_S = 1.0

STOP_MARGIN_S = 15.0
"""What the end may take beyond the drain: closing what was open, each within a deadline of its own."""

EXIT_CUT = 1
"""Exit code where streams were cut, because drain_s passed or a second signal came."""


def serve(
    config: WorkerConfig,
    on_ready: Callable[[Address], None],
    again: Callable[[], WorkerConfig] | None = None,
) -> int:
    """Runs a worker until SIGTERM or SIGINT; call it from the main thread. A second signal forces the end.

    Args:
        on_ready: is told the address, once, when the worker answers there.
        again: reads the settings anew, when SIGHUP comes; None: they are those of the start.

    Returns:
        Exit code: 0 after a clean drain, 1 where streams had to be cut.

    Raises:
        ConfigError: the address is in use, no shard matches, or another setting is wrong.
        BadShard, StorageError: a shard or its index cannot be used.
    """
    with ExitStack() as stack:
        hung_up = stack.enter_context(hang_ups_noted())
        with ended_at_once():
            worker = _Worker(config, stack)
        supervisor = Supervisor()
        inbox = stack.enter_context(Inbox(supervisor))
        on_ready(worker.address)
        supervisor.ready(f"serving at {worker.address}")
        if hung_up:
            inbox.post(signal.SIGHUP)
        while (came := inbox.get()) == RELOAD:
            worker.reload(again or (lambda: config))
        log.info("%s came", came)
        supervisor.stopping(config.drain_s + STOP_MARGIN_S)
        return worker.drain(inbox)


def _open_arenas(config: WorkerConfig) -> Arenas | None:
    """What takes memory of clients on this host; None where that is not wanted, or has no place."""
    if not config.arena_bytes:
        return None
    try:
        arenas = Arenas(config.arena_dir or default_folder(), config.max_streams, config.arena_bytes)
    except ConfigError as error:
        if config.arena_dir is not None:
            raise
        log.warning("clients on this host are served over the network: %s", error)
        return None
    log.info("memory of clients on this host is taken at %s", arenas.path)
    return arenas


def _open_decoder(threads: int, kind: Kind) -> Decoder:
    """`open_decoder`, with a warning where "auto" has to do without the native kernel."""
    decoder = open_decoder(threads, kind)
    if kind == "auto" and not decoder.name.startswith("native"):
        log.warning(
            "no native kernel here, the slower portable decoder takes its place: install g++ and libjpeg-dev "
            "(make system) and build again"
        )
    return decoder


class _Reflection(reflection.ReflectionServicer):  # type: ignore[misc]  # grpc_reflection has no types
    """Reflection that leaves threads to others."""

    def __init__(self, services: tuple[str, ...]) -> None:
        super().__init__(services)
        self._places = threading.Semaphore(REFLECTION_STREAMS)

    def ServerReflectionInfo(self, requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if not self._places.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{REFLECTION_STREAMS} reflection streams are open; close one",
            )
        try:
            yield from super().ServerReflectionInfo(requests, context)
        finally:
            self._places.release()


class _Worker:
    """Startup, and drain; what is to be undone afterwards is left with `stack`."""

    def __init__(self, config: WorkerConfig, stack: ExitStack) -> None:
        keep_freed_memory()
        take_all()
        for name in ("grpc._common", "grpc._cython.cygrpc"):
            # Their tracebacks are of bytes that strangers send, who could fill the log with them.
            logging.getLogger(name).setLevel(logging.CRITICAL)
        threads, reason = decode_threads(config.threads)
        # Few calls keep the decoder's own threads busy: while some are in Python, another is decoded. From a
        # full cache, whose chunks readers make, two threads had nothing to decode for 3 to 4 % of their time
        # with two readers, and always something with three. A single one makes none, so that it reads on.
        callers = 3 + threads // 8
        readers = 1 if threads == 1 else min(8, 2 + threads // 2)
        self._config = config
        carrying = 2 * config.max_streams  # calls: each stream may have another to carry its answers
        threads_most = carrying + UNSAID_CALLS + SPARE_THREADS
        self._pool = ThreadPoolExecutor(threads_most, thread_name_prefix="feeder-grpc")
        stack.callback(self._pool.shutdown)
        self._server = grpc.server(
            self._pool,
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=threads_most + SPARE_CALLS,
        )
        # First of all, since it fails at once where indexing takes long.
        access = Access(config.tokens)
        tls = open_tls(config)
        if config.tls_cert is not None and (wrong := check_dates(config.tls_cert, datetime.now(UTC))):
            log.warning("no client will connect: the certificate %s", wrong)
        elif tls.ends is not None:
            log.info("the certificate is valid until %s UTC", f"{tls.ends:%Y-%m-%d %H:%M}")
        for doubt in doubts(config, access):
            log.warning("%s", doubt)
        refusals = Refusals()
        stack.callback(refusals.log_rest)
        most = carrying + SPARE_CONNECTIONS
        self._front = Front(
            config.listen,
            self._server,
            FEED,
            most,
            per_host=most - OTHERS_CONNECTIONS,
            tls=tls.feed,
            refusals=refusals,
        )
        self.address = self._front.address
        stack.callback(self._stop)

        gate = Gate(access, refusals, self._front.caller)
        self._http = self._open_http(stack, tls.http, gate, refusals)

        decoder = _open_decoder(threads, config.decoder)
        stack.callback(decoder.close)
        open_one = partial(open_dataset, config, config.seek if decoder.seeks else "off")
        datasets: dict[str, Dataset] = {}
        for name, patterns in config.datasets.items():
            datasets[name] = open_one(name, patterns)
            stack.callback(datasets[name].close)
        catalog = Catalog(datasets)
        stack.callback(catalog.close)
        pixels, digests = pixel_digests(decoder)
        log.info("decoding with %s on %d thread%s: %s", decoder.name, threads, "s" * (threads != 1), reason)

        encoded = open_encoded_caching(config, datasets)
        if encoded is not None:
            stack.callback(encoded.close)
        caching = open_caching(config, datasets, decoder, pixels)
        if caching is not None:
            stack.callback(caching.close)
        arenas = _open_arenas(config)
        if arenas is not None:
            stack.callback(arenas.close)
        quarantine = Quarantine()
        self._sessions = SessionRegistry(config.max_streams, config.max_streams_per_job)
        worker_id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        spans = self._open_spans(stack, worker_id) if config.trace else None
        self._pipeline = Pipeline(readers, callers, quarantine, config.share_bytes, spans)
        stack.callback(self._pipeline.close)
        stack.callback(catalog.close_remote)
        identity = Identity(worker_id, threads, pixels, digests)
        servicer = FeederServicer(
            identity,
            catalog,
            decoder,
            self._sessions,
            self._pipeline,
            quarantine,
            caching,
            arenas,
            encoded,
            gate,
        )
        caches: dict[str, Filled | None] = {"cache": caching, "encoded": encoded}
        running = Running(self._front, access, catalog, self._http, self._pipeline, caches)
        self._reloader = Reloader(config, tls, running, open_one)
        self._health = health.HealthServicer(
            experimental_non_blocking=True, experimental_thread_pool=self._health_pool(stack)
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
            _Reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)), self._server
        )
        self._server.add_generic_rpc_handlers((servicer.handler(),))
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        # Again, so that it comes before the pipeline ends.
        stack.callback(self._stop)
        self._server.start()
        self._front.start(servicer.feed)
        if self._http is not None:
            from feeder.worker.metrics import registry_of
            from feeder.worker.page import Pictures

            pictures = Pictures(catalog, config.decoder)
            stack.callback(pictures.close)
            describe = servicer.describe_now

            def ends() -> datetime | None:
                return self._reloader.tls.ends

            self._http.serving(
                registry_of(describe, refusals, ends),
                registry_of(describe, refusals, ends, names=False),
                describe,
                pictures,
            )

    def reload(self, again: Callable[[], WorkerConfig]) -> None:
        """Reads the settings again, and takes what may change at run time; returns at once."""
        self._reloader.begin(again)

    def drain(self, inbox: Inbox) -> int:
        """Answers what is owed, until drain_s passed or another signal comes."""
        self._reloader.close()
        drain_s = self._reloader.config.drain_s
        self._sessions.drain()
        self._health.enter_graceful_shutdown()
        if self._http is not None:
            self._http.draining()
        self._pipeline.drain()
        live = self._sessions.live
        if live:
            log.info("draining %s, for at most %g s", _streams(live), drain_s)
        else:
            log.info("no streams, ending")
        deadline_s = time.monotonic() + drain_s
        idle = threading.Thread(
            target=self._tell_idle, args=(inbox, drain_s), name="feeder-idle", daemon=True
        )
        idle.start()
        while (came := inbox.get(max(0.0, deadline_s - time.monotonic()))) == RELOAD:
            self._reloader.refuse()
        reason = came or "the deadline passed"
        cut = self._sessions.live
        if cut:
            log.warning("%s: cutting %s", reason, _streams(cut))
            self._front.cut()
            self._server.stop(None).wait()
        idle.join()
        return EXIT_CUT if cut else 0

    def _stop(self) -> None:
        stopped = self._server.stop(STOP_GRACE_S)
        self._front.close(STOP_GRACE_S)
        stopped.wait()

    def _tell_idle(self, inbox: Inbox, drain_s: float) -> None:
        if self._sessions.wait_idle(drain_s):
            inbox.post(inbox.IDLE)

    def _open_http(
        self, stack: ExitStack, tls: ssl.SSLContext | None, gate: Gate, refusals: Refusals
    ) -> HttpSide | None:
        """The HTTP side, where it is wanted: what it stands on is imported only then."""
        if self._config.http is None:
            return None
        from feeder.worker.http import HttpSide

        http = stack.enter_context(HttpSide(self._config.http, tls, gate.sees_all, refusals))
        scheme = "http" if self._config.tls_cert is None else "https"
        log.info("status page, metrics and health at %s://%s", scheme, http.address)
        return http

    def _open_spans(self, stack: ExitStack, worker_id: str) -> StageSpans:
        """What exports spans: OpenTelemetry is imported only where it is wanted."""
        from feeder.worker.tracing import StageSpans, otlp_provider

        provider = otlp_provider(worker_id)
        stack.callback(provider.shutdown)
        return StageSpans(provider)

    def _health_pool(self, stack: ExitStack) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(1, thread_name_prefix="feeder-health")
        stack.callback(pool.shutdown)
        return pool


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"
