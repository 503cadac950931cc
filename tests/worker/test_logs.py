"""A worker's log as JSON: each line has what is known of it, and names sessions as clients' errors do."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.cli.log import JsonFormatter
from feeder.errors import BadRecord
from feeder.worker.access import new_token

StartWorker = Callable[..., Any]


def lines(worker: Any) -> list[dict[str, Any]]:
    """What the worker logged until its end: each line an object."""
    assert worker.stop() == 0, worker.log
    found = [json.loads(line) for line in worker.log]
    for line in found:
        assert {"ts", "level", "logger", "message"} <= line.keys()
        assert line["ts"].endswith("+00:00")
    return found


def test_lines_of_a_stream_name_it_as_the_clients_error_does(start_worker: StartWorker) -> None:
    worker = start_worker("--log-format", "json")
    client = feeder.connect(worker.address)
    with (
        client.stream("bad", batch_size=8, image_size=32, job="night", on_bad="fail") as stream,
        pytest.raises(BadRecord) as caught,
    ):
        list(stream)
    of_streams = [line for line in lines(worker) if "stream" in line]
    assert {"opened", "closed"} <= {line["message"].split()[2].rstrip(":") for line in of_streams}
    for line in of_streams:
        assert line["job"] == "night"
        assert f"(session {line['session']})" in str(caught.value)


def test_the_level_says_what_is_left_out(start_worker: StartWorker) -> None:
    worker = start_worker("--log-format", "json", "--log-level", "warning")
    with feeder.connect(worker.address).stream("train", batch_size=8, image_size=32) as stream:
        next(stream)
    assert [line for line in lines(worker) if line["level"] in ("debug", "info")] == []


def test_debugging_a_worker_writes_down_no_token(
    start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, entry = new_token("trainers")
    for name, text in (("tokens.toml", entry), ("token", token)):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("FEEDER_TOKEN_FILE", str(tmp_path / "token"))
    worker = start_worker("--log-level", "debug", "--tokens", str(tmp_path / "tokens.toml"))
    with (
        feeder.connect(worker.address) as client,
        client.stream("train", batch_size=8, image_size=32) as stream,
    ):
        next(stream)
    assert worker.stop() == 0
    log = "\n".join(worker.log)
    assert " the client closed the connection" in log  # which feeder says at this level only
    assert token not in log
    assert "authorization" not in log


def test_a_start_that_fails_is_an_object_too(start_worker: StartWorker) -> None:
    first = start_worker()
    second = start_worker("--log-format", "json", listen=first.address)
    assert second.wait() == (2, "")
    last = json.loads(second.log[-1])
    assert last["level"] == "error"
    assert "cannot listen on" in last["message"]
    wrong = start_worker("--log-format", "json", "--drain-s", "-1")
    assert wrong.wait() == (2, "")
    (line,) = map(json.loads, wrong.log)
    assert "--drain-s must be in" in line["message"]


def test_tracebacks_and_texts_that_are_no_unicode() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, "f", 1, "%s\n", ("\udcff",), sys.exc_info())
    record.request = 7
    text = JsonFormatter().format(record)
    assert text.isascii()
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["logger"], line["message"], line["request"]) == (
        "error",
        "a.b",
        "\udcff\n",
        7,
    )
    assert line["exception"].endswith("ValueError: why")
    assert "session" not in line
