"""SPDL: one FFmpeg filter graph an image crops, scales with antialias, flips and makes RGB."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, serve


def prepare(job: DecodeJob) -> Batches:
    """The calls of spdl.io.load_image_batch, with a filter for each image instead of one for all."""
    import spdl.io

    def filter_of(window: list[int], flip: bool) -> str:
        x, y, width, height = window
        # exact: without it, windows of subsampled images start at whole chroma samples.
        parts = [f"crop=w={width}:h={height}:x={x}:y={y}:exact=1"]
        parts += [f"scale=w={job.size}:h={job.size}:flags=bilinear"] + ["hflip"] * flip
        return str(spdl.io.get_video_filter_desc(filter_desc=",".join(parts)))

    filters = [filter_of(*pair) for pair in zip(job.windows.tolist(), job.flips.tolist(), strict=True)]
    pool = ThreadPoolExecutor(job.threads) if job.threads > 1 else None

    def decode(index: int) -> object:
        return spdl.io.decode_packets(spdl.io.demux_image(job.images[index]), filter_desc=filters[index])

    def batches() -> Iterator[np.ndarray]:
        for start in range(0, len(job.images), job.batch):
            span = range(start, min(start + job.batch, len(job.images)))
            frames = list(map(decode, span) if pool is None else pool.map(decode, span))
            yield spdl.io.to_numpy(spdl.io.convert_frames(frames))

    return batches


if __name__ == "__main__":
    arguments(__doc__ or "")
    serve(
        DecodeContestant(
            prepare,
            distributions=("spdl-io", "numpy"),
            note="demux_image, decode_packets with FFmpeg's crop, scale bilinear, hflip",
            antialias=True,
        )
    )
