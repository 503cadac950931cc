"""Looks at every link of the built site: pages, anchors, files, and that no page loads anything from
elsewhere.

MkDocs checks what stands in Markdown; this is of what the reader gets, with all that themes and plugins make.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

LOADED = {"script", "img", "iframe", "source", "video", "audio", "embed", "link"}
"""What these name is loaded when the page is shown; what an <a> names only when it is followed."""
NOT_LOADED = {"canonical", "alternate", "next", "prev", "edit"}
"""Values of rel with which a <link> loads nothing."""

log = logging.getLogger("mkdocs.hooks.links")


class _Reader(HTMLParser):
    """Ids and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "link" and values.get("rel") in NOT_LOADED:
            tag = "a"
        self.links += [(tag, values[name]) for name in ("href", "src") if name in values]


def _read(path: Path) -> _Reader:
    reader = _Reader()
    reader.feed(path.read_text())
    return reader


def faults(site: Path) -> Iterator[str]:
    """What is wrong with the links of a site, a line each."""
    site = site.resolve()
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links start at the root of wherever the site is
        where = path.relative_to(site)
        for tag, link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if tag in LOADED and parts.scheme != "data":
                    yield f"{where} loads {link}"
                elif parts.scheme not in ("https", "http", "mailto", "data") or (
                    parts.scheme.startswith("http") and "." not in parts.netloc
                ):
                    yield f"{where} links to {link}, which is no address"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file() or not target.is_relative_to(site):
                yield f"{where} links to {link}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{where} links to {link}, a page without that anchor"


def on_post_build(config: MkDocsConfig) -> None:
    """Warns of each; the build is strict."""
    for fault in faults(Path(config.site_dir)):
        log.warning("%s", fault)
