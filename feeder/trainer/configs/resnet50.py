"""ResNet-50 v1.5 on ImageNet, momentum SGD, as the reference TPU code trains it at batches below 16,384.

    feeder train --config resnet50 --connect HOST:PORT,... --dataset train --eval-dataset validation \\
        --checkpoint-dir checkpoints/

Machine: one accelerator with about 32 GB of memory (bfloat16, batch 256 at 224 pixels), fed with as many
images a second as it takes. 90 epochs are 450,360 steps; at 2,500 images a second they take 13 hours. The
reference reports 76 to 77 % top-1 for this recipe; this configuration has not been run to its end.
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
