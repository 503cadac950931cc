"""Who takes part where a worker and a client are measured: processes, and what all of them are given."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import harness, tables
from bench.contestant import Contestant, ContestantFailed, Process, cpu_seconds, rival, settle
from bench.inputs import jpeg_files

__all__ = [
    "BATCH",
    "TFDATA",
    "WARM_UP_BATCHES",
    "Filled",
    "Job",
    "Party",
    "ServiceRound",
    "client",
    "filled",
    "in_process",
    "load",
    "pack_and_index",
    "tfdata",
    "worker",
]

BATCH = 64
WARM_UP_BATCHES = 12
"""Thrown away at the start of a new stream: more than the consumer (4) and the server (4) hold ready, so that
the timed batches are made while the clock runs."""

SHARDS = 8
LEAST_RECORDS = 2400
"""A folder of fewer files is packed over and over: an epoch of a few steps would measure how epochs begin."""

INDEXES = "indexes"
WORKER_READY_S = 60.0
READY_LINE = "feeder worker listening on "
TFDATA = "tf.data service"

CACHE_PER_BYTE = 12
"""Budget of the cache, in bytes for each of a shard: planes take about five times the room of their files."""

KEEP_IMAGES = 8
"""Decoded to planes in one call."""


@dataclass(frozen=True)
class ServiceRound(harness.Round):
    """A round with the consumer's part of the CPU time, and the bytes of pixels that its client copied for an
    image; None: not known."""

    consumer_cpu_seconds: float
    copied_bytes: float | None


@dataclass(frozen=True)
class Job:
    """What all contestants are given; see `run`."""

    place: Path
    shards: list[str]
    size: int
    threads: int
    batches: int
    cores: list[int]


@dataclass(frozen=True)
class Filled:
    """A cache that holds all images, in shared memory where there is room."""

    folder: Path
    budget: int


class Party:
    """A consumer, whose rounds are timed, and the processes that work for it alone. Nobody works while others
    are measured: after a round all rest, between slices all are frozen.

    Args:
        consumer: its process.
        servers: the others.
    """

    def __init__(self, consumer: Contestant, servers: Sequence[Process] = ()) -> None:
        self.consumer = consumer
        self._processes = [*servers, consumer]

    def freeze(self) -> None:
        """Until the next slice."""
        for process in self._processes:
            process.freeze()

    def slice(self, warm_up: int, batches: int) -> ServiceRound:
        """Lets a stream go on for `warm_up` batches and then `batches` that are timed."""
        return self._timed("slice", warm_up, batches, self.freeze)

    def round(self, batches: int) -> ServiceRound:
        """A new stream, whose first batches are not timed; its end is waited for."""
        pids = [process.pid for process in self._processes]
        return self._timed("round", WARM_UP_BATCHES, batches, functools.partial(settle, pids))

    def _spent(self) -> list[float]:
        try:
            return [cpu_seconds(process.pid) for process in self._processes]
        except ProcessLookupError as error:
            raise ContestantFailed(f"{self.consumer.name}: one of its processes ended: {error}") from None

    def _timed(self, command: str, warm_up: int, batches: int, rest: Callable[[], None]) -> ServiceRound:
        before = self._spent()
        for process in self._processes:
            process.thaw()
        reply = self.consumer.ask(command, warm_up=warm_up, batches=batches)
        rest()
        spent = [after - start for after, start in zip(self._spent(), before, strict=True)]
        # CPU time is known of all batches only; the share of the timed ones is taken by their number.
        share = batches / (warm_up + batches)
        return ServiceRound(
            seconds=reply["seconds"],
            cpu_seconds=share * sum(spent),
            images=reply["images"],
            consumer_cpu_seconds=share * spent[-1],
            copied_bytes=reply.get("copied_bytes"),
        )


def pack_and_index(folder: Path | None, pattern: str | None, place: Path) -> list[str]:
    """Paths of the shards; those made of a folder lie in `place`, as do indexes and seek points of all."""
    from feeder.cli.learn import learn
    from feeder.records import Dataset

    if pattern is None:
        from feeder.records.pack import pack

        assert folder is not None
        pattern = str(place / "shards")
        tables.progress("packing")
        pack(_repeated(folder, place / "files"), Path(pattern), shards=SHARDS, seed=0)
    with Dataset.open("bench", [pattern], index_dir=place / INDEXES, seek="learn") as dataset:
        tables.progress("learning seek points")
        learn(dataset)
        return [os.path.realpath(str(shard.path)) for shard in dataset.shards]


def _repeated(folder: Path, links: Path) -> Path:
    """A folder of links to all files of a folder, to each so often that there are LEAST_RECORDS."""
    files = jpeg_files(folder)
    for path in files:
        below = links / path.relative_to(folder)
        below.parent.mkdir(parents=True, exist_ok=True)
        for number in range(-(-LEAST_RECORDS // len(files))):
            below.with_stem(f"{below.stem}-{number}").symlink_to(path.resolve())
    return links


def _flags(job: Job, variant: str) -> list[str]:
    return ["--cores", ",".join(map(str, job.cores)), "--variant", variant]


def load(
    consumer: Contestant,
    job: Job,
    target: str,
    *,
    seek: str = "off",
    transport: str = "grpc",
    cache: Filled | None = None,
    seed: int = 0,
) -> None:
    """Gives a consumer the job; the others as rivals/service_feeder.py says."""
    consumer.load(
        shards=job.shards,
        indexes=str(job.place / INDEXES),
        seek=seek,
        size=job.size,
        batch=BATCH,
        threads=job.threads,
        target=target,
        transport=transport,
        cache=None if cache is None else (str(cache.folder), cache.budget),
        seed=seed,
    )


def filled(job: Job, stack: contextlib.ExitStack) -> Filled:
    """A cache with the planes of all records, gone with the stack.

    Raises:
        ContestantFailed: an image cannot be kept.
    """
    from feeder.batch import warm
    from feeder.cache import Cache, Folder
    from feeder.decode import open_decoder, pixel_fingerprint
    from feeder.records import Dataset

    budget = CACHE_PER_BYTE * sum(map(os.path.getsize, job.shards)) + (64 << 20)
    memory = os.statvfs("/dev/shm")
    place = "/dev/shm" if memory.f_bavail * memory.f_frsize > 2 * budget else job.place
    folder = (
        Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=f"feeder-bench-{os.getpid()}-", dir=place))
        )
        / "cache"
    )
    tables.progress("filling the cache")
    decoder = open_decoder(job.threads, "native")
    stack.callback(decoder.close)
    with Dataset.open("bench", job.shards, index_dir=job.place / INDEXES) as dataset:
        cache = Cache(Folder(folder), budget, pixel_fingerprint(decoder), {dataset.name: dataset})
        try:
            shelf, kept = cache.shelf(dataset.name), 0
            offers = warm(dataset, decoder, shelf)
            while some := list(itertools.islice(offers, KEEP_IMAGES)):
                scales = np.array([offer.reduction for offer in some], np.uint8)
                planes = decoder.keep([offer.image for offer in some], scales)
                for offer, one in zip(some, planes, strict=True):
                    kept += one is not None and cache.add(
                        shelf, offer.record, offer.reduction, offer.size, one
                    )
            if kept < len(dataset):
                raise ContestantFailed(f"{kept} of {len(dataset)} images can be kept in a cache")
        finally:
            cache.close()
    return Filled(folder, budget)


def worker(
    job: Job, seek: str, stack: contextlib.ExitStack, cache: Filled | None = None
) -> tuple[Process, str]:
    """A worker process, which ends with this one, and its address."""
    command = [sys.executable, "-P", "-m", "feeder.child", str(os.getpid()), "--listen", "127.0.0.1:0"]
    command += ["--threads", str(job.threads), "--index-dir", str(job.place / INDEXES), "--seek", seek]
    command += ["--arena-dir", str(job.place / "sockets")]
    if cache is not None:
        command += ["--cache-dir", str(cache.folder), "--cache-bytes", str(cache.budget)]
    command += [f"--dataset=bench={shard}" for shard in job.shards]
    process = stack.enter_context(Process("feeder worker", command))
    stack.callback(process.terminate)
    return process, process.read_line("start", WORKER_READY_S).decode().removeprefix(READY_LINE)


def client(
    name: str, job: Job, worker: Process, target: str, transport: str, stack: contextlib.ExitStack
) -> Party:
    """feeder's client, which takes batches of that worker at that address."""
    consumer = stack.enter_context(rival(name, None, "service_feeder.py", *_flags(job, "client")))
    load(consumer, job, target, transport=transport)
    return Party(consumer, [worker])


def in_process(name: str, job: Job, seek: str, cache: Filled | None, stack: contextlib.ExitStack) -> Party:
    """The same chunks made by the consumer itself."""
    consumer = stack.enter_context(rival(name, None, "service_feeder.py", *_flags(job, "in-process")))
    load(consumer, job, "", seek=seek, cache=cache)
    return Party(consumer)


def tfdata(job: Job, stack: contextlib.ExitStack) -> Party:
    """tf.data service; raises ContestantFailed, as NotInstalled where it is not there."""
    server, consumer = (
        stack.enter_context(rival(TFDATA, "tfdata", "service_tfdata.py", *_flags(job, variant)))
        for variant in ("server", "consumer")
    )
    server.load()
    load(consumer, job, server.facts["target"])
    return Party(consumer, [server])
