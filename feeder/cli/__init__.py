"""The command `feeder`.

Each module beside this one has `register(subparsers)`: it adds its subcommands, and sets as default `run` of
each the function that does the work: `run(args) -> int`, the exit code. Heavy imports happen there, so that
`feeder --help` needs nothing but the standard library, and an environment runs what it has packages for.
"""

from __future__ import annotations

import argparse
import codecs
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

import feeder
from feeder.cli.settings import resolve
from feeder.errors import FeederError

__all__ = ["main"]

_MODULES = (
    "data",
    "verify",
    "rewrite",
    "worker",
    "token",
    "reload",
    "status",
    "doctor",
    "top",
    "preview",
    "config",
    "cache",
    "bench",
    "plan",
    "train",
    "ray",
)

_EXTRAS = {
    **dict.fromkeys(("jax", "flax", "optax", "orbax"), "trainer"),
    "opentelemetry": "tracing",
    "ray": "ray",
    "rich": "top",
}
"""Which extra brings a package, where it is not that of workers."""

EXIT_FOUND_BAD = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

_DESCRIPTION = """\
feeder keeps accelerators fed: data workers decode, crop and stream image batches to training hosts.
"""

_EXAMPLES = """\
examples:
  feeder pack photos/ shards/ --shards 16                         make TFRecord shards of a folder
  feeder worker --dataset train=shards/                           serve them
  feeder status localhost:50051                                   see what a worker serves and does
  feeder doctor localhost:50051                                   see what holds a training up
  feeder top localhost:50051                                      see what it does, live
  feeder preview --data shards/ -o sheet.png                      see what a trainer would see

Each command has a --help of its own.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 well, 1 found something bad, 2 error, 130 interrupted."""
    # What gRPC says of a refused handshake, such as "Corruption detected", would stand before our own reason.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    _prepare_standard_files()
    try:
        args = _parse(_parser(), sys.argv[1:] if argv is None else list(argv))
        run: Callable[[argparse.Namespace], int] = args.run
        code = run(args)
        sys.stdout.flush()  # here, where a full disk can still be reported
        return code
    except FeederError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        return _fail(_missing(error))
    except ImportError as error:
        return _fail(_unloadable(error))
    except KeyboardInterrupt:
        print("feeder: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`feeder verify ... | head`); nobody is left to tell.
        _drop_output()
        return EXIT_FOUND_BAD
    except UnicodeError as error:
        return _fail(f"a name or file that should be UTF-8 text is not: {error}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else "cannot read or write: "
        try:
            sys.stdout.flush()
        except OSError:
            where = "cannot write the output: "
            _drop_output()
        return _fail(f"{where}{error.strerror or error}")


def _prepare_standard_files() -> None:
    """Opens /dev/null where stdin, stdout or stderr is closed: the next shard or socket would get its number,
    and with it what a library has to say. Has stdout take any text."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and codecs.lookup(sys.stdout.encoding).name != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")  # rather than to fail at a name, or at a frame


def _fail(message: str) -> int:
    # Names that are not UTF-8 come with lone surrogates, which stderr writes as escapes.
    print(f"feeder: error: {message}", file=sys.stderr)
    return EXIT_ERROR


def _drop_output() -> None:
    """Sends what is left in stdout's buffer nowhere, so that Python does not fail on it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


class _Version(argparse.Action):
    """Says which kernel there is, too, and so imports it only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        try:
            from feeder.decode._kernel import LEVELS
        except ModuleNotFoundError:
            decoder = "no native kernel"
        else:
            decoder = f"native kernel ({LEVELS[-1]})"
        print(f"feeder {feeder.__version__}, {decoder}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feeder",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show version and decoder, and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in _MODULES:
        importlib.import_module(f"feeder.cli.{name}").register(subparsers)
    return parser


def _parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """The command line, with what file and environment say to a command that asks them."""
    command, words = parser, 0
    while deeper := [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]:
        name = argv[words] if words < len(argv) else ""
        otherwise = command.get_default("otherwise")  # what a command does that is only given options
        if otherwise is not None and name.startswith("-") and name not in ("-h", "--help"):
            argv, name = [*argv[:words], otherwise, *argv[words:]], otherwise
        if name not in deeper[0].choices:
            break
        command, words = deeper[0].choices[name], words + 1
    table: str | None = command.get_default("table")
    settings = None if table is None else resolve(command, table, argv[words:])
    given = argv if settings is None else argv[:words] + settings.argv
    args, unknown = parser.parse_known_args(given)
    if unknown:
        command.error(
            f"unrecognized arguments: {' '.join(unknown)}"
        )  # parse_args() shows the usage of `parser`
    if settings is None:
        return args
    args.settings = settings
    args.again = partial(_parse, parser, argv)  # for a command that is told to read its settings anew
    return args


def _missing(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    if package == "feeder":
        raise error
    extra = _EXTRAS.get(package, "worker")
    return (
        f"this command needs {package}, which is not installed here; from a checkout of feeder: "
        f"pip install '.[{extra}]'"
    )


def _unloadable(error: ImportError) -> str:
    """What to do where a compiled module is there, but not a library of the system that it needs."""
    if ".so" not in error.msg:
        raise error
    return (
        f"cannot load {error.path or error.name}, which is compiled: {error.msg}; "
        "`make system` in a checkout of feeder installs the libraries on Debian and Ubuntu, "
        "docs/deployment.md lists them"
    )
