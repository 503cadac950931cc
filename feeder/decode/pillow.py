"""Images that are not JPEG, and CMYK JPEGs: decoded whole, by the same code under both decoders."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageFile, PngImagePlugin, WebPImagePlugin

from feeder.decode.header import Format, ImageHeader
from feeder.decode.scans import missing
from feeder.errors import DataError

__all__ = ["decode_cmyk", "decode_other"]

# Opened by the plugin that the header chose: Image.open() would try its whole list, and warn of sizes that
# the limits have already passed.
_OPENERS: dict[Format, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "PNG": PngImagePlugin.PngImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
}


def decode_other(
    data: bytes | memoryview, header: ImageHeader, window: tuple[int, int, int, int]
) -> npt.NDArray[np.uint8]:
    """Decodes a PNG, GIF, WebP or BMP: the first frame, alpha dropped as Pillow's convert("RGB") does.

    Args:
        data: encoded bytes.
        header: of the image.
        window: (x, y, width, height) in pixels, within the image; no more is converted.

    Returns:
        uint8 [height, width, 3], the window; read-only.

    Raises:
        DataError: the bytes are damaged.
    """
    x, y, width, height = window
    try:
        with _OPENERS[header.format](io.BytesIO(data)) as image:
            if image.size != (header.width, header.height):
                raise DataError(
                    f"{header.format} header says {header.width} x {header.height} pixels, "
                    f"the image in it has {image.width} x {image.height}"
                )
            image.load()
            # What becomes transparent plays no part in RGB, and converting it is what Pillow warns about.
            image.info.pop("transparency", None)
            cut = image if window == (0, 0, *image.size) else image.crop((x, y, x + width, y + height))
            if cut.mode.startswith("I"):
                high = (np.asarray(cut).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
                return np.repeat(high[:, :, None], 3, axis=2)
            rgb = cut.convert("RGB")
        return np.asarray(rgb)
    except DataError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 -- Pillow's plugins raise whatever the bytes provoke
        raise DataError(f"damaged {header.format}: {error}") from None


def decode_cmyk(
    data: bytes | memoryview, header: ImageHeader, window: tuple[int, int, int, int]
) -> npt.NDArray[np.uint8]:
    """Decodes a window of a CMYK or YCCK JPEG by Pillow's rule.

    The rule: ink is stored inverted, as Adobe does, whatever the markers say; then R = (255 - C) (255 - K) /
    255.

    Args:
        data: encoded bytes.
        header: of the image.
        window: (x, y, width, height) in pixels, within the image; no more is converted.

    Returns:
        uint8 [height, width, 3], the window; read-only.

    Raises:
        DataError: the bytes are damaged.
    """
    x, y, width, height = window
    ink = 255 - decode_jpeg(data, header, "CMYK")[y : y + height, x : x + width]
    return np.asarray(Image.frombuffer("CMYK", (width, height), ink, "raw", "CMYK", 0, 1).convert("RGB"))


def decode_jpeg(
    data: bytes | memoryview,
    header: ImageHeader,
    colorspace: str = "RGB",
    *,
    least: tuple[int, int] = (0, 0),
) -> npt.NDArray[np.uint8]:
    """Decodes a whole JPEG; a warning of libjpeg is an error, a missing end marker is none.

    Args:
        data: encoded bytes.
        header: of the image.
        colorspace: "RGB" or "CMYK".
        least: (height, width) in pixels: decodes at the smallest scale that is not below it; (0, 0) at full
            size.

    Returns:
        uint8 [height, width, 3 or 4].

    Raises:
        DataError: the bytes are damaged.
    """
    ended = True
    try:
        try:
            pixels = _decode_jpeg(data, colorspace, least)
        except ValueError as error:
            if "Premature end of JPEG file" not in str(error):
                raise
            # The bytes ran out: with an end marker of ours a complete scan decodes cleanly, and a cut one
            # warns that its data ended early.
            ended = False
            pixels = _decode_jpeg(bytes(data) + b"\xff\xd9", colorspace, least)
    except ValueError as error:
        if "subsampling level" in str(error):
            raise DataError("JPEG of sampling factors that only the native decoder reads") from None
        raise DataError(f"damaged JPEG: {error}") from None
    if lacks := missing(data, header, ended=ended):
        raise DataError(f"damaged JPEG: {lacks}")
    return pixels


def _decode_jpeg(data: bytes | memoryview, colorspace: str, least: tuple[int, int]) -> npt.NDArray[np.uint8]:
    pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
        data, colorspace, min_height=least[0], min_width=least[1], min_factor=1
    )
    return pixels
