"""The whole service: a worker and a client, each a process, over TCP loopback and through shared memory, on
all cores that may be used.

Beside it the same chunks made inside the consumer's process, which no service can beat: without seek
points, with those that a first epoch leaves, and with all images in a cache; and tf.data service on the same
shards. All batches are 64 images, uint8, in the consumer's memory. All stream without end, but one at a time:
each is let go on for a fraction of a second in each round, while the others are frozen as they are. On a
shared machine both cores run at half their speed for some tenths of a second, again and again: of many short
slices such a spell spoils few, and the median of the ratios leaves those out.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench import harness, service, tables
from bench.contestant import Contestant, ContestantFailed, exit_code
from bench.service import BATCH, TFDATA, Job, Party, ServiceRound

__all__ = ["run"]

SLICE_WARM_UP_BATCHES = 4
"""Not timed at the start of each slice, while the processor's caches fill."""

CACHED_BATCHES = 5
"""Times as many where all is cached, so that slices last about alike."""

ROUNDS_A_LIFE = 40
"""After as many all processes start anew, so that no chance at the start of one (addresses, seeds of hashes)
decides a whole run."""

FEEDER, SAME_HOST, IN_PROCESS = "feeder", "feeder, same host", "feeder in-process"
SEEK_FEEDER, SEEK_SAME_HOST, SEEK_IN_PROCESS = (
    f"{name} (seek points)" for name in (FEEDER, SAME_HOST, IN_PROCESS)
)
CACHED_FEEDER, CACHED_SAME_HOST, CACHED_IN_PROCESS = (
    f"{name} (cached)" for name in (FEEDER, SAME_HOST, IN_PROCESS)
)
CACHED = (CACHED_FEEDER, CACHED_SAME_HOST, CACHED_IN_PROCESS)

MOST_BRIGHTNESS_APART = 25.0
"""Levels between the means of two batches. tf.data service draws other windows of other records, so that only
a wrong scale or an empty batch can be told."""


def run(
    *,
    folder: Path | None,
    shards: str | None,
    rivals: bool = False,
    as_json: bool = False,
    rounds: int = 120,
    batches: int = 6,
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
        batches: timed in each slice.
        size: output height and width in pixels.
        threads: decode threads of worker and rivals; None is one for each core.

    Returns:
        0, or 1 where a contestant failed; one that is not installed did not fail.

    Raises:
        ContestantFailed: one of feeder's failed, or another after the first rounds.
    """
    cores = sorted(os.sched_getaffinity(0))
    left_out: dict[str, ContestantFailed] = {}
    results: dict[str, list[ServiceRound]] = {}
    facts: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-")))
        paths = service.pack_and_index(folder, shards, place)
        job = Job(place, paths, size, threads or len(cores), batches, cores)
        cache = None
        try:
            cache = service.filled(job, stack)
        except ContestantFailed as error:
            left_out.update(dict.fromkeys(CACHED, error))
        for done in range(0, rounds, ROUNDS_A_LIFE):
            with contextlib.ExitStack() as life:
                parties = _feeders(job, cache, life)
                brightness = _check_feeder(*(party.consumer for party in parties.values()), size=size)
                if rivals and TFDATA not in left_out:
                    tables.progress(f"checking {TFDATA}")
                    try:
                        party = service.tfdata(job, life)
                        _check_rival(party.consumer, brightness, size)
                    except ContestantFailed as error:
                        if done:
                            raise
                        left_out[TFDATA] = error
                    else:
                        parties[TFDATA] = party
                for party in parties.values():
                    party.freeze()
                kept = harness.interleave(
                    {
                        name: functools.partial(_slice, name, party, batches)
                        for name, party in parties.items()
                    },
                    min(ROUNDS_A_LIFE, rounds - done),
                    progress=tables.round_progress(rounds, done),
                )
            for name, some in kept.items():
                results.setdefault(name, []).extend(some)
                facts[name] = parties[name].consumer.facts
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


def _feeders(job: Job, cache: service.Filled | None, stack: contextlib.ExitStack) -> dict[str, Party]:
    """All that need no other library; each client has a worker of its own, which is frozen with it."""
    groups: list[tuple[tuple[str, str, str], str, service.Filled | None]] = [
        ((FEEDER, SAME_HOST, IN_PROCESS), "off", None),
        ((SEEK_FEEDER, SEEK_SAME_HOST, SEEK_IN_PROCESS), "use", None),
    ]
    if cache is not None:
        groups.append((CACHED, "off", cache))
    tables.progress("checking feeder")
    parties = {}
    for (over_tcp, same_host, in_process), seek, filled in groups:
        for name, transport in ((over_tcp, "grpc"), (same_host, "shm")):
            worker, target = service.worker(job, seek, stack, filled)
            parties[name] = service.client(name, job, worker, target, transport, stack)
        parties[in_process] = service.in_process(in_process, job, seek, filled, stack)
    return parties


def _slice(name: str, party: Party, batches: int) -> ServiceRound:
    times = CACHED_BATCHES if name in CACHED else 1
    return party.slice(times * SLICE_WARM_UP_BATCHES, times * batches)


def _copied(rounds: Sequence[ServiceRound]) -> dict[str, int]:
    """Bytes of pixels that the client copied for an image, where it says so."""
    copied = [one.copied_bytes for one in rounds if one.copied_bytes is not None]
    return {"copied_bytes_per_image": round(sum(copied) / len(copied))} if copied else {}


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
