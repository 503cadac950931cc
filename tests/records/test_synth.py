from __future__ import annotations

import colorsys
import hashlib
import io
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from feeder.errors import ConfigError
from feeder.records.scene import SHAPES, Textures
from feeder.records.synth import class_names, encode_picture, synth

CLASSES = 10
SAMPLE = 240


@pytest.fixture(scope="module")
def textures() -> Textures:
    return Textures(0)


@pytest.fixture(scope="module")
def files(textures: Textures) -> list[bytes]:
    return [encode_picture(textures, 0, number, number % CLASSES, CLASSES) for number in range(SAMPLE)]


def test_the_make_up_is_imagenets(files: list[bytes]) -> None:
    """Targets: 202k pixels, 110 kB, 76 % 4:4:4, 20 % 4:2:0, 2 to 4 % gray; within three standard errors."""
    headers = [simplejpeg.decode_jpeg_header(file) for file in files]
    pixels = np.array([height * width for height, width, *_ in headers])
    nbytes = np.array([len(file) for file in files])
    kinds = Counter("Gray" if colour == "Gray" else sampling for _, _, colour, sampling in headers)
    assert abs(pixels.mean() - 202_000) < 3 * pixels.std() / SAMPLE**0.5
    assert abs(nbytes.mean() - 110_000) < 3 * nbytes.std() / SAMPLE**0.5
    assert nbytes.std() > 40_000
    assert abs(kinds["444"] / SAMPLE - 0.77) < 3 * (0.77 * 0.23 / SAMPLE) ** 0.5
    assert abs(kinds["420"] / SAMPLE - 0.20) < 3 * (0.20 * 0.80 / SAMPLE) ** 0.5
    assert 0 < kinds["Gray"] < 0.08 * SAMPLE
    assert set(kinds) == {"444", "420", "Gray"}


def test_files_are_baseline_with_tables_of_their_own(files: list[bytes]) -> None:
    for file in files[:40]:
        image = Image.open(io.BytesIO(file))
        assert "progressive" not in image.info
    tables = {
        hashlib.sha256(file[file.index(b"\xff\xc4") : file.index(b"\xff\xda")]).digest() for file in files
    }
    assert len(tables) > 0.95 * SAMPLE


def test_backgrounds_have_a_natural_spectrum(textures: Textures) -> None:
    """Power falls as 1/f**(2 * exponent): a straight line in the logarithms."""
    plane = textures.spectral[1][:768, :768]
    power = np.abs(np.fft.rfft2(plane)) ** 2
    frequency = np.hypot(np.fft.fftfreq(768)[:, None], np.fft.rfftfreq(768)[None, :])
    edges = np.geomspace(0.01, 0.4, 12)
    means = [power[(low <= frequency) & (frequency < high)].mean() for low, high in pairwise(edges)]
    slope = np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(means), 1)[0]
    assert -2.3 < slope < -1.9


def test_hue_tells_the_class(files: list[bytes]) -> None:
    """Among strongly coloured pixels the hue of the class is by far the most common."""
    right = total = 0
    for number, file in enumerate(files[:60]):
        image = np.asarray(Image.open(io.BytesIO(file)).convert("RGB").resize((64, 64)), float) / 255
        hsv = np.array([colorsys.rgb_to_hsv(*pixel) for pixel in image.reshape(-1, 3)])
        strong = hsv[(hsv[:, 1] > 0.5) & (hsv[:, 2] > 0.4), 0]
        if len(strong) < 20:  # gray, or an object mostly hidden
            continue
        nearest = np.bincount(np.round(strong * CLASSES).astype(int) % CLASSES, minlength=CLASSES).argmax()
        right += int(nearest == number % CLASSES)
        total += 1
    assert total > 45
    assert right / total > 0.9


def test_shapes_are_different_and_fill_their_frame() -> None:
    axis = np.linspace(-1, 1, 81, dtype=np.float32)
    masks = {name: shape(axis[None, :], axis[:, None]) < 0 for name, shape in SHAPES.items()}
    for name, mask in masks.items():
        assert 0.1 < mask.mean() < 0.8, name
        for other, other_mask in masks.items():
            if other != name:
                overlap = (mask & other_mask).sum() / (mask | other_mask).sum()
                assert overlap < 0.93, (name, other)


def test_same_seed_same_files_whatever_the_threads(tmp_path: Path) -> None:
    def digest(name: str, seed: int, jobs: int) -> dict[str, str]:
        result = synth(tmp_path / name, 9, 3, seed=seed, jobs=jobs)
        assert (result.images, len(result.classes)) == (9, 3)
        paths = sorted((tmp_path / name).rglob("*.JPEG"))
        assert sum(path.stat().st_size for path in paths) == result.nbytes
        return {
            str(path.relative_to(tmp_path / name)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in paths
        }

    one = digest("one", 0, 1)
    assert one == digest("two", 0, 3)
    assert set(one.values()).isdisjoint(digest("other", 1, 2).values())
    assert len(set(one.values())) == 9
    assert sorted({name.split("/")[0] for name in one}) == class_names(3)


def test_classes_sort_by_label() -> None:
    names = class_names(1000)
    assert names == sorted(names)
    assert len(set(names)) == 1000


def test_wrong_settings(tmp_path: Path) -> None:
    for images, classes, seed, said in (
        (5, 0, 0, "classes"),
        (5, 1001, 0, "classes"),
        (2, 3, 0, "images"),
        (3, 3, -1, "seed"),
    ):
        with pytest.raises(ConfigError, match=said):
            synth(tmp_path / "out", images, classes, seed=seed)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="not empty"):
        synth(tmp_path, 3, 3)
