"""Feed's messages as bytes and back.

Messages that are rare go through the generated classes. A chunk, megabytes of pixels, is framed and parsed by
hand: the worker lays out the whole FeedReply before it decodes (`ChunkFrame`), so that pixels are written
straight into the message that is sent, and the client parses what precedes them (`parse_chunk_start`) and
reads them from the socket into its batch. To anyone else all are ordinary protobuf.

Longer than 500 lines, since what writes a message and what reads it change together.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from feeder.errors import ProtocolError, printable
from feeder.wire import MAX_NAME, MAX_SLOTS
from feeder.wire.messages import (
    BadRecordInfo,
    Chunk,
    ChunkRequest,
    ClientReport,
    Compression,
    Draining,
    Failed,
    FailureKind,
    Join,
    Open,
    Opened,
    Packed,
    Reply,
    Request,
    SlotStatus,
)
from feeder.wire.spec import spec_from_proto, spec_to_proto
from feeder.wire.v1 import feeder_pb2 as pb

__all__ = [
    "ChunkFrame",
    "bad_to_proto",
    "encode_placed",
    "encode_reply",
    "encode_request",
    "parse_chunk_start",
    "parse_reply",
    "parse_request",
    "report_from_proto",
    "report_to_proto",
]

# Tags, field number << 3 | wire type: 0 varint, 2 length and bytes.
_REPLY_CHUNK = bytes([2 << 3 | 2])
_ID = bytes([1 << 3])
_RECORDS = bytes([2 << 3 | 2])
_LABELS = bytes([3 << 3 | 2])
_STATUS = bytes([4 << 3 | 2])
_BAD = bytes([5 << 3 | 2])
_PLACED = bytes([6 << 3, 1])
_COMPRESSION = bytes([7 << 3])
_PACKING_S = bytes([8 << 3 | 1])
_PIXELS = bytes([15 << 3 | 2])
_REQUEST_CHUNK = bytes([2 << 3 | 2])
_EPOCH, _TAKEN = bytes([2 << 3]), bytes([3 << 3])
_SLOTS, _DESTINATION = bytes([4 << 3 | 2]), bytes([5 << 3 | 2])
_WANTED, _TRACE = bytes([6 << 3]), bytes([7 << 3 | 2])
_BUFFER, _OFFSET = bytes([1 << 3]), bytes([2 << 3])
_INT64, _INT32 = np.dtype("<i8"), np.dtype("<i4")
_ARRAYS = ((_RECORDS, _INT64), (_LABELS, _INT32), (_STATUS, np.dtype(np.uint8)))

_NO_PIXELS = memoryview(b"")
_MAX_STATUS = max(SlotStatus)
_COMPRESSIONS = {kind.value: kind for kind in Compression}
_NAMES = {kind: pb.Compression.Name(kind) for kind in Compression}

CHUNK_START_BYTES = 1024
"""Enough for what precedes the pixels of MAX_SLOTS slots: 13 bytes a slot, tags, lengths and the number."""


def _varint(value: int) -> bytes:
    if value < 1 << 14:  # nearly all
        return bytes((value,)) if value < 1 << 7 else bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(MAX_SLOTS)
def _array_heads(slots: int) -> tuple[bytes, bytes, bytes]:
    """What precedes the records, labels and statuses of so many slots."""
    return _RECORDS + _varint(8 * slots), _LABELS + _varint(4 * slots), _STATUS + _varint(slots)


class _PlacedLayout(NamedTuple):
    """What is where behind the number of a chunk without pixels: what precedes each array, and its place."""

    slots: int
    records_head: bytes
    labels_at: int
    labels_head: bytes
    status_at: int
    status_head: bytes

    @classmethod
    def of(cls, slots: int) -> _PlacedLayout:
        records, labels, status = _array_heads(slots)
        labels_at = len(records) + 8 * slots
        return cls(slots, records, labels_at, labels, labels_at + len(labels) + 4 * slots, status)

    @property
    def size(self) -> int:
        return self.status_at + len(self.status_head) + self.slots + len(_PLACED)


_PLACED_LAYOUTS = {layout.size: layout for layout in map(_PlacedLayout.of, range(1, MAX_SLOTS + 1))}


class ChunkFrame:
    """Layout of the FeedReply that carries a chunk of `slots` images of `image_bytes` bytes each.

    All of it is known before the pixels are, except the list of bad records, which is rare, and what pixels
    are compressed to: these cost a copy (`changed`).

    Attributes:
        size: bytes of the whole message.
        pixels_at: where the pixels begin; they reach to the end.
    """

    __slots__ = ("_head", "_id", "_labels_at", "_records_at", "_status_at", "pixels_at", "size", "slots")

    def __init__(self, request_id: int, slots: int, image_bytes: int) -> None:
        self.slots = slots
        self._id = _ID + _varint(request_id)
        records, labels, status = _array_heads(slots)
        pixels = _PIXELS + _varint(slots * image_bytes)
        body = len(self._id) + len(records) + len(labels) + len(status) + 13 * slots + len(pixels)
        start = _REPLY_CHUNK + _varint(body + slots * image_bytes) + self._id + records
        self._records_at = len(start)
        self._labels_at = self._records_at + 8 * slots + len(labels)
        self._status_at = self._labels_at + 4 * slots + len(status)
        self.pixels_at = self._status_at + slots + len(pixels)
        self.size = self.pixels_at + slots * image_bytes
        self._head = b"".join(
            (start, bytes(8 * slots), labels, bytes(4 * slots), status, bytes(slots), pixels)
        )

    def fill(
        self,
        message: NDArray[np.uint8],
        records: NDArray[np.int64],
        labels: NDArray[np.int32],
        status: NDArray[np.uint8],
    ) -> None:
        """Writes all that precedes the pixels into `message`, uint8 [size]; arrays have one entry a slot."""
        head = bytearray(self._head)
        head[self._records_at : self._records_at + 8 * self.slots] = records.astype(
            _INT64, copy=False
        ).tobytes()
        head[self._labels_at : self._labels_at + 4 * self.slots] = labels.astype(_INT32, copy=False).tobytes()
        head[self._status_at : self._status_at + self.slots] = status.astype(np.uint8, copy=False).tobytes()
        message[: self.pixels_at] = np.frombuffer(head, np.uint8)

    def changed(self, message: bytes, bad: Sequence[BadRecordInfo], packed: Packed | None = None) -> bytes:
        """A copy of a filled message that also lists `bad`, and has its pixels `packed`."""
        view = memoryview(message)
        fields_at = self._records_at - len(_RECORDS) - len(_varint(8 * self.slots)) - len(self._id)
        fields_end = self._status_at + self.slots
        pixels: list[bytes | memoryview] = [view[fields_end:]]
        if packed is not None:
            described = pb.Chunk(compression=_NAMES[packed.compression], packing_s=packed.packing_s)
            pixels = [described.SerializeToString(), _PIXELS, _varint(len(packed.pixels)), packed.pixels]
        body: list[bytes | memoryview] = [view[fields_at:fields_end], *_listed(bad), *pixels]
        return b"".join([_REPLY_CHUNK, _varint(sum(map(len, body))), *body])


def _listed(bad: Sequence[BadRecordInfo]) -> list[bytes]:
    listed: list[bytes] = []
    for info in bad:
        encoded = bad_to_proto(info).SerializeToString()
        listed += [_BAD, _varint(len(encoded)), encoded]
    return listed


def bad_to_proto(info: BadRecordInfo) -> pb.BadRecordInfo:
    """The message for one bad record."""
    return pb.BadRecordInfo(
        dataset=info.dataset,
        record=info.record,
        shard=printable(info.shard),
        index=info.index,
        reason=printable(info.reason),
    )


def _bad_from_proto(message: pb.BadRecordInfo) -> BadRecordInfo:
    return BadRecordInfo(message.dataset, message.record, message.shard, message.index, message.reason)


def encode_request(request: Request) -> bytes:
    """A FeedRequest as bytes."""
    if isinstance(request, Open):
        message = pb.Open(
            protocol=request.protocol,
            session=request.session,
            job=request.job,
            consumer_index=request.consumer_index,
            consumer_count=request.consumer_count,
            spec=spec_to_proto(request.spec),
            fingerprint=request.fingerprint,
            pixel_fingerprint=request.pixel_fingerprint,
            arena=request.arena,
        )
        return pb.FeedRequest(open=message).SerializeToString()
    if isinstance(request, Join):
        return pb.FeedRequest(join=pb.Join(key=request.key)).SerializeToString()
    if isinstance(request, ClientReport):
        return pb.FeedRequest(report=report_to_proto(request)).SerializeToString()
    # By hand, as there is one a chunk: the generated classes take three times as long.
    slots = b"".join(map(_varint, request.slots))
    fields = [
        *(_ID, _varint(request.id), _EPOCH, _varint(request.epoch), _TAKEN, _varint(request.taken)),
        *(_SLOTS, _varint(len(slots)), slots),
    ]
    if request.destination is not None:
        buffer, offset = request.destination
        place = _BUFFER + _varint(buffer) + _OFFSET + _varint(offset)
        fields += (_DESTINATION, _varint(len(place)), place)
    if request.compression is not Compression.NONE:
        fields += (_WANTED, _varint(request.compression))
    if request.trace:
        trace = request.trace.encode()
        fields += (_TRACE, _varint(len(trace)), trace)
    chunk = b"".join(fields)
    return _REQUEST_CHUNK + _varint(len(chunk)) + chunk


def parse_request(data: bytes) -> Request:
    """The message that a client sent.

    Raises:
        ProtocolError: the bytes are no FeedRequest, hold none of its kinds, name more than 32 slots, or
            report seconds that are none.
        ConfigError: an Open whose spec holds values that StreamSpec does not allow.
    """
    try:
        message = pb.FeedRequest.FromString(data)
    except DecodeError:
        raise ProtocolError(f"{len(data)} bytes that are no FeedRequest came from the client") from None
    kind = message.WhichOneof("kind")
    if kind == "chunk":
        chunk = message.chunk
        slots = tuple(chunk.slots[:])  # a slice is read at once, where iterating asks for one after another
        if len(slots) > MAX_SLOTS:
            raise ProtocolError(f"chunk request {chunk.id}: {len(slots)} slots, at most {MAX_SLOTS}")
        destination = None
        if chunk.HasField("destination"):
            place = chunk.destination
            destination = (place.buffer, place.offset)
        # NONE also for what a newer client may have.
        compression = _COMPRESSIONS.get(chunk.compression, Compression.NONE)
        trace = chunk.trace if len(chunk.trace) <= MAX_NAME else ""  # nobody's, but it would be kept
        return ChunkRequest(chunk.id, chunk.epoch, chunk.taken, slots, destination, compression, trace)
    if kind == "open":
        opening = message.open
        for field, value in (*opening.ListFields(), *opening.spec.ListFields()):
            if isinstance(value, str | bytes) and len(value) > MAX_NAME:
                raise ProtocolError(f"{field.name} of an Open is longer than {MAX_NAME} characters")
        return Open(
            session=opening.session,
            spec=spec_from_proto(opening.spec),
            fingerprint=opening.fingerprint,
            pixel_fingerprint=opening.pixel_fingerprint,
            consumer_index=opening.consumer_index,
            consumer_count=opening.consumer_count,
            job=opening.job,
            protocol=opening.protocol,
            arena=opening.arena,
        )
    if kind == "report":
        return report_from_proto(message.report)
    if kind == "join":
        return Join(message.join.key)
    raise ProtocolError("a FeedRequest without any known kind came: is the client of a newer version?")


def report_to_proto(report: ClientReport) -> pb.ClientReport:
    """The message for a report."""
    return pb.ClientReport(**asdict(report))


def report_from_proto(message: pb.ClientReport) -> ClientReport:
    """A report of a message.

    Raises:
        ProtocolError: seconds in it are negative, or no numbers.
    """
    report = ClientReport(*(getattr(message, field.name) for field in fields(ClientReport)))
    for name, value in (("step_s", report.step_s), ("wait_s", report.wait_s), ("land_s", report.land_s)):
        if not 0.0 <= value < math.inf:
            raise ProtocolError(f"a report came whose {name} is {value}")
    return report


def encode_reply(reply: Opened | Failed | Draining) -> bytes:
    """A FeedReply as bytes; chunks are made with ChunkFrame and `encode_placed`."""
    if isinstance(reply, Opened):
        opened = pb.Opened(
            worker_id=reply.worker_id,
            max_outstanding=reply.max_outstanding,
            arena=reply.arena,
            compressions=[_NAMES[kind] for kind in reply.compressions],
            reports=reply.reports,
            join=reply.join,
        )
        return pb.FeedReply(opened=opened).SerializeToString()
    if isinstance(reply, Failed):
        bad = None if reply.bad is None else bad_to_proto(reply.bad)
        kind = pb.FailureKind.Name(reply.kind)
        failed = pb.ChunkFailed(id=reply.id, kind=kind, message=printable(reply.message), bad=bad)
        return pb.FeedReply(failed=failed).SerializeToString()
    return pb.FeedReply(draining=pb.Draining()).SerializeToString()


def encode_placed(
    request_id: int,
    records: NDArray[np.int64],
    labels: NDArray[np.int32],
    status: NDArray[np.uint8],
    bad: Sequence[BadRecordInfo],
) -> bytes:
    """The FeedReply for a chunk whose pixels are at the request's destination."""
    records_head, labels_head, status_head = _array_heads(len(status))
    body = b"".join(
        (
            _ID + _varint(request_id),
            records_head,
            records.astype(_INT64, copy=False).data,
            labels_head,
            labels.astype(_INT32, copy=False).data,
            status_head,
            status.data,
            *_listed(bad),
            _PLACED,
        )
    )
    return _REPLY_CHUNK + _varint(len(body)) + body


def parse_reply(data: bytes) -> Reply:
    """The message that a worker sent.

    Raises:
        ProtocolError: no FeedReply, none of its kinds, or a chunk whose arrays do not fit together.
    """
    try:
        message = pb.FeedReply.FromString(data)
    except DecodeError:
        raise ProtocolError(f"{len(data)} bytes that are no FeedReply came from the worker") from None
    kind = message.WhichOneof("kind")
    if kind == "chunk":
        return _checked(_chunk(message.chunk))
    if kind == "opened":
        opened = message.opened
        known = (_compression(kind) for kind in opened.compressions)
        return Opened(
            opened.worker_id,
            opened.max_outstanding,
            opened.arena,
            tuple(kind for kind in known if kind is not None),
            opened.reports,
            opened.join,
        )
    if kind == "draining":
        return Draining()
    if kind == "failed":
        failed = message.failed
        try:
            reason = FailureKind(int(failed.kind))
        except ValueError:  # a kind that only a newer worker knows
            reason = FailureKind.UNSPECIFIED
        return Failed(
            failed.id,
            reason,
            failed.message,
            _bad_from_proto(failed.bad) if failed.HasField("bad") else None,
        )
    raise ProtocolError("a FeedReply without any known kind came: is the worker of a newer version?")


def _compression(value: int) -> Compression | None:
    """None where only something newer knows it."""
    return _COMPRESSIONS.get(value)


def _chunk(message: pb.Chunk) -> Chunk:
    compression = _compression(message.compression)
    if compression is None:
        raise ProtocolError(
            f"chunk {message.id} is compressed with {message.compression}, which nobody asked for"
        )
    return Chunk(
        message.id,
        np.array(message.records, np.int64),
        np.array(message.labels, np.int32),
        np.frombuffer(message.status, np.uint8),
        tuple(map(_bad_from_proto, message.bad)),
        memoryview(message.pixels),
        len(message.pixels),
        message.placed,
        compression,
        message.packing_s,
    )


def _checked(chunk: Chunk) -> Chunk:
    count = len(chunk.records)
    labels, statuses, nbytes = len(chunk.labels), len(chunk.status), chunk.pixel_bytes
    uneven = chunk.compression is Compression.NONE and nbytes % max(1, count)
    if not (count == labels == statuses) or count == 0 or uneven or (chunk.placed and nbytes):
        raise ProtocolError(
            f"chunk {chunk.id} holds {count} records, {labels} labels, {statuses} statuses and "
            f"{nbytes} bytes of pixels, which do not fit together"
        )
    highest = max(chunk.status.tolist())
    if highest > _MAX_STATUS:
        raise ProtocolError(f"chunk {chunk.id} holds the slot status {highest}, known are 0 to {_MAX_STATUS}")
    return chunk


def parse_chunk_start(data: bytes, size: int) -> Chunk | None:
    """The chunk of a FeedReply that is written as ChunkFrame or `encode_placed` does.

    Args:
        data: the first bytes of the message; `CHUNK_START_BYTES` hold all but the pixels.
        size: of the whole message in bytes.

    Returns:
        The chunk with those of its pixels that are in `data`; None where the message is anything else, a
        chunk that lists bad records included: then `parse_reply` has the word, which takes all that is legal.

    Raises:
        ProtocolError: a chunk whose arrays do not fit together.
    """
    try:
        if not data.startswith(_REPLY_CHUNK):
            return None
        length, at = _read_varint(data, 1)
        if at + length != size or not data.startswith(_ID, at):
            return None
        request, at = _read_varint(data, at + 1)
        if len(data) == size and (chunk := _placed(data, at, request)) is not None:
            return chunk
        arrays: list[NDArray[Any]] = []
        for tag, dtype in _ARRAYS:
            if not data.startswith(tag, at):
                return None
            length, at = _read_varint(data, at + 1)
            if length % dtype.itemsize:
                return None
            arrays.append(np.frombuffer(data, dtype, length // dtype.itemsize, at))
            at += length
        compression, packing_s = Compression.NONE, 0.0
        placed = at + len(_PLACED) == size and data.startswith(_PLACED, at)
        if data.startswith(_COMPRESSION, at):
            compression, at = Compression(data[at + 1]), at + 2
        if data.startswith(_PACKING_S, at):
            (packing_s,), at = struct.unpack_from("<d", data, at + 1), at + 9
        if placed:
            length, at = 0, size
        elif data.startswith(_PIXELS, at):
            length, at = _read_varint(data, at + 1)
        else:
            return None
    except (IndexError, OverflowError, ValueError, struct.error):
        return None  # it ends early, or is compressed with what is not known here
    if at + length != size or request >> 64:
        return None
    records, labels, status = arrays
    pixels = memoryview(data)[at:]
    return _checked(
        Chunk(request, records, labels, status, (), pixels, length, placed, compression, packing_s)
    )


def _placed(data: bytes, at: int, request: int) -> Chunk | None:
    """What is behind the number of a chunk, if it is all, and as `encode_placed` writes one that has nothing
    to say of bad records. All that `parse_chunk_start` sees to holds; half of its time is saved."""
    layout = _PLACED_LAYOUTS.get(len(data) - at)
    if layout is None or not data.endswith(_PLACED):
        return None
    slots, records_head, labels_at, labels_head, status_at, status_head = layout
    labels_at += at
    status_at += at
    if not (
        data.startswith(records_head, at)
        and data.startswith(labels_head, labels_at)
        and data.startswith(status_head, status_at)
    ):
        return None
    status_at += len(status_head)
    if max(data[status_at : status_at + slots]) > _MAX_STATUS or request >> 64:
        return None
    at += len(records_head)
    labels_from = labels_at + len(labels_head)
    return Chunk(  # each array in memory of its own, which is aligned and can be written to
        request,
        np.frombuffer(bytearray(data[at : at + 8 * slots]), _INT64),
        np.frombuffer(bytearray(data[labels_from : labels_from + 4 * slots]), _INT32),
        np.frombuffer(bytearray(data[status_at : status_at + slots]), np.uint8),
        (),
        _NO_PIXELS,
        0,
        placed=True,
    )


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise IndexError
