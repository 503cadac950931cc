"""ResNet-50 v1.5 on ImageNet at batches of 256 to 65,536, and as two rounds of MLPerf had it.

    feeder train --config resnet50 --connect HOST:PORT,... --dataset train --eval-dataset validation \\
        --checkpoint-dir checkpoints/
    feeder train --config resnet50-lars-32k --dry-run

None of these has been run to its end here. What they are copied from:

- Below 16,384 (`resnet50`, `resnet50-1k` to `-8k`): the reference TPU code (tensorflow/tpu,
  models/official/resnet, December 2018), Nesterov momentum, rate 0.1 for 256 and linear in the batch, a
  tenth of it after epochs 30, 60 and 80.
- From 16,384 on (`resnet50-lars-*`): the same code's lars_util.py, at the time of "Image Classification at
  Supercomputer Scale" (arXiv 1811.06992). TensorFlow's LARS was the *unscaled* one then, and the decay came
  with the *loss*. 90 epochs are that code's reference; its file for 1,024 chips runs 91.
- `resnet50-mlperf06-*`: Google's MLPerf v0.6 entries (mlcommons/training_results_v0.6), with the same
  optimiser of TensorFlow, so *unscaled* and decay in the *loss*, unless their TensorFlow was newer than its
  releases. The 32k entry plans 2,983 steps and stopped at epochs 72 to 76; how long the others planned is
  not on record, 72 epochs here.
- `resnet50-mlperf07-*`: Google's v0.7 entries for 4,096 chips: TensorFlow (`-tf-64k`), whose LARS was
  *scaled* by then with the decay in the *optimizer*, planned 1,738 steps; and JAX (`-jax-64k`), Flax's
  LARS, of the same form, for which 89 epochs stand here (it stopped at 88 to 92). The forms are
  those of the libraries at the time; the logs don't name them.

Differences from all of them: the decay leaves out the bias of the last layer, which their loss counts; an
epoch is the whole steps that the data holds.

Machine: `resnet50` needs one accelerator that holds a batch of 256 at 224 pixels in bfloat16: 13 hours at
2,500 images a second. The others need as many as hold their batch; `--dry-run` estimates it.
"""

from __future__ import annotations

import dataclasses

from feeder.trainer.config import TrainConfig

__all__ = ["CONFIGS"]

IMAGENET = 1_281_167

_MOMENTUM = TrainConfig(
    classes=1000,
    epochs=90,
    batch_size=256,
    image_size=224,
    depth=50,
    compute_dtype="bfloat16",
    sampler="inception",
    optimizer="momentum",
    base_rate=0.1,
    warmup_epochs=5,
    decay="step",
    boundaries=(30 / 90, 60 / 90, 80 / 90),
    momentum=0.9,
    nesterov=True,
    weight_decay=1e-4,
    weight_decay_in="loss",
)

_LARS = dataclasses.replace(
    _MOMENTUM,
    optimizer="lars",
    lars_form="unscaled",
    weight_decay_in="loss",
    base_rate=None,
    rate=25.0,
    end_rate=1e-4,
    decay="poly",
    boundaries=(),
    nesterov=False,
    trust=0.001,
    label_smoothing=0.1,
)

_MLPERF07 = dataclasses.replace(
    _LARS, batch_size=65_536, lars_form="scaled", weight_decay_in="optimizer", eval_every=None
)


def _every(epochs: int, config: TrainConfig) -> TrainConfig:
    """With evaluation and checkpoint after so many epochs of ImageNet."""
    steps = epochs * (IMAGENET // config.batch_size)
    return dataclasses.replace(config, eval_every=steps, checkpoint_every=steps)


def _momentum(batch: int) -> TrainConfig:
    return _every(1, dataclasses.replace(_MOMENTUM, batch_size=batch))


def _lars(batch: int, rate: float, warmup: int) -> TrainConfig:
    return _every(4, dataclasses.replace(_LARS, batch_size=batch, rate=rate, warmup_epochs=warmup))


CONFIGS = {
    "resnet50": _momentum(256),
    "resnet50-1k": _momentum(1024),
    "resnet50-4k": _momentum(4096),
    "resnet50-8k": _momentum(8192),
    "resnet50-lars-16k": _lars(16_384, 25.0, 5),
    "resnet50-lars-32k": _lars(32_768, 34.0, 12),
    "resnet50-lars-64k": _lars(65_536, 35.0, 34),
    "resnet50-mlperf06-4k": dataclasses.replace(_lars(4096, 10.0, 5), epochs=72),
    "resnet50-mlperf06-16k": dataclasses.replace(_lars(16_384, 25.0, 5), epochs=72),
    "resnet50-mlperf06-32k": dataclasses.replace(
        _lars(32_768, 31.2, 25), epochs=None, steps=2983, trust_epsilon=1e-5
    ),
    "resnet50-mlperf07-tf-64k": _every(
        4,
        dataclasses.replace(
            _MLPERF07, epochs=None, steps=1738, rate=24.699, warmup_epochs=31, momentum=0.951807
        ),
    ),
    "resnet50-mlperf07-jax-64k": _every(
        4, dataclasses.replace(_MLPERF07, epochs=89, rate=23.081, warmup_epochs=33, momentum=0.95372)
    ),
}
