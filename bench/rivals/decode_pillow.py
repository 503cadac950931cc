"""Pillow, or pillow-simd: decode the whole file, crop, resize with BILINEAR, which antialiases."""

from __future__ import annotations

import io
from importlib import metadata

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, image_by_image, serve

VARIANTS = ("Pillow", "pillow-simd")


def prepare(job: DecodeJob) -> Batches:
    """Plain calls, as a training script makes them."""
    from PIL import Image

    def one(data: bytes, window: list[int], flip: bool) -> np.ndarray:
        x, y, width, height = window
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as file:
            image = file.convert("RGB").crop((x, y, x + width, y + height))
        image = image.resize((job.size, job.size), Image.Resampling.BILINEAR)
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)

    return image_by_image(job, one)


if __name__ == "__main__":
    variant = arguments(__doc__ or "", VARIANTS).variant
    other = VARIANTS[1 - VARIANTS.index(variant)]
    if other.lower() in {str(found.name).lower() for found in metadata.distributions()}:
        raise SystemExit(
            f"{other} is installed beside {variant} under one import name: run make rivals again"
        )
    serve(
        DecodeContestant(
            prepare,
            distributions=(variant, "numpy"),
            note="open, convert, crop, resize BILINEAR",
            antialias=True,
        )
    )
