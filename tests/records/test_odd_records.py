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

RULES = {"dotted_basename.tar": "no image", "unsorted_pairs.tar": "no "}
"""Files that WebDataset's rules of naming and grouping make unusable, and what is said of their samples."""


def entries(odd_files: Path) -> list[dict[str, Any]]:
    manifest = json.loads((odd_files / "manifest.json").read_text())
    groups = ("tfrecord", "webdataset", "parquet", "datasets")
    return [entry for entry in manifest["files"] if entry["group"] in groups]


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
        if expect.get("at_open"):
            with pytest.raises(BadShard, match=rf"{path.name}: (column 'label'|no column 'image')"):
                Dataset.open("odd", [str(path)], keys=KEYS, index_dir=tmp_path)
            continue
        if path.name in RULES:
            with Dataset.open("odd", [str(path)], keys=KEYS, index_dir=tmp_path) as dataset:
                got = [outcome(dataset, number) for number in range(len(dataset))]
            assert all(isinstance(error, BadRecord) and RULES[path.name] in error.reason for error in got)
            continue
        if "count" in expect:
            with Dataset.open("odd", [str(path)], keys=KEYS, index_dir=tmp_path) as dataset:
                assert len(dataset) == expect["count"]
                assert dataset.bad == 0
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
    assert seen > 50


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


@pytest.mark.parametrize(
    ("file", "number", "said"),
    [
        ("webdataset/duplicate_member.tar", 0, r"two members with the suffix 'jpg' \(sample '000000'\)"),
        ("webdataset/missing_label.tar", 1, r"no label \(cls;json\), but jpg \(sample '000001'\)"),
        ("webdataset/missing_image.tar", 1, r"no image \(.*\), but cls \(sample '000001'\)"),
        ("webdataset/label_text.tar", 0, "b'tench', not one whole number"),
        ("webdataset/bad_header_checksum.tar", 1, "at offset 2560: checksum of a tar header is wrong"),
        ("webdataset/cut_in_member.tar", 1, "cut short: 924 bytes of the member '000001.jpg' are missing"),
        ("parquet/bytes_null_path_only.parquet", 0, "image is not embedded"),
        ("parquet/null_struct_and_label.parquet", 0, "image is null"),
        ("parquet/null_struct_and_label.parquet", 1, "label is null"),
    ],
)
def test_reasons_in_other_formats(odd_files: Path, tmp_path: Path, file: str, number: int, said: str) -> None:
    with (
        Dataset.open("odd", [str(odd_files / file)], index_dir=tmp_path) as dataset,
        pytest.raises(BadRecord, match=said) as caught,
    ):
        dataset.read(number)
    assert "offset" in caught.value.reason


def test_the_same_key_in_two_shards_is_two_samples(odd_files: Path, tmp_path: Path) -> None:
    with Dataset.open(
        "odd", [str(odd_files / "webdataset/same_key_[ab].tar")], index_dir=tmp_path
    ) as dataset:
        assert [dataset.read(number).label for number in range(len(dataset))] == [0, 1]


def test_shards_of_two_schemas_are_one_data_set(odd_files: Path, tmp_path: Path) -> None:
    with Dataset.open("odd", [str(odd_files / "parquet/schema_[ab]*")], index_dir=tmp_path) as dataset:
        assert [dataset.read(number).label for number in range(len(dataset))] == [0, 1, 2, 3, 4, 5] * 2


def test_uneven_shards_are_one_data_set(odd_files: Path, tmp_path: Path) -> None:
    with Dataset.open(
        "uneven", [str(odd_files / "datasets/uneven")], keys=KEYS, index_dir=tmp_path
    ) as dataset:
        assert [shard.records for shard in dataset.shards] == [7, 5, 1, 0, 11]
        assert [dataset.read(number).label for number in range(24)] == list(range(24))
