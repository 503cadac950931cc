"""The corpus that fuzzing starts from, with what it found so far, through the kernel as it is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import feeder.decode

CORPUS = Path(feeder.decode.__file__).parent / "native/fuzz/corpus"

CHOICES = 32
"""Bytes behind the image in a file of corpus/jpeg; see native/fuzz/fuzz_input.h."""


def test_images(agree: Callable[..., int]) -> None:
    images = [file.read_bytes()[:-CHOICES] for file in sorted((CORPUS / "jpeg").iterdir())]
    assert images
    decoded = 0
    for window in ((0, 0, 1, 1), (0, 0, 16, 16), (3, 5, 20, 9), (1, 17, 30, 8)):
        decoded += agree(images, [window] * len(images))
    assert decoded > len(images) / 3
