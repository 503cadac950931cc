"""ResNet-50 v1.5 on ImageNet, momentum SGD, as the reference TPU code trains it at batches below 16,384.

    feeder train --config resnet50 --connect HOST:PORT,... --dataset train --eval-dataset validation \\
        --checkpoint-dir checkpoints/

Machine: one accelerator that holds a batch of 256 at 224 pixels in bfloat16, fed with as many images a second
as it takes. 90 epochs are 450,360 steps, 115 million images: 13 hours at 2,500 images a second. This
configuration has not been run to its end here.
"""

from __future__ import annotations

from feeder.trainer.config import TrainConfig

__all__ = ["CONFIG"]

CONFIG = TrainConfig(
    classes=1000,
    epochs=90,
    batch_size=256,
    image_size=224,
    depth=50,
    compute_dtype="bfloat16",
    sampler="inception",
    base_rate=0.1,
    warmup_epochs=5,
    decay="step",
    boundaries=(30 / 90, 60 / 90, 80 / 90),
    momentum=0.9,
    nesterov=True,
    weight_decay=1e-4,
    checkpoint_every=5004,
    eval_every=5004,
)
