"""What a stream delivers: the one description that client, wire and worker share."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from feeder.errors import ConfigError

__all__ = [
    "MAX_IMAGE_SIZE",
    "Augment",
    "OnBad",
    "Output",
    "Remainder",
    "Resample",
    "Sampler",
    "StreamSpec",
    "image_shape",
]

Augment: TypeAlias = Literal["train", "eval", "none"]
Sampler: TypeAlias = Literal["torchvision", "inception"]
Resample: TypeAlias = Literal["bilinear", "bicubic", "tf1_bicubic"]
Remainder: TypeAlias = Literal["drop", "pad", "wrap"]
OnBad: TypeAlias = Literal["replace", "fail"]
Output: TypeAlias = Literal["rgb", "yuv420"]

MAX_IMAGE_SIZE = 4096
"""Largest output side in pixels; a 4096-pixel slot is 50 MB, above that a chunk no longer fits a message."""

MAX_GLOBAL_BATCH = 2**20
MAX_LANES = 2**16
"""Both sides hold arrays of so many numbers for a stream: without a bound, one Open could take all memory. 16
times the batch of 65,536 that ImageNet was trained with (Jia et al. 2018), and 8 lanes for each of 8,192
consumers."""


def image_shape(output: Output, size: int) -> tuple[int, ...]:
    """Shape of one image of `size` pixels a side, in values of uint8; see StreamSpec.output."""
    return (size * size * 3 // 2,) if output == "yuv420" else (size, size, 3)


@dataclass(frozen=True)
class StreamSpec:
    """Everything that the samples of a stream depend on, besides the data itself.

    Two streams with equal specs over data of equal fingerprint hold the same samples in the same slots.

    Attributes:
        dataset: the name that the workers serve the data under.
        seed: any integer in [0, 2**63).
        global_batch: slots of one global step, over all consumers; in [1, 2**20].
        lanes: number of lanes, at most 2**16; divides global_batch and is divided by the number of consumers.
        image_size: output height and width in pixels, in [1, 4096].
        augment: "train" (random window and flip), "eval" (centre window), "none" (whole image, stretched).
        sampler: whose conventions the windows follow: torchvision's or TensorFlow's reference ResNet.
        resample: interpolation kernel: "bilinear", "bicubic" (A = -0.5), or "tf1_bicubic", TensorFlow 1's
            resize_bicubic that the reference ResNet for TPUs was trained with (A = -0.75, pixel centres at
            whole numbers, never antialiased).
        antialias: widen the kernel when shrinking, as Pillow does.
        reduce: "auto", a lower bound in pixels for the short side, or None: when to decode at 1/2, 1/4, 1/8.
        output: what an image is: "rgb", uint8 [S, S, 3], or "yuv420", uint8 [S * S * 3 / 2], half as many
            bytes: Y, uint8 [S, S], from byte 0, Cb, uint8 [S / 2, S / 2], from byte S * S, and Cr, as large,
            from byte S * S * 5 / 4, in the full range of JFIF (BT.601). Chroma is the mean of 2x2 of what it
            is at output size, so it sits amid its four pixels, as in a JPEG. S is even.
        shuffle: permute each lane anew every epoch; otherwise records come in shard order.
        remainder: what happens to records that do not fill a step.
        on_bad: "replace" or "fail"; where remainder is "pad", a replaced record is masked instead.
    """

    dataset: str
    global_batch: int
    lanes: int
    seed: int = 0
    image_size: int = 224
    augment: Augment = "train"
    sampler: Sampler = "torchvision"
    resample: Resample = "bilinear"
    antialias: bool = True
    reduce: Literal["auto"] | int | None = "auto"
    output: Output = "rgb"
    shuffle: bool = True
    remainder: Remainder = "drop"
    on_bad: OnBad = "replace"

    def __post_init__(self) -> None:
        if not self.dataset:
            raise ConfigError("dataset must be a name that the workers serve, got an empty string")
        if not 1 <= self.global_batch <= MAX_GLOBAL_BATCH:
            raise ConfigError(f"global batch must be in [1, {MAX_GLOBAL_BATCH}], got {self.global_batch}")
        if self.lanes < 1 or self.global_batch % self.lanes:
            raise ConfigError(f"lanes must divide the global batch {self.global_batch}, got {self.lanes}")
        if self.lanes > MAX_LANES:
            raise ConfigError(f"there may be at most {MAX_LANES} lanes (so many consumers), got {self.lanes}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be in [0, 2**63), got {self.seed}")
        if not 1 <= self.image_size <= MAX_IMAGE_SIZE:
            raise ConfigError(f"image_size must be in [1, {MAX_IMAGE_SIZE}] pixels, got {self.image_size}")
        for name, choices in (
            ("augment", Augment),
            ("sampler", Sampler),
            ("resample", Resample),
            ("output", Output),
            ("remainder", Remainder),
            ("on_bad", OnBad),
        ):
            value = getattr(self, name)
            if value not in get_args(choices):
                raise ConfigError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")
        if self.output == "yuv420" and self.image_size % 2:
            raise ConfigError(f"output 'yuv420' needs an even image_size, got {self.image_size}")
        if not (self.reduce in ("auto", None) or (isinstance(self.reduce, int) and self.reduce >= 1)):
            raise ConfigError(f"reduce must be 'auto', None or a number of pixels, got {self.reduce!r}")

    @property
    def per_lane(self) -> int:
        """Slots of one global step that one lane fills."""
        return self.global_batch // self.lanes

    @cached_property
    def image_bytes(self) -> int:
        """Bytes of one image in a batch."""
        return math.prod(self.image_shape)

    @cached_property
    def image_shape(self) -> tuple[int, ...]:
        """Of one image in a batch, in values of uint8."""
        return image_shape(self.output, self.image_size)

    def differences(self, other: StreamSpec) -> list[str]:
        """Lines of "field: this, other" for each field that differs, in field order."""
        return [
            f"{field.name}: {getattr(self, field.name)!r}, {getattr(other, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]
