"""`feeder reload`: has a worker of this host read its settings again."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import threading
from pathlib import Path

from feeder.cli.options import add_client_options, client_credentials
from feeder.errors import ConfigError, WorkerUnavailable

__all__ = ["register"]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "reload",
        help="have a worker read its settings again",
        description="Sends SIGHUP to a worker of this host, and says what became of it. It takes new\n"
        "certificates, tokens, data sets, budgets and log level without ending a stream, and names what\n"
        "needs a restart. Where a part is wrong it takes nothing; then the exit code is 2.",
        epilog="examples:\n  feeder reload 127.0.0.1:50051\n  feeder reload 4711\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "worker",
        metavar="ADDR|PID",
        nargs="?",
        default="127.0.0.1:50051",
        help="where it listens, or number of its process (default: %(default)s)",
    )
    parser.add_argument(
        "--wait-s",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds to wait for its answer; to index new data may take longer (default: %(default)g)",
    )
    add_client_options(parser)
    parser.set_defaults(run=_reload)


def _reload(args: argparse.Namespace) -> int:
    from feeder.worker.verdict import Asker

    if not 0 < args.wait_s < threading.TIMEOUT_MAX:
        raise ConfigError(f"--wait-s must be more than 0 seconds, got {args.wait_s}")
    pid = int(args.worker) if args.worker.isdecimal() else _pid(args)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        raise ConfigError(f"there is no process {pid} here") from None
    if b"worker" not in words:  # SIGHUP ends most others
        raise ConfigError(f"process {pid} is no `feeder worker`")
    if not re.search(r"^Sig(Blk|Cgt):\s*[0-9a-f]*[13579bdf]$", status, re.M):  # SIGHUP, the lowest bit
        raise ConfigError(f"process {pid} has only just begun, and SIGHUP would end it: try again")
    with Asker(pid) as asker:
        try:
            os.kill(pid, signal.SIGHUP)
        except ProcessLookupError:
            raise ConfigError(f"there is no process {pid} here any more") from None
        except PermissionError:
            raise ConfigError(f"process {pid} is another user's") from None
        verdict = asker.hear(args.wait_s)
    if verdict is None:
        raise WorkerUnavailable(
            f"process {pid} was told, and has not said in {args.wait_s:g} s what became of it: its log will; "
            f"--wait-s waits longer"
        )
    if not verdict.taken:
        raise ConfigError(f"process {pid} goes on with the settings of before: {verdict.text}")
    for line in filter(None, (verdict.text, verdict.restart, *verdict.doubts.splitlines())):
        print(f"process {pid}: {line}")
    return 0


def _pid(args: argparse.Namespace) -> int:
    from feeder.cli.status import describe
    from feeder.wire.address import parse_address

    worker_id = describe(parse_address(args.worker), client_credentials(args)).worker_id
    host, pid, _ = worker_id.rsplit(":", 2)
    if host != socket.gethostname():
        raise ConfigError(f"the worker at {args.worker} runs on {host}: use this command there")
    return int(pid)
