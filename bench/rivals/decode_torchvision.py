"""torchvision: decode_jpeg of the whole file, then crop, antialiased resize and flip of uint8 tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, serve


def prepare(job: DecodeJob) -> Batches:
    """Batches keep torch's own order of axes (N, C, H, W); what is yielded is a view as N, H, W, C."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(job.threads)
    images = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in job.images]
    windows, flips = job.windows.tolist(), job.flips.tolist()
    out = torch.empty((job.batch, 3, job.size, job.size), dtype=torch.uint8)

    def batches() -> Iterator[np.ndarray]:
        for start in range(0, len(images), job.batch):
            stop = min(start + job.batch, len(images))
            for index in range(start, stop):
                x, y, width, height = windows[index]
                image = functional.resized_crop(
                    decode_jpeg(images[index], mode=ImageReadMode.RGB),
                    y,
                    x,
                    height,
                    width,
                    [job.size, job.size],
                    interpolation=functional.InterpolationMode.BILINEAR,
                    antialias=True,
                )
                out[index - start] = functional.horizontal_flip(image) if flips[index] else image
            yield out[: stop - start].permute(0, 2, 3, 1).numpy()

    return batches


if __name__ == "__main__":
    arguments(__doc__ or "")
    serve(
        DecodeContestant(
            prepare,
            distributions=("torchvision", "torch", "numpy"),
            note="decode_jpeg, resized_crop on uint8, batch as N, C, H, W",
            antialias=True,
        )
    )
