"""One file: what is written is read, and what was changed since is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.cache.segment import OVERHEAD_BYTES, Draft, Row, Segment, SegmentUnusable

ROWS = st.builds(
    Row,
    shard=st.sampled_from(["a" * 64, "b" * 64, "c" * 64]),
    record=st.integers(0, 2**32 - 1),
    digest=st.integers(0, 2**32 - 1),
    reduction=st.sampled_from([1, 2, 4, 8]),
    width=st.integers(1, 65535),
    height=st.integers(1, 65535),
)


def seal(draft: Draft, folder: Path) -> Path:
    fd = os.open(folder / "part", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(fd, 0, draft.capacity)
        name = draft.write(fd)
        os.rename(folder / "part", folder / name)
    finally:
        os.close(fd)
    return folder / name


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    draft = Draft("native-1", "train", 100_000)
    for number in range(5):
        assert draft.append(Row("a" * 64, number, 7 * number, 1, 30, 20), bytes([number]) * 1000)
    return seal(draft, tmp_path)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(ROWS, st.binary(max_size=3000)), min_size=1, max_size=60))
def test_what_fits_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Row, bytes]]
) -> None:
    draft = Draft("native-1", "train", 40_000)
    taken = [(row, planes) for row, planes in rows if draft.append(row, planes)]
    path = seal(draft, tmp_path_factory.mktemp("segment"))
    segment = Segment(path, path.name)
    assert segment.rows == [row for row, _ in taken]
    assert [bytes(segment.planes(number)) for number in range(len(taken))] == [planes for _, planes in taken]
    assert segment.nbytes == path.stat().st_size <= 40_000
    assert (segment.dataset, segment.pixels) == ("train", "native-1")


def test_one_row_fits_as_promised(tmp_path: Path) -> None:
    draft = Draft("native-1", "train", 50_000)
    assert draft.append(Row("a" * 64, 2**32 - 1, 2**32 - 1, 8, 65535, 65535), bytes(50_000 - OVERHEAD_BYTES))
    assert not draft.append(Row("a" * 64, 0, 0, 1, 1, 1), b"")
    assert seal(draft, tmp_path).stat().st_size <= 50_000


def test_it_is_an_arrow_file(sealed: Path) -> None:
    table = pa.ipc.open_file(str(sealed)).read_all()
    assert table.column("record").to_pylist() == [0, 1, 2, 3, 4]
    assert table.column("planes")[3].as_py() == bytes([3]) * 1000


def test_planes_are_not_copied(sealed: Path) -> None:
    segment = Segment(sealed, sealed.name)
    planes = segment.planes(2)
    del segment
    with open(sealed, "r+b") as file:  # the same pages, as nobody would change them
        content = file.read()
        file.seek(content.index(bytes(planes)))
        file.write(b"\xff")
    assert planes[0] == 0xFF


def test_a_bit_anywhere_is_found(sealed: Path) -> None:
    content = sealed.read_bytes()
    random = np.random.default_rng(0)
    for position in [*random.integers(0, len(content), 200), 0, len(content) - 1]:
        changed = bytearray(content)
        changed[position] ^= 1 << int(random.integers(8))
        sealed.chmod(0o600)
        sealed.write_bytes(changed)
        with pytest.raises(SegmentUnusable, match="its crc32c is"):
            Segment(sealed, sealed.name)


def test_a_cut_is_found(sealed: Path) -> None:
    content = sealed.read_bytes()
    for size in [0, 1, 8, 1000, len(content) // 2, len(content) - 1]:
        sealed.write_bytes(content[:size])
        with pytest.raises(SegmentUnusable, match=r"bytes, not the|is empty"):
            Segment(sealed, sealed.name)
    sealed.write_bytes(content + b"\0")
    with pytest.raises(SegmentUnusable, match="bytes, not the"):
        Segment(sealed, sealed.name)


def test_a_hole_is_found(sealed: Path) -> None:
    """What a file system makes of a file whose last pages never came to the disk."""
    content = sealed.read_bytes()
    sealed.write_bytes(content[:4096] + bytes(len(content) - 4096))
    with pytest.raises(SegmentUnusable, match="its crc32c is"):
        Segment(sealed, sealed.name)


@pytest.mark.parametrize("content", [b"no arrow at all", b"ARROW1\0\0" + bytes(64) + b"ARROW1"])
def test_what_is_no_arrow_file(tmp_path: Path, content: bytes) -> None:
    import google_crc32c

    path = tmp_path / f"{'0' * 16}-{len(content)}-{google_crc32c.value(content):08x}-{'0' * 8}.arrow"
    path.write_bytes(content)
    with pytest.raises(SegmentUnusable, match="is no segment"):
        Segment(path, path.name)


def test_damage_in_any_field_is_no_segment_also_where_only_rows_are_wanted(tmp_path: Path) -> None:
    draft = Draft("pixels", "numbers", 1 << 16)
    for record in range(3):
        draft.append(Row("shard", record, 7, 1, 20, 10), b"planes")
    path = seal(draft, tmp_path)
    content, unusable = path.read_bytes(), 0
    for place in range(0, len(content), 5):
        for byte in (0, 255, content[place] ^ 1):
            path.write_bytes(content[:place] + bytes((byte,)) + content[place + 1 :])
            try:
                segment = Segment(path, path.name, check=False)
            except SegmentUnusable:
                unusable += 1
            else:
                assert all(len(segment.planes(row)) <= len(content) for row in range(len(segment.rows)))
    assert unusable > 100


def test_another_format(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.cache.segment.FORMAT", 99)
    with pytest.raises(SegmentUnusable, match="is of another format"):
        Segment(sealed, sealed.name)


def test_another_name(sealed: Path) -> None:
    with pytest.raises(SegmentUnusable, match="has not the name of a segment"):
        Segment(sealed, "segment.arrow")
    with pytest.raises(SegmentUnusable, match="holds other pixels"):
        Segment(sealed, "0" * 16 + sealed.name[16:])
