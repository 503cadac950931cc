"""`feeder status`: what workers say of themselves."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from feeder.cli.options import add_client_options, client_credentials
from feeder.errors import Closed, NotAllowed, NotTrusted, WorkerUnavailable
from feeder.figures import duration, share, short, size

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc
    from google.protobuf.message import Message

    from feeder.wire.address import Address
    from feeder.wire.credentials import Credentials
    from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["as_dict", "describe", "register"]

STATUS_TIMEOUT_S = 5.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
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
    add_client_options(parser)
    parser.set_defaults(run=_status)


def _status(args: argparse.Namespace) -> int:
    from feeder.wire.address import parse_target

    bad = False
    prints: dict[str, str] = {}
    credentials = client_credentials(args)
    for address in parse_target(args.address):
        try:
            reply = describe(address, credentials)
        except (WorkerUnavailable, NotAllowed, NotTrusted) as error:
            bad = True
            _show({"address": str(address), "error": str(error)}, args.json, str(error))
            continue
        _show({"address": str(address)} | as_dict(reply), args.json, _table(str(address), reply))
        for name, value in _fingerprints(reply).items():
            if prints.setdefault(name, value) != value:
                bad = True
                print(f"feeder: {address} has another {name} than a worker above", file=sys.stderr)
    return 1 if bad else 0


def describe(
    address: Address,
    credentials: Credentials | None = None,
    calls: Callable[[grpc.Future[pb.DescribeReply]], object] = lambda _: None,
) -> pb.DescribeReply:
    """Asks one worker.

    Args:
        credentials: what it is shown; None: what the environment says.
        calls: is given the call, which it may cancel.

    Raises:
        FeederError: it does not answer, or is no worker.
    """
    import grpc

    from feeder.client.diagnosis import diagnose
    from feeder.client.workers import failure_of
    from feeder.wire import DESCRIBE
    from feeder.wire.channel import open_channel
    from feeder.wire.credentials import Credentials
    from feeder.wire.v1 import feeder_pb2 as pb

    credentials = credentials or Credentials.from_environment()
    with open_channel(address, credentials) as channel:
        describe = channel.unary_unary(
            DESCRIBE,
            request_serializer=pb.DescribeRequest.SerializeToString,
            response_deserializer=pb.DescribeReply.FromString,
        )
        call = describe.future(pb.DescribeRequest(), timeout=STATUS_TIMEOUT_S)
        calls(call)
        try:
            reply: pb.DescribeReply = call.result()
        except grpc.FutureCancelledError:
            raise Closed(f"worker {address} is asked no more") from None
        except grpc.RpcError as error:
            failure = failure_of(error, str(address))
            if isinstance(failure, WorkerUnavailable):
                failure = diagnose(address, credentials) or failure
            raise failure from None
        return reply


def _show(values: dict[str, Any], as_json: bool, text: str) -> None:
    print(json.dumps(values) if as_json else text, flush=True)


def as_dict(message: Message) -> dict[str, Any]:
    """What a message says, as JSON has it, whole numbers as numbers."""
    from google.protobuf.json_format import MessageToDict

    values: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _make_numbers(values, message.DESCRIPTOR)
    return values


def _make_numbers(values: dict[str, Any], kind: Any) -> None:
    """protobuf's JSON has 64-bit numbers as strings, for JavaScript's sake; they are numbers here. `kind` is
    the message's descriptor."""
    for name in values.keys() & kind.fields_by_name.keys():
        field, value = kind.fields_by_name[name], values[name]
        several = isinstance(value, list)
        if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            values[name] = list(map(int, value)) if several else int(value)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if several else [value]:
                _make_numbers(part, field.message_type)


def _fingerprints(reply: pb.DescribeReply) -> dict[str, str]:
    prints = {f"fingerprint of {info.name!r}": info.fingerprint for info in reply.datasets}
    return prints | {"pixel fingerprint": reply.pixel_fingerprint}


def _table(address: str, reply: pb.DescribeReply) -> str:
    counters = reply.counters
    rate = counters.images / reply.uptime_s if reply.uptime_s else 0.0
    width = max([8, *(len(info.name) for info in reply.datasets)])
    lines = [
        f"{address}: feeder {reply.version}, {reply.worker_id}, up {duration(reply.uptime_s)}"
        + (", DRAINING" if reply.draining else ""),
        f"  decoder   {reply.decoder}, {reply.threads} thread{'s' * (reply.threads != 1)}, "
        f"pixels {reply.pixel_fingerprint}",
        f"  streams   {reply.live_streams} of {reply.max_streams}",
        f"  sent      {counters.images:,} images in {counters.chunks:,} chunks, "
        f"{size(counters.bytes_sent)}, {rate:,.0f} images/s since the start",
        f"  arenas    {size(counters.bytes_placed)} written into trainers' memory; socket "
        f"{reply.side_socket or 'none'}",
        f"  shared    {counters.images_shared:,} images made once for several streams, "
        f"{size(counters.bytes_shared)}; {size(reply.kept_bytes)} kept for those to come",
        f"  read      {size(counters.bytes_read)}, {counters.storage_retries} retries{_stores(counters)}",
        f"  seek      points used {counters.seek_used:,} times, learned {counters.seek_learned:,}, refused "
        f"{counters.seek_refused:,}, torn {counters.seek_torn:,}, dropped {counters.seek_dropped:,}",
        f"  time      reading {counters.read_s:.1f} s, making chunks {counters.decode_s:.1f} s "
        f"(sums over threads){_busy(counters)}",
    ]
    if any(stage.chunks for stage in reply.stages):
        parts = ", ".join(map(_stage, reply.stages))
        lines.append(f"  chunks    {parts} (mean / 99 % stay below)")
    if reply.HasField("cache"):
        lines.append(f"  cache     {_cache(reply.cache)}")
    if reply.HasField("encoded_cache"):
        lines.append(f"  encoded   {_cache(reply.encoded_cache)}")
    lines.append(f"  {'data set':{width}}  {'records':>12}  {'shards':>7}  {'size':>10}  fingerprint")
    for info in reply.datasets:
        lines.append(
            f"  {info.name:{width}}  {info.records:>12,}  {info.shards:>7,}  {size(info.bytes):>10}  "
            f"{info.fingerprint[:12]}"
        )
    for stream in reply.streams:
        lines += _stream(stream)
    if reply.quarantine:
        lines.append(f"  bad       {counters.bad_records:,} times; the newest records:")
        for bad in list(reply.quarantine)[:10]:
            lines.append(f"            {bad.dataset}: {bad.shard}: record {bad.index}: {bad.reason}")
    return "\n".join(lines)


def _busy(counters: pb.Counters) -> str:
    """A share, since seconds of threads that wait add up to more than the worker has been up."""
    making_s = counters.decode_s + counters.idle_s
    if not making_s:
        return ""
    return f"; threads that make chunks waited for requests {share(counters.idle_s / making_s)} of their time"


def _stage(stage: pb.StageInfo) -> str:
    """Its name, the mean, and the upper bound of the bucket that 99 % of the chunks lie in or before."""
    if not stage.chunks:
        return f"{stage.name} -"
    so_far, below = 0, "more"
    for bound_s, count in zip(stage.bounds_s, stage.buckets, strict=False):
        so_far += count
        if so_far >= 0.99 * stage.chunks:
            below = short(bound_s)
            break
    return f"{stage.name} {short(stage.total_s / stage.chunks)} / {below}"


def _stream(stream: pb.StreamInfo) -> list[str]:
    job = f"job {stream.job!r}" if stream.job else "no job"
    lines = [
        f"  stream    {job}, consumer {stream.consumer_index} of {stream.consumer_count}, "
        f"{stream.spec.dataset}, {stream.peer}{', into its memory' if stream.arena else ''}, "
        f"session {stream.session[:12]}",
        f"            {stream.images:,} images in {stream.chunks:,} chunks, {stream.owed} asked and not "
        f"answered, epoch {stream.epoch}, for {duration(stream.age_s)}",
    ]
    if stream.HasField("report"):
        report = stream.report
        spent_s = report.step_s + report.wait_s
        share = report.wait_s / spent_s if spent_s else 0.0
        lines.append(
            f"            waited for input {100 * share:.1f} % of its time "
            f"in {report.steps:,} steps; {report.ready} of {report.prefetch} batches ready; "
            f"{report.masked:,} slots masked, {report.substituted:,} substituted; "
            f"{report.hedges:,} requests hedged, {report.retries:,} retried; {report.workers} "
            f"worker{'s' * (report.workers != 1)}"
        )
    return lines


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
        f"{cache.filled:,} records added, {size(cache.bytes)} of at most {size(cache.budget_bytes)}"
        f"{', full' if cache.full else ''}; segments: {cache.segments:,}, {cache.dropped:,} dropped"
    )
