"""`feeder bench`: measures this machine; what measures is bench/ of a checkout, which no wheel holds."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import feeder
from feeder.cli.data import clean_on_sigterm
from feeder.cli.options import positive
from feeder.errors import ConfigError

__all__ = ["register"]

_EXAMPLES = """\
examples:
  feeder bench decode --input photos/ --rivals           images a second of one core, beside other libraries
  feeder bench parts --input photos/                     what an image costs by part, in microseconds
  feeder bench scale --input photos/                     over threads, crop area and image size
  feeder bench cache --input photos/ --rivals            epochs of which the cache has a part, or all
  feeder bench service --input photos/ --rivals --json   worker and client over TCP, as rows for a file
  feeder bench jobs --input photos/                      two jobs at once on one worker, beside one
  feeder bench wire                                      ready batches over TCP, and as others send them

Rivals are measured if `make rivals` could install them. Run it on a machine that does nothing else.
"""


_DEFAULT = "(default %(default)s)"

_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "folder": ("--input", {"type": Path, "metavar": "DIR", "help": "folder of JPEGs"}),
    "shards": ("--shards", {"metavar": "PATTERN", "help": "TFRecord shards: a path, glob or folder"}),
    "images": ("--images", {"type": positive, "default": 600, "help": f"most files used {_DEFAULT}"}),
    "threads": (
        "--threads",
        {"type": positive, "default": 1, "help": f"decode threads and cores {_DEFAULT}"},
    ),
    "decoder": (
        "--decoder",
        {
            "choices": ("native", "portable"),
            "default": "native",
            "help": f"which of feeder's the others are compared with {_DEFAULT}",
        },
    ),
    "instructions": (
        "--instructions",
        {"action": "store_true", "help": "count instructions too, by valgrind; takes minutes"},
    ),
    "batches": (
        "--batches",
        {"type": positive, "help": f"batches of 64 timed a round {_DEFAULT}"},
    ),
    "rivals": ("--rivals", {"action": "store_true", "help": "run the other systems too (see make rivals)"}),
    "rounds": (
        "--rounds",
        {"type": positive, "default": 7, "help": f"rounds kept after a warm-up {_DEFAULT}"},
    ),
    "size": (
        "--size",
        {"type": positive, "default": 224, "help": f"output side in pixels {_DEFAULT}"},
    ),
    "as_json": ("--json", {"action": "store_true", "help": "JSON lines instead of a table"}),
}
"""Arguments of the run() functions of bench/: the flag of each, and what argparse is told of it."""

_COMMON: dict[str, dict[str, Any]] = {"rounds": {}, "size": {}, "as_json": {}}


@dataclass(frozen=True)
class _Stage:
    """What can be measured, by run() of bench/bench_NAME.py.

    Attributes:
        help: one line.
        options: arguments of run(), in the order of the help: what differs from _OPTIONS.
        either: arguments of which exactly one must be given.
    """

    help: str
    options: dict[str, dict[str, Any]]
    either: tuple[str, ...] = ()


_STAGES = {
    "decode": _Stage(
        "JPEG bytes in memory to cropped, resized, flipped batches in memory",
        {"folder": {"required": True}, "images": {}, "threads": {}, "decoder": {}, "rivals": {}, **_COMMON},
    ),
    "parts": _Stage(
        "what an image costs: read, entropy, IDCT, resample and colour",
        {"folder": {"required": True}, "images": {}, "instructions": {}, **_COMMON},
    ),
    "scale": _Stage(
        "decode over threads, crop area and image size",
        {
            "folder": {"required": True},
            "images": {"default": 150},
            "rivals": {},
            **_COMMON,
            "rounds": {"default": 5},
        },
    ),
    "cache": _Stage(
        "epochs with nothing, some or all of their images in the cache; speed of indexing",
        {"folder": {"required": True}, "images": {}, "rivals": {}, **_COMMON},
    ),
    "service": _Stage(
        "a worker and a client, each a process, over TCP loopback and on one host",
        {
            "folder": {"help": "folder of JPEGs, packed into shards first"},
            "shards": {},
            "threads": {
                "default": None,
                "help": "decode threads of the worker (default: as many as cores)",
            },
            "batches": {"default": 6},
            "rivals": {},
            **_COMMON,
            "rounds": {"default": 120},
        },
        either=("folder", "shards"),
    ),
    "jobs": _Stage(
        "two jobs at once on one worker beside one: of one spec, which share what is made, and of two",
        {
            "folder": {"help": "folder of JPEGs, packed into shards first"},
            "shards": {},
            "threads": {
                "default": None,
                "help": "decode threads of the worker (default: as many as cores)",
            },
            "batches": {"default": 40},
            **_COMMON,
            "rounds": {"default": 5},
        },
        either=("folder", "shards"),
    ),
    "wire": _Stage(
        "batches that are ready, from one process to another over TCP loopback",
        {"batches": {"default": 200}, **_COMMON},
    ),
}


def register(subparsers: Any) -> None:
    """Adds `bench decode` and its siblings."""
    bench = subparsers.add_parser(
        "bench",
        help="measure decode and service on this machine",
        description="Measures feeder on this machine, beside other libraries if asked to. Needs a checkout.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    kinds = bench.add_subparsers(title="what to measure", metavar="STAGE", required=True)
    for name, stage in _STAGES.items():
        parser = kinds.add_parser(name, help=stage.help, allow_abbrev=False)
        either = parser.add_mutually_exclusive_group(required=True) if stage.either else parser
        for option, differs in stage.options.items():
            flag, settings = _OPTIONS[option]
            place = either if option in stage.either else parser
            place.add_argument(flag, dest=option, **settings | differs)
        parser.set_defaults(run=clean_on_sigterm(functools.partial(_run, name)))


def _run(name: str, args: argparse.Namespace) -> int:
    options = {option: getattr(args, option) for option in _STAGES[name].options}
    return int(_bench_module(f"bench_{name}").run(**options))


def _bench_module(name: str) -> Any:
    """Imports a module of the checkout's bench/, which is no part of any distribution."""
    here = Path.cwd()
    places = [here, *here.parents, Path(feeder.__file__).resolve().parent.parent]
    for place in places:
        if (place / "bench" / "harness.py").is_file():
            sys.path.insert(0, str(place))
            return importlib.import_module(f"bench.{name}")
    raise ConfigError(
        f"feeder bench needs a checkout of feeder: there is no bench/harness.py in {here} or above; "
        "run it from the checkout"
    )
