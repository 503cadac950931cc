"""What strangers may send to a worker's port: it goes on, and nothing of them stays.

Attacks are drawn from a fixed seed, with TLS and without: FEEDER_FUZZ_ATTACKS of them, or for five minutes.
"""

from __future__ import annotations

import contextlib
import operator
import os
import random
import re
import socket
import ssl
import struct
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

import feeder
from feeder import Credentials
from feeder.cli.status import describe
from feeder.spec import StreamSpec
from feeder.wire import DESCRIBE, FEED
from feeder.wire.address import parse_address
from feeder.wire.codec import encode_request
from feeder.wire.frames import PREFACE
from feeder.wire.messages import ChunkRequest, Open
from feeder.wire.opening import ONE_CALL
from feeder.wire.v1 import feeder_pb2 as pb

SEED = 20261130
DEADLINE_S = 60.0
ATTACKS = int(os.environ.get("FEEDER_FUZZ_ATTACKS", "300"))
SOAK_S = 300.0
MAX_GROWTH_BYTES = 96 << 20
"""Of the worker's memory between a third of the attacks and their end: less than one of them could want."""

STREAM: dict[str, Any] = {"batch_size": 24, "image_size": 32, "seed": 5, "epochs": 1, "transport": "grpc"}

NUMBERS = (0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
TEXTS = ("", "data", "../../etc/passwd", "/etc/passwd", "s3://bucket/x", "\0", "a" * 5000, "\u202e\x1b[31m")


def headers(path: str, *, one_call: bool, extra: Any = ()) -> bytes:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *([ONE_CALL] if one_call else []),
        *extra,
    ]
    return bytes(Encoder().encode(fields))


def frames(*parts: Frame) -> bytes:
    return b"".join(part.serialize() for part in parts)


def call(stream: int, path: str, *, one_call: bool, extra: Any = (), end: bool = False) -> bytes:
    flags = ["END_HEADERS", *(["END_STREAM"] if end else [])]
    return frames(HeadersFrame(stream, headers(path, one_call=one_call, extra=extra), flags=flags))


def message(data: bytes) -> bytes:
    return struct.pack(">BI", 0, len(data)) + data


class Attacks:
    """Draws conversations; each is a list of pieces that are sent one after another."""

    def __init__(self, chance: random.Random, opening: bytes) -> None:
        self.chance = chance
        self.opening = opening
        self.kinds: list[Callable[[], list[bytes]]] = [
            self.noise,
            self.mutated,
            self.mutated,
            self.rapid_reset,
            self.flood,
            self.header_bomb,
            self.continuations,
            self.lengths,
            self.hostile_values,
            self.hostile_values,
            self.hostile_requests,
            self.describe,
            self.other_protocols,
            self.slow,
            self.odd_frames,
        ]

    def draw(self) -> list[bytes]:
        return self.chance.choice(self.kinds)()

    def start(self) -> bytes:
        return PREFACE + frames(SettingsFrame(0))

    def feed(self, *messages: bytes, end: bool = False) -> bytes:
        one_call = self.chance.random() < 0.7
        data = b"".join(map(message, messages))
        parts = [frames(DataFrame(1, data[at : at + 16000])) for at in range(0, len(data), 16000)]
        if end:
            parts.append(frames(DataFrame(1, b"", flags=["END_STREAM"])))
        return self.start() + call(1, FEED, one_call=one_call) + b"".join(parts)

    def noise(self) -> list[bytes]:
        data = self.chance.randbytes(self.chance.choice((1, 24, 300, 20_000)))
        return [self.chance.choice((b"", PREFACE, self.start())) + data]

    def mutated(self) -> list[bytes]:
        request = encode_request(ChunkRequest(1, 0, 0, (0, 1, 2)))
        data = bytearray(self.feed(self.opening, request, request, end=True))
        for _ in range(self.chance.randint(1, 8)):
            at = self.chance.randrange(len(data))
            match self.chance.randrange(4):
                case 0:
                    data[at] ^= 1 << self.chance.randrange(8)
                case 1:
                    data[at] = self.chance.choice((0, 1, 127, 128, 255))
                case 2:
                    del data[at : at + self.chance.randint(1, 9)]
                case _:
                    data[at:at] = data[at : at + self.chance.randint(1, 200)]
        cut = self.chance.randrange(len(data) + 1)
        return [bytes(data[:cut]), bytes(data[cut:])][: self.chance.randint(1, 2)]

    def rapid_reset(self) -> list[bytes]:
        path, one_call = self.chance.choice((FEED, DESCRIBE)), self.chance.random() < 0.5
        parts = [
            call(stream, path, one_call=one_call) + frames(RstStreamFrame(stream, error_code=8))
            for stream in range(1, 2 * self.chance.choice((20, 400)), 2)
        ]
        return [self.start() + b"".join(parts)]

    def flood(self) -> list[bytes]:
        one = self.chance.choice(
            (
                frames(PingFrame(0, b"12345678")),
                frames(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 1})),
                frames(WindowUpdateFrame(0, window_increment=1)),
                frames(PriorityFrame(1, depends_on=3, stream_weight=1)),
                frames(DataFrame(1, b"")),
            )
        )
        return [self.feed(self.opening), one * self.chance.choice((100, 3000))]

    def header_bomb(self) -> list[bytes]:
        big = [("x-bomb", "a" * 4000)] * self.chance.choice((2, 20, 400))
        block = headers(FEED, one_call=True, extra=big)
        rest = [
            frames(ContinuationFrame(1, block[at : at + 16000])) for at in range(16000, len(block), 16000)
        ]
        return [self.start() + frames(HeadersFrame(1, block[:16000])) + b"".join(rest)]

    def continuations(self) -> list[bytes]:
        empty = frames(ContinuationFrame(1, b""))
        return [self.start() + frames(HeadersFrame(1, b"")), empty * self.chance.choice((10, 5000))]

    def lengths(self) -> list[bytes]:
        size = self.chance.choice((2**32 - 1, 2**31, 2**24, 1 << 20, (1 << 20) + 1))
        head = struct.pack(">BI", self.chance.choice((0, 0, 1, 255)), size)
        frame = struct.pack(">I", 2**24 - 1)[1:] + bytes([self.chance.randrange(12), 0]) + b"\0\0\0\1"
        return [
            self.feed() + frames(DataFrame(1, head + b"x" * 1000)),
            self.chance.choice((b"", frame + b"y" * 5000)),
        ]

    def hostile_values(self) -> list[bytes]:
        """Messages that protobuf takes, with values that nobody means."""
        request = pb.FeedRequest.FromString(self.opening)
        self._spoil(request.open, self.chance.randint(1, 3))
        return [self.feed(request.SerializeToString(), self._request(), end=self.chance.random() < 0.5)]

    def hostile_requests(self) -> list[bytes]:
        """After an Open that is right."""
        count = self.chance.choice((1, 3, 200))
        return [self.feed(self.opening, *(self._request() for _ in range(count)))]

    def describe(self) -> list[bytes]:
        data = self.chance.choice((b"", message(b""), message(self.chance.randbytes(50)), b"\1\0\0\0\0"))
        extra = self.chance.choice(
            (
                (),
                (("authorization", "Bearer x"),),
                (("grpc-timeout", "99999999H"),),
                (("grpc-encoding", "gzip"),),
            )
        )
        start = self.start() + call(1, DESCRIBE, one_call=self.chance.random() < 0.5, extra=extra)
        return [start + frames(DataFrame(1, data, flags=["END_STREAM"]))]

    def other_protocols(self) -> list[bytes]:
        return [
            self.chance.choice(
                (
                    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + self.chance.randbytes(80),
                    b"SSH-2.0-x\r\n",
                    b"\x00" * 1000,
                )
            )
        ]

    def slow(self) -> list[bytes]:
        data = self.feed(self.opening)
        return [data[at : at + 1] for at in range(self.chance.randint(1, 30))]

    def odd_frames(self) -> list[bytes]:
        promise = PushPromiseFrame(1, promised_stream_id=2, data=headers(FEED, one_call=False))
        odd = (
            frames(GoAwayFrame(0, last_stream_id=2**31 - 1, additional_data=b"x" * 1000)),
            frames(WindowUpdateFrame(1, window_increment=2**31 - 1)) * 3,
            frames(SettingsFrame(0, {SettingsFrame.HEADER_TABLE_SIZE: 2**32 - 1})),
            frames(SettingsFrame(0, {SettingsFrame.MAX_FRAME_SIZE: 1})),
            promise.serialize(),
            struct.pack(">I", 100)[1:] + b"\xee\xff\0\0\0\1" + b"z" * 100,
            call(2, FEED, one_call=True),
            call(1, FEED, one_call=True),
        )
        return [self.feed(self.opening) + b"".join(self.chance.sample(odd, 3))]

    def _request(self) -> bytes:
        request = pb.FeedRequest.FromString(encode_request(ChunkRequest(1, 0, 0, (0, 1, 2))))
        if self.chance.random() < 0.8:
            self._spoil(request.chunk, self.chance.randint(1, 2))
        return request.SerializeToString()

    def _spoil(self, target: Any, changes: int) -> None:
        """Changes fields, also of messages within."""
        for _ in range(changes):
            at, field = target, self.chance.choice(target.DESCRIPTOR.fields)
            while field.message_type is not None and not field.is_repeated:
                at = getattr(at, field.name)
                field = self.chance.choice(at.DESCRIPTOR.fields)
            with contextlib.suppress(ValueError, TypeError, AttributeError, OverflowError):
                if field.is_repeated:
                    getattr(at, field.name).extend(
                        self.chance.choices(NUMBERS, k=self.chance.choice((1, 500)))
                    )
                elif field.cpp_type in (field.CPPTYPE_STRING,):
                    text = self.chance.choice(TEXTS)
                    setattr(at, field.name, text.encode() if field.type == field.TYPE_BYTES else text)
                elif field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
                    setattr(at, field.name, self.chance.choice((float("nan"), float("inf"), -1.0, 1e300)))
                else:
                    setattr(at, field.name, self.chance.choice(NUMBERS) * self.chance.choice((1, -1)))


class Port:
    """Connections to a worker, as an attacker makes them."""

    def __init__(self, address: str, context: ssl.SSLContext | None) -> None:
        found = parse_address(address)
        self._place = (found.host, found.port)
        self._context = context
        self.refused = 0

    def attack(self, pieces: list[bytes], chance: random.Random, kept: list[socket.socket]) -> None:
        try:
            connection = socket.create_connection(self._place, 5.0)
        except OSError:
            self.refused += 1
            return
        try:
            if self._context is not None and chance.random() < 0.9:  # the rest meets the handshake
                connection = self._context.wrap_socket(connection, server_hostname="127.0.0.1")
            connection.settimeout(chance.choice((0.001, 0.001, 0.02)))
            for piece in pieces:
                connection.sendall(piece)
            if chance.random() < 0.6:
                while connection.recv(65536):
                    pass
        except OSError:
            pass
        if chance.random() < 0.1:
            kept.append(connection)  # says no more, and is not closed
            if len(kept) > 12:
                kept.pop(0).close()
            return
        if chance.random() < 0.3:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def opening_of(address: str, credentials: Credentials) -> bytes:
    reply = describe(parse_address(address), credentials)
    spec = StreamSpec("data", global_batch=8, lanes=4, image_size=32)
    fingerprint = next(info.fingerprint for info in reply.datasets)
    return encode_request(Open("hostile", spec, fingerprint, pixel_fingerprint=reply.pixel_fingerprint))


def epoch(address: str, credentials: Credentials, digest_batches: Callable[..., list[str]]) -> list[str]:
    with feeder.connect(address, timeout_s=DEADLINE_S, credentials=credentials) as client:
        return digest_batches(client.stream("data", **STREAM))


def own_threads(process: psutil.Process) -> int:
    """Threads but those of gRPC's event engine, which starts more of them on a busy machine, and lets one go
    after it had nothing to do for half a minute."""
    count = 0
    for name in Path(f"/proc/{process.pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it is gone
            count += name.read_text() != "event_engine\n"
    return count


def refusals(worker: Any, credentials: Credentials) -> dict[str, int]:
    """What the worker says that it refused, by reason."""
    url = re.search(r"health at (https?://\S+)", worker.log.read_text())
    assert url is not None
    with urllib.request.urlopen(
        f"{url[1]}/metrics", None, DEADLINE_S, context=credentials.context()
    ) as answer:
        found = re.findall(
            r'^feeder_refused_total\{reason="(\w+)"\} (\S+)$', answer.read().decode(), re.MULTILINE
        )
    return {reason: int(float(value)) for reason, value in found if float(value)}


def bombard(
    worker: Any,
    credentials: Credentials,
    share: Callable[[int], float],
    digest_batches: Callable[..., list[str]],
    record_property: Callable[[str, object], None],
) -> None:
    """Attacks until `share` of their number so far is 1, and sees that the worker is what it was."""
    process = psutil.Process(worker.process.pid)
    expected = epoch(worker.address, credentials, digest_batches)
    opening = opening_of(worker.address, credentials)
    port = Port(worker.address, credentials.context())
    chance = random.Random(SEED)
    attacks = Attacks(chance, opening)
    kept: list[socket.socket] = []
    resident = 0
    count = 0
    try:
        while (done := share(count)) < 1:
            if not resident and done > 1 / 3:
                resident = process.memory_info().rss
            port.attack(attacks.draw(), chance, kept)
            count += 1
            if count % 1000 == 0:
                assert epoch(worker.address, credentials, digest_batches) == expected
    finally:
        for connection in kept:
            connection.close()
    assert worker.process.poll() is None, worker.log.read_text()[-3000:]
    assert epoch(worker.address, credentials, digest_batches) == expected
    assert port.refused < count / 10
    refused = refusals(worker, credentials)
    assert process.memory_info().rss - resident < MAX_GROWTH_BYTES
    ended_s = time.monotonic()
    while any(map(operator.gt, now := (own_threads(process), process.num_fds()), worker.at_rest)):
        assert time.monotonic() - ended_s < DEADLINE_S, (now, worker.at_rest, count)
        time.sleep(0.1)
    record_property("settled_s", round(time.monotonic() - ended_s, 1))
    log = worker.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    record_property("attacks", count)
    record_property("refused", refused)
    record_property("resident_mb", [resident >> 20, process.memory_info().rss >> 20])
    record_property("log_bytes", len(log))


@pytest.fixture
def target(
    request: pytest.FixtureRequest,
    start_worker: Callable[..., Any],
    shards: Path,
    authority: Any,
    local_certificate: Path,
    digest_batches: Callable[..., list[str]],
) -> tuple[Any, Credentials]:
    """A worker and what it takes; `at_rest` are its threads and descriptors when nobody is there."""
    secure = request.param == "tls"
    flags = ["--tls-cert", str(local_certificate)] if secure else []
    worker = start_worker(shards, *flags, "--max-streams", "8", "--http", "127.0.0.1:0")
    credentials = Credentials(tls_ca=authority.file) if secure else Credentials()
    process = psutil.Process(worker.process.pid)
    epoch(worker.address, credentials, digest_batches)
    deadline_s = time.monotonic() + DEADLINE_S
    while describe(parse_address(worker.address), credentials).live_streams:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    refusals(
        worker, credentials
    )  # what the HTTP side opens at its first request stays; a second opens no more
    # gRPC's pool grows to this as calls come, and never shrinks: two a stream, those unsaid, and spare ones.
    worker.at_rest = (own_threads(process) + 2 * 8 + 8 + 8, process.num_fds())
    return worker, credentials


@pytest.mark.timeout(240 + ATTACKS)
@pytest.mark.parametrize("target", ["plain", "tls"], indirect=True)
def test_a_worker_outlives_attacks(
    target: tuple[Any, Credentials], digest_batches: Callable[..., list[str]], record_property: Any
) -> None:
    bombard(*target, lambda count: count / ATTACKS, digest_batches, record_property)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", ["plain", "tls"], indirect=True)
def test_a_worker_outlives_ten_minutes_of_attacks(
    target: tuple[Any, Credentials], digest_batches: Callable[..., list[str]], record_property: Any
) -> None:
    begun_s = time.monotonic()
    bombard(*target, lambda _: (time.monotonic() - begun_s) / SOAK_S, digest_batches, record_property)
