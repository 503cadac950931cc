"""feeder's own decode stage, asked for as a worker asks: 32 images a call, straight into their slots."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, serve

VARIANTS = {
    "native": "native, 32 images a call",
    "seek": "native with seek points that were learned before, 32 images a call",
    "reduced": 'native at reduce="auto", 32 images a call',
    "portable": "portable, 32 images a call",
}

CHUNK_IMAGES = 32
"""Most slots that one chunk request may name."""


def prepare(job: DecodeJob, variant: str) -> Batches:
    """Fails where this kind of decoder is not there, instead of measuring another."""
    from feeder.decode import SeekPoints, open_decoder

    decoder = open_decoder(job.threads, "portable" if variant == "portable" else "native")
    windows = job.windows.astype(np.int32)
    reductions = _reductions(job) if variant == "reduced" else np.ones(len(job.images), np.uint8)
    seek = SeekPoints.nothing(len(job.images)) if variant == "seek" else None
    if seek is not None:
        _refuse_bad(decoder.learn(job.images, seek))

    def decode(first: int, out: np.ndarray) -> None:
        span = slice(first, first + len(out))
        _refuse_bad(
            decoder.decode(
                job.images[span],
                windows[span],
                job.flips[span],
                out,
                reductions=reductions[span],
                seek=None if seek is None else seek.part(first, first + len(out)),
            )
        )

    # A worker has chunks of several batches to do at a time: no thread of it waits for a batch's last image.
    ahead = 2 if job.threads > 1 else 1
    pool = ThreadPoolExecutor(2 * job.threads) if job.threads > 1 else None
    buffers = np.empty((ahead, job.batch, job.size, job.size, 3), dtype=np.uint8)

    def ask(start: int) -> tuple[np.ndarray, list[Callable[[], None]]]:
        """A batch, and what to call until it is there."""
        out = buffers[start // job.batch % ahead][: len(job.images) - start]
        calls = [(start + at, out[at : at + CHUNK_IMAGES]) for at in range(0, len(out), CHUNK_IMAGES)]
        if pool is None:
            return out, [functools.partial(decode, *call) for call in calls]
        return out, [pool.submit(decode, *call).result for call in calls]

    def batches() -> Iterator[np.ndarray]:
        asked: deque[tuple[np.ndarray, list[Callable[[], None]]]] = deque()
        for start in range(0, len(job.images), job.batch):
            asked.append(ask(start))
            if len(asked) == ahead:
                yield _finished(*asked.popleft())
        while asked:
            yield _finished(*asked.popleft())

    return batches


def _finished(out: np.ndarray, waits: list[Callable[[], None]]) -> np.ndarray:
    for wait in waits:
        wait()
    return out


def _reductions(job: DecodeJob) -> np.ndarray:
    from feeder.decode import open_decoder, reductions
    from feeder.order.windows import smallest_window

    decoder = open_decoder(1)
    sizes, reasons = decoder.sizes(job.images)
    decoder.close()
    _refuse_bad(reasons)
    smallest = smallest_window("train", "torchvision", sizes, job.size)
    return reductions("auto", smallest, sizes, job.size)


def _refuse_bad(reasons: list[str | None]) -> None:
    bad = next(filter(None, reasons), None)
    if bad is not None:
        raise ValueError(f"bad image: {bad}")


if __name__ == "__main__":
    variant = arguments(__doc__ or "", tuple(VARIANTS)).variant
    serve(
        DecodeContestant(
            lambda job: prepare(job, variant),
            distributions=("numpy",),
            note=VARIANTS[variant],
            antialias=True,
        )
    )
