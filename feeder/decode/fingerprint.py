"""Proof that two decoders give the same pixels: a hash of what each makes of a few built-in images."""

from __future__ import annotations

import hashlib
import itertools
from importlib import resources
from typing import Any

import numpy as np

from feeder.decode.decoder import Decoder
from feeder.decode.reduce import REDUCTIONS
from feeder.spec import Resample

__all__ = ["pixel_digests", "pixel_fingerprint", "probes"]

_OUTPUTS = ((37, 53), (8, 8), (96, 64))  # (height, width): odd, small, and one that also enlarges
_PLANAR_OUTPUT = (51, 38)  # of YUV 4:2:0: 34 rows of 38 pixels
_RESAMPLES: tuple[tuple[Resample, bool], ...] = (
    ("bilinear", True),
    ("bilinear", False),
    ("bicubic", True),
    ("bicubic", False),
    ("tf1_bicubic", False),
)


def probes() -> dict[str, bytes]:
    """The built-in images by name, in order: each sampling mode, process and format that is read."""
    folder = resources.files("feeder.decode") / "probes"
    return {
        entry.name: entry.read_bytes()
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.is_file()
    }


def pixel_fingerprint(decoder: Decoder) -> str:
    """The first part of `pixel_digests`."""
    return pixel_digests(decoder)[0]


def pixel_digests(decoder: Decoder) -> tuple[str, dict[str, str]]:
    """Decodes the built-in images through every path and hashes the pixels: of all of them, and of each.

    Two workers whose fingerprints are equal give the same pixels for the same records, whatever their
    versions.

    Returns:
        "native-" or "portable-" and 32 hexadecimal digits; and 8 digits by the name of each image, which say
        where two decoders differ.

    Raises:
        RuntimeError: a built-in image does not decode: the installation is broken.
    """
    images = probes()
    names, encoded = list(images), list(images.values())
    sizes, reasons = decoder.sizes(encoded)
    windows = _windows(sizes)
    flips = np.arange(len(encoded)) % 2 == 1
    _check(names, reasons, decoder)
    digest = _Digest(len(names))
    outputs = itertools.cycle(_OUTPUTS)
    for (resample, antialias), reduction, some in itertools.product(_RESAMPLES, REDUCTIONS, windows):
        settings: dict[str, Any] = {
            "resample": resample,
            "antialias": antialias,
            "reductions": np.full(len(encoded), reduction, np.uint8),
        }
        out = np.empty((len(encoded), *next(outputs), 3), np.uint8)
        _check(names, decoder.decode(encoded, some, flips, out, **settings), decoder)
        digest.update(out.data)
        planar = np.empty((len(encoded), *_PLANAR_OUTPUT), np.uint8)
        _check(names, decoder.decode(encoded, some, flips, planar, **settings), decoder)
        digest.update(planar.data)
    each = [one.hexdigest()[:8] for one in digest.each]
    return f"{decoder.name.split()[0]}-{digest.whole.hexdigest()[:32]}", dict(zip(names, each, strict=True))


class _Digest:
    """Of all images, and of each."""

    def __init__(self, images: int) -> None:
        self.whole = hashlib.sha256()
        self.each = [hashlib.sha256() for _ in range(images)]

    def update(self, images: memoryview) -> None:
        """Takes what one path makes of all images, one after the other in the first axis."""
        self.whole.update(images)
        for digest, image in zip(self.each, np.asarray(images), strict=True):
            digest.update(image.data)


def _check(names: list[str], reasons: list[str | None], decoder: Decoder) -> None:
    for name, reason in zip(names, reasons, strict=True):
        if reason is not None:
            raise RuntimeError(f"built-in image {name} does not decode with {decoder.name}: {reason}")


def _windows(sizes: np.typing.NDArray[np.int32]) -> list[np.typing.NDArray[np.int32]]:
    """The whole image, and three windows off the MCU grid, of each size: int32 [n, 4] each."""
    width, height = sizes[:, 0], sizes[:, 1]
    zero = np.zeros_like(width)
    return [
        np.stack(columns, axis=1).astype(np.int32)
        for columns in (
            (zero, zero, width, height),
            (width // 3, height // 4, width // 2, height // 2),
            (width - 9, height - 19, zero + 9, zero + 19),
            (zero + 17, zero + 15, width - 18, zero + 1),
        )
    ]
