"""What an image costs on this machine: a worker, in a process of its own, and a client in this one."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import feeder
from feeder.advice.capacity import Column, Costs
from feeder.errors import WorkerUnavailable
from feeder.spec import Output

if TYPE_CHECKING:
    from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["SYNTH_IMAGES", "measure"]

SYNTH_IMAGES = 96
"""Pictures that are drawn where none are given; two seconds on one core."""

MOST_IMAGES = 512
"""Of a folder: more would only take longer to pack."""

BATCH = 32
ROUNDS = 3
START_S, FILL_S, STOP_S = 60.0, 60.0, 10.0
SEALED_S, STUCK_S = 1.5, 5.0
"""Without a change, until a cache that has all, or has not, is taken as it is: its last images count a second
later, when their segment is sealed."""

BUSY = 0.5
"""Load of each core before the measurement, above which its result is in doubt."""

_POLL_S = 0.1

CACHE_BYTES = 1 << 30
"""Enough for MOST_IMAGES of ImageNet; where it is not, the column is left out."""

LEAST_FOUND = 0.9
"""Share of the images that must have seek points, or be in the cache, for the column to say something."""

_READY = "feeder worker listening on "


def measure(
    images: Path | None,
    *,
    size: int,
    output: Output,
    remote: bool,
    seconds: float,
    progress: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Packs pictures, serves them by a worker on all usable cores for each column, and takes CPU times.

    The workers take turns, ROUNDS times, and the medians count: what else the machine does meets all of them.

    Args:
        images: folder of images; of many, MOST_IMAGES spread over it. None: SYNTH_IMAGES pictures as `feeder
            synth` makes them.
        size, output: of the stream; see StreamSpec. Its other settings are those of a training stream.
        remote: over TCP, or into memory of this process.
        seconds: that each column is measured for in all, besides a third as many that are not counted.
        progress: is told what comes next.

    Raises:
        ConfigError: no image in the folder, or none that this machine can serve.
        WorkerUnavailable: the worker did not start or went away.
    """
    from feeder.cli.learn import learn
    from feeder.decode import open_decoder
    from feeder.records import Dataset
    from feeder.records.pack import pack
    from feeder.records.synth import synth
    from feeder.worker.cpus import decode_threads

    cores, _ = decode_threads()
    load = os.getloadavg()[0]
    decoder = open_decoder(1)
    try:
        columns: tuple[Column, ...] = ("plain", "seek", "cached") if decoder.seeks else ("plain",)
        made_by = decoder.name
    finally:
        decoder.close()
    planes_bytes = None
    rounds: dict[Column, list[_Round]] = {column: [] for column in columns}
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-plan-")))
        if images is None:
            progress("drawing pictures")
            synth(place / "photos", images=SYNTH_IMAGES, classes=4)
            what = f"{SYNTH_IMAGES} pictures of feeder synth"
        else:
            what = f"{_choose(images, place / 'photos')} images of {images}"
        pack(place / "photos", place / "shards", shards=4)
        if "seek" in columns:
            with Dataset.open("plan", [str(place / "shards")], seek="learn") as dataset:
                learn(dataset)
        progress("starting workers")
        workers = {column: stack.enter_context(_worker(place, column)) for column in columns}
        if "cached" in workers:
            planes_bytes = _filled(workers["cached"].address)
        progress("measuring")
        for _ in range(ROUNDS):
            for column, worker in workers.items():
                rounds[column].append(worker.round(size, output, remote, seconds / ROUNDS))
    notes = []
    if load > BUSY * cores:
        notes.append(
            f"this machine did other things, too (load {load:.1f} on {cores} cores), so the CPU times are in "
            "doubt: measure again when it is idle"
        )
    if "seek" not in columns:
        notes.append("seek points and the cache need the native kernel, which is not here")
    for column, wanted in (("seek", "had seek points"), ("cached", "could be kept in the cache")):
        share = min((one.found for one in rounds.get(column, ())), default=1.0)
        if share < LEAST_FOUND:
            notes.append(f"{column}: only {share:.0%} of the images {wanted}, so it was not measured")
            del rounds[column]
    return Costs(
        worker_us={column: median(one.worker_us for one in theirs) for column, theirs in rounds.items()},
        consumer_us=median(one.consumer_us for theirs in rounds.values() for one in theirs),
        planes_bytes=planes_bytes,
        source=f"measured here just now, {seconds:g} s a column, {made_by} on {cores} cores, {what}",
        cores=cores,
        memory_bytes=_memory_bytes(),
        notes=tuple(notes),
    )


def _choose(images: Path, folder: Path) -> int:
    """Links at most MOST_IMAGES files that look like images into one class of a new folder."""
    from feeder.records.folder import find_images

    _, found = find_images(images)
    every = -(-len(found) // MOST_IMAGES)
    chosen = [images / name for name, _ in found[::every]]
    (folder / "one").mkdir(parents=True)
    for number, path in enumerate(chosen):
        (folder / "one" / f"{number:06d}{path.suffix}").symlink_to(path.resolve())
    return len(chosen)


@dataclass(frozen=True)
class _Round:
    """CPU time of an image in us, of the worker and of this process, and the share of images that had what
    the column is about."""

    worker_us: float
    consumer_us: float
    found: float


@dataclass(frozen=True)
class _Worker:
    """A worker process for one column."""

    column: Column
    pid: int
    address: str

    def round(self, size: int, output: Output, remote: bool, seconds: float) -> _Round:
        """Takes batches of it for so long, after a third as long."""
        with feeder.connect(self.address, timeout_s=START_S) as client:
            stream = client.stream(
                "plan",
                batch_size=BATCH,
                image_size=size,
                output=output,
                transport="grpc" if remote else "shm",
                remainder="wrap",
            )
            _consume(stream, seconds / 3)
            before = _describe(self.address)
            served, received = _cpu_seconds(self.pid), time.process_time()
            count = _consume(stream, seconds)
            served, received = _cpu_seconds(self.pid) - served, time.process_time() - received
            after = _describe(self.address)
        return _Round(1e6 * served / count, 1e6 * received / count, self._found(before, after))

    def _found(self, before: pb.DescribeReply, after: pb.DescribeReply) -> float:
        if self.column == "cached":
            hits = after.cache.hits - before.cache.hits
            return hits / max(1, hits + after.cache.misses - before.cache.misses)
        if self.column == "seek":
            # Images are counted when they are sent: a few more are decoded then.
            images = after.counters.images - before.counters.images
            return min(1.0, (after.counters.seek_used - before.counters.seek_used) / max(1, images))
        return 1.0


@contextlib.contextmanager
def _worker(place: Path, column: Column) -> Iterator[_Worker]:
    """A worker over the shards in `place`, which ends with this process, however that does."""
    command = [sys.executable, "-P", "-m", "feeder.child", str(os.getpid())]
    command += ["--dataset", f"plan={place / 'shards'}"]
    command += ["--listen", "127.0.0.1:0", "--arena-dir", str(place / f"sockets-{column}")]
    command += ["--seek", "use" if column == "seek" else "off"]
    if column == "cached":
        command += ["--cache-bytes", str(CACHE_BYTES), "--cache-dir", str(place / "cache"), "--warm"]
    # Settings of other workers here are none of this one's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEEDER_")}
    with (
        open(place / f"log-{column}", "w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            select.select([process.stdout], [], [], START_S)
            line = process.stdout.readline() if process.poll() is None else ""
            if not line.startswith(_READY):
                log.seek(0)
                raise WorkerUnavailable(f"the worker that measures did not start: {log.read()[-1000:]}")
            yield _Worker(column, process.pid, line.removeprefix(_READY).strip())
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _filled(address: str) -> float | None:
    """Waits until the cache of a worker has all that it takes; bytes of an image in it, None without any."""
    deadline_s = time.monotonic() + FILL_S
    seen, since_s = (0, 0), time.monotonic()
    while True:
        reply = _describe(address)
        cache, now_s = reply.cache, time.monotonic()
        if seen != (cache.filled, cache.bytes):
            seen, since_s = (cache.filled, cache.bytes), now_s
        # What cannot be kept, as PNGs, never comes.
        most = cache.full or cache.filled >= reply.datasets[0].records
        if now_s - since_s > (SEALED_S if most else STUCK_S) or now_s > deadline_s:
            return cache.bytes / cache.filled if cache.bytes else None
        time.sleep(_POLL_S)


def _describe(address: str) -> pb.DescribeReply:
    """What the worker says, which is asked again where it has no time to answer."""
    from feeder.cli.status import describe
    from feeder.wire.address import parse_address

    deadline_s = time.monotonic() + START_S
    while True:
        try:
            return describe(parse_address(address))
        except WorkerUnavailable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_S)


def _consume(batches: Iterator[object], seconds: float) -> int:
    """Takes batches for so long; returns how many images."""
    end_s = time.monotonic() + seconds
    count = 0
    for _ in batches:
        count += BATCH
        if time.monotonic() > end_s:
            break
    return count


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process with all of its threads, in seconds, 10 ms fine."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        raise WorkerUnavailable("the worker that measures went away") from None
    # proc(5): utime and stime are fields 14 and 15, counted from 1; two of them stand before the ")".
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_bytes() -> float:
    from feeder.cgroup import memory_limit

    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return float(min(machine, memory_limit() or machine))
