"""Grain: a MapDataset of encoded images, mapped by Pillow as Grain's own examples do, then batched."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, serve


def prepare(job: DecodeJob) -> Batches:
    """Grain brings no decoder; one thread means that its iterator reads without any thread of its own."""
    import grain
    from PIL import Image

    windows, flips = job.windows.tolist(), job.flips.tolist()

    def one(index: int) -> np.ndarray:
        x, y, width, height = windows[index]
        with Image.open(io.BytesIO(job.images[index]), formats=("JPEG",)) as file:
            image = file.convert("RGB").crop((x, y, x + width, y + height))
        image = image.resize((job.size, job.size), Image.Resampling.BILINEAR)
        if flips[index]:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)

    options: dict[str, Any] = {"num_threads": 0, "prefetch_buffer_size": 0}
    if job.threads > 1:
        options = {"num_threads": job.threads, "prefetch_buffer_size": 2 * job.batch}
    dataset = grain.MapDataset.range(len(job.images)).map(one)
    batched = dataset.to_iter_dataset(grain.ReadOptions(**options)).batch(job.batch)

    def batches() -> Iterator[np.ndarray]:
        yield from batched

    return batches


if __name__ == "__main__":
    arguments(__doc__ or "")
    serve(
        DecodeContestant(
            prepare,
            distributions=("grain", "Pillow", "numpy"),
            note="MapDataset.map of Pillow's open, convert, crop, resize BILINEAR; batch",
            antialias=True,
        )
    )
