"""Options that several commands have, and what they say."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feeder.records import RecordKeys
    from feeder.records.keys import FormatName
    from feeder.wire.credentials import Credentials

__all__ = [
    "CREDENTIALS",
    "add_client_options",
    "add_dataset_options",
    "add_record_options",
    "amount",
    "client_credentials",
    "file_name",
    "file_path",
    "folder_path",
    "label_base",
    "positive",
    "record_format",
    "record_keys",
    "thread_count",
]

CREDENTIALS = {
    "tls_ca": "speak TLS with workers whose certificate is of an authority in this file, or of those that "
    'this system trusts if it says "system" (default: $FEEDER_TLS_CA)',
    "tls_cert": "certificate to show to workers that want one (default: $FEEDER_CLIENT_CERT)",
    "tls_key": "its key, if it is in a file of its own (default: $FEEDER_CLIENT_KEY)",
    "token_file": "holds the token to show to workers that want one (default: $FEEDER_TOKEN_FILE)",
}
"""Fields of Credentials, and what they are for."""

MAX_THREADS = 4096

FORMATS = ("auto", "tfrecord", "webdataset", "parquet", "folder")


def add_record_options(parser: argparse.ArgumentParser) -> None:
    """Options that say how records are read: format, keys, label base, place of the indexes."""
    group = parser.add_argument_group("how the records are read")
    group.add_argument(
        "--format",
        choices=FORMATS,
        default="auto",
        help="of the shards; auto: what their content says (%(default)s)",
    )
    group.add_argument(
        "--image-key",
        metavar="KEY",
        help="where a record keeps its image: TFRecord feature (image/encoded), WebDataset suffixes "
        "(jpg;jpeg;png;webp), Parquet column (image)",
    )
    group.add_argument(
        "--label-key",
        metavar="KEY",
        help="the same for its class: image/class/label, cls;json, label; json:NAME names a value in a .json",
    )
    group.add_argument(
        "--label-base",
        type=label_base,
        metavar="N",
        help="label of the first class in the records (TFRecord 1, where 0 is background; others 0)",
    )
    group.add_argument(
        "--index-dir",
        type=folder_path,
        metavar="DIR",
        help="keep indexes there, not beside the shards; workers that share it share the work of making them "
        "(URLs need one)",
    )


def add_dataset_options(parser: argparse.ArgumentParser) -> None:
    """Options of a command that opens a data set: decoder, records, and whether indexes are built."""
    parser.add_argument(
        "--decoder",
        choices=["auto", "native", "portable"],
        default="auto",
        help="native kernel, portable libraries, or the first that is there (default: %(default)s)",
    )
    add_record_options(parser)
    parser.add_argument(
        "--index-build",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="build a missing or stale index; without, it is an error",
    )


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Options of a command that talks to workers: what they are shown, and whom it trusts."""
    group = parser.add_argument_group("workers with TLS or tokens, see docs/security.md")
    for name, text in CREDENTIALS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=file_name, metavar="FILE", help=text)


def client_credentials(args: argparse.Namespace) -> Credentials:
    """What the options say, and the environment where they say nothing.

    Raises:
        ConfigError: they do not go together.
    """
    from feeder.wire.credentials import Credentials

    said = {name: getattr(args, name) for name in CREDENTIALS if getattr(args, name) is not None}
    return Credentials.from_environment(**said)


def record_keys(args: argparse.Namespace) -> RecordKeys:
    """What the options say of the keys."""
    from feeder.records import RecordKeys

    return RecordKeys(args.image_key, args.label_key, args.label_base)


def record_format(args: argparse.Namespace) -> FormatName | None:
    """The format that the options say, or None where the content shall tell."""
    return None if args.format == "auto" else args.format


def label_base(text: str) -> int:
    """The value of --label-base: a number from 0 on, as `feeder pack` writes it."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number from 0 on, got {text!r}")
    return int(text)


def folder_path(text: str) -> Path:
    """The value of an option that names a folder; "" is more likely a variable that is not set than "."."""
    if not text:
        raise argparse.ArgumentTypeError("must name a folder, got an empty string")
    return Path(text)


def file_path(text: str) -> Path:
    """The value of an option that names a file."""
    if not text:
        raise argparse.ArgumentTypeError("must name a file, got an empty string")
    return Path(text)


def positive(text: str) -> int:
    """The value of an option that counts something."""
    if not text.isdecimal() or not 1 <= int(text) <= sys.maxsize:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, got {text!r}")
    return int(text)


def amount(text: str) -> float:
    """The value of an option that is a quantity: more than 0, such as 1.05e6."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def thread_count(text: str) -> int:
    """The value of --jobs."""
    if not text.isdecimal() or not 1 <= int(text) <= MAX_THREADS:
        raise argparse.ArgumentTypeError(f"must be in [1, {MAX_THREADS}], got {text!r}")
    return int(text)


def file_name(text: str) -> str:
    """The value of an option that names a file or says another word."""
    file_path(text)
    return text
