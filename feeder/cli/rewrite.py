"""`feeder rewrite`: shards that cannot be read record by record become some that can."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from feeder.cli.data import EXIT_FOUND_BAD, Subparsers, clean_on_sigterm
from feeder.cli.options import add_record_options, record_format, record_keys, thread_count
from feeder.figures import size

__all__ = ["register"]

_TEXT = """\
Rewrites shards from start to end. A TFRecord or tar that is compressed as a whole (gzip, zlib) is unpacked
and else stays as it is. Other shards (Parquet with large compressed pages, image folders) become TFRecords
with image/encoded and image/class/label, labels from 1; records that cannot be used are left out and listed.
One new shard for each old one, with its index.
"""
_EXAMPLES = """\
examples:
  feeder rewrite '/data/train-*.tfrecord.gz' unpacked/
  feeder rewrite zstd/ shards/ --image-key img --label-key fine_label
"""


def register(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "rewrite",
        help="unpack compressed shards, convert slow ones",
        description=_TEXT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("patterns", nargs="+", metavar="PATTERN", help="shard, glob or folder")
    parser.add_argument("dst", type=Path, metavar="DST", help="folder for the new shards")
    add_record_options(parser)
    parser.add_argument("--force", action="store_true", help="replace shards of the same names")
    parser.add_argument("--jobs", type=thread_count, metavar="N", help="threads (all usable cores)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=clean_on_sigterm(_rewrite))


def _rewrite(args: argparse.Namespace) -> int:
    from feeder.records.rewrite import rewrite

    result = rewrite(
        args.patterns,
        args.dst,
        keys=record_keys(args),
        format_name=record_format(args),
        index_dir=args.index_dir,
        force=args.force,
        jobs=args.jobs,
        progress=sys.stderr.isatty(),
    )
    if args.json:
        print(
            json.dumps(
                {
                    "shards": [str(path) for path in result.shards],
                    "records": result.records,
                    "bytes": result.nbytes,
                    "bad": [
                        {"shard": error.shard, "index": error.index, "reason": error.reason}
                        for error in result.bad
                    ],
                },
                indent=1,
            )
        )
    else:
        for error in result.bad:
            print(f"left out {error}", file=sys.stderr)
        shards = f"{len(result.shards)} shard{'' if len(result.shards) == 1 else 's'}"
        print(f"{args.dst}: {result.records} records in {shards}, {size(result.nbytes)}")
    return EXIT_FOUND_BAD if result.bad else 0
