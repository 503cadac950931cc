"""The routes of the status page.

/          the page
/events    a sample a second, as server-sent events
/pictures  ?stream=ID: what that stream asked for last, as JSON
/sign-in   asks the browser for a token, where the worker wants one, and leads back to the page
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable
from typing import TypeAlias

from aiohttp import web

from feeder.errors import FeederError
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.page.document import Document
from feeder.worker.page.feed import Feed, stream_id
from feeder.worker.page.pictures import Pictures

__all__ = ["Page", "Sees"]

Sees: TypeAlias = Callable[[str | None], bool]
"""Whether who sent this Authorization header may see names of jobs, peers and records, and pictures."""

MAX_WATCHERS = 32
"""At a time; half of the connections, so that scrapers and probes always find one."""

SEND_TIMEOUT_S = 10.0
"""A watcher that takes nothing for so long is let go."""

PICTURES_PERIOD_S = 2.0
"""Pictures are made at most so often, whoever asks."""

_GUARDS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_PRIVATE = _GUARDS | {"Cache-Control": "no-store"}


class Page:
    """The page of a worker; lives on the event loop of its HTTP side.

    Args:
        sees: may be asked for each request.
    """

    def __init__(self, sees: Sees) -> None:
        self._sees = sees
        self._document = Document()
        self._feed: Feed | None = None
        self._pictures: Pictures | None = None
        self._pictures_free = asyncio.Lock()
        self._pictures_from_s = 0.0
        self._watchers = 0

    def add_to(self, app: web.Application) -> None:
        """Adds the routes, and the end of what they keep open."""
        app.router.add_get("/", self._page)
        app.router.add_get("/events", self._events, allow_head=False)  # it would stay for an empty answer
        app.router.add_get("/pictures", self._show)
        app.router.add_get("/sign-in", self._sign_in)
        app.on_shutdown.append(self._end)

    def serving(self, describe: Callable[[], pb.DescribeReply], pictures: Pictures | None) -> None:
        """The worker takes streams now; call it on the event loop."""
        self._feed, self._pictures = Feed(describe), pictures

    async def _end(self, app: web.Application) -> None:
        if self._feed is not None:
            await self._feed.end()

    async def _page(self, request: web.Request) -> web.Response:
        text = self._document.page(None if self._feed is None else self._feed.newest)
        return web.Response(text=text, content_type="text/html", headers=_GUARDS | self._document.headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._feed is None:
            return web.Response(status=503, text="starting\n", headers=_PRIVATE)
        if self._watchers >= MAX_WATCHERS:
            return web.Response(status=503, text=f"{MAX_WATCHERS} watch already\n", headers=_PRIVATE)
        answer = web.StreamResponse(headers=_PRIVATE | {"Content-Type": "text/event-stream"})
        self._watchers += 1
        try:
            await answer.prepare(request)
            await answer.write(b"retry: 2000\n\n")
            async for kind, data in self._feed.watch(names=self.may_see(request)):
                event = f"event: {kind}\ndata: {data}\n\n".encode()
                await asyncio.wait_for(answer.write(event), SEND_TIMEOUT_S)
        except (ConnectionError, TimeoutError):
            pass  # it went away, or takes nothing
        finally:
            self._watchers -= 1
        return answer

    async def _show(self, request: web.Request) -> web.Response:
        if not self.may_see(request):
            return _said(403, "pictures are for those who may see everything: sign in")
        if self._feed is None or self._pictures is None:
            return _said(503, "the worker starts")
        wanted = request.query.get("stream", "")
        stream = next((one for one in self._feed.newest.streams if stream_id(one) == wanted), None)
        if stream is None:
            return _said(404, "this stream has ended")
        if self._pictures_free.locked() or time.monotonic() < self._pictures_from_s:
            return _said(429, "pictures are made one request at a time", {"Retry-After": "2"})
        async with self._pictures_free:
            try:
                made = await asyncio.wrap_future(self._pictures.ask(stream))
            except FeederError as error:
                return _said(502, f"no pictures: {error}")
            finally:
                self._pictures_from_s = time.monotonic() + PICTURES_PERIOD_S
        return web.json_response(made, headers=_PRIVATE)

    async def _sign_in(self, request: web.Request) -> web.Response:
        if self.may_see(request):
            return web.Response(status=303, headers=_PRIVATE | {"Location": "./"})
        wanted = {
            "WWW-Authenticate": 'Basic realm="feeder: any name, and a token as password", charset="UTF-8"'
        }
        return web.Response(
            status=401, text="a token that may see everything is wanted\n", headers=_PRIVATE | wanted
        )

    def may_see(self, request: web.Request) -> bool:
        """Whether names and pictures are for who asks."""
        return self._sees(_as_bearer(request.headers.get("Authorization")))


def _as_bearer(authorization: str | None) -> str | None:
    """A browser sends the token that it was told as a password."""
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        _, _, token = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return f"Bearer {token}"


def _said(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": text}, status=status, headers=_PRIVATE | (headers or {}))
