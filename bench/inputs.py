"""The images that are measured, and the list of windows that every contestant gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.errors import ConfigError

__all__ = ["DecodeInput", "decode_input", "jpeg_files", "with_area", "write_resized"]

SUFFIXES = {".jpg", ".jpeg"}

WINDOW_SEED = 20
"""Any fixed number would do: it makes the windows of two runs the same."""


@dataclass(frozen=True, eq=False)
class DecodeInput:
    """Files with one window and flip each.

    Attributes:
        files: paths in the order of their names.
        windows: int32 [n, 4], (x, y, width, height) in pixels.
        flips: bool [n].
        sizes: int32 [n, 2], width and height in pixels.
        nbytes: size of all files in bytes.
        skipped: files of the folder that no header could be read of.
    """

    files: list[Path]
    windows: npt.NDArray[np.int32]
    flips: npt.NDArray[np.bool_]
    sizes: npt.NDArray[np.int32]
    nbytes: int
    skipped: int

    def facts(self) -> dict[str, Any]:
        """What a row says of the input."""
        return {
            "images": len(self.files),
            "skipped": self.skipped,
            "mean_pixels": round(float(self.sizes.astype(np.int64).prod(axis=1).mean())),
            "mean_window_pixels": round(float(self.windows[:, 2:].astype(np.int64).prod(axis=1).mean())),
            "mean_bytes": round(self.nbytes / len(self.files)),
        }


def jpeg_files(folder: Path) -> list[Path]:
    """All files under a folder with a JPEG's suffix, in the order of their paths.

    Raises:
        ConfigError: there is no such folder, or none in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"--input {folder}: no such folder")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise ConfigError(f"--input {folder}: holds no .jpg, .jpeg or .JPEG file")
    return files


def decode_input(folder: Path, limit: int) -> DecodeInput:
    """Evenly spread files of a folder, at most `limit`, with windows of torchvision's RandomResizedCrop.

    Raises:
        ConfigError: no such folder, or no image in it that can be read.
    """
    from feeder.decode import open_decoder
    from feeder.order.windows import train_windows

    files = jpeg_files(folder)
    if len(files) > limit:
        files = [files[index * len(files) // limit] for index in range(limit)]
    encoded = [path.read_bytes() for path in files]
    decoder = open_decoder(1)
    try:
        sizes, reasons = decoder.sizes(encoded)
    finally:
        decoder.close()
    good = [index for index, reason in enumerate(reasons) if reason is None]
    if not good:
        raise ConfigError(f"--input {folder}: no file could be read, the first one because: {reasons[0]}")
    sizes = sizes[good]
    windows, flips = train_windows("torchvision", WINDOW_SEED, 0, np.array(good, dtype=np.int64), sizes)
    return DecodeInput(
        files=[files[index] for index in good],
        windows=windows,
        flips=flips,
        sizes=sizes,
        nbytes=sum(len(encoded[index]) for index in good),
        skipped=len(files) - len(good),
    )


def subsamplings(files: Sequence[Path]) -> list[str]:
    """For each JPEG how its chroma is sampled: "4:4:4", "4:2:2", "4:2:0", "gray", or "other"."""
    from PIL import Image
    from PIL.JpegImagePlugin import get_sampling

    names = {0: "4:4:4", 1: "4:2:2", 2: "4:2:0"}
    found = []
    for path in files:
        with Image.open(path) as file:
            found.append("gray" if file.mode == "L" else names.get(get_sampling(file), "other"))
    return found


def with_area(data: DecodeInput, area: float) -> DecodeInput:
    """The same images with other windows: a share `area` of each image, of its shape, at random places."""
    sides = np.maximum(1, np.rint(data.sizes * math.sqrt(area))).astype(np.int32)
    places = np.random.default_rng(WINDOW_SEED).random(data.sizes.shape)
    corners = (places * (data.sizes - sides + 1)).astype(np.int32)
    return replace(data, windows=np.concatenate((corners, sides), axis=1))


def write_resized(data: DecodeInput, side: int, count: int, folder: Path) -> None:
    """Writes the first images anew as JPEGs of another size, with their own chroma sampling and quality 90.

    Args:
        data: what they are made of.
        side: square root of the number of pixels that each shall have, about; shapes are kept.
        count: how many are written; those of `data` come again where it has fewer.
        folder: where to.
    """
    from PIL import Image
    from PIL.JpegImagePlugin import get_sampling

    for index in range(count):
        with Image.open(data.files[index % len(data.files)]) as file:
            sampling = get_sampling(file)
            pixels = file if file.mode == "L" else file.convert("RGB")
            scale = side / math.sqrt(file.width * file.height)
            size = (max(1, round(file.width * scale)), max(1, round(file.height * scale)))
            resized = pixels.resize(size, Image.Resampling.BICUBIC)
        resized.save(folder / f"{index:05d}.jpg", quality=90, subsampling=max(sampling, 0))
