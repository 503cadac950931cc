"""Frames of HTTP/2, against hyperframe's and h2's reading of them."""

from __future__ import annotations

import random

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import WindowUpdated
from hyperframe.frame import DataFrame, Frame
from hypothesis import given
from hypothesis import strategies as st

from feeder.wire.frames import (
    DATA,
    HEAD_BYTES,
    PREFACE,
    STREAM,
    Frames,
    FrameTooLarge,
    Head,
    credit,
    payload,
    room,
    spend,
)

HEADS = st.builds(
    Head, st.integers(0, 2**24 - 1), st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**31 - 1)
)


@given(HEADS)
def test_a_head_is_read_as_it_was_written(head: Head) -> None:
    raw = bytes(head)
    assert len(raw) == HEAD_BYTES
    assert Head.parse(b"xyz" + raw, 3) == head


@given(st.integers(0, 1000), st.integers(1, 2**31 - 1))
def test_a_head_is_what_hyperframe_reads(size: int, stream: int) -> None:
    frame, length = Frame.parse_frame_header(memoryview(bytes(Head(size, DATA, 1, stream))))
    assert isinstance(frame, DataFrame)
    assert (length, frame.stream_id, set(frame.flags)) == (size, stream, {"END_STREAM"})


@given(
    st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=300)), max_size=6),
    st.randoms(use_true_random=False),
)
def test_frames_are_cut_from_whatever_pieces_they_come_in(
    sent: list[tuple[int, bytes]], chance: random.Random
) -> None:
    wanted = [(Head(len(body), kind, 0, 1), body) for kind, body in sent]
    data = PREFACE + b"".join(bytes(head) + body for head, body in wanted)
    found, frames = [], Frames(300)
    while data:
        size = chance.randint(1, 100)
        found += frames.cut(data[:size])
        data = data[size:]
    assert found == [(head, bytes(head) + body) for head, body in wanted]


def test_a_frame_that_is_too_large_is_told_by_its_head() -> None:
    frames = Frames(100)
    good = bytes(Head(100, DATA, 0, STREAM)) + bytes(100)
    cut = frames.cut(PREFACE + good + bytes(Head(101, DATA, 0, STREAM)))
    assert next(cut)[1] == good
    with pytest.raises(FrameTooLarge, match="101 bytes came, at most 100"):
        next(cut)


def test_frames_that_nobody_took_are_cut_again() -> None:
    frames = Frames(100)
    one, other = (bytes(Head(1, DATA, 0, STREAM)) + body for body in (b"a", b"b"))
    cut = frames.cut(PREFACE + one + other)
    assert next(cut)[1] == one
    cut.close()
    assert [frame for _, frame in frames.cut(b"")] == [other]


@given(st.binary(max_size=50), st.integers(0, 60), st.booleans())
def test_what_a_frame_carries_is_what_hyperframe_reads(body: bytes, padding: int, padded: bool) -> None:
    flags = ["PADDED"] if padded else []
    raw = DataFrame(STREAM, body, pad_length=padding if padded else 0, flags=flags).serialize()
    assert payload(Head.parse(raw), raw) == body


@pytest.mark.parametrize("raw", [b"", b"\1", b"\3ab"], ids=["no length", "all", "too long"])
def test_padding_beyond_the_frame_is_none_of_it(raw: bytes) -> None:
    head = Head(len(raw), DATA, 0x8, STREAM)
    assert payload(head, bytes(head) + raw) is None


def test_windows_are_those_that_h2_would_have() -> None:
    ours, theirs = (H2Connection(H2Configuration(client_side=True)) for _ in range(2))
    for http in (ours, theirs):
        http.initiate_connection()
        http.send_headers(
            STREAM, [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "x")]
        )
    theirs.send_data(STREAM, bytes(5000))
    spend(ours, 5000)
    assert room(ours) == room(theirs) == 16_384
    events = ours.receive_data(_settings() + credit(1000))
    assert sorted(event.stream_id for event in events if isinstance(event, WindowUpdated)) == [0, STREAM]
    assert ours.outbound_flow_control_window == 65_535 - 4000
    assert ours.local_flow_control_window(STREAM) == 65_535 - 4000


def _settings() -> bytes:
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    return server.data_to_send()
