"""Every crafted shard gives what its manifest says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feeder.decode import decode_crop
from feeder.errors import BadRecord, BadShard, ConfigError, DataError
from feeder.records import Dataset, RecordKeys

KEYS = RecordKeys(label_base=0)


def entries(odd_files: Path) -> list[dict[str, Any]]:
    manifest = json.loads((odd_files / "manifest.json").read_text())
    return [entry for entry in manifest["files"] if entry["group"] in ("tfrecord", "datasets")]


def outcome(dataset: Dataset, number: int) -> tuple[int, list[int]] | BadRecord | DataError:
    """Label and colour of the middle of the picture, or what is wrong with the record."""
    try:
        record = dataset.read(number)
        pixels = decode_crop(record.image, None, (8, 8))
    except (BadRecord, DataError) as error:
        return error
    return record.label, pixels[4, 4].tolist()


def test_shards_give_what_the_manifest_says(odd_files: Path, tmp_path: Path) -> None:
    seen = 0
    for entry in entries(odd_files):
        path, expect = odd_files / entry["file"], entry["expect"]
        if "gz" in path.name or "gzip" in path.name or "zlib" in path.name:
            with pytest.raises(BadShard, match=rf"{path.name}: is compressed with (gzip|zlib)"):
                Dataset.open("odd", [str(path)], keys=KEYS, index_dir=tmp_path)
            continue
        if not expect["records"]:
            with pytest.raises(ConfigError, match="no record"):
                Dataset.open("odd", [str(path)], keys=KEYS, index_dir=tmp_path)
            continue
        with Dataset.open("odd", [str(path)], keys=KEYS, index_dir=tmp_path) as dataset:
            got = [outcome(dataset, number) for number in range(len(dataset))]
        for number, want in enumerate(expect["records"]):
            check(entry["file"], got[number], want)
        rest = got[len(expect["records"]) :]
        if expect.get("then") == "clear_error":
            broken = rest.pop(0)
            assert isinstance(broken, BadRecord), entry["file"]
            assert broken.shard == path.name
            assert broken.index == len(expect["records"])
            assert "offset" in broken.reason
        for result, want in zip(rest, expect.get("skippable", []), strict=True):
            check(entry["file"], result, want)
        seen += 1
    assert seen > 20


def check(file: str, got: tuple[int, list[int]] | BadRecord | DataError, want: dict[str, Any]) -> None:
    if "error" in want:
        assert isinstance(got, DataError), (file, want)
        return
    if want["label"] < 0:  # read as -1, not as 2**64 - 1, and then refused: it can be no class
        assert isinstance(got, BadRecord), file
        assert f"is {want['label']};" in got.reason
        return
    assert isinstance(got, tuple), (file, got)
    label, colour = got
    assert label == want["label"], file
    if "rgb" in want:
        assert all(abs(channel - wanted) <= 6 for channel, wanted in zip(colour, want["rgb"], strict=True)), (
            file
        )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("example_label_missing", "no feature 'image/class/label': the record has 'image/encoded'"),
        ("example_image_missing", "no feature 'image/encoded': the record has 'image/class/label'"),
        ("example_image_empty_bytes", "'image/encoded' is empty"),
        ("example_label_two_values", "'image/class/label' has 2 values"),
        ("example_label_text", "'image/class/label' holds bytes or text"),
        ("example_cut_protobuf", "not a whole tf.train.Example"),
        ("example_not_protobuf", "bare JPEG"),
    ],
)
def test_reasons_tell_the_user_what_is_wrong(odd_files: Path, tmp_path: Path, name: str, said: str) -> None:
    path = odd_files / "tfrecord" / f"{name}.tfrecord"
    with (
        Dataset.open("odd", [str(path)], keys=KEYS, index_dir=tmp_path) as dataset,
        pytest.raises(BadRecord, match=said),
    ):
        dataset.read(1)


def test_uneven_shards_are_one_data_set(odd_files: Path, tmp_path: Path) -> None:
    with Dataset.open(
        "uneven", [str(odd_files / "datasets/uneven")], keys=KEYS, index_dir=tmp_path
    ) as dataset:
        assert [shard.records for shard in dataset.shards] == [7, 5, 1, 0, 11]
        assert [dataset.read(number).label for number in range(24)] == list(range(24))
