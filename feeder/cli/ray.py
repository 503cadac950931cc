"""`feeder ray`: workers on a Ray cluster."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from feeder.cli.settings import OnCommandLine
from feeder.cli.worker import add_worker_options, worker_config, worker_environment
from feeder.errors import ConfigError

if TYPE_CHECKING:
    from feeder.ray.deployment import Deployment
    from feeder.ray.roster import Place
    from feeder.ray.supervisor import Status
    from feeder.wire.credentials import Credentials

__all__ = ["register"]

LISTEN = "0.0.0.0:50051"

POLL_S = 0.5

REMIND_S = 30.0
"""How often `up` says what it waits for: for indexes of new data that may be minutes."""

DOWN_S = 86400.0 + 60.0
"""Longer than the longest drain; the supervisor itself ends it within that of its workers."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands."""
    parser = subparsers.add_parser(
        "ray", help="workers on a Ray cluster: up, status, address, down", allow_abbrev=False
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    up = actions.add_parser(
        "up",
        help="start workers, and keep them running",
        description="Starts workers on a Ray cluster, one on each node, and an actor that starts them again\n"
        "where they are lost, and on nodes that join. Says where each one listens; ends when all are ready,\n"
        "and they go on. Exit code 1 where some could not start: they are tried again.",
        epilog="examples:\n"
        "  feeder ray up --dataset train=/data/train/ --index-dir /data/index\n"
        "  feeder ray up --dataset train=s3://bucket/train-* --index-dir /shared/index \\\n"
        "      --workers 2-16 --num-cpus 8\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_ray_options(up)
    add_worker_options(up, LISTEN)
    up.set_defaults(run=_up)
    for name, what, run in (
        ("status", "what runs; exit code 1 where a worker is missing", _status),
        (
            "address",
            "where the workers are that are ready, as --connect takes it; exit code 1 where none is",
            _address,
        ),
        ("down", "end the workers, which answer what they owe before", _down),
    ):
        action = actions.add_parser(name, help=what, description=f"{what.capitalize()}.", allow_abbrev=False)
        _add_place(action)
        if name == "status":
            action.add_argument("--json", action="store_true", help="one JSON object")
        action.set_defaults(run=run)


def _add_place(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--name",
        action=OnCommandLine,
        default="feeder",
        help="of these workers, where a cluster has several sets of them (default: %(default)s)",
    )
    parser.add_argument(
        "--ray-address",
        action=OnCommandLine,
        metavar="ADDR",
        help="of the Ray cluster, as ray.init takes it (default: $RAY_ADDRESS, or the one on this host)",
    )


def _add_ray_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on the Ray cluster (on the command line only)")
    _add_place(group)
    group.add_argument(
        "--workers",
        action=OnCommandLine,
        type=_workers,
        metavar="N|LEAST-MOST",
        help="so many, wherever Ray has room, or as many as are needed between two numbers (default: one on "
        "each node)",
    )
    group.add_argument(
        "--num-cpus",
        action=OnCommandLine,
        type=int,
        default=0,
        metavar="N",
        help="CPUs that each worker takes of those that Ray counts, and its decode threads unless --threads "
        "says otherwise (default: takes none, and decodes on all that its process may use)",
    )
    group.add_argument(
        "--resource",
        action=OnCommandLine,
        type=_resources,
        default={},
        metavar="NAME=AMOUNT,...",
        help="others of Ray's resources that each worker takes, and without which a node has none",
    )
    group.add_argument(
        "--scale-out-after",
        action=OnCommandLine,
        type=float,
        default=60.0,
        metavar="S",
        help="seconds over which demand is measured before there are more workers (default: %(default)g)",
    )
    group.add_argument(
        "--scale-in-after",
        action=OnCommandLine,
        type=float,
        default=600.0,
        metavar="S",
        help="seconds that fewer must have been enough before there are fewer (default: %(default)g)",
    )


def _workers(text: str) -> tuple[int, int]:
    least, dash, most = text.partition("-")
    if not (least.isdecimal() and (most if dash else least).isdecimal()):
        raise argparse.ArgumentTypeError(f"must be a number, or two such as 2-16, got {text!r}")
    return int(least), int(most if dash else least)


def _resources(text: str) -> dict[str, float]:
    pairs = [one.partition("=") for one in text.split(",")]
    try:
        found = {name: float(amount) for name, _, amount in pairs}
    except ValueError:
        found = {}
    if not found or not all(found):  # also a name that is empty
        raise argparse.ArgumentTypeError(f"must be NAME=AMOUNT, such as data=1, got {text!r}")
    return found


def _up(args: argparse.Namespace) -> int:
    from feeder.ray import control

    deployment = _deployment(args)
    out = sys.stdout
    with control.connected(args.ray_address):
        control.up(args.name, deployment)
        code = _wait_until_up(args.name, out)
    if code:
        print(
            "feeder: not all workers are ready; they are tried again until they are. How it stands says "
            f"`feeder ray status --name {args.name}`; `feeder ray down --name {args.name}` ends it",
            file=sys.stderr,
        )
    return code


def _deployment(args: argparse.Namespace) -> Deployment:
    from feeder.ray.deployment import Deployment

    config = worker_config(args)
    environment = worker_environment(args)
    if args.num_cpus and config.threads is None:
        environment["FEEDER_THREADS"] = str(args.num_cpus)
    return Deployment(
        environment=environment,
        folder=os.getcwd(),
        listen=config.listen,
        http=config.http,
        drain_s=config.drain_s,
        workers=args.workers,
        num_cpus=args.num_cpus,
        resources=args.resource,
        out_s=args.scale_out_after,
        in_s=args.scale_in_after,
        credentials=_credentials(),
    )


def _credentials() -> Credentials | None:
    """What the environment says, with absolute paths; None: nothing."""
    from feeder.wire.credentials import Credentials

    said = dataclasses.asdict(Credentials.from_environment())
    paths = {
        name: path if path == "system" else os.path.abspath(path)
        for name, path in said.items()
        if path is not None
    }
    return Credentials(**paths) if paths else None


def _wait_until_up(name: str, out: TextIO) -> int:
    from feeder.ray import control

    said: set[str] = set()
    remind_s = time.monotonic() + REMIND_S
    while True:
        status = control.status(name)
        for place in status.places:
            line = _line(place)
            if (place.state == "ready" or place.error) and line not in said:
                said.add(line)
                print(line, file=out, flush=True)
        settled = all(place.state == "ready" or place.error for place in status.places)
        if status.wanted and settled:
            return _missing(status)
        if status.wanted == 0:
            raise ConfigError(
                "no node of the cluster is large enough for a worker, see --num-cpus, --resource and "
                "`ray status`; one starts as soon as there is such a node, unless you end that with "
                f"`feeder ray down --name {name}`"
            )
        if time.monotonic() > remind_s:
            remind_s += REMIND_S
            for place in status.places:
                if place.state != "ready":
                    print(f"feeder: {_line(place)}", file=sys.stderr)
        time.sleep(POLL_S)


def _status(args: argparse.Namespace) -> int:
    from feeder.ray import control

    with control.connected(args.ray_address):
        status = control.status(args.name)
    if args.json:
        print(json.dumps(dataclasses.asdict(status) | {"name": args.name}))
        return _missing(status)
    ready = sum(place.state == "ready" for place in status.places)
    leaving = f", {status.draining} draining" if status.draining else ""
    print(f"{args.name}: {ready} ready of {status.wanted or 0}{leaving}")
    for place in status.places:
        print(f"  {_line(place)}")
    return _missing(status)


def _missing(status: Status) -> int:
    """Exit code: 1 where a worker that should be is not ready."""
    ready = sum(place.state == "ready" for place in status.places)
    return int(status.wanted is None or ready < status.wanted)


def _line(place: Place) -> str:
    again = f"; restarts {place.restarts} (the last: {place.error})" if place.restarts else ""
    if place.state == "ready":
        return f"{place.address}: ready, process {place.pid}, needed {place.needed:.2f}{again}"
    if place.state == "starting":
        where = f"on {place.node}, process {place.pid}" if place.node else "where Ray finds room for it"
        return f"starting {where}{again}"
    return f"waiting{again}"


def _address(args: argparse.Namespace) -> int:
    from feeder.ray import control

    with control.connected(args.ray_address):
        found = control.addresses(args.name)
    if not found:
        print(f"feeder: no worker is ready; `feeder ray status --name {args.name}` says why", file=sys.stderr)
        return 1
    print(",".join(found))
    return 0


def _down(args: argparse.Namespace) -> int:
    from feeder.ray import control

    with control.connected(args.ray_address):
        control.down(args.name, DOWN_S)
    return 0
