"""simplejpeg decodes the whole file, pillow-simd crops and resizes with BILINEAR, which antialiases."""

from __future__ import annotations

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, image_by_image, serve


def prepare(job: DecodeJob) -> Batches:
    """The two fastest calls of the Pillow family, without a copy between them that can be avoided."""
    import simplejpeg
    from PIL import Image

    def one(data: bytes, window: list[int], flip: bool) -> np.ndarray:
        x, y, width, height = window
        pixels = simplejpeg.decode_jpeg(data, "RGB", strict=False)
        image = Image.fromarray(pixels[y : y + height, x : x + width])
        resized = np.asarray(image.resize((job.size, job.size), Image.Resampling.BILINEAR))
        return resized[:, ::-1] if flip else resized

    return image_by_image(job, one)


if __name__ == "__main__":
    arguments(__doc__ or "")
    serve(
        DecodeContestant(
            prepare,
            distributions=("simplejpeg", "pillow-simd", "numpy"),
            note="decode_jpeg, crop, resize BILINEAR",
            antialias=True,
        )
    )
