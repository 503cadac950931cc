"""Every command and option, from the parsers themselves, in place of a line `<!-- commands -->`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from feeder.cli import _parser

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts the commands in."""
    return markdown.replace(MARK, "\n".join(page_of(_parser())))


def page_of(parser: argparse.ArgumentParser, summary: str = "") -> Iterator[str]:
    """A command and those below it in Markdown, each with a heading of its own."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    yield f"## `{parser.prog}`\n"
    yield from _paragraphs(parser.description or (f"{summary[0].upper()}{summary[1:]}." if summary else ""))
    usage = parser.format_usage().strip().replace("\n" + " " * len("usage: "), "\n").removeprefix("usage: ")
    yield f"```text\n{usage}\n```\n"
    rows = [
        _row(parser, action)
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    ]
    if rows:
        yield "| argument | what it says |\n|---|---|"
        yield from rows
        yield ""
    yield from _paragraphs(parser.epilog or "")
    for action in below:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            yield from page_of(command, helps.get(name, ""))


def _paragraphs(text: str) -> Iterator[str]:
    """Text as it is written for a terminal: what is set out by blanks stays as it is."""
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if re.search(r"^ |^\S.* {3}\S", paragraph, re.MULTILINE):
            yield f"```text\n{paragraph}\n```\n"
        elif paragraph:
            yield f"{_plain(paragraph)}\n"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    if action.option_strings:
        value = "" if action.nargs == 0 else " " + formatter._format_args(action, action.dest.upper())
        names = ", ".join(f"`{name}{value}`" for name in action.option_strings)
    else:
        names = f"`{formatter._format_args(action, action.dest)}`"
    names = names.replace("|", "\\|")
    said = _plain(formatter._expand_help(action)) if action.help else ""
    if action.required and action.option_strings:
        said += " (required)"
    return f"| {names} | {said} |"


def _plain(text: str) -> str:
    """Text in which nothing is Markdown."""
    return re.sub(r"([\\|*_<>\[\]`])", r"\\\1", " ".join(text.split()))
