"""Sizes that people write, and what bounds them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feeder.cache import Size, parse_size, resolve
from feeder.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64GiB", Size(64 << 30, None)),
        ("500MB", Size(500_000_000, None)),
        ("1.5 GB", Size(1_500_000_000, None)),
        ("3TiB", Size(3 << 40, None)),
        ("2kB", Size(2000, None)),
        ("4096", Size(4096, None)),
        ("80%", Size(None, 80.0)),
        ("12.5 %", Size(None, 12.5)),
    ],
)
def test_sizes(text: str, size: Size) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "0", "0%", "101%", "-5GB", "64 gibibytes", "1e9", "5GiB5", "٣GB"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="a size is bytes, such as 64GiB"):
        parse_size(text)


def test_a_share_is_of_the_file_system(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    nbytes, note = resolve(Size(None, 50), tmp_path)
    assert 0 < nbytes <= status.f_blocks * status.f_frsize // 2
    assert not note


def test_more_than_there_is_becomes_what_there_is(tmp_path: Path) -> None:
    nbytes, note = resolve(Size(1 << 60, None), tmp_path)
    assert nbytes < 1 << 60
    assert f"less than the {1 << 60} that the cache may take" in note


def test_less_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve(Size(1 << 20, None), tmp_path) == (1 << 20, "")


def test_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert resolve(Size(None, 50), tmp_path / "a" / "b") == resolve(Size(None, 50), tmp_path)
    assert not (tmp_path / "a").exists()
