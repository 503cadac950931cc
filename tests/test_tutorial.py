"""docs/tutorial.md as its reader follows it: one shell runs all commands, files are saved as they are
named."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs/tutorial.md"
TIMEOUT_S = 100
MARK = "=== end of block {} ==="


class Block(NamedTuple):
    """A fenced block of the page."""

    language: str
    title: str
    text: str


def _blocks() -> Iterator[Block]:
    fence = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
    for language, title, text in fence.findall(TUTORIAL.read_text()):
        yield Block(language, title, text)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _numberless(text: str) -> list[str]:
    """Lines in which numbers and gaps count for nothing: pictures differ by version, ports by run."""
    lines = (re.sub(r"\b[0-9a-f]{16}\b|\d[\d.,]*", "N", line) for line in text.splitlines())
    return [" ".join(line.split()) for line in lines]


def test_every_command_does_what_the_page_shows(tmp_path: Path) -> None:
    blocks = list(_blocks())
    shells = [block for block in blocks if block.language == "sh"]
    assert len(shells) > 5
    names = dict(zip(("50051", "50052"), map(str, _free_ports(2)), strict=True))
    script = ["set -eu; trap 'kill -9 $(jobs -p) || true' EXIT"]
    shown: list[tuple[int, str]] = []  # (the command's number, what the page says it prints)
    for block in blocks:
        if block.language == "python":
            (tmp_path / block.title).write_text(_with_ports(block.text, names))
        elif block.language == "sh":
            script += [_with_ports(block.text, names), f"echo '{MARK.format(len(script) // 2)}'"]
        else:
            shown.append((len(script) // 2 - 1, block.text))
    launcher = tmp_path / "bin"
    launcher.mkdir()
    for name, command in (("feeder", f"{sys.executable} -m feeder"), ("python", sys.executable)):
        (launcher / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (launcher / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{launcher}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    done = _run("\n".join(script), tmp_path, environment)
    logs = "".join(path.read_text() for path in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    printed = re.split(MARK.format(r"\d+") + "\n", done.stdout)
    ready = re.compile(r"^feeder worker listening on .*\n", re.MULTILINE)
    for number, expected in shown:
        if ready.match(expected):  # printed whenever they are ready
            assert len(ready.findall(done.stdout)) == len(ready.findall(expected))
        else:
            assert _numberless(ready.sub("", printed[number])) == _numberless(expected)


def _with_ports(text: str, names: dict[str, str]) -> str:
    for name, port in names.items():
        text = text.replace(name, port)
    return text


def _run(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process group of its own, of which nothing is left."""
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, error = process.communicate(timeout=TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(script, process.returncode, out, error)
