"""What workers say about themselves, and whether two of them may serve one stream."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeAlias

import grpc

from feeder.errors import FeederError, Refused, WorkersDisagree, WorkerUnavailable
from feeder.wire import DESCRIBE
from feeder.wire.address import Address
from feeder.wire.channel import open_channel
from feeder.wire.credentials import Credentials
from feeder.wire.status import from_status
from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["DatasetInfo", "WorkerInfo", "check_agreement", "describe", "describe_all", "failure_of"]

_NOT_CONNECTED = re.compile(
    r"failed to connect to all addresses.*: (?!OK$)([^:]+?)(?: \(\d+\)|: OK)?$", re.DOTALL
)
"""What gRPC says where a connection cannot be made: only the system's own words at its end tell why."""


DIFFERENCES_NAMED = 4


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """One data set of a worker.

    Attributes:
        records: how many it holds.
        fingerprint: hex, over the indexes of its shards.
    """

    name: str
    records: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker, as it described itself.

    Attributes:
        address: where it was asked.
        version: of its feeder package.
        worker_id: unique per process.
        decoder: what decodes there.
        pixel_fingerprint: hex; equal ones give equal pixels.
        draining: it takes no new streams.
        datasets: by name.
        pixel_digests: of each of the built-in images that the fingerprint is made of; empty where it does not
            say.
        side_socket: path of the socket that takes memory of clients on its host; empty: none.
    """

    address: str
    version: str
    worker_id: str
    decoder: str
    pixel_fingerprint: str
    draining: bool
    datasets: Mapping[str, DatasetInfo]
    side_socket: str = ""
    pixel_digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_reply(cls, address: str, reply: pb.DescribeReply) -> WorkerInfo:
        """What the worker at `address` replied."""
        return cls(
            address=address,
            version=reply.version,
            worker_id=reply.worker_id,
            decoder=reply.decoder,
            pixel_fingerprint=reply.pixel_fingerprint,
            draining=reply.draining,
            datasets={
                info.name: DatasetInfo(info.name, info.records, info.fingerprint) for info in reply.datasets
            },
            side_socket=reply.side_socket,
            pixel_digests=dict(reply.pixel_digests),
        )


Answers: TypeAlias = tuple[dict[str, WorkerInfo], dict[str, FeederError]]
"""Of those that answered, and why the others did not; by address."""


def describe(channel: grpc.Channel, timeout_s: float) -> Any:
    """Asks a worker what it is: a call whose `result()` is the reply, or raises grpc.RpcError after
    `timeout_s`."""
    method = channel.unary_unary(
        DESCRIBE,
        request_serializer=pb.DescribeRequest.SerializeToString,
        response_deserializer=pb.DescribeReply.FromString,
    )
    return method.future(pb.DescribeRequest(), timeout=timeout_s)


def describe_all(addresses: Sequence[Address], credentials: Credentials, timeout_s: float) -> Answers:
    """What each worker says, and why the others did not; all are asked at the same time.

    On a thread of its own, since a KeyboardInterrupt comes on the main one: within gRPC's Python it may leave
    a channel that waits for ever when it is closed.
    """
    #: Calls that came to an end; None: nobody waits for the others any more.
    ended: SimpleQueue[object] = SimpleQueue()
    answer: SimpleQueue[Answers | BaseException] = SimpleQueue()

    def ask() -> None:
        try:
            answer.put(_describe_all(addresses, credentials, timeout_s, ended))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answer.put(error)

    try:
        threading.Thread(target=ask, name="feeder-describe", daemon=True).start()
        answers = answer.get()
    finally:
        ended.put(None)
    if isinstance(answers, BaseException):
        raise answers
    return answers


def _describe_all(
    addresses: Sequence[Address], credentials: Credentials, timeout_s: float, ended: SimpleQueue[object]
) -> Answers:
    found: dict[str, WorkerInfo] = {}
    missing: dict[str, FeederError] = {}
    channels = {str(address): open_channel(address, credentials) for address in addresses}
    try:
        calls = {name: describe(channel, timeout_s) for name, channel in channels.items()}
        for call in calls.values():
            call.add_done_callback(ended.put)
        for _ in calls:
            if ended.get() is None:
                return found, missing
        for name, call in calls.items():
            try:
                found[name] = WorkerInfo.from_reply(name, call.result())
            except grpc.RpcError as error:
                missing[name] = failure_of(error, name)
    finally:
        for channel in channels.values():
            channel.close()
    return found, missing


def failure_of(error: grpc.RpcError, name: str) -> FeederError:
    """What a failed call to the worker at `name` means, in few words where it could not be reached."""
    failure = from_status(error, name)
    if isinstance(failure, WorkerUnavailable) and isinstance(error, grpc.Call):
        refused = _NOT_CONNECTED.search(error.details() or "")
        if refused:
            reason = refused[1].partition("\n")[0].lower()  # an address in bytes may follow
            return WorkerUnavailable(f"worker {name} does not answer ({reason})")
    return failure


def check_agreement(dataset: str, reference: WorkerInfo, other: WorkerInfo) -> None:
    """Whether `other` may serve `dataset` beside `reference`.

    Raises:
        Refused: it does not serve it at all.
        WorkersDisagree: it serves other records, or other pixels, under that name.
    """
    ours, theirs = reference.datasets[dataset], other.datasets.get(dataset)
    if theirs is None:
        served = ", ".join(sorted(other.datasets)) or "nothing"
        raise Refused(f"worker {other.address} does not serve {dataset!r}, it serves {served}")
    if (ours.fingerprint, ours.records) != (theirs.fingerprint, theirs.records):
        raise WorkersDisagree(
            f"workers serve different data as {dataset!r}: {reference.address} has {ours.records} records, "
            f"fingerprint {ours.fingerprint}, {other.address} has {theirs.records}, {theirs.fingerprint}; "
            "start them on the same shards, in the same order, or under different names"
        )
    if reference.pixel_fingerprint != other.pixel_fingerprint:
        where = _where_they_differ(reference, other)
        raise WorkersDisagree(
            f"workers decode {dataset!r} to different pixels: {reference.address} ({reference.decoder}) "
            f"has pixel fingerprint {reference.pixel_fingerprint}, {other.address} ({other.decoder}) has "
            f"{other.pixel_fingerprint}{where}; give all workers the same decoder and libraries"
        )


def _where_they_differ(reference: WorkerInfo, other: WorkerInfo) -> str:
    """The built-in images that the two decode to different pixels, if both say."""
    ours, theirs = reference.pixel_digests, other.pixel_digests
    differing = sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])
    if not differing:
        return ""
    named = ", ".join(differing[:DIFFERENCES_NAMED])
    more = len(differing) - DIFFERENCES_NAMED
    return f" (they differ in the built-in image{'s' * (len(differing) > 1)} {named}" + (
        f" and {more} more)" if more > 0 else ")"
    )
