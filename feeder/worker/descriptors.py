"""Files and sockets that a worker may have open, and those that it may need."""

from __future__ import annotations

import contextlib
import math
import resource

from feeder.worker.front import SPARE_CONNECTIONS

__all__ = ["allowed", "needed", "take_all"]

STREAM_DESCRIPTORS = 4
"""Of a stream: two connections, the socket over which memory is handed over, and that memory."""


def take_all() -> None:
    """Raises the soft limit to the hard one: the soft one is low for the sake of programs that use select(2),
    which a worker does not."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a system may have another limit, below this one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def allowed() -> float:
    """How many this process may have open at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def needed(max_streams: int) -> int:
    """How many so many streams may take, with as many for shards, of which data sets keep open what the limit
    allows."""
    return 2 * (STREAM_DESCRIPTORS * max_streams + SPARE_CONNECTIONS)
