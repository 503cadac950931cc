"""The whole service: a worker and a client, each a process, over TCP loopback and through shared memory, on
all cores that may be used.

Beside it the same chunks made inside the consumer's process, which no service can beat: without seek
points, with those that a first epoch leaves, and with all images in a cache; and tf.data service on the same
shards. All batches are 64 images, uint8, in the consumer's memory. Every round opens a new stream and throws
its first batches away: what was made ahead is not timed, and nobody works while others are measured.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench import harness, tables
from bench.contestant import (
    Contestant,
    ContestantFailed,
    Process,
    cpu_seconds,
    exit_code,
    rival,
    settle,
)
from bench.inputs import jpeg_files

__all__ = ["run"]

BATCH = 64
WARM_UP_BATCHES = 12
"""Thrown away at the start of each round: more than the consumer (4) and the server (4) hold ready, so that
the timed batches are made while the clock runs."""

SHARDS = 8
INDEXES = "indexes"
WORKER_READY_S = 60.0
READY_LINE = "feeder worker listening on "

FEEDER, SAME_HOST, IN_PROCESS = "feeder", "feeder, same host", "feeder in-process"
SEEK_FEEDER, SEEK_SAME_HOST, SEEK_IN_PROCESS = (
    f"{name} (seek points)" for name in (FEEDER, SAME_HOST, IN_PROCESS)
)
CACHED_FEEDER, CACHED_SAME_HOST, CACHED_IN_PROCESS = (
    f"{name} (cached)" for name in (FEEDER, SAME_HOST, IN_PROCESS)
)
TFDATA = "tf.data service"

CACHED_BATCHES = 8
"""Times as many are timed where all is cached, so that rounds last about alike."""

CACHE_PER_BYTE = 16
"""Budget of the cache, in bytes for each of a shard: planes take about five times the room of their files."""

KEEP_IMAGES = 8
"""Decoded to planes in one call."""

MOST_BRIGHTNESS_APART = 25.0
"""Levels between the means of two batches. tf.data service draws other windows of other records, so that only
a wrong scale or an empty batch can be told."""


@dataclass(frozen=True)
class ServiceRound(harness.Round):
    """A round with the consumer's part of the CPU time, and the bytes of pixels that its client copied; None:
    not known."""

    consumer_cpu_seconds: float
    copied_bytes: int | None


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
    """A consumer, whose rounds are timed, and the processes that work for it."""

    def __init__(self, consumer: Contestant, servers: Sequence[Process] = ()) -> None:
        self.consumer = consumer
        self._pids = [consumer.pid, *(server.pid for server in servers)]

    def round(self, batches: int) -> ServiceRound:
        """Runs one and waits until all processes rest again."""
        before = [cpu_seconds(pid) for pid in self._pids]
        reply = self.consumer.ask("round", warm_up=WARM_UP_BATCHES, batches=batches)
        settle(self._pids)
        spent = [cpu_seconds(pid) - start for pid, start in zip(self._pids, before, strict=True)]
        # CPU time is known of the whole round only; the share of the timed batches is taken by their number.
        share = batches / (batches + WARM_UP_BATCHES)
        return ServiceRound(
            seconds=reply["seconds"],
            cpu_seconds=share * sum(spent),
            images=reply["images"],
            consumer_cpu_seconds=share * spent[0],
            copied_bytes=reply.get("copied_bytes"),
        )


def run(
    *,
    folder: Path | None,
    shards: str | None,
    rivals: bool = False,
    as_json: bool = False,
    rounds: int = 7,
    batches: int = 40,
    size: int = 224,
    threads: int | None = None,
) -> int:
    """Measures and prints a table, or JSON lines: environment, contestants, what was left out, summary.

    Args:
        folder: JPEGs to pack into shards, where `shards` is None.
        shards: path, glob or folder of TFRecord shards.
        rivals: whether to run tf.data service too.
        as_json: print rows instead of the table.
        rounds: how many are kept.
        batches: timed in each round.
        size: output height and width in pixels.
        threads: decode threads of worker and rivals; None is one for each core.

    Returns:
        0, or 1 where a contestant failed; one that is not installed did not fail.
    """
    cores = sorted(os.sched_getaffinity(0))
    left_out: dict[str, ContestantFailed] = {}
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-")))
        paths = _shards(folder, shards, place)
        job = Job(place, paths, size, threads or len(cores), batches, cores)
        tables.progress("checking feeder")
        parties = {}
        groups: list[tuple[tuple[str, str, str], str, Filled | None]] = [
            ((FEEDER, SAME_HOST, IN_PROCESS), "off", None),
            ((SEEK_FEEDER, SEEK_SAME_HOST, SEEK_IN_PROCESS), "use", None),
        ]
        cached = (CACHED_FEEDER, CACHED_SAME_HOST, CACHED_IN_PROCESS)
        try:
            groups.append((cached, "off", _filled(job, stack)))
        except ContestantFailed as error:
            left_out.update(dict.fromkeys(cached, error))
        for (over_tcp, same_host, in_process), seek, cache in groups:
            server, target = _worker(job, seek, stack, cache)
            parties[over_tcp] = _feeder(over_tcp, job, server, target, "grpc", stack)
            parties[same_host] = _feeder(same_host, job, server, target, "shm", stack)
            parties[in_process] = _in_process(in_process, job, seek, cache, stack)
        brightness = _check_feeder(*(party.consumer for party in parties.values()), size=size)
        if rivals:
            tables.progress(f"checking {TFDATA}")
            try:
                party = _tfdata(job, stack)
                _check_rival(party.consumer, brightness, size)
            except ContestantFailed as error:
                left_out[TFDATA] = error
            else:
                parties[TFDATA] = party
        results = harness.interleave(
            {
                name: functools.partial(party.round, batches * (CACHED_BATCHES if name in cached else 1))
                for name, party in parties.items()
            },
            rounds,
            progress=tables.round_progress(rounds),
        )
        facts = {name: party.consumer.facts for name, party in parties.items()}
        shard_bytes = sum(map(os.path.getsize, job.shards))
    tables.progress("")

    head = harness.head_row(
        "service",
        cores,
        ("numpy", "grpcio", "protobuf", "google-crc32c"),
        threads=job.threads,
        size=size,
        batch=BATCH,
        batches=batches,
        rounds=rounds,
        shards=len(job.shards),
        shard_bytes=shard_bytes,
    )
    rows = [
        harness.contestant_row(
            head["run"],
            name,
            results[FEEDER],
            theirs,
            results[SEEK_FEEDER],
            {prefix: results[other] for prefix, other in _OTHERS.items() if other in results},
        )
        | {
            "consumer_cpu_us_per_image": harness.Spread.of(
                [1e6 * one.consumer_cpu_seconds / one.images for one in theirs]
            ).rounded(1)
        }
        | _copied(theirs)
        | facts[name]
        for name, theirs in results.items()
    ]
    rows += harness.left_out_rows(head["run"], left_out)
    summary = harness.summary_row(head["run"], compared(rows), FEEDER)
    if as_json:
        harness.write_rows([head, *rows, summary])
    else:
        print(tables.service_table(rows), *left_out.values(), *tables.summary_lines(summary), sep="\n")
    return exit_code(left_out)


_OTHERS = {
    "same_host": SAME_HOST,
    "seek_same_host": SEEK_SAME_HOST,
    "cached": CACHED_FEEDER,
    "cached_same_host": CACHED_SAME_HOST,
}
"""What a row is compared with, besides feeder with and without seek points."""


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The comparisons that decide, like with like: with the in-process ceiling, and with tf.data service.

    Args:
        rows: of one run.

    Returns:
        comparison -> contestant and ratios (see harness.comparison); without those that had no contestant.
    """
    named = {
        IN_PROCESS: {
            "the same kernel in-process": "feeder",
            "the same kernel in-process, on the same host": "same_host",
        },
        SEEK_IN_PROCESS: {
            "the same kernel in-process, with seek points": "seek",
            "the same kernel in-process, on the same host, with seek points": "seek_same_host",
        },
        CACHED_IN_PROCESS: {
            "the same kernel in-process, all cached": "cached",
            "the same kernel in-process, on the same host, all cached": "cached_same_host",
        },
        TFDATA: {
            "tf.data service without compression": "feeder",
            "tf.data service without compression, with seek points": "seek",
        },
    }
    return {
        comparison: harness.comparison(row, prefix)
        for row in rows
        if row["kind"] == "contestant"
        for comparison, prefix in named.get(row["contestant"], {}).items()
    }


def _copied(rounds: Sequence[ServiceRound]) -> dict[str, int]:
    """Bytes of pixels that the client copied for an image, where it says so; warm-up included in both."""
    if any(one.copied_bytes is None for one in rounds):
        return {}
    images = sum(one.images + WARM_UP_BATCHES * BATCH for one in rounds)
    return {"copied_bytes_per_image": round(sum(one.copied_bytes or 0 for one in rounds) / images)}


def _shards(folder: Path | None, pattern: str | None, place: Path) -> list[str]:
    """Paths of the shards; those made of a folder lie in `place`, as do indexes and seek points of all."""
    from feeder.cli.learn import learn
    from feeder.records import Dataset

    if pattern is None:
        from feeder.records.pack import pack

        assert folder is not None
        jpeg_files(folder)  # says it in this command's words if there is none
        pattern = str(place / "shards")
        tables.progress("packing")
        pack(folder, Path(pattern), shards=SHARDS, seed=0)
    with Dataset.open("bench", [pattern], index_dir=place / INDEXES, seek="learn") as dataset:
        tables.progress("learning seek points")
        learn(dataset)
        return [os.path.realpath(str(shard.path)) for shard in dataset.shards]


def _flags(job: Job, variant: str) -> list[str]:
    return ["--cores", ",".join(map(str, job.cores)), "--variant", variant]


def _load(
    consumer: Contestant,
    job: Job,
    target: str,
    *,
    seek: str = "off",
    transport: str = "grpc",
    cache: Filled | None = None,
    seed: int = 0,
) -> None:
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


def _filled(job: Job, stack: contextlib.ExitStack) -> Filled:
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


def _worker(
    job: Job, seek: str, stack: contextlib.ExitStack, cache: Filled | None = None
) -> tuple[Process, str]:
    """A worker process, which ends with this one, and its address."""
    command = [sys.executable, "-P", "-m", "feeder.child", str(os.getpid()), "--listen", "127.0.0.1:0"]
    command += ["--threads", str(job.threads), "--index-dir", str(job.place / INDEXES), "--seek", seek]
    command += ["--arena-dir", str(job.place / "sockets")]
    if cache is not None:
        command += ["--cache-dir", str(cache.folder), "--cache-bytes", str(cache.budget)]
    command += [f"--dataset=bench={shard}" for shard in job.shards]
    worker = stack.enter_context(Process("feeder worker", command))
    stack.callback(worker.terminate)
    return worker, worker.read_line("start", WORKER_READY_S).decode().removeprefix(READY_LINE)


def _feeder(
    name: str, job: Job, worker: Process, target: str, transport: str, stack: contextlib.ExitStack
) -> Party:
    consumer = stack.enter_context(rival(name, None, "service_feeder.py", *_flags(job, "client")))
    _load(consumer, job, target, transport=transport)
    return Party(consumer, [worker])


def _in_process(name: str, job: Job, seek: str, cache: Filled | None, stack: contextlib.ExitStack) -> Party:
    consumer = stack.enter_context(rival(name, None, "service_feeder.py", *_flags(job, "in-process")))
    _load(consumer, job, "", seek=seek, cache=cache)
    return Party(consumer)


def _tfdata(job: Job, stack: contextlib.ExitStack) -> Party:
    server, consumer = (
        stack.enter_context(rival(TFDATA, "tfdata", "service_tfdata.py", *_flags(job, variant)))
        for variant in ("server", "consumer")
    )
    server.load()
    _load(consumer, job, server.facts["target"])
    return Party(consumer, [server])


def _first_batch(consumer: Contestant, size: int) -> tuple[npt.NDArray[np.uint8], list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outputs.npy"
        labels = consumer.ask("outputs", path=str(path))["labels"]
        images: npt.NDArray[np.uint8] = np.load(path)
    if images.shape != (BATCH, size, size, 3) or images.dtype != np.uint8 or len(labels) != BATCH:
        raise ContestantFailed(
            f"{consumer.name}: a batch is {images.dtype} {list(images.shape)} with {len(labels)} labels,"
            f" wanted uint8 {[BATCH, size, size, 3]} with {BATCH}"
        )
    return images, labels


def _check_feeder(first: Contestant, *others: Contestant, size: int) -> float:
    """That all make the same first batch; returns its mean in levels."""
    wanted, wanted_labels = _first_batch(first, size)
    for other in others:
        images, labels = _first_batch(other, size)
        if labels != wanted_labels or not np.array_equal(images, wanted):
            raise ContestantFailed(f"{other.name}: its first batch is not that of {first.name}")
    return float(wanted.mean())


def _check_rival(consumer: Contestant, brightness: float, size: int) -> None:
    images, _ = _first_batch(consumer, size)
    if abs(float(images.mean()) - brightness) > MOST_BRIGHTNESS_APART:
        raise ContestantFailed(
            f"{consumer.name}: the mean of a batch is {images.mean():.0f}, that of feeder's {brightness:.0f}:"
            " it does another job"
        )
