"""`feeder pack`, `synth` and `index`: making data sets and their indexes."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from feeder.cli.options import add_record_options, record_format, record_keys, thread_count
from feeder.errors import printable
from feeder.figures import size

if TYPE_CHECKING:
    from types import FrameType

    from feeder.cli.learn import Learned
    from feeder.records.objects import Shard

__all__ = ["EXIT_FOUND_BAD", "Subparsers", "clean_on_sigterm", "count", "register"]

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

PACKED_FORMATS = ("tfrecord", "webdataset", "parquet")

SLOW_SHOWN = 3
"""Shards that a worker reads slowly or not, which `feeder index` names."""

EXIT_FOUND_BAD = 1

_PACK = """\
Packs images into shards, shuffled once. SRC holds class folders (SRC/cat/1.jpg), or files with
ImageNet names (n01440764_10026.JPEG: the class comes before the underscore). Files are kept byte for byte.
Writes NAME-00000-of-NNNNN, an index beside each, and labels.json; nothing half-written has a final name.
"""
_PACK_EXAMPLES = """\
examples:
  feeder pack photos/ shards/ --shards 16
  feeder pack photos/ shards/ --shards 16 --holdout 0.1    # a tenth of each class into validation-*
"""

_SYNTH = """\
Draws photo-like JPEGs into class folders: natural-spectrum backgrounds with objects whose hue and shape
tell the classes apart, in the sizes, qualities and subsamplings of ImageNet (110 kB on average). The same
seed makes the same files.
"""
_SYNTH_EXAMPLES = """\
examples:
  feeder synth photos/ --images 2000 --classes 10
  feeder pack photos/ shards/ --shards 8
"""

_INDEX = """\
Reads each shard once and writes its index, unless a good one is there. A worker does the same when it
starts. Processes that keep indexes in one folder, on any hosts, share the work; one that is killed is
replaced after half a minute. A PATTERN is a shard, a glob in quotes, or a folder, which stands for all
shards in it.

With --seek it also decodes each image once and keeps where decoding may start (1 kB a record), so that
workers decode only what a crop needs from the first epoch on; without, they learn that as they go. Started
again after an interruption it goes on where it ended.
"""
_INDEX_EXAMPLES = """\
examples:
  feeder index shards/ --seek
  feeder index '/data/imagenet/train-*' --index-dir /shared/indexes --jobs 16
  feeder index 's3://bucket/imagenet/train-*' --index-dir /shared/indexes
"""


def register(subparsers: Subparsers) -> None:
    """Adds the commands of this module."""
    _register_pack(subparsers)
    _register_synth(subparsers)
    _register_index(subparsers)


def clean_on_sigterm(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Makes SIGTERM, and a terminal that goes away, end a command as Ctrl-C does, hidden files removed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    @wraps(run)
    def command(args: argparse.Namespace) -> int:
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as nohup wants it
                signal.signal(number, end)
        try:
            return run(args)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    return command


def _command(
    subparsers: Subparsers,
    name: str,
    help_line: str,
    text: str,
    examples: str,
) -> argparse.ArgumentParser:
    return subparsers.add_parser(
        name,
        help=help_line,
        description=text,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _register_pack(subparsers: Subparsers) -> None:
    parser = _command(
        subparsers,
        "pack",
        "make shards of a folder of images",
        _PACK,
        _PACK_EXAMPLES,
    )
    parser.add_argument("src", type=Path, metavar="SRC", help="folder of images")
    parser.add_argument("dst", type=Path, metavar="DST", help="folder for the shards")
    parser.add_argument("--shards", type=int, required=True, metavar="N", help="number of shards")
    parser.add_argument("--name", default="train", help="name of the set, in the shard names (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the shuffle (%(default)s)")
    parser.add_argument(
        "--format",
        choices=PACKED_FORMATS,
        default="tfrecord",
        help="of the shards (%(default)s)",
    )
    parser.add_argument(
        "--label-base", type=int, metavar="N", help="label of the first class (TFRecord 1, others 0)"
    )
    parser.add_argument(
        "--holdout",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of each class for validation-* shards",
    )
    parser.add_argument("--strict", action="store_true", help="fail on a file that is no image")
    parser.add_argument("--force", action="store_true", help="replace shards of these names")
    parser.add_argument("--jobs", type=thread_count, metavar="N", help="threads (all usable cores)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=clean_on_sigterm(_pack))


def _pack(args: argparse.Namespace) -> int:
    from feeder.records.folder import LABELS_FILE
    from feeder.records.pack import pack

    result = pack(
        args.src,
        args.dst,
        shards=args.shards,
        seed=args.seed,
        name=args.name,
        label_base=args.label_base,
        holdout=args.holdout,
        strict=args.strict,
        force=args.force,
        jobs=args.jobs,
        progress=_progress(),
        format_name=args.format,
    )
    if args.json:
        _print_json(
            {
                "records": result.records,
                "holdout": result.holdout,
                "classes": len(result.classes),
                "labels": str(args.dst / LABELS_FILE),
                "shards": [str(path) for path in result.shards],
                "bytes": result.nbytes,
                "skipped": [{"file": file, "reason": reason} for file, reason in result.skipped],
            }
        )
        return 0
    for file, reason in result.skipped:
        print(printable(f"skipped {file}: {reason}"), file=sys.stderr)
    held = f" and {result.holdout} held out" if result.holdout else ""
    skipped = f", {count(len(result.skipped), 'file')} skipped" if result.skipped else ""
    if args.holdout and not result.holdout:
        print(
            f"feeder: warning: --holdout {args.holdout:g} held nothing out: no class has so many images that "
            "one is its share and another stays",
            file=sys.stderr,
        )
    print(
        f"{args.dst}: {count(result.records, 'image')}{held} "
        f"of {count(len(result.classes), 'class', 'classes')} "
        f"in {count(len(result.shards), 'shard')}, {size(result.nbytes)}{skipped}"
    )
    return 0


def _register_synth(subparsers: Subparsers) -> None:
    parser = _command(
        subparsers,
        "synth",
        "make a folder of synthetic photographs",
        _SYNTH,
        _SYNTH_EXAMPLES,
    )
    parser.add_argument("dst", type=Path, metavar="DST", help="folder to make; must be empty or missing")
    parser.add_argument("--images", type=int, required=True, metavar="N", help="number of images")
    parser.add_argument(
        "--classes", type=int, required=True, metavar="K", help="number of classes, at most 1000"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="%(default)s unless given")
    parser.add_argument("--jobs", type=thread_count, metavar="N", help="threads (all usable cores)")
    parser.set_defaults(run=clean_on_sigterm(_synth))


def _synth(args: argparse.Namespace) -> int:
    from feeder.records.synth import synth

    result = synth(args.dst, args.images, args.classes, seed=args.seed, jobs=args.jobs, progress=_progress())
    print(
        f"{args.dst}: {count(result.images, 'image')} of {count(len(result.classes), 'class', 'classes')}, "
        f"{size(result.nbytes)}"
    )
    return 0


def _register_index(subparsers: Subparsers) -> None:
    parser = _command(
        subparsers,
        "index",
        "build the indexes of shards",
        _INDEX,
        _INDEX_EXAMPLES,
    )
    parser.add_argument(
        "patterns", nargs="+", metavar="PATTERN", help="shard, glob or folder, or the URL of one"
    )
    add_record_options(parser)
    parser.add_argument("--seek", action="store_true", help="learn the seek points of all images")
    parser.add_argument("--force", action="store_true", help="build all anew, also good ones")
    parser.add_argument("--jobs", type=thread_count, metavar="N", help="threads (all usable cores)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=clean_on_sigterm(_index))


def _index(args: argparse.Namespace) -> int:
    import time
    from dataclasses import asdict

    from feeder.records.access import slowness
    from feeder.records.build import ensure_indexes
    from feeder.records.dataset import fingerprint
    from feeder.records.shards import expand
    from feeder.records.stream import COMPRESSIONS

    shards = expand(args.patterns, record_format(args))
    built: list[Shard] = []
    started = time.monotonic()
    indexes = ensure_indexes(
        shards,
        record_keys(args),
        index_dir=args.index_dir,
        force=args.force,
        jobs=args.jobs,
        progress=_progress(),
        format_name=record_format(args),
        sequential=True,
        on_built=lambda shard, reason: built.append(shard),
    )
    seconds = time.monotonic() - started
    nbytes = sum(index.state.size for index in indexes)
    records = sum(len(index) for index in indexes)
    bad = sum(int((index.label < 0).sum()) for index in indexes)
    learned = _learn(args) if args.seek and records else None
    if args.json:
        seek = {"seek": asdict(learned)} if learned else {}
        _print_json(
            seek
            | {
                "shards": len(shards),
                "built": len(built),
                "records": records,
                "bad": bad,
                "damaged": {
                    str(path): index.damage
                    for path, index in zip(shards, indexes, strict=True)
                    if index.damage
                },
                "bytes": nbytes,
                "seconds": round(seconds, 3),
                "fingerprint": fingerprint(indexes),
            }
        )
        return 0
    new = set(built)
    read = sum(index.state.size for path, index in zip(shards, indexes, strict=True) if path in new)
    rate = read / 1e6 / max(seconds, 1e-9)
    speed = f" at {rate:.0f} MB/s" if built else ""
    print(
        f"{count(len(shards), 'shard')}, {count(records, 'record')}, {size(nbytes)}: "
        f"{count(len(built), 'index', 'indexes')} built{speed}"
    )
    slow = [
        f"{path}: is compressed with {index.codec}: a worker reads it after `feeder rewrite`"
        if index.codec in COMPRESSIONS
        else f"{path}: {reason}"
        for path, index in zip(shards, indexes, strict=True)
        if (reason := slowness(index)) or index.codec in COMPRESSIONS
    ]
    for line in slow[:SLOW_SHOWN]:
        print(line, file=sys.stderr)
    if len(slow) > SLOW_SHOWN:
        print(f"and {count(len(slow) - SLOW_SHOWN, 'shard')} more like these", file=sys.stderr)
    if learned:
        print(
            f"seek points of {count(learned.records, 'record')}: {learned.complete:,} complete, "
            f"{learned.partial:,} partial (damaged images), {learned.none + learned.bad:,} impossible (no "
            f"baseline JPEG, or bad); {learned.learned:,} learned now"
        )
        if learned.damaged:
            print(
                f"{count(learned.damaged, 'image')} damaged: run feeder verify to list them",
                file=sys.stderr,
            )
    if bad:
        print(f"{count(bad, 'record')} cannot be used: run feeder verify to list them", file=sys.stderr)
    return 0


def _learn(args: argparse.Namespace) -> Learned:
    from feeder.cli.learn import learn
    from feeder.records import Dataset

    with Dataset.open(
        "index",
        args.patterns,
        keys=record_keys(args),
        index_dir=args.index_dir,
        build=False,
        format_name=record_format(args),
        seek="learn",
    ) as dataset:
        return learn(dataset, force=args.force, jobs=args.jobs, progress=_progress())


def count(number: int, one: str, many: str = "") -> str:
    """A number and what it counts."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _progress() -> bool:
    return sys.stderr.isatty()


def _print_json(result: dict[str, object]) -> None:
    print(json.dumps(result, indent=1))
