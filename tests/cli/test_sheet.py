from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feeder.cli.sheet import save_sheet


@pytest.mark.parametrize(
    ("count", "columns", "rows"),
    [(1, 1, 1), (2, 2, 1), (6, 3, 2), (7, 3, 3), (16, 4, 4), (20, 5, 4), (32, 8, 4)],
)
def test_the_last_row_is_full_where_it_can_be(tmp_path: Path, count: int, columns: int, rows: int) -> None:
    images = np.zeros((count, 100, 100, 3), np.uint8)
    save_sheet(tmp_path / "sheet.png", images, ["x"] * count)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert (sheet.width // 100, sheet.height // 100) == (columns, rows)
