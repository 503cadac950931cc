from __future__ import annotations

from pathlib import Path

import pytest

from feeder.errors import ConfigError
from feeder.records.shards import expand


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "train-00000-of-00002",
        "train-00001-of-00002",
        "train-00000-of-00002.feederidx",
        ".train-00000-of-00002.feederidx.x.tmp",
        ".hidden",
        "_SUCCESS",
        "copying.tmp",
        "labels.json",
        "README.md",
    ):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".feeder-pack-1").mkdir()
    return tmp_path


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_folder_glob_and_file_name_the_same_shards(folder: Path) -> None:
    want = ["train-00000-of-00002", "train-00001-of-00002"]
    assert names(expand([str(folder)])) == want
    assert names(expand([f"{folder}/*"])) == want
    assert names(expand([f"{folder}/train-0000[01]*"])) == want
    assert names(expand([f"{folder}/**/train-*"])) == want
    assert names(expand([str(folder / name) for name in reversed(want)])) == want


def test_no_shard_comes_twice(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "train-00000-of-00002")
    assert (
        len(expand([str(folder), f"{folder}/train*", str(folder / "link"), f"{folder}/../{folder.name}/*"]))
        == 2
    )


def test_an_existing_name_with_brackets_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].tfrecord").write_bytes(b"")
    assert names(expand([str(tmp_path / "a[1].tfrecord")])) == ["a[1].tfrecord"]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("", "empty"),
        ("{}/nothing", "no such file or folder .*train-00000-of-00002"),
        ("{}/none/nothing", "there is no folder"),
        ("{}/val-*", "matches no shard file .*train-00000-of-00002"),
        ("{}/*.json", "it matches labels.json, none a shard"),
    ],
)
def test_what_matches_nothing_says_what_is_there(folder: Path, pattern: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        expand([pattern.format(folder)])


def test_no_patterns_or_a_bare_string() -> None:
    with pytest.raises(ConfigError):
        expand([])
    with pytest.raises(ConfigError):
        expand("train-*")


def test_a_folder_without_shards(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_bytes(b"{}")
    with pytest.raises(ConfigError, match=r"no shard file in this folder .*labels\.json"):
        expand([str(tmp_path)])


def test_a_folder_of_two_sets_asks_which(folder: Path) -> None:
    (folder / "validation-00000-of-00001").write_bytes(b"")
    with pytest.raises(
        ConfigError, match=r"several data sets, train-\* \(2 files\), validation-\* \(1 files\)"
    ):
        expand([str(folder)])
    assert len(expand([f"{folder}/train-*"])) == 2


def test_a_folder_that_lacks_shards_is_refused_but_a_glob_is_taken_at_its_word(folder: Path) -> None:
    (folder / "train-00001-of-00002").unlink()
    with pytest.raises(ConfigError, match="1 of the 2 shards of 'train'"):
        expand([str(folder)])
    assert names(expand([f"{folder}/train-*"])) == ["train-00000-of-00002"]
