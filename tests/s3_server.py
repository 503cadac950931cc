"""A real S3 server (moto's) that answers some requests badly: run as a process, it prints its port.

    PUT /-/faults {"rate": 0.1, "seed": 1, "kinds": ["busy", "reset", "slow"], "only": "GET", "slow_s": 1}
    GET /-/faults -> {"asked": n, "most": at a time, "faults": {"busy": n, ...}, "ranges": [...]}

`busy` is 503 SlowDown, `reset` a connection that breaks off, `half` one that breaks off in the middle of its
answer, `slow` an answer that takes a while, `silent` one that does not come.
"""

from __future__ import annotations

import json
import logging
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

SLOW_S = 0.2
SILENT_S = 30.0

_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Faults:
    """Moto, with what goes wrong on the way to it."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._set({})

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/-/faults":
            return self._control(environ, start)
        with self._lock:
            now = self._now
            now.add(id(environ))
            self._most = max(self._most, len(now))
        try:
            return self._answer(environ, start)
        finally:
            with self._lock:
                now.discard(id(environ))

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        fault = self._draw(environ)
        if fault == "busy":
            start("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(_BUSY)))])
            return [_BUSY]
        if fault == "reset":
            _reset(environ)
        if fault == "slow":
            time.sleep(self._settings.get("slow_s", SLOW_S))
        if fault == "silent":
            time.sleep(SILENT_S)
        answer: Iterable[bytes] = self._moto(environ, start)
        return _half(environ, b"".join(answer)) if fault == "half" else answer

    def _draw(self, environ: dict[str, Any]) -> str | None:
        with self._lock:
            self._asked += 1
            if "HTTP_RANGE" in environ:
                self._ranges.append(environ["HTTP_RANGE"])
            only = self._settings.get("only", environ["REQUEST_METHOD"])
            if only != environ["REQUEST_METHOD"] or self._random.random() >= self._settings.get("rate", 0):
                return None
            fault: str = self._random.choice(self._settings["kinds"])
            self._faults[fault] += 1
            return fault

    def _set(self, settings: dict[str, Any]) -> None:
        with self._lock:
            self._settings = settings
            self._random = random.Random(settings.get("seed", 0))
            self._asked = 0
            self._now: set[int] = set()  # those that came before are counted no more
            self._most = 0
            self._faults: Counter[str] = Counter()
            self._ranges: list[str] = []

    def _control(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        if environ["REQUEST_METHOD"] == "PUT":
            self._set(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
        seen = {"asked": self._asked, "most": self._most, "faults": self._faults, "ranges": self._ranges}
        body = json.dumps(seen).encode()
        start("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def _half(environ: dict[str, Any], body: bytes) -> Iterator[bytes]:
    yield body[: len(body) // 2]
    _reset(environ)


def _reset(environ: dict[str, Any]) -> NoReturn:
    connection: socket.socket = environ["werkzeug.socket"]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError


class Handler(WSGIRequestHandler):
    """Keeps connections open, as S3 does."""

    protocol_version = "HTTP/1.1"


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, Faults(), threaded=True, request_handler=Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)  # noqa: T201  # that is how the fixture learns it
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
    server.serve_forever()
