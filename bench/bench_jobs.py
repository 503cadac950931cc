"""Two jobs at once on one worker, beside one: of one spec, whose chunks are made once, and of two.

Each job is a process that takes batches as fast as they come, on the worker's cores, through shared memory
and over TCP. Every round opens new streams and throws their first batches away: what was made ahead is not
timed. Those of two jobs begin together, and end when the later one ends. What counts is what all jobs of a
round get; each job gets half of it where there are two.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import harness, tables
from bench.contestant import Contestant, Process, cpu_seconds, settle
from bench.service import BATCH, WARM_UP_BATCHES, Job, client, load, pack_and_index, worker

__all__ = ["run"]

ONE, SAME, OTHER = "one job", "two jobs of one spec", "two jobs of two specs"
TRANSPORTS = {"grpc": "TCP", "shm": "same host"}


class Jobs:
    """Consumers whose rounds begin together, and the worker that serves them."""

    def __init__(self, consumers: Sequence[Contestant], worker: Process) -> None:
        self._consumers = consumers
        self._pids = [worker.pid, *(consumer.pid for consumer in consumers)]

    def round(self, batches: int) -> harness.Round:
        """Runs one and waits until all processes rest again."""
        before = [cpu_seconds(pid) for pid in self._pids]
        with ThreadPoolExecutor(len(self._consumers)) as pool:
            ask = functools.partial(Contestant.ask, warm_up=WARM_UP_BATCHES, batches=batches)
            replies = list(pool.map(lambda consumer: ask(consumer, "round"), self._consumers))
        settle(self._pids)
        spent = sum(cpu_seconds(pid) - start for pid, start in zip(self._pids, before, strict=True))
        return harness.Round(
            seconds=max(reply["seconds"] for reply in replies),
            cpu_seconds=spent * batches / (batches + WARM_UP_BATCHES),
            images=sum(reply["images"] for reply in replies),
        )


def run(
    *,
    folder: Path | None,
    shards: str | None,
    as_json: bool = False,
    rounds: int = 5,
    batches: int = 40,
    size: int = 224,
    threads: int | None = None,
) -> int:
    """Measures and prints a table, or JSON lines: environment, contestants.

    Args:
        folder: JPEGs to pack into shards, where `shards` is None.
        shards: path, glob or folder of TFRecord shards.
        as_json: print rows instead of the table.
        rounds: how many are kept.
        batches: that each job times in a round.
        size: output height and width in pixels.
        threads: decode threads of the worker; None is one for each core.
    """
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-")))
        job = Job(place, pack_and_index(folder, shards, place), size, threads or len(cores), batches, cores)
        process, target = worker(job, "use", stack)
        parties = {}
        for transport, way in TRANSPORTS.items():
            tables.progress(f"starting jobs, {way}")
            first, second, other = (
                client(name, job, process, target, transport, stack).consumer for name in ("a", "b", "c")
            )
            load(other, job, target, transport=transport, seed=1)
            for name, consumers in {ONE: (first,), SAME: (first, second), OTHER: (first, other)}.items():
                parties[f"{name}, {way}"] = Jobs(consumers, process)
        results = harness.interleave(
            {name: functools.partial(party.round, batches) for name, party in parties.items()},
            rounds,
            progress=tables.round_progress(rounds),
        )
    tables.progress("")
    head = harness.head_row(
        "jobs",
        cores,
        ("numpy", "grpcio", "protobuf"),
        threads=job.threads,
        size=size,
        batch=BATCH,
        batches=batches,
        rounds=rounds,
    )
    rows: list[dict[str, Any]] = []
    for name, theirs in results.items():
        alone = results[f"{ONE}, {name.rpartition(', ')[2]}"]
        rows.append(harness.contestant_row(head["run"], name, alone, theirs))
    if as_json:
        harness.write_rows([head, *rows])
    else:
        print(tables.jobs_table(rows))
    return 0
