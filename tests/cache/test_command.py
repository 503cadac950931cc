"""`feeder cache`: what it shows, drops and finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cached_numbers import Numbers, OpenCache, add, find, held

from feeder.cli import main

ALL = range(80)


@pytest.fixture
def filled(open_cache: OpenCache, place: Path) -> Path:
    cache = open_cache(Numbers(), Numbers("xy", name="others"))
    for record in ALL:
        add(cache, record)
        add(cache, record, name="others")
    cache.close()
    return place


def test_ls(filled: Path, open_cache: OpenCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls", "--cache-dir", str(filled)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{filled}: \d+ kB", lines[0])
    assert [line.split()[:2] for line in lines[2:]] == [["numbers", "80"], ["others", "80"]]
    open_cache()
    assert main(["cache", "ls", "--cache-dir", str(filled)]) == 0
    assert "in use by process" in capsys.readouterr().out


def test_ls_shows_what_is_damaged(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim = next(filled.glob("*.arrow"))
    victim.chmod(0o600)
    victim.write_bytes(b"")
    assert main(["cache", "ls", "--cache-dir", str(filled)]) == 0
    assert "(damaged)" in capsys.readouterr().out


def test_drop(filled: Path, open_cache: OpenCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "drop", "--cache-dir", str(filled), "--dataset", "others"]) == 0
    cache = open_cache(Numbers(), Numbers("xy", name="others"))
    assert held(cache, ALL) == set(ALL)
    assert set(find(cache.shelf("others"), ALL).places.tolist()) == {-1}
    capsys.readouterr()
    assert main(["cache", "drop", "--cache-dir", str(filled)]) == 0
    assert "the rest when the workers let go" in capsys.readouterr().out
    cache.refresh()
    assert held(cache, ALL) == set()
    assert not list(filled.rglob("*.arrow"))


def test_drop_of_a_data_set_that_is_not_there(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(filled.glob("*.arrow"))
    assert main(["cache", "drop", "--cache-dir", str(filled), "--dataset", "nubmers"]) == 2
    assert "holds nothing of a data set 'nubmers'; it has: numbers, others\n" in capsys.readouterr().err
    assert set(filled.glob("*.arrow")) == before


def test_verify(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "verify", "--cache-dir", str(filled)]) == 0
    assert "160 records are sound, 0 damaged" in capsys.readouterr().out
    victim = next(filled.glob("*.arrow"))
    content = bytearray(victim.read_bytes())
    content[1000] ^= 1
    victim.chmod(0o600)
    victim.write_bytes(content)
    assert main(["cache", "verify", "--cache-dir", str(filled)]) == 1
    assert f"{victim}: its crc32c is" in capsys.readouterr().out
    assert main(["cache", "verify", "--cache-dir", str(filled), "--drop"]) == 1
    assert not victim.exists()
    assert main(["cache", "verify", "--cache-dir", str(filled)]) == 0


def test_where_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls", "--cache-dir", str(tmp_path)]) == 2
    assert "no cache here: name its folder (--cache-dir)" in capsys.readouterr().err
