"""The page as one document, which needs nothing else, and may load nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterator
from importlib import resources

from feeder.errors import printable
from feeder.figures import size
from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["Document"]

_MARK = re.compile("<!-- (?:title|host|facts) -->")


class Document:
    """The page: a shell that is the same for everyone, with what a worker is, which needs no script.

    Attributes:
        headers: of an answer that holds it.
    """

    def __init__(self) -> None:
        folder = resources.files(__name__.rpartition(".")[0])
        shell, style, script = (
            folder.joinpath(name).read_text("utf-8") for name in ("index.html", "page.css", "page.js")
        )
        shell = shell.replace("/* page.css */", style).replace("/* page.js */", script)
        policy = (
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {_hash(script)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
        self.headers = {
            "Content-Security-Policy": "; ".join(policy),
            "Cache-Control": "no-cache",
        }
        self._shell = shell

    def page(self, worker: pb.DescribeReply | None) -> str:
        """HTML, with the facts of a worker; None: it starts."""
        host = "" if worker is None else _text(worker.worker_id.partition(":")[0])
        parts = {
            "<!-- title -->": f"{host}, " if host else "",
            "<!-- host -->": f" at {host}" if host else "",
            "<!-- facts -->": "".join(_facts(worker)),
        }
        return _MARK.sub(lambda mark: parts[mark[0]], self._shell)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _facts(worker: pb.DescribeReply | None) -> Iterator[str]:
    if worker is None:
        yield "<p>The worker starts: it opens, or indexes, its data sets.</p>"
        return
    facts = {
        "Worker": worker.worker_id,
        "Version": f"feeder {worker.version}",
        "Decoder": worker.decoder,
        "Threads": f"{worker.threads} to decode",
        "Streams": f"{worker.max_streams} at most",
    }
    yield '<dl class="facts">'
    for name, value in facts.items():
        yield f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>"
    pixels = _text(worker.pixel_fingerprint)
    yield f'<div class="long"><dt>Pixels</dt><dd><code>{pixels}</code></dd></div></dl>'
    # A table that is cards on a phone keeps what it means only where that is said (role).
    yield '<div class="wide" tabindex="0" role="region" aria-labelledby="sets">'
    yield '<table class="cards sets" role="table"><caption id="sets">Data sets</caption>'
    yield '<thead role="rowgroup"><tr role="row">'
    yield '<th scope="col" role="columnheader">Name</th>'
    for name in ("Records", "Shards", "Size"):
        yield f'<th scope="col" role="columnheader" class="number">{name}</th>'
    yield '<th scope="col" role="columnheader">Fingerprint</th></tr></thead><tbody role="rowgroup">'
    for info in worker.datasets:
        yield f'<tr role="row"><th scope="row" role="rowheader">{_text(info.name)}</th>'
        sizes = {
            "Records": f"{info.records:,}",
            "Shards": f"{info.shards:,}",
            "Size": size(info.bytes),
        }
        for name, number in sizes.items():
            yield f'<td class="number" role="cell" data-name="{name}">{number}</td>'
        yield f'<td role="cell" data-name="Fingerprint"><code>{info.fingerprint[:12]}</code></td></tr>'
    yield "</tbody></table></div>"


def _text(text: str) -> str:
    return html.escape(printable(text))
