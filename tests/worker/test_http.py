"""The HTTP side of a worker: metrics move with what it does, probes tell start, service and drain apart."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.web_protocol import RequestHandler
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import feeder
from feeder.client import report as report_module
from feeder.errors import ConfigError
from feeder.wire.address import Address
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker import http_door, metrics
from feeder.worker.http import HttpSide
from feeder.worker.refusals import LOG_LINES, Refusals

ANY_PORT = Address("tcp", "127.0.0.1", 0)
DEADLINE_S = 30.0
ROOT = Path(__file__).resolve().parents[2]

QUIET = {
    "feeder_draining": "the worker does not drain",
    "feeder_kept_bytes": "the streams differ",
    "feeder_shared_images_total": "the streams differ",
    "feeder_shared_bytes_total": "the streams differ",
    "feeder_storage_retries_total": "storage is well",
    "feeder_store_requests_total": "there is no object store",
    "feeder_store_merged_total": "there is no object store",
    "feeder_seek_used_total": "small images have no seek points",
    "feeder_seek_learned_total": "small images have no seek points",
    "feeder_seek_refused_total": "nothing is damaged",
    "feeder_seek_torn_total": "nothing is damaged",
    "feeder_seek_dropped_total": "nothing is damaged",
    "feeder_cache_dropped_segments_total": "nothing is damaged",
    "feeder_cache_full": "there is room",
    "feeder_stage_chunks": "it goes up and down",
    "feeder_workers_needed": "it goes up and down",
    "feeder_consumer_owed_chunks": "it goes up and down",
    "feeder_consumer_paced_seconds_total": "there are no tokens",
    "feeder_consumer_masked_slots_total": "bad records are replaced",
    "feeder_consumer_hedges_total": "there is one worker",
    "feeder_consumer_retries_total": "there is one worker",
}
"""Metrics that may be 0 where one healthy worker serves, and why."""


def get(address: str, path: str) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[str, float]:
    """Value of each sample; those with labels summed."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


def http_address(worker: Any) -> str:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        for line in list(worker.log):
            if match := re.search(r"metrics and health at http://(\S+)", line):
                return match.group(1)
        threading.Event().wait(0.02)
    pytest.fail(f"no address in {worker.log}")


def test_metrics_move_with_what_is_served(
    start_worker: Callable[..., Any], open_feed: Callable[..., Any]
) -> None:
    worker = start_worker("--http", "127.0.0.1:0")
    address = http_address(worker)
    before = samples(get(address, "/metrics")[1])
    with worker.channel() as channel, open_feed(channel) as feed:
        feed.ask(1, [0, 1, 2, 3])
        feed.reply()
        during = samples(get(address, "/metrics")[1])
        assert during["feeder_streams"] == before["feeder_streams"] + 1 == 1
        feed.half_close()
        feed.replies()
    after = samples(get(address, "/metrics")[1])
    for name in (
        "images_total",
        "chunks_total",
        "sent_bytes_total",
        "read_bytes_total",
        "make_seconds_total",
    ):
        assert after[f"feeder_{name}"] > before[f"feeder_{name}"], name
    assert after["feeder_images_total"] == 4
    assert after["feeder_dataset_records"] == 48
    assert worker.stop() == 0


def test_metrics_that_docs_and_deploy_name_move(
    start_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a new worker, which begins at 0, with two consumers."""
    monkeypatch.setattr(report_module, "REPORT_S", 0.05)
    named: set[str] = set()
    for path in (*(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.*")):
        if path.suffix == ".pyc":
            continue
        named.update(re.findall(r"\bfeeder_(?!pb2|index)[a-z_]+\b", path.read_text()))
    # That of the certificate moves in tests/service/test_reload.py.
    elsewhere = ("feeder_encoded_cache_", "feeder_stage_seconds", "feeder_tls_certificate_")
    named = {name for name in named if not name.startswith(elsewhere)}
    named |= {f"feeder_stage_seconds_{part}" for part in ("bucket", "sum", "count")}
    assert named > set(QUIET)
    cache = ("--cache-dir", str(tmp_path / "cache"), "--cache-bytes", "64MiB")
    worker = start_worker("--http", "127.0.0.1:0", *cache)
    address = http_address(worker)
    client = feeder.connect(worker.address)
    host, _, port = worker.address.rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as stranger:
        stranger.sendall(b"\x16\x03\x01\x00\x05hello")  # TLS, which this worker does not speak
        while stranger.recv(4096):
            pass
    with (
        client.stream("bad", batch_size=8, image_size=32, job="far", transport="grpc") as far,
        client.stream("train", batch_size=8, image_size=32, job="near", transport="shm") as near,
    ):
        deadline_s = time.monotonic() + DEADLINE_S
        still = named - set(QUIET)
        kept = {"feeder_cache_bytes", "feeder_cache_segments", "feeder_cache_filled_total"}
        while still:
            assert time.monotonic() < deadline_s, still
            if not still <= {*kept, "feeder_cache_hits_total"} or not still & kept:
                next(far)
                next(near)
            else:  # what was made is kept when nothing more comes for a while
                time.sleep(0.05)
            now = samples(get(address, "/metrics")[1])
            assert named <= set(now)
            still = {name for name in still if not now[name]}
    assert worker.stop() == 0


def test_every_counter_of_describe_is_a_metric() -> None:
    assert set(metrics.COUNTERS) == set(pb.Counters.DESCRIPTOR.fields_by_name)
    cache = set(pb.CacheInfo.DESCRIPTOR.fields_by_name)
    assert set(metrics.CACHE_COUNTERS) | set(metrics.CACHE_GAUGES) == cache


def test_probes_while_it_drains(start_worker: Callable[..., Any], open_feed: Callable[..., Any]) -> None:
    worker = start_worker("--http", "127.0.0.1:0", "--drain-s", "1000")
    address = http_address(worker)
    for path in ("/startupz", "/livez", "/readyz"):
        assert get(address, path) == (200, "serving\n")
    with worker.channel() as channel, open_feed(channel, image_size=1024) as feed:
        for number in range(8):
            feed.ask(number, range(8))  # more than is sent unless it is fetched
        feed.reply()
        feed.reply()
        worker.process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + DEADLINE_S
        while get(address, "/readyz")[0] == 200 and time.monotonic() < deadline_s:
            threading.Event().wait(0.02)
        assert get(address, "/readyz") == (503, "draining\n")
        assert get(address, "/livez")[0] == get(address, "/startupz")[0] == 200
        feed.replies()
    assert worker.wait()[0] == 0


def test_while_it_starts() -> None:
    with HttpSide(ANY_PORT) as side:
        address = str(side.address)
        assert get(address, "/livez") == (200, "starting\n")
        for path in ("/startupz", "/readyz", "/metrics"):
            assert get(address, path) == (503, "starting\n")
        assert get(address, "/etc/passwd")[0] == 404
    with pytest.raises(ConnectionRefusedError):
        get(address, "/livez")


def test_closing_does_not_wait_for_who_stays_connected() -> None:
    side = HttpSide(ANY_PORT)
    with socket.create_connection((side.address.host, side.address.port), timeout=DEADLINE_S) as idle:
        side.close()
        with contextlib.suppress(ConnectionResetError):  # it was not accepted yet
            assert idle.recv(1) == b""


def lives(address: Address) -> bool:
    try:
        return get(str(address), "/livez")[0] == 200
    except ConnectionError:  # it was refused before it had asked
        return False


def test_probes_while_it_closes_leave_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    closed = threading.Event()

    def probe(address: Address) -> None:
        while not closed.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                get(str(address), "/livez")

    for _ in range(10):  # a probe meets the moment of closing in about one of two
        closed.clear()
        with HttpSide(ANY_PORT) as side:
            assert get(str(side.address), "/livez")[0] == 200
            probes = [threading.Thread(target=probe, args=(side.address,)) for _ in range(3)]
            for thread in probes:
                thread.start()
        closed.set()
        for thread in probes:
            thread.join()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_one_connection_too_many_is_refused_and_those_that_end_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_door, "MAX_CONNECTIONS", 3)
    with HttpSide(ANY_PORT) as http, contextlib.ExitStack() as stack:
        host, port = http.address.host, http.address.port
        held = [stack.enter_context(socket.create_connection((host, port), DEADLINE_S)) for _ in range(3)]
        for connection in held:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        with socket.create_connection((host, port), DEADLINE_S) as refused, refused.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.1 503 ")
        held[0].close()
        deadline_s = time.monotonic() + DEADLINE_S
        while not lives(http.address):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


@contextlib.contextmanager
def held(address: Address, count: int, first: bytes) -> Iterator[list[socket.socket]]:
    """Connections that say `first` and take nothing."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(DEADLINE_S)
            connection.connect((address.host, address.port))
            connection.sendall(first)
            connections.append(connection)
        yield connections


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


PAGE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("first", [b"", b"GET /livez HT", PAGE * 2000], ids=["silent", "half", "slow"])
def test_who_stays_and_does_nothing_is_cut(monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    """Who asks thousands of times and takes no answer, too; then others find room."""
    monkeypatch.setattr(http_door, "HELLO_S", 0.5)
    monkeypatch.setattr(http_door, "STALL_S", 0.5)
    monkeypatch.setattr(http_door, "MAX_CONNECTIONS", 8)
    refusals = Refusals()
    with HttpSide(ANY_PORT, refusals=refusals) as side, held(side.address, 8, first):
        until(lambda: refusals.counts()["timeout"] == 8)
        until(lambda: lives(side.address))


def test_an_answer_that_outlives_its_connection_leaves_nothing() -> None:
    """Whoever closes the page while its events come, a thousand times a day."""
    with HttpSide(ANY_PORT) as side:
        side.serving(CollectorRegistry(), CollectorRegistry(), pb.DescribeReply)
        ended: list[object] = []
        answering = side._door.answering

        def note(handler: RequestHandler) -> None:
            answering(handler)
            ended.append(handler)

        side._door.answering = note  # type: ignore[method-assign]
        with socket.create_connection((side.address.host, side.address.port), DEADLINE_S) as watcher:
            watcher.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
            assert watcher.recv(4096).startswith(b"HTTP/1.1 200")
            (watched,) = side._door._until_s
        until(lambda: not side._door._until_s)
        until(lambda: ended)
        assert ended == [watched]
        assert not side._door._until_s


def test_one_host_does_not_get_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "MAX_PER_HOST", 4)
    refusals = Refusals()
    with HttpSide(ANY_PORT, refusals=refusals) as side, held(side.address, 5, b"") as connections:
        assert connections[-1].recv(4096).startswith(b"HTTP/1.1 503")
        until(lambda: refusals.counts()["busy"] == 1)
        place = ("127.0.0.2", 0)  # another host of this loopback network
        with socket.create_connection((side.address.host, side.address.port), DEADLINE_S, place) as other:
            other.sendall(PAGE)
            assert other.recv(4096).startswith(b"HTTP/1.1 200")


def test_what_is_no_request_is_counted_and_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    noise = (b"\0\1\2\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0", b"GET / HTTP/1.1\r\nA" + b"a" * 99_999)
    twice = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with HttpSide(ANY_PORT, refusals=refusals) as side:
        for first in (*noise, twice) * 2:
            with held(side.address, 1, first) as (connection,):
                answer = b""
                with contextlib.suppress(ConnectionError):
                    while data := connection.recv(4096):
                        answer += data
            assert b" 400 " in answer[:16] or not answer
        assert refusals.counts()["bad_request"] == 2 * (len(noise) + 1)
    assert "Traceback" not in caplog.text
    assert len(caplog.text.splitlines()) == LOG_LINES


def test_a_port_in_use_is_named() -> None:
    with (
        HttpSide(ANY_PORT) as side,
        pytest.raises(ConfigError, match=r"--http: cannot listen on .*: another process"),
    ):
        HttpSide(side.address)


def test_workers_needed_follows_the_share_of_time_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    counters = pb.Counters()
    registry = metrics.registry_of(lambda: pb.DescribeReply(counters=counters))

    def needed() -> float | None:
        return registry.get_sample_value("feeder_workers_needed")

    assert needed() == 0  # nothing was asked for yet
    counters.decode_s, counters.idle_s = 75, 25
    now_s += 61
    assert needed() == pytest.approx(1.0)
    counters.decode_s += 60  # at work all the time since
    now_s += 61
    assert needed() == pytest.approx(1 / 0.75)
    counters.idle_s += 60
    now_s += 61
    assert needed() == 0
