"""What the first bytes of a connection are taken for."""

from __future__ import annotations

import random

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hyperframe.frame import PingFrame, SettingsFrame, WindowUpdateFrame
from hypothesis import given
from hypothesis import strategies as st

from feeder.wire.frames import DATA, PREFACE, Head, payload
from feeder.wire.opening import (
    MAX_OPENING_BYTES,
    MAX_OPENING_FRAMES,
    ONE_CALL,
    Opening,
    WithoutFirstAck,
    refusal,
)

PATH = "/test.Echo/Stream"
HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":path": PATH,
    ":authority": "here",
    "te": "trailers",
    "content-type": "application/grpc",
    ONE_CALL[0]: ONE_CALL[1],
}


def client(*requests: dict[str, str], body: bytes = b"", ended: bool = False) -> bytes:
    """What a client sends that opens these streams, and ends them with their headers if so."""
    http = H2Connection(H2Configuration(client_side=True))
    http.initiate_connection()
    for number, headers in enumerate(requests):
        http.send_headers(2 * number + 1, list(headers.items()), end_stream=ended)
    if body:
        http.send_data(1, body)
    return http.data_to_send()


def heard(data: bytes, *cuts: int) -> tuple[Opening, list[tuple[Head, bytes]]]:
    opening, frames = Opening(PATH), []
    for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        if begin < end and not opening.decided:
            frames += opening.feed(data[begin:end])
    return opening, frames


@given(st.lists(st.integers(0, len(client(HEADERS, body=b"hello"))), max_size=8))
def test_the_call_is_found_in_whatever_pieces_it_comes(cuts: list[int]) -> None:
    data = client(HEADERS, body=b"hello")
    opening, frames = heard(data, *sorted(cuts))
    assert opening.decided
    assert opening.headers is not None
    assert opening.headers[b":path"] == PATH.encode()
    assert data.startswith(opening.received)
    rest = data[len(opening.received) :]
    frames += opening.frames.cut(rest)
    assert b"".join(payload(*one) or b"" for one in frames if one[0].kind == DATA) == b"hello"


@pytest.mark.parametrize(
    "data",
    [
        client(HEADERS | {":path": "/test.Echo/Other"}),
        client(HEADERS | {":method": "GET"}),
        client(HEADERS | {"content-type": "text/html"}),
        client(HEADERS | {"grpc-encoding": "gzip"}),
        client({name: value for name, value in HEADERS.items() if name != "te"}),
        client({name: value for name, value in HEADERS.items() if name != ONE_CALL[0]}),
        client(HEADERS, HEADERS),
        client(HEADERS, ended=True),
        client(HEADERS | {"much": "x" * 20_000}),
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSN",
        PREFACE + b"\0\0\0\0\0\0\0\0\1",  # DATA, before settings
    ],
    ids=[
        "other",
        "GET",
        "html",
        "gzip",
        "no te",
        "more calls",
        "two",
        "no requests",
        "large",
        "HTTP/1",
        "no preface",
        "no settings",
    ],
)
def test_all_else_is_for_the_server_behind(data: bytes) -> None:
    opening, frames = heard(data)
    assert opening.decided
    assert opening.headers is None
    assert frames == []
    assert opening.received == data


def test_what_asks_for_nothing_is_not_kept_for_ever() -> None:
    opening = Opening(PATH)
    opening.feed(client())
    assert opening.is_http2
    unknown = bytes(Head(10_000, 0xEE, 0, 0)) + bytes(10_000)
    while not opening.decided:
        opening.feed(unknown)
    assert opening.headers is None
    assert len(opening.received) < MAX_OPENING_BYTES + 2 * len(unknown)


def test_many_frames_are_not_understood_for_ever() -> None:
    """Each costs h2 some time, of the thread that welcomes everybody."""
    opening = Opening(PATH)
    flood = PingFrame(0, b"12345678").serialize() * (10 * MAX_OPENING_FRAMES)
    assert opening.feed(client() + flood) == []
    assert opening.decided
    assert opening.headers is None
    assert opening.received == client() + flood
    assert opening.http.data_to_send().count(b"12345678") <= MAX_OPENING_FRAMES


def test_what_a_client_is_told_first_is_nothing_new() -> None:
    """Whoever serves the connection then need not know of it."""
    told = H2Connection(H2Configuration(client_side=True))
    told.initiate_connection()
    before = dict(told.remote_settings)
    told.receive_data(Opening(PATH).greeting)
    assert {name: value for name, value in told.remote_settings.items() if before.get(name) != value} == {
        6: 16384  # MAX_HEADER_LIST_SIZE, which gRPC servers say again
    }
    told.receive_data(refusal("too many"))


FRAMES = st.lists(
    st.sampled_from(
        [
            SettingsFrame(0, {4: 1000}).serialize(),
            PingFrame(0, b"\0\0\0\4\1\0\0\0").serialize(),
            WindowUpdateFrame(0, window_increment=5).serialize(),
            b"\0\0\x0b\0\0\0\0\0\1hello world",
            b"\0\0\1\4\1\0\0\0\0x",  # an acknowledgement that is none
        ]
    ),
    max_size=6,
)
ACK = SettingsFrame(0, flags=["ACK"]).serialize()


@given(FRAMES, FRAMES, st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_first_acknowledgement_is_left_out(
    before: list[bytes], after: list[bytes], acknowledgements: int, chance: random.Random
) -> None:
    data = PREFACE + b"".join(before) + ACK * acknowledgements + b"".join(after)
    wanted = PREFACE + b"".join(before) + ACK * max(0, acknowledgements - 1) + b"".join(after)
    passed, without_ack = b"", WithoutFirstAck()
    while data:
        size = chance.randint(1, 20)
        passed, data = passed + without_ack(data[:size]), data[size:]
    assert passed == wanted
