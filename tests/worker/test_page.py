"""The status page without a browser: what it lets in, who may see what, how many may watch, how it ends."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import hashlib
import http.client
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image
from prometheus_client import CollectorRegistry

from feeder.wire.address import Address
from feeder.wire.messages import Chunk
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.http import HttpSide
from feeder.worker.page import feed as page_feed
from feeder.worker.page import side as page_side

ANY_PORT = Address("tcp", "127.0.0.1", 0)
DEADLINE_S = 30.0
HOSTILE = "</script><script>alert(1)</script>\x1b[31m"
JOB = "secret-job"


def described() -> pb.DescribeReply:
    """Of a worker whose every name is hostile, with one consumer of a job."""
    stream = pb.StreamInfo(job=JOB, session="session", peer="ipv4:10.1.2.3:4", consumer_count=1)
    stream.spec.dataset = HOSTILE
    stream.spec.global_batch = stream.spec.lanes = 8
    bad = pb.BadRecordInfo(dataset=HOSTILE, shard=f"secret-shard{HOSTILE}", index=1, reason=HOSTILE)
    return pb.DescribeReply(
        version="1",
        worker_id=HOSTILE,
        datasets=[pb.DatasetInfo(name=HOSTILE, records=80)],
        live_streams=1,
        max_streams=4,
        streams=[stream],
        quarantine=[bad],
        uptime_s=time.monotonic(),
    )


class Answer(NamedTuple):
    status: int
    headers: Any
    text: str


def get(address: Address, path: str, **headers: str) -> Answer:
    with contextlib.closing(http.client.HTTPConnection(address.host, address.port, DEADLINE_S)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read().decode())


@contextlib.contextmanager
def watching(address: Address, **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """(kind, value) of each event as it comes, until the end of the answer."""
    with contextlib.closing(http.client.HTTPConnection(address.host, address.port, DEADLINE_S)) as connection:
        connection.request("GET", "/events", headers=headers)
        with connection.getresponse() as answer:
            assert answer.status == 200
            yield _events(answer)


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    kind = ""
    while line := answer.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpSide]:
    """Serves the page of `described`, in quick samples; only the token "all" may see names and pictures."""
    monkeypatch.setattr(page_feed, "PERIOD_S", 0.05)
    with HttpSide(ANY_PORT, sees=lambda authorization: authorization == "Bearer all") as side:
        side.serving(CollectorRegistry(), CollectorRegistry(), described)
        yield side


def sample(events: Iterator[tuple[str, Any]]) -> Any:
    return next(value for kind, value in events if kind == "sample")


def test_the_page_lets_in_what_is_in_it_and_nothing_else(side: HttpSide) -> None:
    answer = get(side.address, "/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"\s(src|style|on\w+)=", answer.text.split("</style>")[1].split("<script>")[0])
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_nobody_watches_without_wanting_to_see(side: HttpSide) -> None:
    connection = http.client.HTTPConnection(side.address.host, side.address.port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request("HEAD", "/events")
        assert connection.getresponse().status == 405


def test_names_are_escaped(side: HttpSide) -> None:
    text = get(side.address, "/").text
    assert HOSTILE not in text
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    assert "\x1b" not in text


def test_while_the_worker_starts_the_page_says_so() -> None:
    with HttpSide(ANY_PORT) as side:
        assert "The worker starts" in get(side.address, "/").text
        assert get(side.address, "/events").status == get(side.address, "/pictures").status == 503


def test_samples_come_and_history_first(side: HttpSide) -> None:
    with watching(side.address, Authorization="Bearer all") as events:
        kind, _ = next(events)
        assert kind == "history"
        kind, first = next(events)
        assert kind == "sample"
        assert first["consumers"][0]["job"] == JOB
        assert [verdict["jobs"] for verdict in first["verdicts"]] == [[JOB]]
        assert first["bad"][0]["reason"] == HOSTILE  # the page makes it text
    with watching(side.address, Authorization="Bearer all") as events:
        _, history = next(events)
        assert first["moment"] in history


def test_names_are_for_those_who_may_see_them(side: HttpSide) -> None:
    with watching(side.address) as events:
        values = sample(events)
    assert values["names"] is False
    assert [verdict["limit"] for verdict in values["verdicts"]] == ["trainer"]
    assert values["streams"] == 1
    assert [(one["job"], one["number"]) for one in values["consumers"]] == [("", 0)]
    for secret in (JOB, "secret-shard", "10.1.2.3"):
        assert secret not in json.dumps(values)
    assert get(side.address, "/pictures").status == 403
    assert get(side.address, "/pictures", Authorization="Bearer all").status == 503  # none are made here


def test_a_browser_signs_in_with_a_token_as_password(side: HttpSide) -> None:
    asked = get(side.address, "/sign-in")
    assert asked.status == 401
    assert asked.headers["WWW-Authenticate"].startswith("Basic ")
    for password, status in ((b"all", 303), (b"none", 401), (b"\xff", 401)):
        told = base64.b64encode(b"me:" + password).decode()
        assert get(side.address, "/sign-in", Authorization=f"Basic {told}").status == status
    assert get(side.address, "/sign-in", Authorization="Basic %%%").status == 401


def test_one_watcher_too_many_is_refused(side: HttpSide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_side, "MAX_WATCHERS", 2)
    with watching(side.address) as one, watching(side.address) as other:
        assert sample(one)["streams"] == sample(other)["streams"] == 1
        assert get(side.address, "/events").status == 503
        assert get(side.address, "/livez").status == 200
    deadline_s = time.monotonic() + DEADLINE_S
    while True:  # those that went are noticed with the next sample
        with contextlib.suppress(AssertionError), watching(side.address) as events:
            assert sample(events)
            break
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_watchers_end_with_the_worker() -> None:
    side = HttpSide(ANY_PORT)
    side.serving(CollectorRegistry(), CollectorRegistry(), described)
    with watching(side.address) as events, concurrent.futures.ThreadPoolExecutor(1) as pool:
        kinds = pool.submit(lambda: [kind for kind, _ in events])
        side.close()
        assert kinds.result(DEADLINE_S)[-1] == "end"


def test_a_description_that_fails_ends_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_feed, "PERIOD_S", 0.05)
    failing = threading.Event()

    def describe() -> pb.DescribeReply:
        if failing.is_set():
            failing.clear()
            raise RuntimeError("just now")
        return described()

    with HttpSide(ANY_PORT) as side:
        side.serving(CollectorRegistry(), CollectorRegistry(), describe)
        with watching(side.address) as events:
            next(events)
            failing.set()
            assert sample(events)["streams"] == 1
            assert not failing.is_set()
    assert "status page" in caplog.text


def pixels(url: str) -> np.ndarray[Any, np.dtype[np.int16]]:
    kind, _, data = url.partition(",")
    assert kind == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return np.asarray(image.convert("RGB")).astype(np.int16)


def test_pictures_are_of_the_newest_request(
    start_worker: Callable[..., Any], open_feed: Callable[..., Any]
) -> None:
    worker = start_worker("--http", "127.0.0.1:0")
    with worker.channel() as channel, open_feed(channel, dataset="bad") as feed:
        (found,) = (match for line in worker.log if (match := re.search(r"health at (.*):(\d+)", line)))
        address = Address("tcp", found[1].removeprefix("http://"), int(found[2]))
        feed.reply()
        feed.ask(1, range(8), epoch=2, taken=2)
        chunk = feed.reply()
        assert isinstance(chunk, Chunk)
        delivered = np.frombuffer(chunk.pixels, np.uint8).reshape(8, 32, 32, 3).astype(np.int16)
        with watching(address) as events:
            samples = (value for kind, value in events if kind == "sample")
            consumer = next(one["consumers"][0] for one in samples if one["images"])
        answer = get(address, f"/pictures?stream={consumer['id']}")
        assert answer.status == 200
        made = json.loads(answer.text)
        again = get(address, f"/pictures?stream={consumer['id']}")
        assert (again.status, again.headers["Retry-After"]) == (429, "2")
        assert get(address, "/pictures?stream=other").status == 404
    assert (made["epoch"], made["step"]) == (2, 1)
    for number, picture in enumerate(made["pictures"]):
        assert picture["record"] == chunk.records[number]
        assert picture["label"] == chunk.labels[number]
        # JPEG twice over noise: far nearer to its own crop than to any other.
        errors = [np.abs(pixels(picture["crop"]) - other).mean() for other in delivered]
        assert np.argmin(errors) == number
        x, y, width, height = picture["window"]
        assert 0 <= x <= x + width <= picture["width"] == 60
        assert 0 <= y <= y + height <= picture["height"] == 48
        source = pixels(picture["source"])
        assert source.shape == (48, 60, 3)
        cut = Image.fromarray(source.astype(np.uint8)).resize((32, 32), box=(x, y, x + width, y + height))
        shown = np.asarray(cut).astype(np.int16)
        shown = shown[:, ::-1] if picture["flip"] else shown
        errors = [np.abs(shown - other).mean() for other in delivered]
        assert np.argmin(errors) == number
    assert worker.stop() == 0
