"""Contact sheets: images in a grid, with captions."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from feeder.errors import ConfigError

__all__ = ["label_names", "save_sheet"]

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

_GAP = 6
_CAPTION = 16
_BACKGROUND = (250, 250, 250)
_INK = (40, 40, 40)


def save_sheet(path: Path, images: NDArray[np.uint8], captions: Sequence[str]) -> None:
    """Writes a PNG of images uint8 [n, H, W, 3] in a grid up to twice as wide as high, a caption under each.

    Args:
        path: of the file.
        images: what is shown.
        captions: of one line or several; what does not fit is cut.

    Raises:
        ConfigError: no image, or the file cannot be written.
    """
    if not len(images):
        raise ConfigError(f"nothing to show in {path}: no image could be made")
    count, height, width, _ = images.shape
    columns = _columns(count)
    rows = math.ceil(count / columns)
    lines = max(caption.count("\n") + 1 for caption in captions)
    step_x, step_y = width + _GAP, height + lines * _CAPTION + _GAP
    sheet = Image.new("RGB", (columns * step_x + _GAP, rows * step_y + _GAP), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default()
    for number, (pixels, caption) in enumerate(zip(images, captions, strict=True)):
        x, y = _GAP + number % columns * step_x, _GAP + number // columns * step_y
        sheet.paste(Image.fromarray(pixels), (x, y))
        for line, text in enumerate(caption.split("\n")):
            at = x, y + height + line * _CAPTION + 1
            draw.text(at, _fit(draw, font, text, width), fill=_INK, font=font)
    if not path.name:
        raise ConfigError(f"cannot write {path}: it is a folder, name a file in it")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        sheet.save(temporary, "PNG")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _columns(count: int) -> int:
    """About a square; up to twice as wide as high where that fills the last row."""
    square = math.ceil(math.sqrt(count))
    full = (columns for columns in range(square, math.isqrt(2 * count) + 1) if count % columns == 0)
    return next(full, square)


def label_names(patterns: Iterable[str]) -> dict[int, str]:
    """Names of classes from the labels.json that `feeder pack` wrote beside the shards; empty without one."""
    for pattern in patterns:
        place = Path(os.path.expanduser(pattern))
        for folder in (place, place.parent):
            try:
                saved = json.loads((folder / "labels.json").read_text())
            except (OSError, ValueError):
                continue
            if isinstance(saved, dict):
                return {label: name for name, label in saved.items() if isinstance(label, int)}
    return {}


def _fit(draw: ImageDraw.ImageDraw, font: Font, text: str, width: int) -> str:
    text = text.encode("latin-1", "replace").decode("latin-1")  # what the built-in font can draw
    while len(text) > 1 and draw.textlength(text, font=font) > width:
        text = text[:-1]
    return text
