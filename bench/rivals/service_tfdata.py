"""tf.data service on loopback: dispatcher and worker in one process, the consumer in another.

The job is the same as feeder's: parse the Example, decode the window that sample_distorted_bounding_box
draws, resize to a square, flip, batch, uint8; without compression.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from protocol import arguments, serve, versions

VARIANTS = ("server", "consumer")

SHUFFLE_RECORDS = 1024
"""The shuffle buffer of the reference's training graph (its order without cache)."""

READY_BATCHES = 4
"""Made ahead by the worker, and again by the consumer: what feeder's client keeps by default."""


class Server:
    """Dispatcher and worker; `load` answers with their address."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Starts both; they live as long as the process."""
        import tensorflow as tf

        service = tf.data.experimental.service
        self.dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
        address = self.dispatcher.target.split("://")[1]
        self.worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
        return {"target": self.dispatcher.target}


class Consumer:
    """Distributes the input pipeline to the server and takes its batches."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Builds the graph for `shards`, `size`, `batch`, `threads`, and the server's `target`."""
        import tensorflow as tf

        size = request["size"]

        def one(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            parsed = tf.io.parse_single_example(
                record,
                {
                    "image/encoded": tf.io.FixedLenFeature((), tf.string),
                    "image/class/label": tf.io.FixedLenFeature((), tf.int64),
                },
            )
            data = parsed["image/encoded"]
            begin, extent, _ = tf.image.sample_distorted_bounding_box(
                tf.image.extract_jpeg_shape(data),
                tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
                min_object_covered=0.1,
                aspect_ratio_range=(3 / 4, 4 / 3),
                area_range=(0.08, 1.0),
                max_attempts=10,
            )
            window = tf.concat((begin[:2], extent[:2]), axis=0)
            image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
            image = tf.image.resize(image, (size, size), method="bilinear")
            image = tf.image.random_flip_left_right(tf.cast(image + 0.5, tf.uint8))
            return image, tf.cast(parsed["image/class/label"] - 1, tf.int32)

        dataset = tf.data.TFRecordDataset(request["shards"], num_parallel_reads=len(request["shards"]))
        dataset = dataset.shuffle(SHUFFLE_RECORDS).repeat()
        dataset = dataset.map(one, num_parallel_calls=request["threads"], deterministic=False)
        dataset = dataset.batch(request["batch"], drop_remainder=True).prefetch(READY_BATCHES)
        self.dataset = dataset.apply(
            tf.data.experimental.service.distribute(
                tf.data.experimental.service.ShardingPolicy.OFF, request["target"], compression=None
            )
        ).prefetch(READY_BATCHES)
        self.running = None
        return {
            "note": "dispatcher and worker in one process, fused decode, resize bilinear, no compression",
            "antialias": False,
            "windows": "its own draws",
            "versions": versions("tensorflow-cpu", "numpy"),
        }

    def slice(self, request: dict[str, Any]) -> dict[str, Any]:
        """Of the job that the first slice began: `warm_up` batches that are not timed, then `batches` that
        are."""
        if self.running is None:
            self.running = iter(self.dataset)
        batches, images = self.running, 0
        for _ in range(request["warm_up"]):
            next(batches)
        started = time.perf_counter()
        for _ in range(request["batches"]):
            pixels, _ = next(batches)
            images += pixels.shape[0]
        return {"seconds": time.perf_counter() - started, "images": images}

    def outputs(self, request: dict[str, Any]) -> dict[str, Any]:
        """The first batch of a job; the reply holds its labels."""
        pixels, labels = next(iter(self.dataset))
        np.save(request["path"], pixels.numpy())
        return {"labels": labels.numpy().tolist()}


if __name__ == "__main__":
    serve(Server() if arguments(__doc__ or "", VARIANTS).variant == "server" else Consumer())
