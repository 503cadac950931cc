"""`feeder worker`, `feeder status` and `feeder preview`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feeder.cli.cache import add_cache_options
from feeder.cli.data import add_record_options, record_format, record_keys
from feeder.errors import ConfigError, WorkerUnavailable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from feeder.client import Client
    from feeder.wire.address import Address
    from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["register"]

STATUS_TIMEOUT_S = 5.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the three commands."""
    _register_worker(subparsers)
    _register_status(subparsers)
    _register_preview(subparsers)


def _register_worker(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "worker",
        help="serve data sets to trainers",
        description="Serves data sets until SIGTERM or SIGINT (Ctrl-C), which let it answer what it owes\n"
        "and go; a second one forces it. Prints one line on stdout when it is ready; logs go to stderr.",
        epilog="examples:\n"
        "  feeder worker --dataset train=/data/train/ --dataset val=/data/val/ --listen 0.0.0.0:50051\n"
        "  feeder worker --dataset train='/data/train-*' --listen unix:/run/feeder.sock --threads 8\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--dataset",
        action="append",
        required=True,
        metavar="NAME=PATTERN",
        help="shards to serve as NAME: a file, a glob or a folder, or the URL of one (s3://bucket/train-*); "
        "may be given many times, also with the same NAME to add shards to it",
    )
    parser.add_argument(
        "--listen",
        required=True,
        metavar="ADDR",
        help="host:port (port 0 takes any free one) or unix:/path",
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
        "--drain-s",
        type=float,
        default=30.0,
        metavar="S",
        help="after SIGTERM or SIGINT, seconds until streams still owed answers are cut "
        "(default: %(default)g)",
    )
    _add_data_arguments(parser)
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
        help="answer there for /metrics (Prometheus), /livez, /readyz and /startupz (default: nowhere)",
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
        type=Path,
        metavar="DIR",
        help="folder, your own, of the socket over which it is handed over (default: feeder in "
        "$XDG_RUNTIME_DIR, or /tmp/feeder-UID)",
    )
    parser.set_defaults(run=_worker)


def _add_data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--decoder",
        choices=["auto", "native", "portable"],
        default="auto",
        help="native kernel, portable libraries, or the first that is there (default: %(default)s)",
    )
    add_record_options(parser)
    parser.add_argument(
        "--no-index-build", action="store_true", help="a missing or stale index is an error, not built"
    )


def _worker(args: argparse.Namespace) -> int:
    # NumPy comes with a pool of a thread for each CPU, whatever the quota, for which a worker has no use.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from feeder.cache import parse_size
    from feeder.wire.address import parse_listen
    from feeder.worker import WorkerConfig, serve

    cached = args.cache_bytes or ("80%" if args.cache_dir or args.warm else None)
    encoded = args.encoded_cache_bytes or ("80%" if args.encoded_cache_dir else None)

    config = WorkerConfig(
        datasets=_datasets(args.dataset),
        listen=parse_listen(args.listen),
        threads=args.threads,
        max_streams=args.max_streams,
        drain_s=args.drain_s,
        decoder=args.decoder,
        keys=record_keys(args),
        format_name=record_format(args),
        index_dir=args.index_dir,
        build_index=not args.no_index_build,
        seek=args.seek,
        cache=None if cached is None else parse_size(cached),
        cache_dir=args.cache_dir,
        encoded=None if encoded is None else parse_size(encoded),
        encoded_dir=args.encoded_cache_dir,
        warm=args.warm,
        http=None if args.http is None else parse_listen(args.http),
        arena_bytes=_arena_bytes(args.arena_bytes),
        arena_dir=args.arena_dir,
    )
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s feeder worker: %(message)s", force=True
    )

    def ready(address: Address) -> None:
        print(f"feeder worker listening on {address}", flush=True)

    return serve(config, ready)


def _arena_bytes(text: str) -> int:
    from feeder.cache import parse_size

    if text == "0":
        return 0
    nbytes = parse_size(text).nbytes
    if nbytes is None:
        raise ConfigError(f"--arena-bytes is a number of bytes, such as 8GiB, or 0; got {text!r}")
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


def _register_status(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "status",
        help="what workers serve and do",
        description="Asks each worker what it serves and what it did since its start. Exit code 1 where one\n"
        "does not answer, or where two serve different data or pixels under one name.",
        epilog="examples:\n"
        "  feeder status host1:50051,host2:50051\n"
        "  feeder status unix:/run/feeder.sock --json\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("address", metavar="ADDR", help="host:port,host:port or unix:/path")
    parser.add_argument("--json", action="store_true", help="one JSON object a line and worker")
    parser.set_defaults(run=_status)


def _status(args: argparse.Namespace) -> int:
    from feeder.wire.address import parse_target

    bad = False
    prints: dict[str, str] = {}
    for address in parse_target(args.address):
        try:
            reply = _describe(address)
        except WorkerUnavailable as error:
            bad = True
            _show({"address": str(address), "error": str(error)}, args.json, str(error))
            continue
        _show({"address": str(address)} | _as_dict(reply), args.json, _table(str(address), reply))
        for name, value in _fingerprints(reply).items():
            if prints.setdefault(name, value) != value:
                bad = True
                print(f"feeder: {address} has another {name} than a worker above", file=sys.stderr)
    return 1 if bad else 0


def _describe(address: Address) -> pb.DescribeReply:
    """Asks one worker.

    Raises:
        FeederError: it does not answer, or is no worker.
    """
    import grpc

    from feeder.client.workers import failure_of
    from feeder.wire import DESCRIBE
    from feeder.wire.channel import open_channel
    from feeder.wire.v1 import feeder_pb2 as pb

    with open_channel(address) as channel:
        describe = channel.unary_unary(
            DESCRIBE,
            request_serializer=pb.DescribeRequest.SerializeToString,
            response_deserializer=pb.DescribeReply.FromString,
        )
        try:
            reply: pb.DescribeReply = describe(pb.DescribeRequest(), timeout=STATUS_TIMEOUT_S)
        except grpc.RpcError as error:
            raise failure_of(error, str(address)) from None
        return reply


def _show(values: dict[str, Any], as_json: bool, text: str) -> None:
    print(json.dumps(values) if as_json else text, flush=True)


def _as_dict(reply: pb.DescribeReply) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    values: dict[str, Any] = MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    # protobuf's JSON has 64-bit numbers as strings, for JavaScript's sake; they are numbers here.
    for part, message in (
        (values["counters"], reply.counters),
        *zip(values["datasets"], reply.datasets, strict=True),
        *zip(values["quarantine"], reply.quarantine, strict=True),
        *([(values["cache"], reply.cache)] if reply.HasField("cache") else ()),
        *([(values["encoded_cache"], reply.encoded_cache)] if reply.HasField("encoded_cache") else ()),
    ):
        part.update({name: getattr(message, name) for name in part})
    return values


def _fingerprints(reply: pb.DescribeReply) -> dict[str, str]:
    prints = {f"fingerprint of {info.name!r}": info.fingerprint for info in reply.datasets}
    return prints | {"pixel fingerprint": reply.pixel_fingerprint}


def _table(address: str, reply: pb.DescribeReply) -> str:
    counters = reply.counters
    rate = counters.images / reply.uptime_s if reply.uptime_s else 0.0
    width = max([8, *(len(info.name) for info in reply.datasets)])
    lines = [
        f"{address}: feeder {reply.version}, {reply.worker_id}, up {_duration(reply.uptime_s)}"
        + (", DRAINING" if reply.draining else ""),
        f"  decoder   {reply.decoder}, {reply.threads} thread{'s' * (reply.threads != 1)}, "
        f"pixels {reply.pixel_fingerprint}",
        f"  streams   {reply.live_streams} of {reply.max_streams}",
        f"  sent      {counters.images:,} images in {counters.chunks:,} chunks, "
        f"{_size(counters.bytes_sent)}, {rate:,.0f} images/s since the start",
        f"  arenas    {_size(counters.bytes_placed)} written into trainers' memory; socket "
        f"{reply.side_socket or 'none'}",
        f"  read      {_size(counters.bytes_read)}, {counters.storage_retries} retries{_stores(counters)}",
        f"  seek      points used {counters.seek_used:,} times, learned {counters.seek_learned:,}, refused "
        f"{counters.seek_refused:,}, torn {counters.seek_torn:,}, dropped {counters.seek_dropped:,}",
        f"  time      reading {counters.read_s:.1f} s, making chunks {counters.decode_s:.1f} s, waiting for "
        f"requests {counters.idle_s:.1f} s (sums over threads, which share those "
        "that decode)",
    ]
    if reply.HasField("cache"):
        lines.append(f"  cache     {_cache(reply.cache)}")
    if reply.HasField("encoded_cache"):
        lines.append(f"  encoded   {_cache(reply.encoded_cache)}")
    lines.append(f"  {'data set':{width}}  {'records':>12}  {'shards':>7}  {'size':>10}  fingerprint")
    for info in reply.datasets:
        lines.append(
            f"  {info.name:{width}}  {info.records:>12,}  {info.shards:>7,}  {_size(info.bytes):>10}  "
            f"{info.fingerprint[:12]}"
        )
    if reply.quarantine:
        lines.append(f"  bad       {counters.bad_records:,} times; the newest records:")
        for bad in list(reply.quarantine)[:10]:
            lines.append(f"            {bad.dataset}: {bad.shard}: record {bad.index}: {bad.reason}")
    return "\n".join(lines)


def _stores(counters: pb.Counters) -> str:
    if not counters.store_requests:
        return ""
    return (
        f", {counters.store_requests:,} requests to object stores, which spared {counters.store_merged:,} "
        f"(neighbours)"
    )


def _cache(cache: pb.CacheInfo) -> str:
    asked = cache.hits + cache.misses
    return (
        f"{cache.hits:,} hits of {asked:,} ({100 * cache.hits / asked if asked else 0:.1f} %), "
        f"{cache.filled:,} records added, {_size(cache.bytes)} in {cache.segments:,} segments of at most "
        f"{_size(cache.budget_bytes)}{', full' if cache.full else ''}, {cache.dropped:,} dropped"
    )


def _size(nbytes: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    while nbytes >= 1000 and len(units) > 1:
        nbytes /= 1000
        del units[0]
    return f"{nbytes:.3g} {units[0]}"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    return f"{whole // 3600} h"


def _register_preview(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "preview",
        help="a picture of what a trainer would see",
        description="Writes a contact sheet (PNG) of the first batch, its labels under the images.",
        epilog="examples:\n"
        "  feeder preview --data /data/train/ -o sheet.png\n"
        "  feeder preview --data '/data/val-*' --augment eval --images 64 -o sheet.png\n"
        "  feeder preview --connect localhost:50051 --dataset train -o sheet.png\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data", action="append", metavar="PATTERN", help="shards: a file, a glob or a folder"
    )
    source.add_argument("--connect", metavar="ADDR", help="workers to ask instead")
    parser.add_argument(
        "--dataset", metavar="NAME", help="which data set of the workers (default: the only one they serve)"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PNG", help="file to write")
    parser.add_argument("--images", type=int, default=16, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument(
        "--image-size", type=int, default=224, metavar="N", help="side in pixels (default: %(default)s)"
    )
    parser.add_argument(
        "--augment",
        choices=["train", "eval", "none"],
        default="train",
        help="train: a random crop, perhaps mirrored; eval: the centre; none: the whole image, stretched "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--sampler",
        choices=["torchvision", "inception"],
        default="torchvision",
        help="whose crops: torchvision's, or those of TensorFlow's reference ResNet (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of the shuffle and of the crops (default: %(default)s)",
    )
    _add_data_arguments(parser)
    parser.set_defaults(run=_preview)


def _preview(args: argparse.Namespace) -> int:
    from feeder.cli.sheet import label_names, save_sheet

    if not 1 <= args.images <= 1024:
        raise ConfigError(f"--images must be in [1, 1024], got {args.images}")
    if args.connect is None and args.dataset is not None:
        raise ConfigError("--dataset goes with --connect: it says which of the workers' data sets")
    images, labels = _remote_batch(args) if args.connect else _local_batch(args)
    names = label_names(args.data or [])
    save_sheet(args.output, images, [names.get(label, str(label)) for label in labels])
    made = "1 image" if len(images) == 1 else f"{len(images)} images"
    if len(images) < args.images:
        made += f" of the {args.images} asked for: the others are bad, or the data set has no more"
    print(f"{args.output}: {made}")
    return 0


def _remote_batch(args: argparse.Namespace) -> tuple[NDArray[np.uint8], list[int]]:
    import feeder

    with (
        feeder.connect(args.connect) as client,
        client.stream(
            _only_dataset(client) if args.dataset is None else args.dataset,
            batch_size=args.images,
            seed=args.seed,
            image_size=args.image_size,
            augment=args.augment,
            sampler=args.sampler,
            remainder="pad",
        ) as stream,
    ):
        batch = next(iter(stream))
        return batch.images[batch.mask], batch.labels[batch.mask].tolist()


def _only_dataset(client: Client) -> str:
    served = sorted({name for worker in client.workers.values() for name in worker.datasets})
    if len(served) != 1:
        names = ", ".join(served) or "none"
        raise ConfigError(f"say which data set with --dataset: the workers serve {names}")
    return served[0]


def _local_batch(args: argparse.Namespace) -> tuple[NDArray[np.uint8], list[int]]:
    import numpy as np

    from feeder.batch import ChunkMaker
    from feeder.decode import open_decoder
    from feeder.order import default_lanes
    from feeder.records import Dataset
    from feeder.spec import StreamSpec
    from feeder.worker.cpus import decode_threads

    with (
        Dataset.open(
            "preview",
            args.data,
            keys=record_keys(args),
            format_name=record_format(args),
            index_dir=args.index_dir,
            build=not args.no_index_build,
            progress=sys.stderr.isatty(),
        ) as dataset,
        closing(open_decoder(decode_threads()[0], args.decoder)) as decoder,
    ):
        spec = StreamSpec(
            dataset="preview",
            global_batch=args.images,
            lanes=default_lanes(len(dataset), args.images, 1),
            seed=args.seed,
            image_size=args.image_size,
            augment=args.augment,
            sampler=args.sampler,
            remainder="pad",
        )
        out = np.empty((args.images, args.image_size, args.image_size, 3), np.uint8)
        maker = ChunkMaker(dataset, decoder, spec)
        made = maker.make(maker.fetch(0, 0, range(args.images)), out)
        for bad in made.bad:
            print(f"feeder: {bad.shard}: record {bad.index}: {bad.reason}", file=sys.stderr)
        shown = made.labels >= 0
        return out[shown], made.labels[shown].tolist()
