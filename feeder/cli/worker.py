"""`feeder worker`: a daemon that serves data sets."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from feeder.cli.cache import add_cache_options
from feeder.cli.log import add_log_options, log_to_stderr
from feeder.cli.options import add_dataset_options, file_path, folder_path, record_format, record_keys
from feeder.cli.settings import Settings, add_config_option, options, variable
from feeder.errors import ConfigError, FeederError

if TYPE_CHECKING:
    from feeder.wire.address import Address
    from feeder.worker import WorkerConfig

__all__ = ["add_worker_options", "register", "worker_config", "worker_environment"]

log = logging.getLogger(__name__)

Value = TypeVar("Value")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "worker",
        help="serve data sets to trainers",
        description="Serves data sets until SIGTERM or SIGINT (Ctrl-C), which let it answer what it owes\n"
        "and go; a second one forces it. SIGHUP, or `feeder reload`, has it read its settings again. Prints\n"
        "one line on stdout when it is ready; logs go to stderr.",
        epilog="examples:\n"
        "  feeder worker --dataset train=/data/train/ --dataset val=/data/val/ --threads 8\n"
        "  feeder worker --dataset t=/data/ --listen 0.0.0.0:50051 --tls-cert cert.pem --tls-key key.pem\n"
        "  feeder worker --dataset train='/data/train-*' --listen unix:/run/feeder.sock --threads 8\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_worker_options(parser)
    parser.set_defaults(run=_worker)


def add_worker_options(parser: argparse.ArgumentParser, listen: str = "127.0.0.1:50051") -> None:
    """Adds all that a worker can be told.

    Args:
        listen: where it listens by default.
    """
    add_config_option(parser, "worker")
    parser.add_argument(
        "--dataset",
        action="append",
        metavar="NAME=PATTERN",
        help="shards to serve as NAME: a file, a glob or a folder, or the URL of one (s3://bucket/train-*); "
        "may be given many times, also with the same NAME to add shards to it",
    )
    parser.add_argument(
        "--listen",
        default=listen,
        metavar="ADDR",
        help="host:port (port 0 takes any free one) or unix:/path; where other hosts can reach it, TLS, "
        "tokens or --insecure must be said (default: %(default)s)",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="decode threads (default: CPUs that this process may use)"
    )
    parser.add_argument(
        "--max-streams",
        type=int,
        default=64,
        metavar="N",
        help="consumers served at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--max-streams-per-job",
        type=int,
        metavar="N",
        help="consumers of one job served at a time; a session without a job is one (default: --max-streams)",
    )
    parser.add_argument(
        "--share-bytes",
        default="1GiB",
        metavar="SIZE",
        help="most that is kept of what was made for one stream and is still to be asked for by another of "
        "the same data set and settings; 0: each has its own made (default: %(default)s)",
    )
    parser.add_argument(
        "--drain-s",
        type=float,
        default=30.0,
        metavar="S",
        help="after SIGTERM or SIGINT, seconds until streams still owed answers are cut "
        "(default: %(default)g)",
    )
    add_dataset_options(parser)
    parser.add_argument(
        "--seek",
        choices=["learn", "use", "off"],
        default="learn",
        help="seek points, which make it cheaper to decode records again: keep them beside the indexes where "
        "they can be written, only use what is there, or neither (default: %(default)s)",
    )
    add_cache_options(parser)
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="answer there with a status page (/), /metrics (Prometheus), /livez, /readyz and /startupz, "
        "with TLS where --tls-cert is given (default: nowhere)",
    )
    security = parser.add_argument_group("who may connect, see docs/security.md")
    security.add_argument(
        "--tls-cert",
        type=file_path,
        metavar="FILE",
        help="speak TLS, with this certificate in PEM (default: none)",
    )
    security.add_argument(
        "--tls-key",
        type=file_path,
        metavar="FILE",
        help="its key in PEM, without a passphrase (default: in the file of the certificate)",
    )
    security.add_argument(
        "--tls-client-ca",
        type=file_path,
        metavar="FILE",
        help="clients must have a certificate of one of these authorities (default: they need none)",
    )
    security.add_argument(
        "--tokens",
        type=file_path,
        metavar="FILE",
        help="clients must have a token of this file, which `feeder token` makes entries for (default: they "
        "need none)",
    )
    security.add_argument(
        "--insecure",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="serve other hosts with neither TLS nor tokens: whoever reaches the worker can read its data",
    )
    same_host = parser.add_argument_group("trainers on this host, whose memory batches are written into")
    same_host.add_argument(
        "--arena-bytes",
        default="64GiB",
        metavar="SIZE",
        help="most of it that is mapped at a time; 0: they are served over the network (default: "
        "%(default)s)",
    )
    same_host.add_argument(
        "--arena-dir",
        type=folder_path,
        metavar="DIR",
        help="folder, your own, of the socket over which it is handed over (default: feeder in "
        "$XDG_RUNTIME_DIR, or /tmp/feeder-UID)",
    )
    add_log_options(parser)
    parser.add_argument(
        "--trace",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="export spans of the chunks that clients trace, by OTLP over HTTP; "
        "OTEL_EXPORTER_OTLP_ENDPOINT says where to",
    )


@contextmanager
def _hang_ups_wait() -> Iterator[None]:
    """SIGHUP waits until the worker notes it: it would end a process that still imports what it needs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@_hang_ups_wait()
def _worker(args: argparse.Namespace) -> int:
    # NumPy comes with a pool of a thread for each CPU, whatever the quota, for which a worker has no use.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from feeder.cli import EXIT_ERROR
    from feeder.worker import serve

    log_to_stderr(args.log_format, args.log_level)
    settings: Settings = args.settings
    for name in filter(settings.unknown.get, settings.unknown):
        log.warning("%s", settings.doubt(name))

    def ready(address: Address) -> None:
        print(f"feeder worker listening on {address}", flush=True)

    def again() -> WorkerConfig:
        try:
            return worker_config(args.again())
        except SystemExit:  # of argparse, which has said why
            raise ConfigError("the settings cannot be read; stderr of the worker says why") from None

    try:
        return serve(worker_config(args), ready, again)
    except FeederError as error:
        if args.log_format == "text":
            raise
        log.error("%s", error)
        return EXIT_ERROR


def worker_environment(args: argparse.Namespace) -> dict[str, str]:
    """Variables that tell `feeder worker` what command line, environment and file said here; not defaults."""
    parser = argparse.ArgumentParser(add_help=False)
    add_worker_options(parser)
    settings: Settings = args.settings
    said = {}
    for name, action in options(parser).items():
        if name in settings.sources:
            value = getattr(args, action.dest)
            if isinstance(value, list):
                said[variable(name)] = shlex.join(value)
            else:
                said[variable(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    return said


def worker_config(args: argparse.Namespace) -> WorkerConfig:
    """What the options say, checked.

    Raises:
        ConfigError: a value that cannot be.
    """
    settings: Settings = args.settings
    try:
        return _worker_config(args)
    except ConfigError as error:
        raise ConfigError(settings.blame(str(error))) from None


def _worker_config(args: argparse.Namespace) -> WorkerConfig:
    from feeder.cache import parse_size
    from feeder.wire.address import parse_listen
    from feeder.worker import WorkerConfig

    cached = args.cache_bytes or ("80%" if args.cache_dir or args.warm else None)
    encoded = args.encoded_cache_bytes or ("80%" if args.encoded_cache_dir else None)

    return WorkerConfig(
        datasets=_datasets(args.dataset or []),
        listen=_named("--listen", parse_listen, args.listen),
        threads=args.threads,
        max_streams=args.max_streams,
        max_streams_per_job=args.max_streams_per_job,
        share_bytes=_bytes("--share-bytes", args.share_bytes),
        drain_s=args.drain_s,
        decoder=args.decoder,
        keys=record_keys(args),
        format_name=record_format(args),
        index_dir=args.index_dir,
        build_index=args.index_build,
        seek=args.seek,
        cache=None if cached is None else _named("--cache-bytes", parse_size, cached),
        cache_dir=args.cache_dir,
        encoded=None if encoded is None else _named("--encoded-cache-bytes", parse_size, encoded),
        encoded_dir=args.encoded_cache_dir,
        warm=args.warm,
        http=None if args.http is None else _named("--http", parse_listen, args.http),
        arena_bytes=_bytes("--arena-bytes", args.arena_bytes),
        arena_dir=args.arena_dir,
        log_format=args.log_format,
        log_level=args.log_level,
        trace=args.trace,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        tls_client_ca=args.tls_client_ca,
        tokens=args.tokens,
        insecure=args.insecure,
    )


def _named(option: str, parse: Callable[[str], Value], text: str) -> Value:
    """What a text means; an error says which option it was given to."""
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None


def _bytes(option: str, text: str) -> int:
    from feeder.cache import parse_size

    if text == "0":
        return 0
    nbytes = _named(option, parse_size, text).nbytes
    if nbytes is None:
        raise ConfigError(f"{option} is a number of bytes, such as 8GiB, or 0; got {text!r}")
    return nbytes


def _datasets(texts: list[str]) -> dict[str, tuple[str, ...]]:
    from feeder.records.locations import redact

    datasets: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, pattern = text.partition("=")
        if not (name and equals and pattern) or "://" in name:
            raise ConfigError(
                f"--dataset wants NAME=PATTERN, such as train=/data/train-*, got {redact(text)!r}"
            )
        if not name.isprintable():  # what is not UTF-8 comes as lone surrogates, which are not printable
            raise ConfigError(f"a data set's name must be printable text in UTF-8, got {name!r}")
        datasets[name] = (*datasets.get(name, ()), pattern)
    return datasets
