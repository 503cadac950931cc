"""Pages that lie elsewhere in the repository, and links that lead there.

A link in any page is written as it works in the repository. Where it leads to a page of the site it is
followed there; where to another file, that one is copied to the site; where to a folder without a README,
only its text stays; where to nothing, the build fails.
"""

from __future__ import annotations

import logging
import posixpath
import xml.etree.ElementTree as etree
from pathlib import Path
from urllib.parse import urlsplit

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = ("*.md", "bench/**/*.md", "deploy/**/*.md", "examples/**/*.md")
"""Pages of the site that are not in docs/; the README is its front page."""

ATTRIBUTES = {"a": "href", "img": "src"}

log = logging.getLogger("mkdocs.hooks.repository")


def uri_of(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/")


def _add(path: str, config: MkDocsConfig, files: Files) -> None:
    files.append(File.generated(config, uri_of(path), abs_src_path=str(ROOT / path)))


class _Links(Treeprocessor):
    """Runs before MkDocs makes addresses of the links to pages, and checks them."""

    page: str
    """The file of the page that is rendered, from the root of the repository."""
    config: MkDocsConfig
    files: Files

    def run(self, root: etree.Element) -> None:
        for element in root.iter():
            attribute = ATTRIBUTES.get(element.tag)
            target = element.get(attribute) if attribute else None
            if attribute and target:
                self._follow(element, attribute, target)

    def _follow(self, element: etree.Element, attribute: str, target: str) -> None:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc or not parts.path:
            return
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self.page), parts.path))
        place = ROOT / path
        if place.is_dir() and (place / "README.md").is_file():
            path = posixpath.join(path, "README.md")
        elif place.is_dir():
            element.tag = "span"
            del element.attrib[attribute]
            return
        uri = uri_of(path)
        if self.files.get_file_from_path(uri) is None:
            if path.startswith("../") or not place.is_file():
                log.warning("%s links to %s, which is not in the repository", self.page, target)
                return
            _add(path, self.config, self.files)
        here = posixpath.dirname(uri_of(self.page))
        element.set(attribute, parts._replace(path=posixpath.relpath(uri, here or ".")).geturl())


class _Extension(Extension):
    def __init__(self, links: _Links) -> None:
        super().__init__()
        self._links = links

    def extendMarkdown(self, md: Markdown) -> None:
        self._links.md = md
        md.treeprocessors.register(self._links, "repository", 1)  # MkDocs' own is at 0, the last


_links = _Links()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Has Markdown call us."""
    config.markdown_extensions.append(_Extension(_links))  # type: ignore[arg-type]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            _add(path.relative_to(ROOT).as_posix(), config, files)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Says which page comes next."""
    source = page.file.abs_src_path
    _links.page = Path(source).relative_to(ROOT).as_posix() if source else page.file.src_uri
    _links.config, _links.files = config, files
    return markdown
