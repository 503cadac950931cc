"""DALI on the CPU: decoders.image_slice decodes the window's rows, then resize and flip."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, serve

VARIANTS = ("plain", "antialias")


def prepare(job: DecodeJob, antialias: bool) -> Batches:
    """A pipeline without prefetch: what it decodes in a round is what the round asked for."""
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline

    pipeline = Pipeline(
        batch_size=job.batch,
        num_threads=job.threads,
        device_id=None,
        exec_async=False,
        exec_pipelined=False,
    )
    with pipeline:
        data = fn.external_source(name="data", device="cpu", dtype=types.UINT8, ndim=1, no_copy=True)
        anchor = fn.external_source(name="anchor", device="cpu", dtype=types.INT64, ndim=1)
        shape = fn.external_source(name="shape", device="cpu", dtype=types.INT64, ndim=1)
        flip = fn.external_source(name="flip", device="cpu", dtype=types.INT32, ndim=0)
        images = fn.decoders.image_slice(
            data, anchor, shape, device="cpu", axis_names="WH", adjust_orientation=False
        )
        images = fn.resize(
            images,
            resize_x=job.size,
            resize_y=job.size,
            interp_type=types.INTERP_LINEAR,
            antialias=antialias,
        )
        pipeline.set_outputs(fn.flip(images, horizontal=flip))
    pipeline.build()

    encoded = [np.frombuffer(image, dtype=np.uint8) for image in job.images]
    anchors, shapes = (np.ascontiguousarray(job.windows[:, half]) for half in (slice(0, 2), slice(2, 4)))
    flips = job.flips.astype(np.int32)

    def batches() -> Iterator[np.ndarray]:
        for start in range(0, len(encoded), job.batch):
            span = slice(start, start + job.batch)
            pipeline.feed_input("data", encoded[span])
            pipeline.feed_input("anchor", anchors[span])
            pipeline.feed_input("shape", shapes[span])
            pipeline.feed_input("flip", flips[span])
            (images,) = pipeline.run()
            yield np.asarray(images.as_tensor())

    return batches


if __name__ == "__main__":
    variant = arguments(__doc__ or "", VARIANTS).variant
    serve(
        DecodeContestant(
            lambda job: prepare(job, variant == "antialias"),
            distributions=("nvidia-dali-cuda120", "numpy"),
            note="decoders.image_slice and resize INTERP_LINEAR on the CPU",
            antialias=variant == "antialias",
        )
    )
