"""feeder's own decode stage, asked for as a worker asks: 32 images a call, straight into their slots."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, serve

VARIANTS = ("native", "portable")

CHUNK_IMAGES = 32
"""Most slots that one chunk request may name."""


def prepare(job: DecodeJob, kind: str) -> Batches:
    """Fails where this kind of decoder is not there, instead of measuring another."""
    from feeder.decode import open_decoder

    decoder = open_decoder(job.threads, kind)
    windows = job.windows.astype(np.int32)
    out = np.empty((job.batch, job.size, job.size, 3), dtype=np.uint8)

    def batches() -> Iterator[np.ndarray]:
        for start in range(0, len(job.images), job.batch):
            stop = min(start + job.batch, len(job.images))
            for first in range(start, stop, CHUNK_IMAGES):
                span = slice(first, min(first + CHUNK_IMAGES, stop))
                bad = decoder.decode(
                    job.images[span],
                    windows[span],
                    job.flips[span],
                    out[first - start : span.stop - start],
                )
                if any(bad):
                    raise ValueError(f"bad image: {next(filter(None, bad))}")
            yield out[: stop - start]

    return batches


if __name__ == "__main__":
    variant = arguments(__doc__ or "", VARIANTS).variant
    serve(
        DecodeContestant(
            lambda job: prepare(job, variant),
            distributions=("numpy",),
            note=f"decode_crop_batch, {variant}, 32 images a call",
            antialias=True,
        )
    )
