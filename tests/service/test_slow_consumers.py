"""Consumers that stop reading, or stop altogether: others go on, and what is held for them is bounded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

import feeder

BATCH = 32
BATCH_BYTES = BATCH * 224 * 224 * 3
SETTINGS: dict[str, Any] = {"batch_size": BATCH, "remainder": "wrap", "prefetch_bytes": 4 * BATCH_BYTES}
SHARE_BYTES = 64 << 20
UNSENT_BYTES = 2 * 5 * BATCH_BYTES
"""What one consumer asks for and does not take: its window and the batch in its hands, once with the worker
and once more on the way, in gRPC's and the system's buffers."""

SLACK_BYTES = 32 << 20
SHORT_S = 3.0
SOAK_S = float(os.environ.get("FEEDER_SOAK_S", "600"))
DEADLINE_S = 60.0

READS_WHEN_TOLD = """
import hashlib, json, sys, feeder
address, settings = sys.argv[1], json.loads(sys.argv[2])
with feeder.connect(address).stream("data", **settings) as stream:
    for line in sys.stdin:
        for _ in range(int(line)):
            batch = next(stream)
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
