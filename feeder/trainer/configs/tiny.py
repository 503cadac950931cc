"""A ResNet-8 of width 16 at 64 pixels that learns ten easy classes in a minute on one CPU core: the demo.

    feeder train --config tiny --connect 127.0.0.1:PORT --dataset train --eval-dataset validation

Machine: one x86-64 core for the trainer (800 to 1,100 images a second) and one for the workers. float32,
because CPUs emulate bfloat16.
"""

from __future__ import annotations

from feeder.trainer.config import TrainConfig

__all__ = ["CONFIGS"]

CONFIGS = {
    "tiny": TrainConfig(
        classes=10,
        steps=700,
        batch_size=64,
        image_size=64,
        depth=8,
        width=16,
        small_stem=True,
        compute_dtype="float32",
        sampler="torchvision",
        base_rate=0.4,
        warmup_steps=50,
        decay="cosine",
        nesterov=True,
        weight_decay=1e-4,
    )
}
