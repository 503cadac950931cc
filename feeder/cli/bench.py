"""`feeder bench`: measures this machine; what measures is bench/ of a checkout, which no wheel holds."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import feeder
from feeder.errors import ConfigError

__all__ = ["register"]

_EXAMPLES = """\
examples:
  feeder bench decode --input photos/ --rivals           images a second of one core, beside other libraries
  feeder bench parts --input photos/                     what an image costs by part, in microseconds
  feeder bench scale --input photos/                     over threads, crop area and image size
  feeder bench cache --input photos/ --rivals            epochs of which the cache has a part, or all
  feeder bench service --input photos/ --rivals --json   worker and client over TCP, as rows for a file
  feeder bench wire                                      ready batches over TCP, and as others send them

Rivals are measured if `make rivals` could install them. Run it on a machine that does nothing else.
"""


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

    decode = kinds.add_parser(
        "decode",
        help="JPEG bytes in memory to cropped, resized, flipped batches in memory",
        allow_abbrev=False,
    )
    decode.add_argument("--input", type=Path, required=True, metavar="DIR", help="folder of JPEGs")
    decode.add_argument(
        "--images", type=_at_least_one, default=600, help="most files used (default %(default)s)"
    )
    decode.add_argument(
        "--threads", type=_at_least_one, default=1, help="decode threads and cores (default %(default)s)"
    )
    decode.add_argument(
        "--decoder",
        choices=("native", "portable"),
        default="native",
        help="which of feeder's the others are compared with (default %(default)s)",
    )
    _add_rivals(decode)
    _add_common(decode)
    decode.set_defaults(run=_decode)

    parts = kinds.add_parser(
        "parts",
        help="what an image costs: read, entropy, IDCT, resample and colour",
        allow_abbrev=False,
    )
    parts.add_argument("--input", type=Path, required=True, metavar="DIR", help="folder of JPEGs")
    parts.add_argument(
        "--images", type=_at_least_one, default=600, help="most files used (default %(default)s)"
    )
    parts.add_argument(
        "--instructions", action="store_true", help="count instructions too, by valgrind; takes minutes"
    )
    _add_common(parts)
    parts.set_defaults(run=_parts)

    scale = kinds.add_parser(
        "scale",
        help="decode over threads, crop area and image size",
        allow_abbrev=False,
    )
    scale.add_argument("--input", type=Path, required=True, metavar="DIR", help="folder of JPEGs")
    scale.add_argument(
        "--images", type=_at_least_one, default=150, help="most files used (default %(default)s)"
    )
    _add_rivals(scale)
    _add_common(scale, rounds=5)
    scale.set_defaults(run=_scale)

    cache = kinds.add_parser(
        "cache",
        help="epochs with nothing, some or all of their images in the cache; speed of indexing",
        allow_abbrev=False,
    )
    cache.add_argument("--input", type=Path, required=True, metavar="DIR", help="folder of JPEGs")
    cache.add_argument(
        "--images", type=_at_least_one, default=600, help="most files used (default %(default)s)"
    )
    _add_rivals(cache)
    _add_common(cache)
    cache.set_defaults(run=_cache)

    service = kinds.add_parser(
        "service",
        help="a worker and a client, each a process, over TCP loopback and on one host",
        allow_abbrev=False,
    )
    source = service.add_mutually_exclusive_group(required=True)
    source.add_argument("--input", type=Path, metavar="DIR", help="folder of JPEGs, packed into shards first")
    source.add_argument("--shards", metavar="PATTERN", help="TFRecord shards: a path, glob or folder")
    service.add_argument(
        "--threads", type=_at_least_one, help="decode threads of the worker (default: as many as cores)"
    )
    service.add_argument(
        "--batches", type=_at_least_one, default=40, help="batches of 64 timed a round (default %(default)s)"
    )
    _add_rivals(service)
    _add_common(service)
    service.set_defaults(run=_service)

    wire = kinds.add_parser(
        "wire",
        help="batches that are ready, from one process to another over TCP loopback",
        allow_abbrev=False,
    )
    wire.add_argument(
        "--batches", type=_at_least_one, default=200, help="batches of 64 timed a round (default %(default)s)"
    )
    _add_common(wire)
    wire.set_defaults(run=_wire)


def _add_rivals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rivals", action="store_true", help="run the other systems too (see make rivals)")


def _add_common(parser: argparse.ArgumentParser, *, rounds: int = 7) -> None:
    parser.add_argument(
        "--rounds",
        type=_at_least_one,
        default=rounds,
        help="rounds kept after a warm-up (default %(default)s)",
    )
    parser.add_argument(
        "--size", type=_at_least_one, default=224, help="output side in pixels (default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")


def _decode(args: argparse.Namespace) -> int:
    module = _bench_module("bench_decode")
    return int(
        module.run(
            args.input,
            decoder=args.decoder,
            rivals=args.rivals,
            as_json=args.json,
            rounds=args.rounds,
            images=args.images,
            size=args.size,
            threads=args.threads,
        )
    )


def _parts(args: argparse.Namespace) -> int:
    module = _bench_module("bench_parts")
    return int(
        module.run(
            args.input,
            instructions=args.instructions,
            as_json=args.json,
            rounds=args.rounds,
            images=args.images,
            size=args.size,
        )
    )


def _scale(args: argparse.Namespace) -> int:
    module = _bench_module("bench_scale")
    return int(
        module.run(
            args.input,
            rivals=args.rivals,
            as_json=args.json,
            rounds=args.rounds,
            images=args.images,
            size=args.size,
        )
    )


def _cache(args: argparse.Namespace) -> int:
    module = _bench_module("bench_cache")
    return int(
        module.run(
            args.input,
            rivals=args.rivals,
            as_json=args.json,
            rounds=args.rounds,
            images=args.images,
            size=args.size,
        )
    )


def _service(args: argparse.Namespace) -> int:
    module = _bench_module("bench_service")
    return int(
        module.run(
            folder=args.input,
            shards=args.shards,
            rivals=args.rivals,
            as_json=args.json,
            rounds=args.rounds,
            batches=args.batches,
            size=args.size,
            threads=args.threads,
        )
    )


def _wire(args: argparse.Namespace) -> int:
    module = _bench_module("bench_wire")
    return int(module.run(as_json=args.json, rounds=args.rounds, batches=args.batches, size=args.size))


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


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number
