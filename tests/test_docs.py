"""What the docs name is there."""

from __future__ import annotations

import argparse
import ast
import fnmatch
import functools
import importlib
import inspect
import re
import runpy
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.cli import _parser
from feeder.decode import Limits

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("deploy/**/*.md")),
    *sorted(ROOT.glob("examples/*.md")),
    ROOT / "bench/README.md",
]
OF_OTHERS = {"--ipc", "--shm-size", "--nodes", "--platform", "--archs", "--no-index", "--force-reinstall"}
"""Flags of programs that are not ours."""
ODD = (ROOT / "docs/odd-inputs.md").read_text()


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == feeder.__version__
    assert f'newTag: "{feeder.__version__}"' in (ROOT / "deploy/kubernetes/kustomization.yaml").read_text()
    assert f"feeder:{feeder.__version__}\n" in (ROOT / "docs/deployment.md").read_text()


@functools.cache
def _functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_odd_input_is_held_by_a_test() -> None:
    rows = re.findall(r"^\| .* \| (.*) \|$", ODD.split("## Limits")[0], re.MULTILINE)
    held = [row for row in rows if row != "held by"]
    assert len(held) > 55
    for cell in held:
        found = re.fullmatch(r"(?:[IRPT]\d\d(?:, )?)+ `(tests/[\w/]+\.py)::(test_\w+)`", cell)
        assert found, cell
        assert found[2] in _functions(ROOT / found[1]), cell


def test_ids_in_tests_are_those_of_the_page() -> None:
    known = set(re.findall(r"\b[IRPT]\d\d\b", ODD))
    for path in (ROOT / "tests").rglob("*.py"):
        for used in re.findall(r"(?:Pitfall|\"\"\") ?([IRPT]\d\d)\b", path.read_text()):
            assert used in known, path


def test_limits_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(feeder[\w.]+)` \| ([\d,]+) \|", ODD, re.MULTILINE)
    assert len(rows) > 10
    for name, value in rows:
        module, _, attribute = name.rpartition(".")
        if ".Limits" in module:
            found = attrgetter(attribute)(Limits())
        else:
            found = getattr(importlib.import_module(module), attribute)
        assert found == int(value.replace(",", "")), name


@functools.cache
def _commands() -> dict[str, set[str]]:
    """The flags of each command, by its words: "cache ls"."""
    found: dict[str, set[str]] = {}

    def collect(parser: argparse.ArgumentParser, words: str) -> None:
        found[words] = {flag for action in parser._actions for flag in action.option_strings}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, below in action.choices.items():
                    collect(below, f"{words} {name}".strip())
                    if name == parser.get_default("otherwise"):  # meant where none is named
                        found[words] |= found[f"{words} {name}"]

    collect(_parser(), "")
    return found


def _command_lines(page: str) -> Iterator[str]:
    """What pages say behind `feeder`: in blocks, to the end of the line, and within a line of text."""
    joined = page.replace("\\\n", " ")
    shell = "".join(re.findall(r"^```(?:sh|bash)\n(.*?)^```", joined, re.MULTILINE | re.DOTALL))
    block = shell + "".join(re.findall(r"^ {4}.*\n", joined, re.MULTILINE))
    for line in re.findall(r"^(?: {4}|)(?:[A-Z_]+=\S+ )*feeder (.*)$", block, re.MULTILINE):
        yield re.split(r"\s+#|\s+[|&>]|\s2>", line)[0]
    yield from re.findall(r"`feeder ([^`\n]+)`", joined)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_flags_are_there(page: Path) -> None:
    text, commands = page.read_text(), _commands()
    for line in _command_lines(text):
        words = line.split()
        if words[0].startswith("-"):
            command = ""
        elif not re.fullmatch("[a-z]+", words[0]):
            continue  # COMMAND, and the like
        else:
            command = " ".join(words[:2]) if " ".join(words[:2]) in commands else words[0]
            if "|" in " ".join(words[:2]):
                continue  # `cache ls|drop|verify`
            assert command in commands, f"feeder {line}"
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line):
            assert flag in commands[command], f"feeder {line}: {flag}"
    known = set().union(*commands.values()) | OF_OTHERS
    for flag in re.findall(r"`(--[a-z][a-z-]*)", text):
        assert flag in known, flag


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_has_what_pages_say(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:`|^ {4}|=\S+ )make ([a-z-]+)", page.read_text(), re.MULTILINE):
        assert target in targets, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_of_pages_calls_what_there_is(page: Path) -> None:
    calls: dict[str, Any] = {"connect": feeder.connect, "stream": feeder.Client.stream}
    for block in re.findall(r"^```python.*\n((?:(?!```|--8<--).*\n)*)```", page.read_text(), re.MULTILINE):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                for module in node.names:
                    if module.name.startswith("feeder."):
                        importlib.import_module(module.name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                names = {keyword.arg for keyword in node.keywords if keyword.arg}
                if node.func.attr in calls:
                    assert names <= set(inspect.signature(calls[node.func.attr]).parameters), block
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "feeder":
                assert hasattr(feeder, node.attr) or find_spec(f"feeder.{node.attr}"), block
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("feeder."):
                source = (ROOT / f"{str(node.module).replace('.', '/')}.py").read_text()
                assert {alias.name for alias in node.names} <= set(re.findall(r"\w+", source)), block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_show_are_there(page: Path) -> None:
    """A formatter that takes such a line for Python makes a comparison of it."""
    for line in re.findall(r"^.*--8.*$", page.read_text(), re.MULTILINE):
        named = re.fullmatch(r'--8<-- "(.+)"', line)
        assert named, line
        assert (ROOT / named[1]).is_file(), line


def test_every_page_has_its_place_in_the_navigation() -> None:
    named = re.findall(r"[\w./*-]+\.md", (ROOT / "docs/.nav.yml").read_text())
    for page in {*PAGES, *ROOT.glob("bench/**/*.md")}:
        uri = str(page.relative_to(ROOT)).removeprefix("docs/").replace("README.md", "index.md")
        places = [name for name in named if fnmatch.fnmatch(uri, name.replace("README.md", "index.md"))]
        assert places, uri


def test_the_site_is_looked_at_for_links(tmp_path: Path) -> None:
    """What `make docs` calls a fault of a link, and what it does not."""
    faults = runpy.run_path(str(ROOT / "docs/hooks/links.py"))["faults"]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/index.html").write_text('<h1 id="here">x</h1><a href="../a.html#top">a</a>')
    (tmp_path / "a.html").write_text(
        '<p id="top"><a href="sub/">1</a><a href="sub/#here">2</a><a href="#top">3</a>'
        '<a href="https://example.org/x">4</a><link rel="canonical" href="https://example.org"></p>'
    )
    assert list(faults(tmp_path)) == []
    (tmp_path / "b.html").write_text(
        '<a href="none.html">1</a><a href="a.html#none">2</a><a href="sub/#none">3</a><a href="../x">4</a>'
        '<img src="none.png"><script src="https://example.org/x.js"></script><a href="ftp://x">5</a>'
    )
    assert len(list(faults(tmp_path))) == 7


def test_the_page_of_commands_has_all_of_them() -> None:
    page_of = runpy.run_path(str(ROOT / "docs/hooks/commands.py"))["page_of"]
    page = "\n".join(page_of(_parser()))
    for words, flags in _commands().items():
        assert f"## `feeder {words}".rstrip() in page
        assert all(f"`{flag}" in page for flag in flags - {"-h", "--help"}), words
