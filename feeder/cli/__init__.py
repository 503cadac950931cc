"""The command `feeder`.

Each module beside this one has `register(subparsers)`: it adds its subcommands, and sets as default `run` of
each the function that does the work: `run(args) -> int`, the exit code. Heavy imports happen there, so that
`feeder --help` needs nothing but the standard library, and an environment runs what it has packages for.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

import feeder
from feeder.errors import FeederError

__all__ = ["main"]

_MODULES = ("data", "service", "bench", "train")

EXIT_FOUND_BAD = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

_DESCRIPTION = """\
feeder keeps accelerators fed: data workers decode, crop and stream image batches to training hosts.
"""

_EXAMPLES = """\
examples:
  feeder pack photos/ shards/ --shards 16                         make TFRecord shards of a folder
  feeder worker --dataset train=shards/ --listen 0.0.0.0:50051    serve them
  feeder status localhost:50051                                   see what a worker serves and does
  feeder preview --data shards/ -o sheet.png                      see what a trainer would see

Each command has a --help of its own.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 well, 1 found something bad, 2 error, 130 interrupted."""
    args = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except FeederError as error:
        print(f"feeder: error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except ModuleNotFoundError as error:
        print(f"feeder: error: {_missing(error)}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("feeder: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`feeder verify ... | head`); nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FOUND_BAD


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feeder",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"feeder {feeder.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in _MODULES:
        importlib.import_module(f"feeder.cli.{name}").register(subparsers)
    return parser


def _missing(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    if package == "feeder":
        raise error
    extra = "trainer" if package in ("jax", "flax", "optax", "orbax") else "worker"
    return f"this command needs {package}, which is not installed here; install feeder[{extra}]"
