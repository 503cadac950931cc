"""The HTTP side of a worker: status page, metrics and health, on a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Self, TypeAlias

import uvloop
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from feeder.errors import ConfigError
from feeder.wire.address import Address
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.http_door import HttpDoor
from feeder.worker.listen import bind
from feeder.worker.page import Page, Pictures
from feeder.worker.page.side import Sees
from feeder.worker.refusals import Refusals

__all__ = ["HttpSide", "Stage"]

log = logging.getLogger(__name__)

Stage: TypeAlias = Literal["starting", "serving", "draining"]

CLOSE_TIMEOUT_S = 5.0
IDLE_S = 10.0
"""A connection that asks for nothing more for so long is closed."""


class HttpSide:
    """Answers GET on an address until it is closed:

        /startupz  200 once the worker has started to serve, 503 before
        /livez     200 while the process can answer at all
        /readyz    200 while new streams are taken, 503 at start and while it drains
        /metrics   Prometheus' text format; 503 until the worker serves
        /          the status page, and what it stands on: see feeder.worker.page.side

    Args:
        address: host and port; port 0 lets the system choose.
        tls: what connections begin with; None: nothing.
        sees: says by a request's Authorization header who may see names and pictures; by default everyone.
        refusals: is told of those that are sent away.

    Attributes:
        address: where it listens.

    Raises:
        ConfigError: the address is in use, or not ours.
    """

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None = None,
        sees: Sees = lambda _: True,
        refusals: Refusals | None = None,
    ) -> None:
        self._refusals = refusals or Refusals()
        self._stage: Stage = "starting"
        self._page = Page(sees)
        self._registries: tuple[CollectorRegistry, CollectorRegistry] | None = None
        self._door: HttpDoor
        try:
            listeners, self.address = bind(address)
        except ConfigError as error:
            raise ConfigError(f"--http: {error}") from None
        self._loop = uvloop.new_event_loop()
        self._runner = web.AppRunner(
            self._app(),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=IDLE_S,
            shutdown_timeout=CLOSE_TIMEOUT_S / 2,
            logger=_Log(self._refusals),
        )
        self._loop.run_until_complete(self._open(listeners, tls))
        self._thread = threading.Thread(target=self._loop.run_forever, name="feeder-http", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serving(
        self,
        registry: CollectorRegistry,
        nameless: CollectorRegistry,
        describe: Callable[[], pb.DescribeReply],
        pictures: Pictures | None = None,
    ) -> None:
        """The worker takes streams now.

        Args:
            registry: gives its metrics.
            nameless: the same for those who may not see names.
            describe: what it says of itself; called on this side's thread.
            pictures: makes those of the page, which has none without.
        """
        self._registries = nameless, registry

        async def show() -> None:
            self._page.serving(describe, pictures)

        asyncio.run_coroutine_threadsafe(show(), self._loop).result(CLOSE_TIMEOUT_S)
        self._stage = "serving"

    def change_tls(self, tls: ssl.SSLContext | None) -> None:
        """Connections from now on begin with this."""
        self._door.tls = tls

    def draining(self) -> None:
        """The worker takes no more streams."""
        self._stage = "draining"

    def close(self) -> None:
        """Ends connections, socket and thread."""
        ended = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        try:
            ended.result(CLOSE_TIMEOUT_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _open(self, listeners: Sequence[socket.socket], tls: ssl.SSLContext | None) -> None:
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._door = HttpDoor(listeners, server, tls, self._refusals)

    async def _end(self) -> None:
        await self._door.close()
        await self._runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=0, middlewares=[self._timed])
        app.router.add_get("/livez", self._answer(lambda: True))
        app.router.add_get("/startupz", self._answer(lambda: self._stage != "starting"))
        app.router.add_get("/readyz", self._answer(lambda: self._stage == "serving"))
        app.router.add_get("/metrics", self._metrics)
        self._page.add_to(app)
        return app

    @web.middleware
    async def _timed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._door.working(request.protocol)
        try:
            return await handler(request)
        finally:
            self._door.answering(request.protocol)

    def _answer(self, good: Callable[[], bool]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=200 if good() else 503, text=f"{self._stage}\n")

        return answer

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._registries is None:
            return web.Response(status=503, text="starting\n")
        body = generate_latest(self._registries[self._page.may_see(request)])
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


class _Log(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp logs. Of bytes that are no request it writes a traceback each, by which strangers could
    fill the log: they are counted instead."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__(log)
        self._refusals = refusals

    def debug(self, msg: object, *args: object, exc_info: Any = None, **more: Any) -> None:
        if not self._noted(exc_info, args):
            super().debug(msg, *args, exc_info=exc_info, **more)

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        if not self._noted(exc_info, args):
            super().exception(msg, *args, exc_info=exc_info, **more)

    def _noted(self, error: object, args: tuple[object, ...]) -> bool:
        if not isinstance(error, HttpProcessingError):
            return False
        self._refusals.note(
            "bad_request", f"http:{args[0] if args else ''}", f"no request: {type(error).__name__}"
        )
        return True
