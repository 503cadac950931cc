"""bench/ is no part of the installed package: tests of it import it from the checkout."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


@pytest.fixture(scope="session")
def small_images(tmp_path_factory):
    """Folder of 100 small JPEGs, each a class: more than a batch, and little work to decode."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number in range(100):
        pixels = random.integers(0, 256, (6, 8, 3), np.uint8)
        picture = Image.fromarray(pixels).resize((96, 72))
        picture.save(folder / f"n{number:08d}_class.jpg", quality=90)
    return folder
