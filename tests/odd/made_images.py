"""Images that are odd or damaged in one way each, made here, with what has to come of them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

__all__ = ["flat_jpeg", "images", "rgb_of"]

WIDTH, HEIGHT = 97, 61
RED, GREEN, BLUE, GRAY = (200, 30, 30), (30, 170, 40), (30, 40, 200), (180, 180, 180)
PIXELS = [
    [x, y, list(colour), 14]
    for (x, y), colour in zip(((24, 15), (72, 15), (24, 45), (72, 45)), (RED, GREEN, BLUE, GRAY), strict=True)
]
"""(x, y, colour, tolerance) in the middle of each quadrant."""

Made = tuple[str, bytes, dict[str, Any]]


def rgb_of(label: int) -> list[int]:
    """The colour that tells a label."""
    return [(37 * label + 11) % 200 + 28, (91 * label + 5) % 200 + 28, (53 * label + 77) % 200 + 28]


def flat_jpeg(label: int) -> bytes:
    """A picture of one colour."""
    return jpeg(np.full((24, 32, 3), rgb_of(label), np.uint8))


def quadrants() -> npt.NDArray[np.uint8]:
    pixels = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    pixels[:30, :48], pixels[:30, 48:], pixels[30:, :48], pixels[30:, 48:] = RED, GREEN, BLUE, GRAY
    return pixels


def positions(width: int = 131, height: int = 117) -> npt.NDArray[np.uint8]:
    """Every pixel another than its neighbours."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 7 % 256, y * 5 % 256, (x * 3 + y * 11) % 256], axis=2).astype(np.uint8)


def jpeg(pixels: npt.NDArray[np.uint8], sampling: str = "444") -> bytes:
    encoded: bytes = simplejpeg.encode_jpeg(pixels, 90, colorsubsampling=sampling)
    return encoded


def saved(image: Image.Image, format_name: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format_name, **options)
    return out.getvalue()


def in_three_scans(pixels: npt.NDArray[np.uint8]) -> list[bytes]:
    """A baseline JPEG whose components come one after another: its header, its scans, its end."""
    bands = Image.fromarray(pixels).convert("YCbCr").split()
    grays = [segments(saved(band, "JPEG", quality=90)) for band in bands]
    tables = b"".join(segment for marker, segment in grays[0] if marker in (0xC4, 0xDB))
    height, width, _ = pixels.shape
    components = b"".join(bytes((number, 0x11, 0)) for number in (1, 2, 3))
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + components
    scans = [
        b"\xff\xda"
        + struct.pack(">HBBBBBB", 8, 1, number, 0, 0, 63, 0)
        + gray[-1][1].removesuffix(b"\xff\xd9")
        for number, gray in enumerate(grays, 1)
    ]
    return [b"\xff\xd8" + tables + frame, *scans, b"\xff\xd9"]


def segments(data: bytes) -> list[tuple[int, bytes]]:
    """(marker, segment with its marker) of a JPEG up to its first scan, and (0, entropy-coded data)."""
    found, at = [], 2
    while True:
        end = at + 2 + struct.unpack_from(">H", data, at + 2)[0]
        found.append((data[at + 1], data[at:end]))
        at = end
        if found[-1][0] == 0xDA:
            return [*found, (0, data[at:])]


def rebuilt(data: bytes, change: Callable[[int, bytes], bytes]) -> bytes:
    """The JPEG with each segment changed."""
    return b"\xff\xd8" + b"".join(change(marker, segment) for marker, segment in segments(data))


def frame_changed(data: bytes, at: int, new: bytes) -> bytes:
    """The JPEG with bytes of its frame header changed, counted from the marker."""

    def change(marker: int, segment: bytes) -> bytes:
        return segment[:at] + new + segment[at + len(new) :] if 0xC0 <= marker <= 0xC2 else segment

    return rebuilt(data, change)


def with_segment(data: bytes, marker: int, content: bytes) -> bytes:
    """The JPEG with a segment more behind its start."""
    return data[:2] + bytes((0xFF, marker)) + struct.pack(">H", len(content) + 2) + content + data[2:]


def exif(orientation: int) -> bytes:
    """A TIFF block with one entry."""
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">HHHIHHI", 1, 0x0112, 3, 1, orientation, 0, 0)


def ids_from_zero(marker: int, segment: bytes) -> bytes:
    """A change of segments: components are numbered from 0."""
    step, first = (3, 10) if marker == 0xC0 else (2, 5)
    if marker not in (0xC0, 0xDA):
        return segment
    changed = bytearray(segment)
    for number in range(3):
        changed[first + step * number] = number
    return bytes(changed)


def crops(width: int, height: int) -> list[list[int]]:
    """Windows at and around the edges of MCUs, and at the edges of the image."""
    found = [[x, y, 29, 21] for x in (0, 1, 15, 16, 17, 33) for y in (0, 1, 7, 8, 9, 15, 16, 17)]
    return [*found, [width - 17, height - 9, 17, 9], [0, height - 1, width, 1], [width - 1, 0, 1, height]]


def images() -> Iterator[Made]:
    """Name, bytes and expectation of each."""
    yield from _ordinary()
    yield from _odd()
    yield from _other_formats()
    yield from _small()
    yield from _damaged()
    yield from _bombs()


def _decodes(name: str, data: bytes, pixels: list[Any] | None = None, **more: Any) -> Made:
    return (
        name,
        data,
        {"kind": "decodes", "width": WIDTH, "height": HEIGHT, "pixels": pixels or PIXELS} | more,
    )


def _error(name: str, data: bytes) -> Made:
    return name, data, {"kind": "clear_error"}


def _ordinary() -> Iterator[Made]:
    picture = quadrants()
    for sampling in ("444", "422", "420", "440", "411"):
        yield _decodes(f"sampling_{sampling}.jpg", jpeg(picture, sampling))
    yield _decodes("progressive.jpg", saved(Image.fromarray(picture), "JPEG", quality=90, progressive=True))
    yield _decodes(
        "restart_every_mcu.jpg", saved(Image.fromarray(picture), "JPEG", quality=90, restart_marker_blocks=1)
    )
    y, x = np.mgrid[:240, :320]
    checker = np.repeat(((x // 2 + y // 2) % 2 * 255).astype(np.uint8)[:, :, None], 3, axis=2)
    yield "resize_checker.jpg", jpeg(checker), {"kind": "decodes", "width": 320, "height": 240}
    coded = positions()
    height, width, _ = coded.shape
    for name, data in (
        ("crop_444", jpeg(coded, "444")),
        ("crop_422", jpeg(coded, "422")),
        ("crop_420", jpeg(coded, "420")),
        (
            "crop_progressive_420",
            saved(Image.fromarray(coded), "JPEG", quality=85, subsampling=2, progressive=True),
        ),
        (
            "crop_restarts_420",
            saved(Image.fromarray(coded), "JPEG", quality=85, subsampling=2, restart_marker_blocks=3),
        ),
    ):
        yield (
            f"{name}.jpg",
            data,
            {"kind": "decodes", "width": width, "height": height, "crops": crops(width, height)},
        )


def _odd() -> Iterator[Made]:
    picture = quadrants()
    plain = jpeg(picture)
    gray = saved(Image.fromarray(picture).convert("L"), "JPEG", quality=90)
    for factors in (0x11, 0x22, 0x21):
        light = [[72, 45, [180, 180, 180], 14]]
        yield _decodes(
            f"gray_sampling_{factors:02x}.jpg",
            frame_changed(gray, 11, bytes((factors,))),
            light,
            crops=crops(WIDTH, HEIGHT),
        )
    # Pillow, too, stores ink inverted and says so with an Adobe marker.
    cmyk = saved(Image.fromarray(picture).convert("CMYK"), "JPEG", quality=95)
    yield _decodes("cmyk.jpg", cmyk)
    yield _decodes(
        "cmyk_without_adobe_marker.jpg",
        rebuilt(cmyk, lambda marker, segment: b"" if marker == 0xEE else segment),
    )
    # Either tells the colours alone: the Adobe marker, or the components' ids, which are 'R', 'G' and 'B'.
    rgb = saved(Image.fromarray(picture), "JPEG", quality=95, keep_rgb=True, subsampling=0)
    yield _decodes("rgb_adobe0_and_ids.jpg", rgb)
    yield _decodes("rgb_by_ids.jpg", rebuilt(rgb, lambda marker, segment: b"" if marker == 0xEE else segment))
    yield _decodes("rgb_adobe0.jpg", rebuilt(rgb, ids_from_zero))

    yield _decodes("ycc_ids_0_1_2.jpg", rebuilt(plain, ids_from_zero))
    yield _decodes("three_scans.jpg", b"".join(in_three_scans(picture)))
    yield _decodes(
        "sof1_8bit.jpg",
        rebuilt(plain, lambda marker, segment: b"\xff\xc1" + segment[2:] if marker == 0xC0 else segment),
    )
    standard = saved(Image.fromarray(picture), "JPEG", quality=90)
    yield (
        "no_dht_mjpeg.jpg",
        rebuilt(standard, lambda marker, segment: b"" if marker == 0xC4 else segment),
        {"kind": "decodes_or_clear_error", "width": WIDTH, "height": HEIGHT, "pixels": PIXELS},
    )
    for orientation in (1, 3, 6, 8):
        yield _decodes(f"exif_orientation_{orientation}.jpg", with_segment(plain, 0xE1, exif(orientation)))
    yield _decodes("exif_corrupt_offsets.jpg", with_segment(plain, 0xE1, exif(1)[:16] + b"\xff" * 40))
    yield _decodes("exif_cut_off.jpg", with_segment(plain, 0xE1, b"Exif\0\0"))
    yield _decodes("comment_not_utf8.jpg", with_segment(plain, 0xFE, bytes(range(128, 256))))
    yield _decodes(
        "fill_bytes.jpg", rebuilt(plain, lambda marker, segment: b"\xff" * 3 * bool(marker) + segment)
    )
    yield _decodes("garbage_after_eoi.jpg", plain + bytes(range(256)) * 9)
    yield _decodes("second_jpeg_after_eoi.jpg", plain + jpeg(positions()))
    for name, data in (("", plain[:-2]), ("_with_trailer", plain[:-2] + bytes(5000))):
        yield (
            f"missing_eoi{name}.jpg",
            data,
            {"kind": "decodes_or_clear_error", "width": WIDTH, "height": HEIGHT, "pixels": PIXELS},
        )


def _other_formats() -> Iterator[Made]:
    picture = Image.fromarray(quadrants())
    clear = picture.convert("RGBA")
    clear.putalpha(Image.fromarray(np.full((HEIGHT, WIDTH), 90, np.uint8)))
    yield _decodes("png_rgb.JPEG", saved(picture, "PNG"))
    yield _decodes("png_rgba.JPEG", saved(clear, "PNG"))
    yield _decodes("bmp.JPEG", saved(picture, "BMP"))
    yield _decodes("webp.JPEG", saved(picture, "WEBP", lossless=True))
    second = Image.fromarray(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    yield _decodes("gif_two_frames.JPEG", saved(picture, "GIF", save_all=True, append_images=[second]))
    yield _decodes("jpeg_named.png", jpeg(quadrants()))


def _small() -> Iterator[Made]:
    for width, height in (
        (1, 1),
        (2, 2),
        (5, 1),
        (7, 7),
        (8, 8),
        (15, 15),
        (16, 16),
        (17, 17),
        (1, 500),
        (500, 1),
        (3, 4000),
    ):
        for sampling in ("444", "420"):
            yield (
                f"size_{width}x{height}_{sampling}.jpg",
                jpeg(np.ascontiguousarray(positions(width, height)), sampling),
                {"kind": "decodes", "width": width, "height": height},
            )


def _damaged() -> Iterator[Made]:
    plain = jpeg(quadrants())
    parts = segments(plain)
    scan = len(plain) - len(parts[-1][1])
    yield _error("zero_bytes.jpg", b"")
    yield _error("one_byte.jpg", b"\xff")
    yield _error("soi_only.jpg", b"\xff\xd8")
    yield _error("html_error_page.JPEG", b"<!DOCTYPE html><title>404 Not Found</title>")
    yield _error("truncated_in_header.jpg", plain[: scan - 4])
    yield _error("truncated_half_scan.jpg", plain[: (scan + len(plain)) // 2])
    yield _error("truncated_last_10.jpg", plain[:-10])
    yield (
        "bad_huffman_run.jpg",
        plain[: scan + 200] + bytes(range(1, 25)) + plain[scan + 224 :],
        {"kind": "decodes_or_clear_error", "width": WIDTH, "height": HEIGHT},
    )
    yield _error("no_dqt.jpg", rebuilt(plain, lambda marker, segment: b"" if marker == 0xDB else segment))
    order = [part for part in parts if part[0] != 0xC0] + [part for part in parts if part[0] == 0xC0]
    yield _error("sof_after_scan.jpg", b"\xff\xd8" + b"".join(segment for _, segment in order))
    header, *scans, end = in_three_scans(quadrants())
    yield _error("third_scan_missing.jpg", b"".join([header, *scans[:2], end]))
    yield _error("third_scan_missing_and_eoi.jpg", b"".join([header, *scans[:2]]))
    yield _error("two_scans_missing.jpg", b"".join([header, scans[0], end]))
    yield _error("no_sos.jpg", plain[: scan - len(parts[-2][1])] + b"\xff\xd9")
    yield _error("twelve_bit.jpg", frame_changed(plain, 4, b"\x0c"))
    yield _error(
        "lossless_sof3.jpg",
        rebuilt(plain, lambda marker, segment: b"\xff\xc3" + segment[2:] if marker == 0xC0 else segment),
    )
    png = saved(Image.fromarray(positions()), "PNG")
    yield _error("png_cut.JPEG", png[: len(png) // 2])


def _bombs() -> Iterator[Made]:
    plain = jpeg(quadrants())

    def bomb(name: str, data: bytes) -> Made:
        return name, data, {"kind": "bounded", "limit_s": 5, "limit_mb": 400}

    yield _error("claims_4000x4000.jpg", frame_changed(plain, 5, struct.pack(">HH", 4000, 4000)))
    yield _error("claims_zero_width.jpg", frame_changed(plain, 7, b"\0\0"))
    yield bomb("claims_65500x65500.jpg", frame_changed(plain, 5, struct.pack(">HH", 65500, 65500)))
    progressive = saved(Image.fromarray(quadrants()), "JPEG", quality=90, progressive=True)
    last = progressive[progressive.rindex(b"\xff\xda") : -2]
    yield bomb("scans_1500.jpg", progressive[:-2] + 1500 * last + b"\xff\xd9")
    large = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", large), (b"IDAT", zlib.compress(bytes(1 << 20), 9)), (b"IEND", b""))
    yield bomb(
        "png_60000x60000.JPEG",
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
            for kind, content in chunks
        ),
    )
