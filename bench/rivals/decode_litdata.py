"""LitData: untouched bytes in its own chunks, decoder and transforms torchvision's, as it documents."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, serve


def prepare(job: DecodeJob) -> Batches:
    """Chunks lie in a temporary folder; one thread means that its loader starts no process."""
    import litdata
    import torch
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(1)
    windows, flips = job.windows.tolist(), job.flips.tolist()
    folder = tempfile.TemporaryDirectory(prefix="feeder-bench-")
    atexit.register(folder.cleanup)
    chunks = os.path.join(folder.name, "chunks")
    litdata.optimize(
        lambda index: {"image": litdata.Image(bytes=job.images[index]), "index": index},
        inputs=list(range(len(job.images))),
        output_dir=chunks,
        chunk_bytes="64MB",
        num_workers=1,
        keep_data_ordered=True,
        start_method="fork",
        verbose=False,
    )

    def transform(sample: dict[str, Any]) -> torch.Tensor:
        x, y, width, height = windows[sample["index"]]
        image = functional.resized_crop(
            sample["image"],
            y,
            x,
            height,
            width,
            [job.size, job.size],
            interpolation=functional.InterpolationMode.BILINEAR,
            antialias=True,
        )
        return functional.horizontal_flip(image) if flips[sample["index"]] else image

    dataset = litdata.StreamingDataset(chunks, shuffle=False, drop_last=False, transform=transform)
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=job.batch, num_workers=0 if job.threads == 1 else job.threads
    )

    def batches() -> Iterator[np.ndarray]:
        for batch in loader:
            yield batch.permute(0, 2, 3, 1).numpy()

    return batches


if __name__ == "__main__":
    arguments(__doc__ or "")
    serve(
        DecodeContestant(
            prepare,
            distributions=("litdata", "torchvision", "torch", "numpy"),
            note="StreamingDataset of chunks, resized_crop on uint8 as transform, batch as N, C, H, W",
            antialias=True,
            windows="exact, of images turned by EXIF",
        )
    )
