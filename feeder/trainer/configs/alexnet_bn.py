"""AlexNet with batch normalisation on ImageNet at batches of 512 to 32,768, by the author of LARS.

    feeder train --config alexnet-bn-32k --connect HOST:PORT,... --dataset train --eval-dataset validation

None of these has been run to its end here. The numbers are those of the solvers in
github.com/borisgin/nvcaffe, models/alexnet_bn (December 2017): 100 epochs, momentum 0.9, weight decay 5e-4,
coefficient 0.001, polynomial decay of power 2 over the whole run, warm-up from rate 1. The LARS form is
*scaled*, the decay is in the *optimizer*: Caffe adds it to the gradient after the norms are taken. The rate
at 1,024 stands in a comment only, that at 512 (SGD without LARS) in the baseline's; no accuracies are on
record there.

Differences: the warm-up is linear, where one version of that solver squares it; Caffe adapts biases, too,
and they are left out here; its images were 256 x 256, stretched, of which 227 were cut out at random, where
here the usual random crops are resized to 227; an epoch is the whole steps that the data holds.
"""

from __future__ import annotations

import dataclasses

from feeder.trainer.config import TrainConfig

__all__ = ["CONFIGS"]

IMAGENET = 1_281_167

_LARS = TrainConfig(
    classes=1000,
    epochs=100,
    image_size=227,
    arch="alexnet_bn",
    compute_dtype="bfloat16",
    sampler="torchvision",
    optimizer="lars",
    lars_form="scaled",
    trust=0.001,
    rate=2.0,
    start_rate=1.0,
    warmup_steps=0,
    decay="poly_run",
    momentum=0.9,
    weight_decay=5e-4,
    weight_decay_in="optimizer",
)


def _lars(batch: int, rate: float, warmup: int) -> TrainConfig:
    steps = IMAGENET // batch
    return dataclasses.replace(
        _LARS, batch_size=batch, rate=rate, warmup_steps=warmup, eval_every=steps, checkpoint_every=steps
    )


CONFIGS = {
    "alexnet-bn-512": dataclasses.replace(
        _lars(512, 0.08, 0), optimizer="momentum", lars_form=None, start_rate=0.0
    ),
    "alexnet-bn-1k": _lars(1024, 2.0, 0),
    "alexnet-bn-8k": _lars(8192, 10.0, 600),
    "alexnet-bn-16k": _lars(16_384, 24.0, 400),
    "alexnet-bn-32k": _lars(32_768, 32.0, 400),
}
