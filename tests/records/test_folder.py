"""Image folders as shards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feeder.errors import BadRecord, ConfigError, StorageError
from feeder.records import Dataset
from feeder.records.folder import ImageFolder
from feeder.records.shards import expand


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Classes ant, bee and cow with 5, 3 and 1 images whose bytes tell their name."""
    src = tmp_path / "photos"
    for name, count in (("ant", 5), ("bee", 3), ("cow", 1)):
        (src / name / "deep").mkdir(parents=True)
        for number in range(count):
            place = src / name / ("deep" if number == 1 else "") / f"{number}.jpg"
            place.write_bytes(f"{name} {number}".encode())
    (src / "ant" / "notes.txt").write_text("no image")
    return src


def read_all(dataset: Dataset) -> list[tuple[bytes, int]]:
    return [(bytes(image), label) for image, label, *_ in map(dataset.read, range(len(dataset)))]


def test_a_folder_is_one_shard_of_all_its_images(photos: Path) -> None:
    with Dataset.open("photos", [str(photos)]) as dataset:
        found = read_all(dataset)
        assert [shard.name for shard in dataset.shards] == ["photos"]
        assert dataset.shards[0].slow is not None
        assert sorted(found) == sorted(
            (f"{name} {number}".encode(), label)
            for label, (name, count) in enumerate((("ant", 5), ("bee", 3), ("cow", 1)))
            for number in range(count)
        )
        assert [label for _, label in found] != sorted(label for _, label in found)
        where = dict(zip((image for image, _ in found), map(dataset.locate, range(9)), strict=True))
        assert where[b"ant 1"] == ("photos/ant/deep/1.jpg", 0)
        assert dataset.nbytes == dataset.bytes_read == sum(len(image) for image, _ in found)
    assert (photos.parent / "photos.feederidx").is_file()


def test_names_as_imagenets_tell_the_class(tmp_path: Path) -> None:
    for name in ("n02_1.JPEG", "n01_7.JPEG", "n02_3.JPEG"):
        (tmp_path / name).write_bytes(name.encode())
    with Dataset.open("flat", [f"{tmp_path}/."], index_dir=tmp_path / "indexes") as dataset:
        assert dict(read_all(dataset)) == {b"n01_7.JPEG": 0, b"n02_1.JPEG": 1, b"n02_3.JPEG": 1}


def test_a_folder_of_shards_stays_one(photos: Path) -> None:
    """Shards count where there are any, unless it is said that the folder is one of images."""
    (photos / "train-00000-of-00001").write_bytes(b"")
    assert [path.name for path in expand([str(photos)])] == ["train-00000-of-00001"]
    assert expand([str(photos)], "folder") == [photos]
    with pytest.raises(ConfigError, match="no folder of images, but a file"):
        expand([str(photos / "train-00000-of-00001")], "folder")
    with pytest.raises(ConfigError, match="no shard file in this folder"):
        expand([str(photos / "cow")], "parquet")


def test_every_change_makes_the_index_stale(photos: Path) -> None:
    states = [ImageFolder.read(photos).state]

    def changed() -> bool:
        states.append(ImageFolder.read(photos).state)
        return len(set(states)) == len(states)

    (photos / "ant" / "9.jpg").write_bytes(b"new")
    assert changed()
    os.rename(photos / "ant" / "9.jpg", photos / "bee" / "9.jpg")
    assert changed()
    (photos / "bee" / "9.jpg").write_bytes(b"NEW")
    os.utime(photos / "bee" / "9.jpg", ns=(1, 2))
    assert changed()
    (photos / "bee" / "9.jpg").unlink()
    assert ImageFolder.read(photos).state.listing == states[0].listing
    (photos / "ant" / "notes.txt").write_text("other")
    assert ImageFolder.read(photos).state.listing == states[0].listing


def test_images_that_change_while_they_are_served(photos: Path) -> None:
    with Dataset.open("photos", [str(photos)]) as dataset:
        numbers = {bytes(dataset.read(number).image): number for number in range(9)}
        (photos / "ant" / "0.jpg").write_bytes(b"longer than before")
        with pytest.raises(StorageError, match=r"ant/0\.jpg: is not the file that was indexed"):
            dataset.read(numbers[b"ant 0"])
        (photos / "ant" / "2.jpg").write_bytes(b"ANT 2")
        with pytest.raises(StorageError, match=r"is not the file that was indexed|changed in place"):
            dataset.read(numbers[b"ant 2"])
        (photos / "cow" / "0.jpg").unlink()
        with pytest.raises(StorageError, match="No such file"):
            dataset.read(numbers[b"cow 0"])
        assert bytes(dataset.read(numbers[b"bee 0"]).image) == b"bee 0"


def test_files_that_are_no_image_data_are_bad_records(photos: Path) -> None:
    (photos / "bee" / "empty.jpg").write_bytes(b"")
    os.mkfifo(photos / "bee" / "fifo.jpg")
    with Dataset.open("photos", [str(photos)]) as dataset:
        assert (len(dataset), dataset.bad) == (11, 2)
        reasons = {}
        for number in range(11):
            try:
                dataset.read(number)
            except BadRecord as error:
                reasons[error.shard] = error.reason
    assert reasons == {
        "photos/bee/empty.jpg": "image is empty (0 bytes) (bee/empty.jpg)",
        "photos/bee/fifo.jpg": "is no regular file, or too long (bee/fifo.jpg)",
    }


def test_names_that_are_no_text(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    (folder / "a").mkdir(parents=True)
    with open(os.fsencode(folder) + b"/a/\xff.jpg", "wb") as file:
        file.write(b"image")
    with Dataset.open("photos", [str(folder)]) as dataset:
        assert read_all(dataset) == [(b"image", 0)]
