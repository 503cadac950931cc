"""Becomes `feeder worker`, as a process that the system kills when the thread that started it is gone.

`python -P -m feeder.child PID_OF_PARENT [OPTION ...]`; -P, so that a checkout which is the working directory,
and has the package but not its kernel, is not taken for what is installed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__: list[str] = []

_PR_SET_PDEATHSIG = 1
"""Holds beyond exec (man 2 PR_SET_PDEATHSIG)."""


def _main(parent: int, options: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot be made to die with the parent (prctl)")
    if os.getppid() != parent:  # it was gone before
        raise SystemExit(1)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "feeder", "worker", *options])


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
