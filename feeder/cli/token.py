"""`feeder token`: makes tokens, which clients show to workers."""

from __future__ import annotations

import argparse
import sys

__all__ = ["register"]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "token", help="make a token that a client shows to workers", allow_abbrev=False
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    new = actions.add_parser(
        "new",
        help="a new random token, and what the file of tokens says of it",
        description="Prints a new token on stdout, once: it is kept nowhere. What the file has to say that\n"
        "--tokens of the workers names goes to stderr; the token cannot be told from it.",
        epilog="example, for a token that may read one data set:\n"
        "  (umask 077; feeder token new alice >alice.token 2>>tokens.toml)\n"
        "  echo 'datasets = [\"train\"]' >>tokens.toml\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    new.add_argument("name", metavar="NAME", help="letters, digits, - and _; the worker's log has it")
    new.set_defaults(run=_new)


def _new(args: argparse.Namespace) -> int:
    from feeder.worker.access import new_token

    token, entry = new_token(args.name)
    print(token, flush=True)
    print(entry, end="", file=sys.stderr)
    return 0
