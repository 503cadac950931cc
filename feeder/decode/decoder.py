"""The decoder that stages above use, and the two functions for direct use."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from feeder.decode.header import DEFAULT_LIMITS, Limits
from feeder.decode.seek import SeekPoints
from feeder.errors import ConfigError, DataError
from feeder.spec import Resample

__all__ = ["Decoder", "Kind", "decode_crop", "decode_crop_batch", "open_decoder"]

Kind: TypeAlias = Literal["auto", "native", "portable"]


class Decoder(Protocol):
    """Decodes, crops, resizes and flips batches of encoded images; thread-safe.

    Attributes:
        name: which decoder this is and what it runs on, for logs: "native (avx2)".
        seeks: whether it has a use for seek points.
        keeps: whether it gives and takes planes.
    """

    name: str
    seeks: bool
    keeps: bool

    def sizes(self, images: Sequence[bytes | memoryview]) -> tuple[npt.NDArray[np.int32], list[str | None]]:
        """Reads the headers of images.

        Returns:
            int32 [n, 2], (width, height) in pixels, (0, 0) where the header is bad; and for each image None
            or the reason why it cannot be decoded, without its place.
        """
        ...

    def decode(
        self,
        images: Sequence[bytes | memoryview],
        windows: npt.NDArray[np.int32],
        flips: npt.NDArray[np.bool_],
        out: npt.NDArray[np.uint8],
        *,
        resample: Resample = "bilinear",
        antialias: bool = True,
        reductions: npt.NDArray[np.uint8] | None = None,
        seek: SeekPoints | None = None,
        kept: npt.NDArray[np.bool_] | None = None,
        places: npt.NDArray[np.int64] | None = None,
    ) -> list[str | None]:
        """Decodes one window of each image into its slot of a batch.

        EXIF orientation is ignored. The result of an image depends on its bytes, its window and the settings,
        never on its neighbours, the number of threads or the instruction set.

        Args:
            images: n encoded images; each buffer must keep its bytes during the call.
            windows: int32 [n, 4], (x, y, width, height) in pixels of the full image, within it, not empty.
            flips: bool [n], mirror left and right after the crop.
            out: uint8 [n, H, W, 3], RGB, or [n, 3 H / 2, W], YUV 4:2:0 (JFIF's full range; H rows of Y, then
                as H / 4 rows each the planes of Cb and Cr, H / 2 by W / 2; H and W are even), C-contiguous
                and writable; m slots with `places`. Only final pixels are stored.
            resample: "bilinear", "bicubic" (A = -0.5), or "tf1_bicubic", which never antialiases.
            antialias: whether the filter's support grows with the scale, as Pillow's does.
            reductions: uint8 [n] of 1, 2, 4 or 8: decode a JPEG at 1/r and resample the window from there.
                Formats other than RGB, YCbCr and gray JPEG ignore it. None is 1 for all.
            seek: what is known of the images, which grows; the result is the same whatever is known.
            kept: bool [n], which of the images are what `keep` returned for the same reduction; the result is
                the same as from their encoded bytes.
            places: int64 [n], each in [0, m), no two the same: the slot of `out` that each image goes to.
                None: image i goes to slot i.

        Returns:
            For each image None, or the reason why its slot holds nothing of use, without its place. What a
            window does not need may be damaged unnoticed.

        Raises:
            ConfigError: an argument has the wrong dtype, shape, layout or range.
            Closed: after close(), or in a forked child.
        """
        ...

    def learn(self, images: Sequence[bytes | memoryview], seek: SeekPoints) -> list[str | None]:
        """Learns all that can be known of images, without making pixels.

        Args:
            images: n encoded images; each buffer must keep its bytes during the call.
            seek: what is known of them, which grows.

        Returns:
            For each image None, or the reason why it is damaged, without its place; of what is no baseline
            JPEG nothing is learned or said.

        Raises:
            ConfigError: `seek` has the wrong dtype, shape or layout, or this decoder has no use for it.
            Closed: after close(), or in a forked child.
        """
        ...

    def keep(
        self, images: Sequence[bytes | memoryview], reductions: npt.NDArray[np.uint8]
    ) -> list[bytes | None]:
        """Decodes images to planes, from which `decode` makes any window at little cost.

        Gives way to what is decoded meanwhile, but for one image of sixteen.

        Args:
            images: n encoded images; each buffer must keep its bytes during the call.
            reductions: uint8 [n] of 1, 2, 4 or 8.

        Returns:
            For each image its planes, which are of use for no other version of this decoder; None where it
            has none (it is no RGB, YCbCr or gray JPEG), or is damaged anywhere.

        Raises:
            ConfigError: this decoder cannot.
            Closed: after close(), or in a forked child.
        """
        ...

    def close(self) -> None:
        """Ends the threads; calls in progress finish first. May be called again."""
        ...


def open_decoder(threads: int, kind: Kind = "auto", *, limits: Limits = DEFAULT_LIMITS) -> Decoder:
    """Opens a decoder.

    Args:
        threads: images decoded at a time, over all concurrent calls; at least 1.
        kind: "native" is the C++ kernel, "portable" simplejpeg and Pillow, "auto" the first that is there.
        limits: bounds on what one image may ask for.

    Raises:
        ConfigError: threads or kind out of range, or "native" in an installation without the kernel.
    """
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}")
    if kind not in ("auto", "native", "portable"):
        raise ConfigError(f"kind must be auto, native or portable, got {kind!r}")
    if kind != "portable":
        try:
            from feeder.decode.kernel import NativeDecoder

            return NativeDecoder(threads, limits)
        except ImportError as error:
            if kind == "native":
                raise ConfigError(
                    f"the native kernel cannot be loaded ({error}): install feeder where a C++ compiler and "
                    "libjpeg-turbo 2.1 or newer are found, or use kind='portable'"
                ) from None
    from feeder.decode.portable import PortableDecoder

    return PortableDecoder(threads, limits)


def decode_crop(
    jpeg: bytes | memoryview,
    crop: tuple[int, int, int, int] | None,
    size: tuple[int, int],
    *,
    flip: bool = False,
    resample: Resample = "bilinear",
    antialias: bool = True,
) -> npt.NDArray[np.uint8]:
    """Decodes one window of one image on the calling thread.

    Args:
        jpeg: encoded bytes: JPEG, PNG, GIF, WebP or BMP.
        crop: (x, y, width, height) in pixels of the image; None is the whole image.
        size: (height, width) of the result in pixels.
        flip: mirror left and right.
        resample: "bilinear", "bicubic" or "tf1_bicubic".
        antialias: whether the filter's support grows with the scale, as Pillow's does.

    Returns:
        uint8 [height, width, 3], RGB.

    Raises:
        DataError: the bytes are damaged, not an image, or over a limit; or the window is not within the
            image.
        ConfigError: an argument out of range.
    """
    out = _new_batch(1, size)
    reason = _decode_batch(
        _own_decoder(os.getpid()), [jpeg], [crop], [flip], out, resample=resample, antialias=antialias
    )[0]
    if reason is not None:
        raise DataError(reason)
    image: npt.NDArray[np.uint8] = out[0]
    return image


def decode_crop_batch(
    jpegs: Sequence[bytes | memoryview],
    crops: Sequence[tuple[int, int, int, int] | None] | npt.NDArray[np.int32] | None,
    flips: Sequence[bool] | npt.NDArray[np.bool_] | None,
    size: tuple[int, int],
    *,
    out: npt.NDArray[np.uint8] | None = None,
    threads: int | None = None,
    resample: Resample = "bilinear",
    antialias: bool = True,
    seek: SeekPoints | None = None,
) -> tuple[npt.NDArray[np.uint8], list[str | None]]:
    """Decodes one window of each image, on several threads.

    For a stream of batches open a decoder once with `open_decoder` instead.

    Args:
        jpegs: n encoded images.
        crops: n windows (x, y, width, height) in pixels; None, or None for one of them, is the whole image.
        flips: n booleans, mirror left and right; None is no flip.
        size: (height, width) of the results in pixels.
        out: uint8 [n, height, width, 3] to write to; made here where None.
        threads: images decoded at a time; None is the number of CPUs that this process may use.
        resample: "bilinear", "bicubic" or "tf1_bicubic".
        antialias: whether the filter's support grows with the scale.
        seek: what is known of the images from earlier calls, which grows and makes later ones cheaper; start
            with `SeekPoints.nothing(n)`.

    Returns:
        images: uint8 [n, height, width, 3]; and for each image None or the reason why its slot holds nothing
            of use.

    Raises:
        ConfigError: an argument out of range.
    """
    count = len(jpegs)
    if out is None:
        out = _new_batch(count, size)
    elif out.shape != (count, *size, 3):
        raise ConfigError(f"out must have shape {(count, *size, 3)}, got {out.shape}")
    windows = [None] * count if crops is None else list(crops)
    mirrored = [False] * count if flips is None else list(flips)
    decoder = open_decoder(len(os.sched_getaffinity(0)) if threads is None else threads)
    try:
        errors = _decode_batch(
            decoder, jpegs, windows, mirrored, out, resample=resample, antialias=antialias, seek=seek
        )
    finally:
        decoder.close()
    return out, errors


def _decode_batch(
    decoder: Decoder,
    images: Sequence[bytes | memoryview],
    crops: Sequence[Sequence[int] | npt.NDArray[np.int32] | None],
    flips: Sequence[bool | np.bool_],
    out: npt.NDArray[np.uint8],
    *,
    resample: Resample,
    antialias: bool,
    seek: SeekPoints | None = None,
) -> list[str | None]:
    """Decodes with whole-image windows filled in; an image whose size cannot be read is left out."""
    if not len(images) == len(crops) == len(flips):
        raise ConfigError(
            f"{len(images)} images, {len(crops)} crops and {len(flips)} flips: one of each for an image"
        )
    sizes, reasons = decoder.sizes([image for image, crop in zip(images, crops, strict=True) if crop is None])
    wholes = iter(zip(sizes.tolist(), reasons, strict=True))
    windows = np.ones((len(images), 4), np.int32)
    errors: list[str | None] = [None] * len(images)
    for index, crop in enumerate(crops):
        if crop is not None:
            windows[index] = crop
            continue
        (width, height), errors[index] = next(wholes)
        if errors[index] is None:
            windows[index] = 0, 0, width, height
    good = [index for index, error in enumerate(errors) if error is None]
    if len(good) == len(images):
        return decoder.decode(
            images,
            windows,
            np.asarray(flips, np.bool_),
            out,
            resample=resample,
            antialias=antialias,
            seek=seek,
        )
    known = None
    if seek is not None:
        seek.check(len(images))
        known = SeekPoints(seek.points[good], seek.outcomes[good])
    some = np.empty((len(good), *out.shape[1:]), np.uint8)
    found = decoder.decode(
        [images[index] for index in good],
        windows[good],
        np.asarray(flips, np.bool_)[good],
        some,
        resample=resample,
        antialias=antialias,
        seek=known,
    )
    out[good] = some
    if seek is not None and known is not None:
        seek.points[good] = known.points
        seek.outcomes[:] = 0
        seek.outcomes[good] = known.outcomes
    for index, error in zip(good, found, strict=True):
        errors[index] = error
    return errors


def _new_batch(count: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    height, width = size
    if height < 1 or width < 1:
        raise ConfigError(f"size must be (height, width) of at least 1 pixel each, got {size}")
    return np.empty((count, height, width, 3), np.uint8)


@functools.lru_cache(maxsize=1)
def _own_decoder(pid: int) -> Decoder:
    """A decoder for single images; by process, so that it also works after a fork."""
    return open_decoder(1)
