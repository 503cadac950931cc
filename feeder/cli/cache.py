"""`feeder cache`: what is in a cache folder, and away with it."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from feeder.cli.options import folder_path
from feeder.errors import ConfigError, printable
from feeder.figures import size

if TYPE_CHECKING:
    from feeder.cache import Folder

__all__ = ["add_cache_options", "register"]

EXIT_FOUND_BAD = 1


def add_cache_options(parser: argparse.ArgumentParser) -> None:
    """Adds what `feeder worker` is told of its cache."""
    parser.add_argument(
        "--cache-bytes",
        metavar="SIZE",
        help="keep decoded images for later epochs, at most so much of all workers of the folder together: "
        "64GiB, 500MB, or 80%% of the file system or of the cgroup's memory, whichever is less (default: no "
        "cache; with --cache-dir or --warm 80%%)",
    )
    parser.add_argument(
        "--cache-dir",
        type=folder_path,
        metavar="DIR",
        help="folder of the cache, your own (default: /dev/shm/feeder-UID)",
    )
    parser.add_argument(
        "--encoded-cache-bytes",
        metavar="SIZE",
        help="keep records of object stores as they are stored, at most so much of all workers of the folder "
        "together (default: none are kept; with --encoded-cache-dir 80%%)",
    )
    parser.add_argument(
        "--encoded-cache-dir",
        type=folder_path,
        metavar="DIR",
        help="folder of that cache, your own, such as one on a local disk "
        "(default: /dev/shm/feeder-UID-encoded)",
    )
    parser.add_argument(
        "--warm",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="fill the cache from the start with all records, not only with those that are asked for",
    )


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "cache",
        help="what a cache of decoded images holds",
        description="Shows, empties or checks the folder in which workers with --cache-bytes keep decoded\n"
        "images. All of it may be done while they run.",
        epilog="examples:\n"
        "  feeder cache ls\n"
        "  feeder cache drop --dataset train\n"
        "  feeder cache verify --cache-dir /nvme/feeder\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    ls = actions.add_parser("ls", help="segments by data set, and who uses them", allow_abbrev=False)
    ls.set_defaults(run=_ls)
    drop = actions.add_parser(
        "drop", help="remove segments; workers let go of them within seconds", allow_abbrev=False
    )
    drop.add_argument(
        "--dataset", metavar="NAME", help="only what a worker filled for this data set (default: everything)"
    )
    drop.set_defaults(run=_drop)
    verify = actions.add_parser(
        "verify", help="check every byte; exit code 1 where a segment is damaged", allow_abbrev=False
    )
    verify.add_argument("--drop", action="store_true", help="remove what is damaged")
    verify.set_defaults(run=_verify)
    for action in (ls, drop, verify):
        action.add_argument(
            "--cache-dir",
            type=folder_path,
            metavar="DIR",
            help="folder of the cache (default: /dev/shm/feeder-UID)",
        )


def _folder(args: argparse.Namespace) -> Folder:
    from feeder.cache import Folder, default_folder

    path = args.cache_dir or default_folder()
    if not (path / "users").is_dir():
        raise ConfigError(f"{path}: no cache here: name its folder (--cache-dir)")
    return Folder(path)


def _ls(args: argparse.Namespace) -> int:
    from feeder.cache.segment import Segment, SegmentUnusable

    folder = _folder(args)
    segments: Counter[tuple[str, str]] = Counter()
    records: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    for name in folder.names():
        try:
            segment = Segment(folder.path / name, name, check=False)
            key = segment.dataset, segment.pixels
        except SegmentUnusable:
            key = "(damaged)", ""
            nbytes[key] += (folder.path / name).stat().st_size
        except FileNotFoundError:
            continue
        else:
            records[key] += len(segment.rows)
            nbytes[key] += segment.nbytes
        segments[key] += 1
    with folder.locked():
        users, used = folder.users(), folder.used()
    print(f"{folder.path}: {size(used)}")
    for user in users:
        print(f"  in use by process {user.pid}, which keeps it below {size(user.budget)}")
    if not segments:
        print("  no segments")
        return 0
    width = max([8, *(len(dataset) for dataset, _ in segments)])
    print(f"  {'data set':{width}}  {'records':>10}  {'segments':>8}  {'MB':>10}  {'kB each':>7}  pixels")
    for key in sorted(segments):
        each = f"{nbytes[key] / records[key] / 1e3:.1f}" if records[key] else ""
        print(
            f"  {key[0]:{width}}  {records[key]:>10,}  {segments[key]:>8,}  {nbytes[key] / 1e6:>10,.1f}  "
            f"{each:>7}  {key[1]}"
        )
    return 0


def _drop(args: argparse.Namespace) -> int:
    from feeder.cache.segment import Segment, SegmentUnusable

    folder = _folder(args)
    dropped = []
    there = set()
    for name in folder.names():
        try:
            dataset = args.dataset
            if dataset is not None:
                there.add(dataset := Segment(folder.path / name, name, check=False).dataset)
            if dataset == args.dataset:
                dropped.append(name)
        except SegmentUnusable:
            dropped.append(name)
        except FileNotFoundError:
            continue
    if args.dataset is not None and args.dataset not in there:
        has = ", ".join(sorted(map(printable, there))) or "none"
        raise ConfigError(f"{folder.path}: holds nothing of a data set {args.dataset!r}; it has: {has}")
    with folder.locked():
        before = folder.used()
        folder.evict(dropped)
        freed, users = before - folder.used(), folder.users()
    later = ", the rest when the workers let go" if dropped and users else ""
    print(f"{folder.path}: {len(dropped)} segments dropped, {size(freed)} freed{later}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from feeder.cache.segment import Segment, SegmentUnusable

    folder = _folder(args)
    damaged, sound, records = [], 0, 0
    for name in folder.names():
        try:
            records += len(Segment(folder.path / name, name).rows)
            sound += 1
        except SegmentUnusable as error:
            damaged.append(name)
            print(f"{folder.path / name}: {error}")
        except FileNotFoundError:
            continue
    if args.drop:
        with folder.locked():
            folder.evict(damaged)
    print(
        f"{folder.path}: {sound} segments with {records:,} records are sound, {len(damaged)} damaged"
        + (" and dropped" if damaged and args.drop else "")
    )
    return EXIT_FOUND_BAD if damaged else 0
