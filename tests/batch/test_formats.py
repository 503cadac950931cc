"""The same images in every format give the same batches."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from feeder.batch import ChunkMaker
from feeder.decode import Decoder
from feeder.records import Dataset
from feeder.records.pack import pack
from feeder.records.rewrite import rewrite
from feeder.spec import StreamSpec

SPEC = StreamSpec(dataset="d", global_batch=8, lanes=4, image_size=32, seed=7)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """24 images of three classes."""
    folder = tmp_path / "photos"
    for number in range(24):
        place = folder / f"class {number % 3}" / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (12, 15, 3), np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).resize((60, 48)).save(out, "JPEG", quality=90)
        place.write_bytes(out.getvalue())
    return folder


def batches(folder: Path, decoder: Decoder) -> list[tuple[bytes, list[int]]]:
    """Pixels and labels of two epochs."""
    with Dataset.open("d", [str(folder)]) as dataset:
        maker = ChunkMaker(dataset, decoder, SPEC)
        made = []
        for epoch in range(2):
            for taken in range(0, 6, 2):
                out = np.empty((8, 32, 32, 3), np.uint8)
                chunk = maker.make(maker.fetch(epoch, taken, range(8)), out)
                assert chunk.bad == ()
                made.append((out.tobytes(), chunk.labels.tolist()))
        return made


def test_every_format_gives_the_same_batches(photos: Path, tmp_path: Path, decoder: Decoder) -> None:
    want = batches(photos, decoder)
    assert len({pixels for pixels, _ in want}) == len(want)
    for name in ("tfrecord", "webdataset", "parquet"):
        pack(photos, tmp_path / name, shards=3, format_name=name)  # type: ignore[arg-type]
        assert batches(tmp_path / name, decoder) == want
    for codec in ("snappy", "zstd"):
        folder = tmp_path / codec
        folder.mkdir()
        for shard in sorted((tmp_path / "parquet").glob("*.parquet")):
            pq.write_table(pq.read_table(shard), folder / shard.name, compression=codec, row_group_size=3)
        assert batches(folder, decoder) == want
    packed = tmp_path / "gzip"
    packed.mkdir()
    for shard in sorted((tmp_path / "tfrecord").glob("train-?????-of-?????")):
        (packed / f"{shard.name}.gz").write_bytes(gzip.compress(shard.read_bytes()))
    for source in (packed, tmp_path / "webdataset"):
        rewrite([str(source)], tmp_path / f"{source.name}-new")
        assert batches(tmp_path / f"{source.name}-new", decoder) == want


def test_formats_that_keep_images_alone_share_a_fingerprint(photos: Path, tmp_path: Path) -> None:
    found = set()
    for name in ("webdataset", "parquet"):
        pack(photos, tmp_path / name, shards=1, format_name=name)  # type: ignore[arg-type]
        with Dataset.open("d", [str(tmp_path / name)]) as dataset:
            found.add(dataset.fingerprint)
    with Dataset.open("d", [str(photos)]) as dataset:
        found.add(dataset.fingerprint)
    assert len(found) == 1
