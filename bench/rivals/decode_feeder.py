"""feeder's own decode stage, asked for as a worker asks: 32 images a call, straight into their slots."""

from __future__ import annotations

from collections.abc import Iterator

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
    out = np.empty((job.batch, job.size, job.size, 3), dtype=np.uint8)
    reductions = _reductions(job) if variant == "reduced" else np.ones(len(job.images), np.uint8)
    seek = SeekPoints.nothing(len(job.images)) if variant == "seek" else None
    if seek is not None:
        _refuse_bad(decoder.learn(job.images, seek))

    def batches() -> Iterator[np.ndarray]:
        for start in range(0, len(job.images), job.batch):
            stop = min(start + job.batch, len(job.images))
            for first in range(start, stop, CHUNK_IMAGES):
                last = min(first + CHUNK_IMAGES, stop)
                span = slice(first, last)
                _refuse_bad(
                    decoder.decode(
                        job.images[span],
                        windows[span],
                        job.flips[span],
                        out[first - start : last - start],
                        reductions=reductions[span],
                        seek=None if seek is None else seek.part(first, last),
                    )
                )
            yield out[: stop - start]

    return batches


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
