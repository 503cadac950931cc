"""feeder's client, or the same chunks made inside this process: the ceiling of what a service can give."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from protocol import arguments, serve, versions

if TYPE_CHECKING:
    from feeder.batch import ChunkMaker
    from feeder.cache import Shelf
    from feeder.decode import Decoder
    from feeder.records import Dataset

VARIANTS = ("client", "in-process")

CHUNK_IMAGES = 64
"""As many as feeder's client asks for at a time."""

READY_BATCHES = 4
"""As many as feeder's client keeps by default."""

DATASET = "bench"
SPEC: dict[str, Any] = {"sampler": "inception"}


@dataclass(frozen=True)
class _Stream:
    """Endless (images, labels), and how many bytes of pixels the client has copied for an image so far."""

    batches: Iterator[tuple[np.ndarray, np.ndarray]]
    copied_bytes: Callable[[], float]

    def take(self, request: dict[str, Any]) -> dict[str, Any]:
        """`warm_up` batches that are not timed, then `batches` that are."""
        images = 0
        for _ in range(request["warm_up"]):
            next(self.batches)
        started = time.perf_counter()
        for _ in range(request["batches"]):
            images += len(next(self.batches)[0])
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "images": images, "copied_bytes": self.copied_bytes()}


class _Source(ABC):
    """Rounds and slices over batches that a subclass makes."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._running: _Stream | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @abstractmethod
    def note(self) -> str:
        """What this is, in a few words."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keeps the request: shards, indexes, seek, size, batch, threads, target, transport, seed; cache: a
        folder that a worker has filled, and its budget in bytes, or None."""
        self.request = request
        return {
            "note": f"{self.note()}; {self.decoder()}",
            "antialias": True,
            "windows": "its own draws",
            "versions": versions("numpy", "grpcio"),
        }

    @abstractmethod
    def decoder(self) -> str:
        """The name of the decoder that makes the batches."""

    @abstractmethod
    def stream(self) -> contextlib.AbstractContextManager[_Stream]:
        """A new one, from the first batch on."""

    def round(self, request: dict[str, Any]) -> dict[str, Any]:
        """A new stream: `warm_up` batches that are not timed, then `batches` that are."""
        with self.stream() as stream:
            return stream.take(request)

    def slice(self, request: dict[str, Any]) -> dict[str, Any]:
        """The same of the stream that the first slice opened."""
        if self._running is None:
            self._running = self._stack.enter_context(self.stream())
        return self._running.take(request)

    def outputs(self, request: dict[str, Any]) -> dict[str, Any]:
        """The first batch; the reply holds its labels."""
        with self.stream() as stream:
            images, labels = next(stream.batches)
            np.save(request["path"], images)
        return {"labels": labels.tolist()}


class Client(_Source):
    """Batches of a worker that another process runs."""

    def note(self) -> str:
        """How the batches come."""
        way = "shared memory" if self.request["transport"] == "shm" else "TCP loopback"
        return f"worker and client each a process, {way}"

    def decoder(self) -> str:
        """As the worker says."""
        import feeder

        with feeder.connect(self.request["target"]) as client:
            (worker,) = client.workers.values()
            return worker.decoder

    @contextlib.contextmanager
    def stream(self) -> Iterator[_Stream]:
        """Of the service."""
        import feeder

        with (
            feeder.connect(self.request["target"]) as client,
            client.stream(
                DATASET,
                batch_size=self.request["batch"],
                image_size=self.request["size"],
                transport=self.request["transport"],
                seed=self.request["seed"],
                **SPEC,
            ) as stream,
        ):
            batches = ((batch.images, batch.labels) for batch in stream)

            def copied_bytes() -> float:
                stats = stream.stats()  # of all images that came, those that are ready included
                return stats.copied_bytes / sum(worker.images for worker in stats.workers.values())

            yield _Stream(batches, copied_bytes)


class InProcess(_Source):
    """The same steps in the same chunks by the same kernel with the same threads, but no service around
    it."""

    def note(self) -> str:
        """Where the batches come from."""
        return "chunks made in the consumer's process, into its batches"

    def decoder(self) -> str:
        """As in a worker of this environment."""
        from feeder.decode import open_decoder

        decoder = open_decoder(1)
        decoder.close()
        return decoder.name

    @contextlib.contextmanager
    def stream(self) -> Iterator[_Stream]:
        """Threads and decoder live as long as it."""
        from feeder.batch import ChunkMaker
        from feeder.decode import open_decoder
        from feeder.order import default_lanes
        from feeder.records import Dataset
        from feeder.spec import StreamSpec

        request = self.request
        decoder = open_decoder(request["threads"])
        try:
            with (
                Dataset.open(
                    DATASET, request["shards"], index_dir=Path(request["indexes"]), seek=request["seek"]
                ) as dataset,
                # One more than decode, so that the decoder has its next chunk while one is fetched.
                ThreadPoolExecutor(request["threads"] + 1) as pool,
                self._shelf(dataset, decoder) as shelf,
            ):
                batch = request["batch"]
                lanes = default_lanes(len(dataset), batch, 1)
                spec = StreamSpec(
                    DATASET, batch, lanes, seed=request["seed"], image_size=request["size"], **SPEC
                )
                steps = self._steps(ChunkMaker(dataset, decoder, spec, shelf), pool)
                with contextlib.closing(steps):  # ends the pool's work before the cache goes
                    yield _Stream(steps, lambda: 0.0)
        finally:
            decoder.close()

    @contextlib.contextmanager
    def _shelf(self, dataset: Dataset, decoder: Decoder) -> Iterator[Shelf | None]:
        """What a worker has put into the cache that is named."""
        from feeder.cache import Cache, Folder
        from feeder.decode import pixel_fingerprint

        if self.request["cache"] is None:
            yield None
            return
        folder, budget = self.request["cache"]
        cache = Cache(Folder(Path(folder)), budget, pixel_fingerprint(decoder), {DATASET: dataset})
        try:
            cache.refresh()
            yield cache.shelf(DATASET)
        finally:
            cache.close()

    def _steps(self, maker: ChunkMaker, pool: ThreadPoolExecutor) -> Generator[tuple[np.ndarray, np.ndarray]]:
        batch, size = self.request["batch"], self.request["size"]
        buffers = [np.empty((batch, size, size, 3), np.uint8) for _ in range(READY_BATCHES + 1)]
        under_way: deque[tuple[np.ndarray, list[Future[Any]]]] = deque()
        steps = 0

        def chunk(epoch: int, taken: int, slots: range, out: np.ndarray) -> np.ndarray:
            fetched = maker.fetch(epoch, taken, slots)
            return maker.make(fetched, out[slots.start : slots.stop]).labels

        try:
            while True:
                while len(under_way) < READY_BATCHES:
                    epoch, step = divmod(steps, maker.order.steps_per_epoch)
                    out = buffers[steps % len(buffers)]
                    under_way.append(
                        (
                            out,
                            [
                                pool.submit(
                                    chunk,
                                    epoch,
                                    step * maker.spec.per_lane,
                                    range(first, min(first + CHUNK_IMAGES, batch)),
                                    out,
                                )
                                for first in range(0, batch, CHUNK_IMAGES)
                            ],
                        )
                    )
                    steps += 1
                images, futures = under_way.popleft()
                yield images, np.concatenate([future.result() for future in futures])
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    with Client() if arguments(__doc__ or "", VARIANTS).variant == "client" else InProcess() as source:
        serve(source)
