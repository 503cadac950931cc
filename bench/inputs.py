"""The images that are measured, and the list of windows that every contestant gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feeder.errors import ConfigError

__all__ = ["DecodeInput", "decode_input", "jpeg_files"]

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
        pixels: mean number of pixels of a file.
        window_pixels: mean number of pixels of a window.
        nbytes: size of all files in bytes.
        skipped: files of the folder that no header could be read of.
    """

    files: list[Path]
    windows: npt.NDArray[np.int32]
    flips: npt.NDArray[np.bool_]
    pixels: float
    window_pixels: float
    nbytes: int
    skipped: int


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
        pixels=float(sizes.astype(np.int64).prod(axis=1).mean()),
        window_pixels=float(windows[:, 2:].astype(np.int64).prod(axis=1).mean()),
        nbytes=sum(len(encoded[index]) for index in good),
        skipped=len(files) - len(good),
    )
