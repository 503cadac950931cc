"""tf.data: the fused decode_and_crop_jpeg, then resize, flip and batch, all in one graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, serve

VARIANTS = ("plain", "antialias")


def prepare(job: DecodeJob, antialias: bool) -> Batches:
    """tf.data with a private pool of the job's threads, autotuning off, so that nothing else runs."""
    import tensorflow as tf

    def one(data: tf.Tensor, window: tf.Tensor, flip: tf.Tensor) -> tf.Tensor:
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.resize(image, (job.size, job.size), method="bilinear", antialias=antialias)
        # Neither kernel leaves [0, 255], so half a level more and truncation rounds.
        image = tf.cast(image + 0.5, tf.uint8)
        return tf.cond(flip, lambda: tf.reverse(image, (1,)), lambda: image)

    x, y, width, height = job.windows.T
    windows = np.stack((y, x, height, width), axis=1).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((job.images, windows, job.flips))
    dataset = dataset.map(one, num_parallel_calls=job.threads if job.threads > 1 else None).batch(job.batch)
    options = tf.data.Options()
    options.threading.private_threadpool_size = job.threads
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    dataset = dataset.with_options(options)

    def batches() -> Iterator[np.ndarray]:
        for batch in dataset:
            yield batch.numpy()

    return batches


if __name__ == "__main__":
    variant = arguments(__doc__ or "", VARIANTS).variant
    serve(
        DecodeContestant(
            lambda job: prepare(job, variant == "antialias"),
            distributions=("tensorflow-cpu", "numpy"),
            note="decode_and_crop_jpeg, tf.image.resize bilinear",
            antialias=variant == "antialias",
        )
    )
