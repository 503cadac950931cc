"""Shrinks the JPEGs of a folder in place, so that a worker beside a busy trainer decodes them in no time.

python -m bench.experiments.pictures FOLDER SIDE
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

__all__ = ["shrunk"]

QUALITY = 90


def shrunk(jpeg: bytes, side: int) -> bytes:
    """The picture with its longer side at most that many pixels, encoded anew."""
    with Image.open(io.BytesIO(jpeg)) as picture:
        picture.draft("RGB", (side, side))
        small = picture.convert("RGB")
        small.thumbnail((side, side))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def main(arguments: Sequence[str]) -> int:
    """Shrinks all of them."""
    folder, side = Path(arguments[0]), int(arguments[1])
    for path in sorted(folder.rglob("*.JPEG")):
        path.write_bytes(shrunk(path.read_bytes(), side))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
