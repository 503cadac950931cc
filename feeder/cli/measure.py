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
from pathlib import Path
from typing import TYPE_CHECKING

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
START_S, FILL_S, STOP_S = 60.0, 60.0, 10.0
_POLL_S = 0.1

CACHE_BYTES = 1 << 30
"""Enough for MOST_IMAGES of ImageNet; where it is not, the column is left out."""

LEAST_HITS = 0.98
_READY = "feeder worker listening on "
_SEEK: dict[Column, str] = {"plain": "off", "seek": "use", "cached": "off"}


def measure(
    images: Path | None,
    *,
    size: int,
    output: Output,
    remote: bool,
    seconds: float,
    progress: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Packs pictures, serves them by a worker on all usable cores, once for each column, and takes CPU times.

    Args:
        images: folder of images; of many, MOST_IMAGES spread over it. None: SYNTH_IMAGES pictures as `feeder
            synth` makes them.
        size, output: of the stream; see StreamSpec. Its other settings are those of a training stream.
        remote: over TCP, or into memory of this process.
        seconds: that each column is measured for, after a third of them that is not.
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
    decoder = open_decoder(1)
    try:
        columns: tuple[Column, ...] = ("plain", "seek", "cached") if decoder.seeks else ("plain",)
        made_by = decoder.name
    finally:
        decoder.close()
    worker_us: dict[Column, float] = {}
    consumer_us: list[float] = []
    planes_bytes = None
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="feeder-plan-") as name:
        place = Path(name)
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
        for column in columns:
            progress(f"measuring {column}")
            flags = ["--seek", _SEEK[column]]
            if column == "cached":
                flags += ["--cache-bytes", str(CACHE_BYTES), "--cache-dir", str(place / "cache"), "--warm"]
            with _worker(place, flags) as (pid, address):
                if column == "cached":
                    planes_bytes = _filled(address)
                served, received, hits = _cpu_us(pid, address, size, output, remote, seconds)
            if column == "cached" and (planes_bytes is None or hits < LEAST_HITS):
                notes.append(f"cached: only {hits:.0%} of the images could be kept, so it was not measured")
                planes_bytes = None
                continue
            worker_us[column] = served
            consumer_us.append(received)
    if "seek" not in columns:
        notes.append("seek points and the cache need the native kernel, which is not here")
    return Costs(
        worker_us=worker_us,
        consumer_us=min(consumer_us),
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


@contextlib.contextmanager
def _worker(place: Path, flags: list[str]) -> Iterator[tuple[int, str]]:
    """A worker process over the shards in `place`: its number and address."""
    command = [sys.executable, "-m", "feeder", "worker", "--dataset", f"plan={place / 'shards'}"]
    command += ["--listen", "127.0.0.1:0", "--arena-dir", str(place / "sockets"), *flags]
    # Settings of other workers here are none of this one's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FEEDER_")}
    with (
        open(place / "log", "w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            select.select([process.stdout], [], [], START_S)
            line = process.stdout.readline() if process.poll() is None else ""
            if not line.startswith(_READY):
                log.seek(0)
                raise WorkerUnavailable(f"the worker that measures did not start: {log.read()[-1000:]}")
            yield process.pid, line.removeprefix(_READY).strip()
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _filled(address: str) -> float | None:
    """Waits until the cache of a worker has all that it takes; bytes of an image in it, None without any."""
    deadline_s = time.monotonic() + FILL_S
    filled, since_s = -1, time.monotonic()
    while True:
        reply = _describe(address)
        cache, now_s = reply.cache, time.monotonic()
        if cache.filled != filled:
            filled, since_s = cache.filled, now_s
        done = filled >= reply.datasets[0].records or cache.full or now_s - since_s > 2.0
        if (done and cache.bytes) or now_s > deadline_s:
            return cache.bytes / filled if filled else None
        time.sleep(_POLL_S)


def _cpu_us(
    pid: int, address: str, size: int, output: Output, remote: bool, seconds: float
) -> tuple[float, float, float]:
    """CPU time of an image in us, of the worker and of this process, and the cache's share of hits."""
    import feeder

    with feeder.connect(address, timeout_s=START_S) as client:
        stream = client.stream(
            "plan",
            batch_size=BATCH,
            image_size=size,
            output=output,
            transport="grpc" if remote else "shm",
            remainder="wrap",
        )
        _consume(stream, seconds / 3)
        before = _describe(address).cache
        served, received = _cpu_seconds(pid), time.process_time()
        count = _consume(stream, seconds)
        served, received = _cpu_seconds(pid) - served, time.process_time() - received
        after = _describe(address).cache
    hits, misses = after.hits - before.hits, after.misses - before.misses
    return 1e6 * served / count, 1e6 * received / count, hits / max(1, hits + misses)


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
