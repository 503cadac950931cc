"""What is asked for, as lists of what came; and bytes that become pixels, or are refused."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feeder
from feeder.client.compression import PROBE_EVERY, Chooser, check_choice, unpack
from feeder.errors import ConfigError, ProtocolError
from feeder.wire.codec import ChunkFrame, parse_reply
from feeder.wire.messages import Chunk, ChunkRequest, Compression, Packed

cramjam = pytest.importorskip("cramjam", reason="cramjam is not installed (extra compression)")

NONE, LZ4, ZSTD = Compression
BOTH = (LZ4, ZSTD)
CHUNK = 1_000_000
TINY: dict[str, Any] = {"batch_size": 8, "image_size": 4, "epochs": 1, "transport": "grpc"}


def packed(kind: Compression, pixels: bytes) -> bytes:
    compress = cramjam.lz4.compress_block if kind is LZ4 else cramjam.zstd.compress
    more = {"store_size": False} if kind is LZ4 else {}
    return bytes(compress(pixels, **more))


def fed(chooser: Chooser, rounds: int, wire_s: float) -> list[Compression]:
    """What is asked for by a client whose wire takes `wire_s` a byte; LZ4 halves, zstd makes a fifth in
    twenty times the time."""
    asked = []
    for _ in range(rounds):
        kind = chooser.choose()
        asked.append(kind)
        share, processor_s = {NONE: (1.0, 0.0), LZ4: (0.5, 1e-9), ZSTD: (0.2, 20e-9)}[kind]
        nbytes = int(CHUNK * share)
        chooser.came(kind, CHUNK, nbytes, nbytes * wire_s, CHUNK * processor_s)
    return asked


class TestChooser:
    @pytest.mark.parametrize("choice", ["none", "lz4", "zstd"])
    def test_what_was_said_is_what_is_asked(self, choice: Any) -> None:
        chooser = Chooser(choice)
        assert chooser.connected(BOTH)
        assert set(fed(chooser, 200, 1.0)) == {Compression[choice.upper()]}

    def test_what_a_worker_has_not_is_not_asked_for(self) -> None:
        chooser = Chooser("zstd")
        assert not chooser.connected([LZ4])
        assert fed(chooser, 3, 1.0) == [NONE] * 3
        assert chooser.connected(BOTH)  # it came back as another one
        assert fed(chooser, 3, 1.0) == [ZSTD] * 3
        assert Chooser("auto").connected([])
        assert fed(Chooser("auto"), 100, 1.0) == [NONE] * 100

    @pytest.mark.parametrize(("wire_s", "best"), [(1e-10, NONE), (1e-8, LZ4), (1e-6, ZSTD)])
    def test_auto_takes_what_costs_least(self, wire_s: float, best: Compression) -> None:
        chooser = Chooser("auto")
        chooser.connected(BOTH)
        asked = fed(chooser, 3 * PROBE_EVERY, wire_s)
        assert asked[:3] == [NONE, LZ4, ZSTD]
        others = [kind for kind in asked[3:] if kind is not best]
        assert len(others) <= 4

    def test_auto_follows_the_wire(self) -> None:
        chooser = Chooser("auto")
        chooser.connected(BOTH)
        assert fed(chooser, 60, 1e-10)[-1] is NONE
        assert fed(chooser, 60, 1e-6)[-1] is ZSTD
        assert fed(chooser, 60, 1e-10)[-1] is NONE


class TestUnpack:
    @pytest.mark.parametrize("kind", BOTH)
    @given(pixels=st.binary(min_size=1, max_size=2000).map(lambda pixels: pixels * 3))
    def test_what_was_packed_comes_back(self, kind: Compression, pixels: bytes) -> None:
        out = np.empty(len(pixels), np.uint8)
        unpack(kind, packed(kind, pixels), out.data)
        assert out.tobytes() == pixels

    @pytest.mark.parametrize("kind", BOTH)
    @given(data=st.data())
    def test_other_bytes_are_refused_or_fill_the_buffer_and_no_more(
        self, kind: Compression, data: Any
    ) -> None:
        good = bytearray(packed(kind, bytes(range(200)) * 20))
        for _ in range(data.draw(st.integers(0, 3))):
            good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
        cut = good[: data.draw(st.integers(0, len(good)))]
        memory = np.full(4000 + 64, 7, np.uint8)
        with contextlib.suppress(ProtocolError):
            unpack(kind, bytes(cut), memory[:4000].data)
        assert (memory[4000:] == 7).all()

    @pytest.mark.parametrize("kind", BOTH)
    def test_a_bomb_and_what_is_too_little(self, kind: Compression) -> None:
        out = np.empty(1000, np.uint8)
        for size in (100_000_000, 1001, 999):
            with pytest.raises(ProtocolError):
                unpack(kind, packed(kind, bytes(size)), out.data)
        for junk in (b"", b"\0", b"no such thing"):
            with pytest.raises(ProtocolError):
                unpack(kind, junk, out.data)


def test_choices_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [check_choice(choice) for choice in ("none", "lz4", "zstd", "auto")] == [
        "none",
        "lz4",
        "zstd",
        "auto",
    ]
    with pytest.raises(ConfigError, match="compression must be one of none, lz4, zstd, auto, got 'gzip'"):
        check_choice("gzip")
    monkeypatch.setitem(sys.modules, "cramjam", None)  # as if it were not installed
    assert check_choice("none") == "none"
    for choice in ("lz4", "zstd", "auto"):
        with pytest.raises(ConfigError, match="needs cramjam, which is not installed: pip install cramjam"):
            check_choice(choice)


Make = Callable[..., Any]


def test_a_worker_that_knows_nothing_of_it_sends_pixels_as_they_are(
    scripted: Make, caplog: pytest.LogCaptureFixture
) -> None:
    worker = scripted()
    with feeder.connect(worker.address).stream("data", **TINY, compression="zstd") as stream:
        assert len(list(stream)) == 5
        stats = stream.stats()
    assert stats.saved_bytes == 0
    assert stats.workers[worker.address].compression == "none"
    assert "has not the compression asked for" in caplog.text


def pack_all(
    kind: Compression, spoil: Callable[[bytes], bytes] = bytes
) -> Callable[[Any, ChunkRequest], bytes]:
    """A worker's answers, compressed whatever was asked for."""

    def answer(worker: Any, request: ChunkRequest) -> bytes:
        data = worker.chunk(request)
        chunk = parse_reply(data)
        assert isinstance(chunk, Chunk)
        small = Packed(kind, spoil(packed(kind, bytes(chunk.pixels))), 0.0)
        frame = ChunkFrame(request.id, len(chunk.records), worker.opening.spec.image_bytes)
        return frame.changed(data, (), small)

    return answer


@pytest.mark.parametrize(
    ("compression", "spoil", "message"),
    [
        ("none", bytes, "which nobody asked for"),
        ("lz4", bytes, "which nobody asked for"),
        ("zstd", lambda data: data[:-1] + b"\0\0", "zstd|ZSTD"),
    ],
)
def test_what_was_not_asked_for_or_is_damaged_is_an_error_that_says_so(
    scripted: Make, compression: Any, spoil: Any, message: str
) -> None:
    worker = scripted(pack_all(ZSTD, spoil), compressions=BOTH)
    client = feeder.connect(worker.address)
    settings = {**TINY, "image_size": 32, "compression": compression}
    with (
        client.stream("data", **settings) as stream,
        pytest.raises(ProtocolError, match=message),
    ):
        next(stream)


@pytest.mark.parametrize("kind", BOTH)
def test_compressed_chunks_are_the_batches_that_they_were(scripted: Make, kind: Compression) -> None:
    settings = {**TINY, "image_size": 32}
    plain, worker = scripted(), scripted(pack_all(kind), compressions=BOTH)
    with feeder.connect(plain.address).stream("data", **settings) as stream:
        expected = [batch.images.tobytes() for batch in stream]
        assert stream.stats().saved_bytes == 0
    client = feeder.connect(worker.address)
    with client.stream("data", **settings, compression=kind.name.lower()) as stream:
        assert [batch.images.tobytes() for batch in stream] == expected
        stats = stream.stats()
    assert stats.received_bytes + stats.saved_bytes == 5 * 8 * 32 * 32 * 3
    assert stats.saved_bytes > stats.received_bytes
    assert stats.workers[worker.address].saved_bytes == stats.saved_bytes
    assert stats.workers[worker.address].compression == kind.name.lower()
