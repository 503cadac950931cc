"""What a training run is made of: one frozen object, checked when it is made."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from feeder.errors import ConfigError
from feeder.spec import MAX_IMAGE_SIZE, Augment, Output, Sampler, image_shape

__all__ = [
    "DEPTHS",
    "Arch",
    "ComputeType",
    "Decay",
    "DecayPlace",
    "LarsForm",
    "Rule",
    "TrainConfig",
    "config_names",
    "load_config",
]

Arch: TypeAlias = Literal["resnet", "alexnet_bn"]
Rule: TypeAlias = Literal["momentum", "lars"]
LarsForm: TypeAlias = Literal["scaled", "unscaled"]
DecayPlace: TypeAlias = Literal["optimizer", "loss"]
Decay: TypeAlias = Literal["cosine", "step", "poly", "poly_run"]
ComputeType: TypeAlias = Literal["bfloat16", "float32"]

DEPTHS: dict[int, tuple[tuple[int, ...], bool]] = {
    8: ((1, 1, 1), False),
    14: ((2, 2, 2), False),
    18: ((2, 2, 2, 2), False),
    20: ((3, 3, 3), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
"""Layers of a ResNet: (blocks of each stage, whether blocks are bottlenecks). From 18 on He et al. 2015,
table 1; 8, 14 and 20 are the three-stage nets of its section 4.2."""

ALEXNET_LEAST_SIZE = 67
"""Smaller images have nothing left after the last pooling."""

MOST_STEPS = 2**31 - 1
"""The optimiser counts steps in an int32."""

REFERENCE_BATCH = 256
"""The batch that learning rates are given for, as in the reference code."""


@dataclass(frozen=True)
class TrainConfig:
    """One run. Exactly one of `epochs` and `steps` says how long it is.

    Attributes:
        classes: labels are in [0, classes).
        epochs: passes over the training set; at least 1, or None.
        steps: optimiser steps; at least 1, or None.
        batch_size: images of one step; at least 1.
        image_size: output side in pixels of training and evaluation images.
        pixels: how they come from the workers: "rgb", or "yuv420", half as many bytes, of which the step
            makes RGB; the image size is even then.
        arch: "resnet", or "alexnet_bn", see feeder.trainer.alexnet.
        depth: layers of the ResNet, a key of DEPTHS; AlexNet has no choice.
        width: features of the ResNet's first stage; of AlexNet 64 is the paper's width.
        small_stem: for images of about 64 pixels, see feeder.trainer.model.ResNet.
        space_to_depth: the same first convolution of a ResNet, computed on 2x2 blocks of pixels: quicker on
            hardware that likes many channels.
        compute_dtype: of convolutions and the matrix product; everything else is float32.
        augment: "train" crops and flips at random, "none" takes whole images.
        sampler: whose crop windows.
        base_rate: learning rate for a batch of 256; the peak rate is base_rate * batch_size / 256.
        rate: the peak rate itself, as LARS recipes give it. Exactly one of `base_rate` and `rate` is set.
        start_rate: where the warm-up starts.
        end_rate: where decay "poly" or "poly_run" would arrive one step after the last.
        warmup_epochs, warmup_steps: length of the linear warm-up, given like `epochs` or `steps`.
        decay: shape of the rate after the warm-up, see feeder.trainer.optimizer.
        boundaries: for "step": shares of the whole run after which the rate falls to a tenth, ascending.
        optimizer: "momentum" (SGD) or "lars", see feeder.trainer.optimizer and feeder.trainer.lars.
        momentum: in [0, 1).
        nesterov: look ahead; momentum only.
        lars_form: "scaled" (the rate goes into the velocity) or "unscaled"; LARS only, and no default.
        trust: LARS coefficient eta, more than 0.
        trust_epsilon: in the denominator of the trust ratio.
        weight_decay: L2 factor of convolution and dense kernels.
        weight_decay_in: the one place where it is applied: "optimizer" adds it to the gradient there, "loss"
            adds weight_decay / 2 * |w|**2 to what is differentiated.
        label_smoothing: in [0, 1).
        norm_span: samples that batch-norm statistics are of; a whole number of replicas must have them. None:
            at least 64 on a mesh (see feeder.trainer.grid), and on one device all.
        seed: of weights and of the data order, in [0, 2**63).
        checkpoint_every: steps between checkpoints, where a folder is given; the last step is always saved.
        eval_every: steps between evaluations, None: only at the end.
    """

    classes: int
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 256
    image_size: int = 224
    pixels: Output = "rgb"
    arch: Arch = "resnet"
    depth: int = 50
    width: int = 64
    small_stem: bool = False
    space_to_depth: bool = False
    compute_dtype: ComputeType = "bfloat16"
    augment: Augment = "train"
    sampler: Sampler = "inception"
    base_rate: float | None = None
    rate: float | None = None
    start_rate: float = 0.0
    end_rate: float = 0.0
    warmup_epochs: float | None = None
    warmup_steps: int | None = None
    decay: Decay = "cosine"
    boundaries: tuple[float, ...] = ()
    optimizer: Rule = "momentum"
    momentum: float = 0.9
    nesterov: bool = False
    lars_form: LarsForm | None = None
    trust: float = 0.001
    trust_epsilon: float = 0.0
    weight_decay: float = 1e-4
    weight_decay_in: DecayPlace = "optimizer"
    label_smoothing: float = 0.0
    norm_span: int | None = None
    seed: int = 0
    checkpoint_every: int = 1000
    eval_every: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ConfigError(
                f"exactly one of epochs and steps must be given, got {self.epochs}, {self.steps}"
            )
        if (self.warmup_epochs is None) == (self.warmup_steps is None):
            raise ConfigError(
                f"exactly one of warmup_epochs and warmup_steps must be given, "
                f"got {self.warmup_epochs} and {self.warmup_steps}"
            )
        if (self.base_rate is None) == (self.rate is None):
            raise ConfigError(
                f"exactly one of base_rate and rate must be given, got {self.base_rate} and {self.rate}"
            )
        for name in (
            "classes",
            "epochs",
            "steps",
            "batch_size",
            "width",
            "checkpoint_every",
            "eval_every",
            "norm_span",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if not 1 <= self.image_size <= MAX_IMAGE_SIZE:
            raise ConfigError(f"image_size must be in [1, {MAX_IMAGE_SIZE}] pixels, got {self.image_size}")
        for name in (
            "base_rate",
            "rate",
            "start_rate",
            "end_rate",
            "warmup_epochs",
            "warmup_steps",
            "trust_epsilon",
            "weight_decay",
        ):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"{name} must be 0 or more, got {value}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be in [0, 2**63), got {self.seed}")
        for name in ("momentum", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.depth not in DEPTHS:
            raise ConfigError(f"depth must be one of {', '.join(map(str, DEPTHS))}, got {self.depth}")
        for name, choices in (
            ("arch", Arch),
            ("pixels", Output),
            ("compute_dtype", ComputeType),
            ("decay", Decay),
            ("optimizer", Rule),
            ("weight_decay_in", DecayPlace),
        ):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(
                    f"{name} must be one of {', '.join(get_args(choices))}, got {getattr(self, name)!r}"
                )
        if (self.decay == "step") != bool(self.boundaries):
            raise ConfigError(f"boundaries belong to decay 'step', got {self.decay!r} and {self.boundaries}")
        if list(self.boundaries) != sorted(self.boundaries) or not all(0 < b < 1 for b in self.boundaries):
            raise ConfigError(f"boundaries must be ascending shares in (0, 1), got {self.boundaries}")
        if self.pixels == "yuv420" and self.image_size % 2:
            raise ConfigError(f"pixels 'yuv420' need an even image size, got {self.image_size}")
        self._check_optimizer()
        self._check_arch()

    def _check_optimizer(self) -> None:
        if self.optimizer == "lars":
            if self.lars_form not in get_args(LarsForm):
                raise ConfigError(
                    f"LARS needs its lars_form, {' or '.join(get_args(LarsForm))}: they are different rules; "
                    f"got {self.lars_form!r}"
                )
            if self.nesterov:
                raise ConfigError("nesterov belongs to optimizer 'momentum', LARS has none")
            if not 0 < self.trust < float("inf"):
                raise ConfigError(f"trust must be more than 0, got {self.trust}")
        elif self.lars_form is not None:
            raise ConfigError(f"lars_form belongs to optimizer 'lars', got {self.lars_form!r}")

    def _check_arch(self) -> None:
        if self.space_to_depth and (self.arch != "resnet" or self.small_stem):
            raise ConfigError("space_to_depth belongs to a ResNet with its large stem")
        if self.arch == "alexnet_bn" and self.width % 4:
            raise ConfigError(f"the width of AlexNet must be a multiple of 4, got {self.width}")
        if self.arch == "alexnet_bn" and self.image_size < ALEXNET_LEAST_SIZE:
            raise ConfigError(
                f"AlexNet needs images of {ALEXNET_LEAST_SIZE} pixels or more, got {self.image_size}"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one image as it comes, in values of uint8; see feeder.spec.StreamSpec.output."""
        return image_shape(self.pixels, self.image_size)

    @property
    def peak_rate(self) -> float:
        """Learning rate at the end of the warm-up: `rate`, or linear in the batch (Goyal et al. 2017)."""
        if self.rate is not None:
            return self.rate
        return (self.base_rate or 0.0) * self.batch_size / REFERENCE_BATCH

    def lengths(self, steps_per_epoch: int) -> tuple[int, int]:
        """(steps, warm-up steps) of the whole run, for the real number of steps of an epoch.

        Raises:
            ConfigError: the warm-up would not end within the run, or the run is longer than MOST_STEPS.
        """
        steps = self.steps if self.steps is not None else (self.epochs or 0) * steps_per_epoch
        warmup = (
            self.warmup_steps
            if self.warmup_steps is not None
            else round((self.warmup_epochs or 0.0) * steps_per_epoch)
        )
        if steps > MOST_STEPS:
            raise ConfigError(f"a run has at most {MOST_STEPS} steps, got {steps}")
        if warmup >= steps:
            raise ConfigError(
                f"a warm-up of {warmup} steps does not fit a run of {steps}: shorten it with "
                f"--warmup-steps, or lengthen the run with --steps or --epochs"
            )
        return steps, warmup


def config_names() -> list[str]:
    """Names of the ready configurations, those of a family by growing batch."""
    return list(_ready())


def load_config(name: str) -> TrainConfig:
    """The configuration of that name.

    Raises:
        ConfigError: there is none; the message lists those that there are.
    """
    ready = _ready()
    if name not in ready:
        raise ConfigError(f"no configuration {name!r}; there are {', '.join(ready)}")
    return ready[name]


def _ready() -> dict[str, TrainConfig]:
    from feeder.trainer import configs

    ready: dict[str, TrainConfig] = {}
    for module in sorted(module.name for module in pkgutil.iter_modules(configs.__path__)):
        ready |= importlib.import_module(f"{configs.__name__}.{module}").CONFIGS
    return ready
