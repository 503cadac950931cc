"""`feeder doctor`: which stage holds a training up, and what would lift it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from feeder.cli.options import add_client_options, client_credentials
from feeder.errors import FeederError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feeder.advice.diagnosis import Finding
    from feeder.wire.address import Address
    from feeder.wire.credentials import Credentials
    from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["register"]

MOST_ASKED = 16
"""Workers that are asked at the same time."""

_DESCRIPTION = """\
Looks at workers twice, some seconds apart, and says for each job which of storage, decode, cache, wire,
client, token or trainer is the limit, by which figures, and what would lift it. It only looks: nothing is
run for it. Exit code 1 where a worker does not answer.
"""
_EXAMPLES = """\
examples:
  feeder doctor host1:50051,host2:50051
  feeder doctor dns:feeder:50051 --seconds 30 --json
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="which stage is the limit of a training, and what would lift it",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "address",
        metavar="ADDR",
        help="all workers of the job: host:port,host:port, dns:name:port or unix:/path",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="between the two looks (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_client_options(parser)
    parser.set_defaults(run=_doctor)


def _seconds(text: str) -> float:
    """The value of --seconds: clients report once a second."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"must be in [1, 3600], got {text!r}")
    return value


def _doctor(args: argparse.Namespace) -> int:
    from feeder.advice.diagnosis import diagnose
    from feeder.advice.watched import consumers, work
    from feeder.cli.status import as_dict
    from feeder.client.names import resolve
    from feeder.wire.address import parse_target

    addresses = resolve(parse_target(args.address))
    credentials = client_credentials(args)
    before, failed = _look(addresses, credentials)
    there = [address for address in addresses if str(address) in before]
    if there:
        time.sleep(args.seconds)
    after, gone = _look(there, credentials)
    failed |= gone
    for name in list(after):
        if after[name].worker_id != before[name].worker_id:
            failed[name] = f"worker {name} was started anew meanwhile: ask again"
            del after[name]
    looks = {name: (before[name], reply) for name, reply in after.items()}
    works = {name: work(name, look) for name, look in looks.items()}
    findings = diagnose(works, consumers(looks))
    if args.json:
        values = {
            "findings": [dataclasses.asdict(finding) for finding in findings],
            "workers": [dataclasses.asdict(one) for one in works.values()],
            "failed": failed,
        }
        print(json.dumps(values, default=as_dict))
    else:
        if works:
            print("\n\n".join(map(_text, findings)) or _nothing(after))
        sys.stdout.flush()
        for message in failed.values():
            print(f"feeder: {message}", file=sys.stderr)
    return 1 if failed else 0


def _look(
    addresses: Sequence[Address], credentials: Credentials
) -> tuple[dict[str, pb.DescribeReply], dict[str, str]]:
    """What each worker says of itself, by address, and why others do not."""
    from feeder.cli.status import describe

    def ask(address: Address) -> pb.DescribeReply | FeederError:
        try:
            return describe(address, credentials)
        except FeederError as error:
            return error

    if not addresses:
        return {}, {}
    with ThreadPoolExecutor(min(MOST_ASKED, len(addresses))) as pool:
        answers = dict(zip(map(str, addresses), pool.map(ask, addresses), strict=True))
    replies = {name: answer for name, answer in answers.items() if not isinstance(answer, FeederError)}
    return replies, {name: str(answer) for name, answer in answers.items() if isinstance(answer, FeederError)}


def _nothing(replies: Mapping[str, pb.DescribeReply]) -> str:
    """Where there is no job to speak of."""
    names = ", ".join(replies)
    if streams := sum(reply.live_streams for reply in replies.values()):
        return (
            f"nothing that this token may see: {streams} stream{'s' * (streams != 1)} on {names}, of other "
            "jobs or data sets; one with sees-all may"
        )
    return f"nothing is running: no stream on {names}"


def _text(finding: Finding) -> str:
    where = f", at {finding.worker}" if finding.worker else ""
    return "\n".join(
        [
            f"{printable(finding.job)}: the limit is {finding.limit.upper()}{where}",
            *(f"  {sentence}" for sentence in finding.why),
            *(f"  -> {sentence}" for sentence in finding.lift),
        ]
    )
