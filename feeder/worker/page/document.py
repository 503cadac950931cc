"""The page as one document, which needs nothing else, and may load nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterator
from importlib import resources

from feeder.errors import printable
from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["Document"]


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
        self._before, self._after = shell.split("<!-- facts -->")

    def page(self, worker: pb.DescribeReply | None) -> str:
        """HTML, with the facts of a worker; None: it starts."""
        return self._before + "".join(_facts(worker)) + self._after


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
        "Pixels": worker.pixel_fingerprint,
        "Streams": f"{worker.max_streams} at most",
    }
    yield '<dl class="facts">'
    for name, value in facts.items():
        yield f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>"
    yield '</dl><div class="wide" tabindex="0" role="region" aria-labelledby="sets"><table>'
    yield '<caption id="sets">Data sets</caption><thead><tr><th scope="col">Name</th>'
    for name in ("Records", "Shards", "Size"):
        yield f'<th scope="col" class="number">{name}</th>'
    yield '<th scope="col">Fingerprint</th></tr></thead><tbody>'
    for info in worker.datasets:
        yield f'<tr><th scope="row">{_text(info.name)}</th>'
        for number in (f"{info.records:,}", f"{info.shards:,}", f"{info.bytes / 1e6:,.0f} MB"):
            yield f'<td class="number">{number}</td>'
        yield f"<td><code>{info.fingerprint[:12]}</code></td></tr>"
    yield "</tbody></table></div>"


def _text(text: str) -> str:
    return html.escape(printable(text))
