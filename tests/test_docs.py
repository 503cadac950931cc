"""What the docs name is there."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from operator import attrgetter
from pathlib import Path

from feeder.decode import Limits

ROOT = Path(__file__).resolve().parent.parent
ODD = (ROOT / "docs/odd-inputs.md").read_text()


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
