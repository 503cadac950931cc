"""`feeder reload`: has a worker of this host read its settings again."""

from __future__ import annotations

import argparse
import os
import signal
import socket
from pathlib import Path

from feeder.cli.options import add_client_options, client_credentials
from feeder.errors import ConfigError

__all__ = ["register"]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "reload",
        help="have a worker read certificates, tokens and data sets again",
        description="Sends SIGHUP to a worker of this host. It takes new certificates, tokens and data sets\n"
        "without ending a stream, or refuses all where a part is wrong; its log says which.",
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
    add_client_options(parser)
    parser.set_defaults(run=_reload)


def _reload(args: argparse.Namespace) -> int:
    pid = int(args.worker) if args.worker.isdecimal() else _pid(args)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        raise ConfigError(f"there is no process {pid} here") from None
    if b"worker" not in words:  # SIGHUP ends most others
        raise ConfigError(f"process {pid} is no `feeder worker`")
    try:
        os.kill(pid, signal.SIGHUP)
    except ProcessLookupError:
        raise ConfigError(f"there is no process {pid} here any more") from None
    except PermissionError:
        raise ConfigError(f"process {pid} is another user's") from None
    print(f"process {pid} was told; its log says what it took")
    return 0


def _pid(args: argparse.Namespace) -> int:
    from feeder.cli.status import describe
    from feeder.wire.address import parse_address

    worker_id = describe(parse_address(args.worker), client_credentials(args)).worker_id
    host, pid, _ = worker_id.rsplit(":", 2)
    if host != socket.gethostname():
        raise ConfigError(f"the worker at {args.worker} runs on {host}: use this command there")
    return int(pid)
