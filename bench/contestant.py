"""The bench's side of a contestant: a process that lives through all rounds and answers lines of JSON.

The other side is bench/rivals/protocol.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import feeder
from feeder.errors import FeederError

__all__ = [
    "REPLY_DEADLINE_S",
    "SCRIPTS",
    "Contestant",
    "ContestantFailed",
    "NotInstalled",
    "Process",
    "cpu_seconds",
    "exit_code",
    "rival",
    "settle",
]

SCRIPTS = Path(__file__).resolve().parent / "rivals"
RIVALS_FOLDER = SCRIPTS.parent.parent / ".venv" / "rivals"
"""Where bench/rivals/install.py makes the environments."""

STOP_DEADLINE_S = 10.0
REPLY_DEADLINE_S = 300.0
"""Ten times longer than any round of the committed runs; who hangs is left out."""


class ContestantFailed(FeederError):
    """A contestant could not start, answered with an error, ended or did not answer in time."""


class NotInstalled(ContestantFailed):
    """The environment of a rival is not there."""


def exit_code(left_out: Mapping[Any, ContestantFailed]) -> int:
    """What a benchmark returns: 1 where a contestant failed; one that is not installed did not fail."""
    return int(any(not isinstance(error, NotInstalled) for error in left_out.values()))


def rival(name: str, folder: str | None, script: str, *arguments: str) -> Contestant:
    """Starts a script of bench/rivals.

    Args:
        name: as the rows of results say it.
        folder: its environment in .venv/rivals; None is the one that this process runs in.
        script: file name.
        arguments: flags of the script.
    """
    python = Path(sys.executable) if folder is None else RIVALS_FOLDER / folder / "bin" / "python"
    if not python.exists():
        raise NotInstalled(f"{name}: not installed; `make rivals` installs what can be")
    return Contestant(name, [str(python), str(SCRIPTS / script), *arguments])


def child_environment() -> dict[str, str]:
    """This process's environment, with the same feeder to import, rivals quiet and GPUs out of sight."""
    return os.environ | {
        "PYTHONPATH": str(Path(feeder.__file__).resolve().parent.parent),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }


class Process:
    """A process that writes lines to its stdout; ended by close().

    Attributes:
        name: for messages.
        pid: its number.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._read = b""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=child_environment(),
            )
        except OSError as error:
            self._stderr.close()
            raise ContestantFailed(f"{name}: cannot start {command[0]}: {error.strerror}") from error
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write_line(self, line: bytes, purpose: str) -> None:
        """Sends a line to its stdin.

        Raises:
            ContestantFailed: it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise ContestantFailed(f"{self.name}: ended before {purpose}: {self._last_words()}") from error

    def read_line(self, purpose: str, deadline_s: float) -> bytes:
        """The next line of its stdout.

        Raises:
            ContestantFailed: it ended, or was silent for `deadline_s` seconds.
        """
        assert self._process.stdout is not None
        end = time.monotonic() + deadline_s
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._read:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise ContestantFailed(f"{self.name}: no answer to {purpose} within {deadline_s:g} s")
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise ContestantFailed(f"{self.name}: ended during {purpose}: {self._last_words()}")
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return line

    def freeze(self) -> None:
        """Stops it as it is, until `thaw`; returns when all of its threads have stopped, or it has ended."""
        self._process.send_signal(signal.SIGSTOP)
        if self._process.returncode is None:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Lets it go on."""
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Asks it to end."""
        self._process.terminate()

    def close(self) -> None:
        """Closes its stdin, at which contestants end, frozen or not; kills it when it has not ended within
        10 s."""
        self.thaw()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _last_words(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class Contestant(Process):
    """A process that runs rounds when asked.

    Attributes:
        facts: what it answered to `load`.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        super().__init__(name, command)
        self.facts: dict[str, Any] = {}

    def ask(self, command: str, *, deadline_s: float = REPLY_DEADLINE_S, **fields: Any) -> dict[str, Any]:
        """Sends one request and gives the fields of the reply.

        Raises:
            ContestantFailed: the reply says so, or none came within `deadline_s` seconds.
        """
        self.write_line(json.dumps({"cmd": command} | fields).encode(), command)
        reply: dict[str, Any] = json.loads(self.read_line(command, deadline_s))
        if not reply.pop("ok"):
            raise ContestantFailed(f"{self.name}: {command}: {reply['error']}")
        return reply

    def load(self, *, deadline_s: float = REPLY_DEADLINE_S, **fields: Any) -> None:
        """Sends `load` and keeps the answer in `facts`."""
        self.facts = self.ask("load", deadline_s=deadline_s, **fields)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all of its threads, ended ones too, in seconds.

    Raises:
        ProcessLookupError: there is no such process.
    """
    clock = ctypes.c_int()
    # /proc has it in ticks of 10 ms, too coarse for a slice of a second.
    if error := ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(error, f"process {pid}: {os.strerror(error)}")
    return time.clock_gettime(clock.value)


def settle(pids: Sequence[int], *, quiet_s: float = 0.1, deadline_s: float = 10.0) -> None:
    """Waits until the processes use no CPU for `quiet_s`: what one contestant still does would slow the next.

    Raises:
        ContestantFailed: they are still busy after `deadline_s`.
    """
    end = time.monotonic() + deadline_s
    while True:
        before = sum(map(cpu_seconds, pids))
        time.sleep(quiet_s)
        # A tenth of the interval is housekeeping.
        if sum(map(cpu_seconds, pids)) - before <= 0.1 * quiet_s:
            return
        if time.monotonic() > end:
            raise ContestantFailed(
                f"processes {list(pids)} are still busy {deadline_s:g} s after their round"
            )
