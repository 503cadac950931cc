"""Every odd shard gives the records that it has, and says what is wrong with the others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from odd_corpus import SHARDS, Corpus

from feeder.decode import decode_crop
from feeder.errors import BadRecord, BadShard, ConfigError, DataError
from feeder.records import Dataset, RecordKeys

KEYS = RecordKeys(label_base=0)

COLOUR_TOLERANCE = 6


def outcome(dataset: Dataset, number: int) -> tuple[int, list[int]] | DataError:
    """Label and colour of the middle of the picture, or what is wrong with the record."""
    try:
        record = dataset.read(number)
        pixels = decode_crop(record.image, None, (8, 8))
    except DataError as error:
        return error
    return record.label, pixels[4, 4].tolist()


def test_every_shard_gives_its_records(corpus: Corpus, tmp_path: Path) -> None:
    """Good ones with label and picture, bad ones by place and reason; no shard ends in silence."""
    for file in corpus.of(*SHARDS):
        if file.refused:
            with pytest.raises((BadShard, ConfigError), match=file.refused):
                Dataset.open("odd", [str(file.path)], keys=KEYS, index_dir=tmp_path)
            continue
        with Dataset.open("odd", [str(file.path)], keys=KEYS, index_dir=tmp_path) as dataset:
            assert len(dataset) == len(file.records), file.name
            for number, wanted in enumerate(file.records):
                got = outcome(dataset, number)
                if wanted is None:
                    assert isinstance(got, DataError), (file.name, number)
                    assert len(str(got)) > 8
                    if isinstance(got, BadRecord):  # else the image alone is bad
                        assert (got.shard, got.index) == (file.path.name, number)
                    continue
                assert isinstance(got, tuple), (file.name, got)
                label, colour = got
                assert label == wanted.get("label", label), file.name
                for channel, want in zip(colour, wanted.get("rgb", colour), strict=True):
                    assert abs(channel - want) <= COLOUR_TOLERANCE, (file.name, number)


def test_an_empty_shard_between_good_ones_is_nothing(corpus: Corpus, tmp_path: Path) -> None:
    good = {suffix: corpus.folder / name for suffix, name in GOOD.items()}
    for file in corpus.of(*SHARDS):
        if file.records or file.expect.get("at_open"):
            continue
        folder = tmp_path / file.path.stem
        folder.mkdir()
        suffix = file.path.suffix
        for number, path in enumerate((good[suffix], file.path, good[suffix])):
            shutil.copy(path, folder / f"{number}{suffix}")
        with Dataset.open("odd", [f"{folder}/*{suffix}"], keys=KEYS) as dataset:
            assert [shard.records for shard in dataset.shards] == [6, 0, 6]
            assert [dataset.read(number).label for number in range(12)] == [0, 1, 2, 3, 4, 5] * 2


GOOD = {
    ".tfrecord": "tfrecord/ok.tfrecord",
    ".tar": "webdataset/ok_ustar.tar",
    ".parquet": "parquet/plain_binary.parquet",
}


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
def test_reasons_tell_the_user_what_is_wrong(corpus: Corpus, tmp_path: Path, name: str, said: str) -> None:
    path = corpus.folder / "tfrecord" / f"{name}.tfrecord"
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


def test_the_same_key_in_two_shards_is_two_samples(corpus: Corpus, tmp_path: Path) -> None:
    with Dataset.open(
        "odd", [str(corpus.folder / "webdataset/same_key_[ab].tar")], index_dir=tmp_path
    ) as dataset:
        assert [dataset.read(number).label for number in range(len(dataset))] == [0, 1]


def test_shards_of_two_schemas_are_one_data_set(corpus: Corpus, tmp_path: Path) -> None:
    with Dataset.open("odd", [str(corpus.folder / "parquet/schema_[ab]*")], index_dir=tmp_path) as dataset:
        assert [dataset.read(number).label for number in range(len(dataset))] == [0, 1, 2, 3, 4, 5] * 2


def test_uneven_shards_are_one_data_set(corpus: Corpus, tmp_path: Path) -> None:
    with Dataset.open(
        "uneven", [str(corpus.folder / "datasets/uneven")], keys=KEYS, index_dir=tmp_path
    ) as dataset:
        assert [shard.records for shard in dataset.shards] == [7, 5, 1, 0, 11]
        assert [dataset.read(number).label for number in range(24)] == list(range(24))
