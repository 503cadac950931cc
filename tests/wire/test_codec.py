"""The hand-made codec against the generated classes."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError, ProtocolError, printable
from feeder.spec import StreamSpec
from feeder.wire import MAX_CHUNK_BYTES, MAX_SLOTS, max_slots, messages
from feeder.wire.codec import (
    CHUNK_START_BYTES,
    ChunkFrame,
    encode_placed,
    encode_reply,
    encode_request,
    parse_chunk_start,
    parse_reply,
    parse_request,
)
from feeder.wire.messages import (
    BadRecordInfo,
    Chunk,
    ChunkRequest,
    ClientReport,
    Compression,
    Draining,
    Failed,
    FailureKind,
    Open,
    Opened,
    Packed,
)
from feeder.wire.v1 import feeder_pb2 as pb

UINT64 = st.integers(0, 2**64 - 1)
PRINTED = st.text(max_size=40).map(printable)
BAD = st.builds(BadRecordInfo, st.text(max_size=9), UINT64, PRINTED, UINT64, PRINTED)


def framed(
    request_id: int,
    records: np.ndarray,
    labels: np.ndarray,
    status: np.ndarray,
    pixels: np.ndarray,
    bad: list[BadRecordInfo],
) -> bytes:
    """A chunk as a worker makes it: the pixels come first, the rest afterwards."""
    frame = ChunkFrame(request_id, len(records), pixels.size // len(records))
    message = np.full(frame.size, 255, np.uint8)
    message[frame.pixels_at :] = pixels
    frame.fill(message, records, labels, status)
    data = message.tobytes()
    return frame.changed(data, bad) if bad else data


@st.composite
def chunks(draw: st.DrawFn) -> pb.Chunk:
    slots = draw(st.integers(1, 40))
    seed = draw(st.integers(0, 2**32 - 1))
    image_bytes = draw(st.sampled_from([1, 3, 12, 127, 128, 1200]))
    random = np.random.default_rng(seed)
    return pb.Chunk(
        id=draw(UINT64),
        records=random.integers(-1, 2**62, slots).tolist(),
        labels=random.integers(-1, 2**31 - 1, slots).tolist(),
        status=random.integers(0, 4, slots).astype(np.uint8).tobytes(),
        bad=[
            pb.BadRecordInfo(
                dataset=b.dataset, record=b.record, shard=b.shard, index=b.index, reason=b.reason
            )
            for b in draw(st.lists(BAD, max_size=3))
        ],
        pixels=random.bytes(slots * image_bytes),
    )


@given(chunks())
def test_frame_is_what_protobuf_reads(chunk: pb.Chunk) -> None:
    data = framed(
        chunk.id,
        np.array(chunk.records, np.int64),
        np.array(chunk.labels, np.int32),
        np.frombuffer(chunk.status, np.uint8),
        np.frombuffer(chunk.pixels, np.uint8),
        [BadRecordInfo(b.dataset, b.record, b.shard, b.index, b.reason) for b in chunk.bad],
    )
    assert pb.FeedReply.FromString(data) == pb.FeedReply(chunk=chunk)


@given(chunks(), st.sampled_from([Compression.LZ4, Compression.ZSTD]), st.floats(0, 9), st.binary(min_size=1))
def test_packed_pixels_are_what_protobuf_reads(
    chunk: pb.Chunk, compression: Compression, packing_s: float, packed: bytes
) -> None:
    chunk.id = max(1, chunk.id)
    bad = [BadRecordInfo(b.dataset, b.record, b.shard, b.index, b.reason) for b in chunk.bad]
    frame = ChunkFrame(chunk.id, len(chunk.records), len(chunk.pixels) // len(chunk.records))
    message = np.empty(frame.size, np.uint8)
    arrays = np.array(chunk.records, np.int64), np.array(chunk.labels, np.int32)
    frame.fill(message, *arrays, np.frombuffer(chunk.status, np.uint8))
    data = frame.changed(message.tobytes(), bad, Packed(compression, packed, packing_s))
    chunk.compression, chunk.packing_s, chunk.pixels = int(compression), packing_s, packed
    assert pb.FeedReply.FromString(data) == pb.FeedReply(chunk=chunk)
    for parsed in (parse_reply(data), None if bad else parse_chunk_start(data, len(data))):
        if parsed is not None:
            assert isinstance(parsed, Chunk)
            assert (parsed.compression, parsed.packing_s) == (compression, packing_s)
            assert (bytes(parsed.pixels), parsed.pixel_bytes) == (packed, len(packed))
    assert bad or parse_chunk_start(data[:CHUNK_START_BYTES], len(data)) is not None


def test_compressions_that_are_not_known_yet() -> None:
    newer = pb.Chunk(id=1, records=[1], labels=[1], status=b"\0", compression=9, pixels=b"12")  # type: ignore[arg-type]
    data = pb.FeedReply(chunk=newer).SerializeToString()
    assert parse_chunk_start(data, len(data)) is None
    with pytest.raises(ProtocolError, match="chunk 1 is compressed with 9, which nobody asked for"):
        parse_reply(data)
    asked = pb.ChunkRequest(id=1, slots=[0], compression=9)  # type: ignore[arg-type]
    request = parse_request(pb.FeedRequest(chunk=asked).SerializeToString())
    assert isinstance(request, ChunkRequest)
    assert request.compression is Compression.NONE
    opened = pb.FeedReply(opened=pb.Opened(worker_id="w", compressions=[9, 2]))  # type: ignore[list-item]
    reply = parse_reply(opened.SerializeToString())
    assert isinstance(reply, Opened)
    assert reply.compressions == (Compression.ZSTD,)


@given(chunks())
def test_parse_reads_what_protobuf_writes(chunk: pb.Chunk) -> None:
    parsed = parse_reply(pb.FeedReply(chunk=chunk).SerializeToString())
    assert isinstance(parsed, Chunk)
    assert parsed.id == chunk.id
    assert parsed.records.dtype == np.int64
    assert parsed.records.tolist() == list(chunk.records)
    assert parsed.labels.dtype == np.int32
    assert parsed.labels.tolist() == list(chunk.labels)
    assert parsed.status.tobytes() == chunk.status
    assert parsed.pixels == chunk.pixels
    assert [b.reason for b in parsed.bad] == [b.reason for b in chunk.bad]


@given(chunks(), st.integers(0, 40))
def test_the_start_of_a_chunk_says_all_but_its_pixels(chunk: pb.Chunk, here: int) -> None:
    chunk.id = max(1, chunk.id)  # numbers begin at 1, and a zero would not be written
    data = pb.FeedReply(chunk=chunk).SerializeToString()
    before = len(data) - len(chunk.pixels)
    parsed = parse_chunk_start(data[: before + here], len(data))
    if chunk.bad:
        assert parsed is None
        return
    assert parsed is not None
    assert (parsed.id, parsed.records.tolist()) == (chunk.id, list(chunk.records))
    assert (parsed.labels.tolist(), parsed.status.tobytes()) == (list(chunk.labels), chunk.status)
    assert parsed.pixels == chunk.pixels[:here]
    assert parsed.pixel_bytes == len(chunk.pixels)


@given(chunks())
def test_a_placed_chunk_is_what_protobuf_reads(chunk: pb.Chunk) -> None:
    data = encode_placed(
        chunk.id,
        np.array(chunk.records, np.int64),
        np.array(chunk.labels, np.int32),
        np.frombuffer(chunk.status, np.uint8),
        [BadRecordInfo(b.dataset, b.record, b.shard, b.index, b.reason) for b in chunk.bad],
    )
    chunk.pixels, chunk.placed = b"", True
    assert pb.FeedReply.FromString(data) == pb.FeedReply(chunk=chunk)


@given(chunks(), st.data())
def test_a_placed_chunk_is_read_as_protobuf_does(chunk: pb.Chunk, data: st.DataObject) -> None:
    """Also where bytes of it are changed, the fast path reads it alike or leaves it."""
    chunk.id = max(1, chunk.id)
    arrays = np.array(chunk.records), np.array(chunk.labels, np.int32), np.frombuffer(chunk.status, np.uint8)
    whole = encode_placed(chunk.id, *arrays, [])
    parsed = parse_chunk_start(whole, len(whole))
    assert parsed is not None
    assert (parsed.id, parsed.placed, parsed.pixel_bytes, parsed.pixels) == (chunk.id, True, 0, b"")
    assert (parsed.records.tolist(), parsed.labels.tolist()) == (list(chunk.records), list(chunk.labels))
    assert parsed.status.tobytes() == chunk.status
    for array in _arrays(parsed):
        assert array.flags.aligned
        assert array.flags.writeable
    assert memoryview(parsed.labels).format == "i"
    with_bad = encode_placed(chunk.id, *arrays, [BadRecordInfo("d", 1, "s", 2, "crc")])
    assert parse_chunk_start(with_bad, len(with_bad)) is None
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        fast = parse_chunk_start(bytes(changed), len(changed))
        if fast is not None:
            slow = parse_reply(bytes(changed))
            assert isinstance(slow, Chunk)
            assert (fast.id, fast.placed, fast.pixels) == (slow.id, slow.placed, slow.pixels)
            for mine, theirs in zip(_arrays(fast), _arrays(slow), strict=True):
                assert mine.tolist() == theirs.tolist()


def _arrays(chunk: Chunk) -> tuple[np.ndarray, ...]:
    return chunk.records, chunk.labels, chunk.status


def test_an_array_of_more_bytes_than_there_can_be_is_left_to_protobuf() -> None:
    head = bytes([1 << 3, 1, 2 << 3 | 2]) + b"\x80" + b"\xff" * 8 + b"\x38"  # bytes of records
    data = bytes([2 << 3 | 2, len(head)]) + head
    assert parse_chunk_start(data, len(data)) is None
    with pytest.raises(ProtocolError):
        parse_reply(data)


def test_the_start_of_the_longest_chunk_is_long_enough() -> None:
    frame = ChunkFrame(2**64 - 1, MAX_SLOTS, 4096 * 4096 * 3)
    assert frame.pixels_at <= CHUNK_START_BYTES


def test_other_legal_encodings_are_read() -> None:
    """Unpacked arrays, pixels before the rest, unknown fields, a reply in two parts: all legal protobuf."""
    pixels = bytes([0x7A, 2]) + b"ab"
    records = bytes([2 << 3 | 1]) + (7).to_bytes(8, "little")
    labels = bytes([3 << 3 | 5]) + (3).to_bytes(4, "little")
    unknown = bytes([0xF8, 0x07, 1])  # field 127, varint
    rest = bytes([8, 9]) + records + labels + bytes([0x22, 1, 0]) + unknown
    for parts in ([pixels + rest], [rest + pixels], [rest, pixels], [pixels, rest]):
        data = b"".join(bytes([0x12, len(part)]) + part for part in parts)
        parsed = parse_reply(data)
        assert isinstance(parsed, Chunk)
        assert (parsed.id, parsed.records.tolist(), parsed.labels.tolist()) == (9, [7], [3])
        assert parsed.pixels == b"ab"


@pytest.mark.parametrize(
    "chunk",
    [
        pb.Chunk(id=1),
        pb.Chunk(id=1, records=[1, 2], labels=[1], status=b"\0\0", pixels=b"ab"),
        pb.Chunk(id=1, records=[1, 2], labels=[1, 2], status=b"\0", pixels=b"ab"),
        pb.Chunk(id=1, records=[1, 2], labels=[1, 2], status=b"\0\0", pixels=b"abc"),
        pb.Chunk(id=1, records=[1], labels=[1], status=b"\4", pixels=b"abc"),
    ],
)
def test_arrays_that_do_not_fit_are_named(chunk: pb.Chunk) -> None:
    with pytest.raises(ProtocolError, match="chunk 1 holds"):
        parse_reply(pb.FeedReply(chunk=chunk).SerializeToString())


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_protocol_error(data: bytes) -> None:
    for parse in (parse_reply, parse_request, lambda start: parse_chunk_start(start, 1 << 30)):
        with contextlib.suppress(ProtocolError, ConfigError):
            parse(data)


@settings(max_examples=500)
@given(chunks(), st.data())
def test_damaged_chunks_are_refused_or_read_as_protobuf_does(chunk: pb.Chunk, data: st.DataObject) -> None:
    """Whatever is cut or changed: what the fast path accepts, the generated class reads alike."""
    whole = pb.FeedReply(chunk=chunk).SerializeToString()
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, min(len(damaged), 80) - 1))] = data.draw(st.integers(0, 255))
    damaged_bytes = bytes(damaged)
    try:
        parsed = parse_chunk_start(damaged_bytes, len(damaged_bytes))
    except ProtocolError:
        return
    if parsed is not None:
        oracle = pb.FeedReply.FromString(damaged_bytes)
        assert oracle.WhichOneof("kind") == "chunk"
        assert parsed.id == oracle.chunk.id
        assert parsed.pixels == oracle.chunk.pixels
        assert parsed.records.tolist() == list(oracle.chunk.records)


@pytest.mark.parametrize(
    "reply",
    [
        Opened("host:1:ab", 128),
        Opened("host:1:ab", 128, reports=True),
        Draining(),
        Failed(3, FailureKind.STORAGE, "read failed"),
        Failed(2**64 - 1, FailureKind.BAD_RECORD, "bad", BadRecordInfo("d", 1, "s", 2, "crc")),
    ],
)
def test_small_replies_come_back(reply: messages.Reply) -> None:
    assert not isinstance(reply, Chunk)
    assert parse_reply(encode_reply(reply)) == reply


def test_file_names_that_are_no_utf8_still_travel() -> None:
    name = b"train-\xff".decode("utf-8", "surrogateescape")
    sent = Failed(3, FailureKind.BAD_RECORD, f"{name}: bad", BadRecordInfo("d", 1, name, 2, "crc"))
    reply = parse_reply(encode_reply(sent))
    assert isinstance(reply, Failed)
    assert reply.message == "train-\\udcff: bad"


def test_unknown_kinds() -> None:
    failed = bytes([0x1A, 4, 8, 1, 16, 99])  # id 1, kind 99
    assert parse_reply(failed) == Failed(1, FailureKind.UNSPECIFIED, "")
    with pytest.raises(ProtocolError, match="newer"):
        parse_reply(bytes([9 << 3 | 2, 0]))
    with pytest.raises(ProtocolError, match="newer"):
        parse_request(b"")


SPEC = StreamSpec(dataset="d", global_batch=64, lanes=16)


@pytest.mark.parametrize(
    "request_",
    [
        Open("s", SPEC, "f", "p", 1, 2, "job"),
        ChunkRequest(1, 2, 3, (0, 1, 5)),
        ChunkRequest(2**64 - 1, 0, 2**63, (), (3, 2**40)),
        ChunkRequest(2**40, 2**21, 127, (0, 127, 128, 2**32 - 1), (0, 0), Compression.ZSTD),
        ChunkRequest(1, 2, 3, (0,), trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ClientReport(),
        ClientReport(1, 0.5, 2.5, 0.25, 3, 4, 2**63, 6, 7, 8, 9, 10, 11),
    ],
)
def test_requests_come_back(request_: messages.Request) -> None:
    assert parse_request(encode_request(request_)) == request_


@pytest.mark.parametrize("field", ["step_s", "wait_s", "land_s"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_reports_whose_seconds_are_none(field: str, value: float) -> None:
    message = pb.FeedRequest(report=pb.ClientReport(steps=1))
    setattr(message.report, field, value)
    with pytest.raises(ProtocolError, match=f"a report came whose {field} is"):
        parse_request(message.SerializeToString())


def test_enums_equal_the_protocol() -> None:
    assert {
        f"SLOT_STATUS_{name}": int(value) for name, value in messages.SlotStatus.__members__.items()
    } == dict(pb.SlotStatus.items())
    assert {f"FAILURE_KIND_{name}": int(value) for name, value in FailureKind.__members__.items()} == dict(
        pb.FailureKind.items()
    )


def test_max_slots() -> None:
    assert max_slots(224 * 224 * 3) == MAX_SLOTS
    assert max_slots(4096 * 4096 * 3) * 4096 * 4096 * 3 <= MAX_CHUNK_BYTES
    assert max_slots(2 * MAX_CHUNK_BYTES) == 1
