"""The contestant's side of a bench: a process that loads its input once and then runs rounds when told to.

Requests and replies are lines of JSON on stdin and stdout. This file runs in every rival's own environment,
on nothing but the standard library and NumPy.

    {"cmd": "load", ...}                 -> {"ok": true, "versions": {...}, ...}     fields as the bench needs
    {"cmd": "round", ...}                -> {"ok": true, "seconds": s, "images": n, ...}
    {"cmd": "slice", ...}                -> the same, of a stream that goes on from slice to slice
    {"cmd": "outputs", "path": "x.npy"}  -> {"ok": true}       uint8 [n, H, W, 3] written there, to be checked
    end of file                          -> the process ends
    anything that fails                  -> {"ok": false, "error": "one line"}

A contestant is pinned to its cores before it imports its library, so that every thread of it stays there.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

_PR_SET_PDEATHSIG = 1
"""man 2 PR_SET_PDEATHSIG."""

READY_BATCHES = 4
"""That a consumer of the wire bench has asked for or ready, as feeder's client by default."""

BUFFERS = READY_BATCHES + 1
"""Batches of memory that it fills in turn: one is in use."""


class Handler(Protocol):
    """What a contestant does on each request; every method returns the fields of its reply."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def round(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def outputs(self, request: dict[str, Any]) -> dict[str, Any]: ...


def versions(*distributions: str) -> dict[str, str]:
    """Versions of installed distributions, by name, with Python's."""
    return {"python": ".".join(map(str, sys.version_info[:3]))} | {
        name: metadata.version(name) for name in distributions
    }


def counted(connections: int) -> str:
    """How many there are, for a note."""
    return "one connection" if connections == 1 else f"{connections} connections"


def arguments(description: str, variants: tuple[str, ...] = ()) -> argparse.Namespace:
    """Parses the flags of a contestant, pins the process and ties it to the bench that started it; call it
    before importing what is measured."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cores", required=True, help="CPU numbers to run on, as 0,1")
    if variants:
        parser.add_argument("--variant", choices=variants, required=True)
    args = parser.parse_args()
    os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    # One that is frozen would not see its stdin's end if the bench were killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return args


def serve(handler: Handler) -> None:
    """Answers requests until told to stop; anything that libraries print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                fields = {"ok": True} | getattr(handler, request["cmd"])(request)
            except Exception as error:  # noqa: BLE001 - whatever a library raises becomes its reply
                traceback.print_exc()
                fields = {"ok": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
            replies.write(json.dumps(fields) + "\n")
            replies.flush()


@dataclass(frozen=True)
class DecodeJob:
    """The input of the decode bench, the same for every contestant.

    Attributes:
        images: encoded files.
        windows: int64 [n, 4], (x, y, width, height) in pixels of each image.
        flips: bool [n], mirror left to right after the resize.
        size: height and width of the output in pixels.
        batch: images a batch.
        threads: decode threads that may be used.
    """

    images: list[bytes]
    windows: np.ndarray
    flips: np.ndarray
    size: int
    batch: int
    threads: int


Batches = Callable[[], Iterator[np.ndarray]]
"""One pass over the job in its order: uint8 [up to batch, H, W, 3] each; the next one may reuse its
memory."""


class DecodeContestant:
    """Answers the requests of the decode bench with what one library does.

    Args:
        prepare: takes the job, gives what runs one pass over it; called once, outside of the rounds.
        distributions: whose versions go into the row.
        note: what it calls, in a few words.
        antialias: whether the resize widens its kernel when it shrinks.
        windows: "exact", or what it does instead.
    """

    def __init__(
        self,
        prepare: Callable[[DecodeJob], Batches],
        *,
        distributions: tuple[str, ...],
        note: str,
        antialias: bool,
        windows: str = "exact",
    ) -> None:
        self._prepare = prepare
        self._distributions = distributions
        self._facts = {"note": note, "antialias": antialias, "windows": windows}
        self._batches: Batches = lambda: iter(())

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Reads the files named and prepares; windows and flips have one entry a file."""
        job = DecodeJob(
            images=[Path(name).read_bytes() for name in request["files"]],
            windows=np.array(request["windows"], dtype=np.int64).reshape(-1, 4),
            flips=np.array(request["flips"], dtype=bool),
            size=request["size"],
            batch=request["batch"],
            threads=request["threads"],
        )
        self._batches = self._prepare(job)
        return self._facts | {"versions": versions(*self._distributions)}

    def round(self, request: dict[str, Any]) -> dict[str, Any]:
        """One pass over the job; cpu_seconds are those of all threads of this process."""
        images = 0
        cpu, wall = time.process_time(), time.perf_counter()
        for batch in self._batches():
            images += len(batch)
        return {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "images": images,
        }

    def outputs(self, request: dict[str, Any]) -> dict[str, Any]:
        """Writes the first `count` images of a pass to `path`."""
        kept: list[np.ndarray] = []
        for batch in self._batches():
            kept.append(np.array(batch))
            if sum(map(len, kept)) >= request["count"]:
                break
        np.save(request["path"], np.concatenate(kept)[: request["count"]])
        return {}


class BatchesReceived(ABC):
    """The consumer's side of the wire bench: rounds over batches that a subclass receives."""

    def prepare(self, request: dict[str, Any]) -> None:
        """Keeps the request: port, `shape` of a batch, how many `different` ones are sent in turn."""
        self.request = request
        self.shape = tuple(request["shape"])
        self.different = int(request["different"])
        self._buffers = [np.empty(self.shape, np.uint8) for _ in range(BUFFERS)]

    def buffer(self, number: int) -> np.ndarray:
        """uint8 [B, H, W, 3], where the batch of that number goes; used in turn, as a training loop would."""
        return self._buffers[number % len(self._buffers)]

    @abstractmethod
    def batches(self, count: int) -> Iterator[np.ndarray]:
        """`count` batches of a new call, uint8 [B, H, W, 3]; the memory of each may be used again later."""

    def round(self, request: dict[str, Any]) -> dict[str, Any]:
        """A new call: `warm_up` batches that are not timed, then `batches` that are."""
        images = 0
        started = time.perf_counter()
        for number, batch in enumerate(self.batches(request["warm_up"] + request["batches"]), 1):
            if number > request["warm_up"]:
                images += len(batch)
            elif number == request["warm_up"]:
                started = time.perf_counter()
        return {"seconds": time.perf_counter() - started, "images": images}

    def outputs(self, request: dict[str, Any]) -> dict[str, Any]:
        """Writes one of each batch."""
        np.save(request["path"], np.stack([np.array(batch) for batch in self.batches(self.different)]))
        return {}


def image_by_image(job: DecodeJob, one: Callable[[bytes, list[int], bool], np.ndarray]) -> Batches:
    """The loop around a library that knows one image at a time: copies results into slots of a batch."""
    windows, flips = job.windows.tolist(), job.flips.tolist()
    out = np.empty((job.batch, job.size, job.size, 3), dtype=np.uint8)
    pool = ThreadPoolExecutor(job.threads) if job.threads > 1 else None

    def fill(index: int) -> None:
        out[index % job.batch] = one(job.images[index], windows[index], flips[index])

    def batches() -> Iterator[np.ndarray]:
        for start in range(0, len(job.images), job.batch):
            span = range(start, min(start + job.batch, len(job.images)))
            for _ in map(fill, span) if pool is None else pool.map(fill, span):
                pass
            yield out[: len(span)]

    return batches
