"""Consumers that stop reading, or stop altogether: others go on, and what is held for them is bounded."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Self

import psutil
import pytest

import feeder

log = logging.getLogger(__name__)

BATCH = 32
BATCH_BYTES = BATCH * 224 * 224 * 3
SETTINGS: dict[str, Any] = {"batch_size": BATCH, "remainder": "wrap", "prefetch_bytes": 4 * BATCH_BYTES}
SHARE_BYTES = 64 << 20
UNSENT_BYTES = 2 * 5 * BATCH_BYTES
"""What one consumer asks for and does not take: its window and the batch in its hands, once with the worker
and once more on the way, in gRPC's and the system's buffers."""

SLACK_BYTES = 32 << 20
SHORT_S = 1.0
SOAK_S = float(os.environ.get("FEEDER_SOAK_S", "600"))
DEADLINE_S = 60.0

READS_WHEN_TOLD = """
import hashlib, json, sys, feeder
address, settings = sys.argv[1], json.loads(sys.argv[2])
with feeder.connect(address).stream("data", **settings) as stream:
    for line in sys.stdin:
        for _ in range(int(line)):
            batch = next(stream)
            print(hashlib.sha256(b"".join((batch.images, batch.labels, batch.mask))).hexdigest(), flush=True)
"""


class Reader:
    """A consumer in a process of its own, which reads only when it is told to."""

    def __init__(
        self, run_client: Callable[..., subprocess.Popen[str]], address: str, **settings: Any
    ) -> None:
        self.process = run_client(READS_WHEN_TOLD, address, json.dumps(SETTINGS | settings))
        self.memory = psutil.Process(self.process.pid)

    def read(self, batches: int) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{batches}\n")
        self.process.stdin.flush()
        return [self.process.stdout.readline().strip() for _ in range(batches)]

    def end(self) -> None:
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        # A worker ends the connection of one that is stopped for a minute; it then says so, and goes on.
        assert self.process.returncode == 0, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # also one that is stopped
        self.process.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize("duration_s", [SHORT_S, pytest.param(SOAK_S, marks=pytest.mark.soak)])
@pytest.mark.parametrize("transport", ["grpc", "shm"])
@pytest.mark.timeout(SOAK_S + 300)
def test_consumers_that_do_not_read_hold_up_nobody_and_little_memory(
    shards: Path,
    start_worker: Callable[..., Any],
    run_client: Callable[..., subprocess.Popen[str]],
    digest_batches: Callable[..., list[str]],
    transport: str,
    duration_s: float,
) -> None:
    worker = start_worker(shards, "--share-bytes", str(SHARE_BYTES))
    memory = psutil.Process(worker.process.pid)
    with (
        contextlib.ExitStack() as stack,
        feeder.connect(worker.address) as client,
        client.stream("data", **SETTINGS) as fast,
    ):
        first = digest_batches([next(fast) for _ in range(10)])
        for _ in range(50):
            next(fast)
        alone = memory.memory_info().rss
        # Both want what the fast one wants, so that chunks are kept for them, and then no more.
        idle, stopped = (
            stack.enter_context(Reader(run_client, worker.address, transport=transport)) for _ in range(2)
        )
        got = {reader: reader.read(3) for reader in (idle, stopped)}
        stopped.process.send_signal(signal.SIGSTOP)
        seen: list[tuple[int, int]] = []
        batches, until_s = 0, time.monotonic() + duration_s
        while time.monotonic() < until_s or batches < 100:
            next(fast)
            batches += 1
            if batches % 20 == 0:
                seen.append((memory.memory_info().rss, idle.memory.memory_info().rss))
        log.info("%d batches; MiB of worker (alone: %d) and idle consumer:", batches, alone >> 20)
        log.info("%s", [tuple(one >> 20 for one in both) for both in seen[:: 1 + len(seen) // 20]])
        assert max(rss for rss, _ in seen) <= alone + SHARE_BYTES + 2 * UNSENT_BYTES + SLACK_BYTES
        late = len(seen) // 4
        for part in (0, 1):
            rss = [one[part] for one in seen]
            assert median(rss[-late:]) <= median(rss[late : 2 * late]) + SLACK_BYTES
        stopped.process.send_signal(signal.SIGCONT)
        for reader in (idle, stopped):
            got[reader] += reader.read(7)
            reader.end()
    assert list(got.values()) == [first, first]
