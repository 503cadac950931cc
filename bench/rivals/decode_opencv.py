"""OpenCV: imdecode of the whole file, crop, resize as its documentation advises: INTER_AREA to shrink, else
INTER_LINEAR."""

from __future__ import annotations

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, image_by_image, serve


def prepare(job: DecodeJob) -> Batches:
    """Decodes to RGB where this OpenCV can (4.10); otherwise turns only the small result around."""
    import cv2

    cv2.setNumThreads(1)
    direct = hasattr(cv2, "IMREAD_COLOR_RGB")
    flags = (cv2.IMREAD_COLOR_RGB if direct else cv2.IMREAD_COLOR) | cv2.IMREAD_IGNORE_ORIENTATION

    def one(data: bytes, window: list[int], flip: bool) -> np.ndarray:
        x, y, width, height = window
        pixels = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), flags)
        kernel = cv2.INTER_AREA if min(width, height) >= job.size else cv2.INTER_LINEAR
        small = cv2.resize(pixels[y : y + height, x : x + width], (job.size, job.size), interpolation=kernel)
        if not direct:
            small = cv2.cvtColor(small, cv2.COLOR_BGR2RGB)
        return cv2.flip(small, 1) if flip else small

    return image_by_image(job, one)


if __name__ == "__main__":
    arguments(__doc__ or "")
    serve(
        DecodeContestant(
            prepare,
            distributions=("opencv-python-headless", "numpy"),
            note="imdecode, crop, resize INTER_AREA (INTER_LINEAR to enlarge)",
            antialias=True,
        )
    )
