"""`feeder verify` on a set whose oddities are known, in every format."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feeder.cli import main
from feeder.quality import FINDINGS

DOCS = Path(__file__).resolve().parents[2] / "docs/verify.md"

COUNTS = {
    "bad": 1,
    "small": 2,
    "long": 1,
    "huge": 0,
    "empty": 1,
    "label": 0,
    "conflict": 1,
    "duplicate": 2,
    "missing": 1,
    "imbalance": 1,
}
"""Of the photos below, with --crop 200 --classes 4 --max-imbalance 2."""

OPTIONS = ["--crop", "200", "--classes", "4", "--max-imbalance", "2"]


def noise(path: Path, seed: int, size: tuple[int, int] = (240, 200), **options: Any) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1] // 4, size[0] // 4, 3), np.uint8)
    Image.fromarray(pixels).resize(size).save(path, **options)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 images of three classes, of which one is bad."""
    folder = tmp_path_factory.mktemp("verify") / "photos"
    for name in ("ant", "bee", "cat"):
        (folder / name).mkdir(parents=True)
    for number in range(6):
        noise(folder / f"ant/{number}.jpg", number)
    noise(folder / "ant/tiny.jpg", 10, (100, 80))
    noise(folder / "ant/long.jpg", 11, (800, 160))  # small, too
    Image.new("RGB", (240, 200), (3, 90, 9)).save(folder / "ant/empty.jpg")
    noise(folder / "bee/progressive.jpg", 12, progressive=True)
    noise(folder / "bee/picture.png", 13)
    Image.open(noise(folder / "bee/ink.jpg", 14)).convert("CMYK").save(folder / "bee/ink.jpg")
    shutil.copy(folder / "bee/ink.jpg", folder / "bee/again.jpg")
    shutil.copy(folder / "bee/ink.jpg", folder / "bee/and_again.jpg")
    shutil.copy(folder / "ant/1.jpg", folder / "cat/an_ant.jpg")
    whole = noise(folder / "cat/cut.jpg", 15).read_bytes()
    (folder / "cat/cut.jpg").write_bytes(whole[:-1500])
    return folder


@pytest.fixture(scope="module")
def shards(photos: Path) -> Path:
    assert main(["pack", str(photos), str(photos.parent / "shards"), "--shards", "5"]) == 0
    return photos.parent / "shards"


def report(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> dict[str, Any]:
    assert main(["verify", *arguments, *OPTIONS, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("kind", ["folder", "tfrecord", "webdataset", "parquet"])
def test_every_format_gives_the_same_report(
    kind: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    if kind == "folder":
        shutil.copytree(photos, data)
    else:
        assert main(["pack", str(photos), str(data), "--shards", "2", "--format", kind]) == 0
        for index in data.glob("*.feederidx"):
            index.unlink()
    capsys.readouterr()
    before = sorted(tmp_path.rglob("*"))
    found = report(capsys, str(data))
    assert found["counts"] == COUNTS
    assert (found["records"], found["good"]) == (16, 15)
    assert found["modes"] == {"YCbCr": 11, "CMYK": 3, "PNG": 1}
    assert found["processes"] == {"baseline": 13, "progressive": 1}
    assert found["sizes"]["width"] == {"min": 100, "median": 240, "max": 800}
    assert found["duplicates"] == {"groups": 2, "records": 3, "conflicts": 1}
    labels = found["labels"]
    assert (labels["classes"], labels["classes_from"], labels["label_base"]) == (
        4,
        "--classes",
        int(kind == "tfrecord"),
    )
    assert (labels["min"], labels["max"], labels["counts"]) == (0, 2, {"0": 9, "1": 5, "2": 1})
    assert labels["largest"] == {"label": 0, "name": "ant", "records": 9}
    assert labels["smallest"] == {"label": 2, "name": "cat", "records": 1}
    assert (labels["median"], labels["imbalance"]) == (5, 9)
    assert labels["missing"] == [{"label": 3, "name": None}]
    assert sorted(tmp_path.rglob("*")) == before  # nothing is written beside the data


def test_names_of_the_report_are_those_of_the_page(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each name is in the table of docs/verify.md, and nothing else is."""
    found = report(capsys, str(shards))

    def names(value: Any, above: str = "") -> set[str]:
        if isinstance(value, list):
            return names(value[0], f"{above}[]") if value else set()
        if not isinstance(value, dict) or above in (
            "modes",
            "processes",
            "samplings",
            "labels.counts",
            "counts",
        ):
            return {above}
        below = [names(inner, f"{above}.{name}".strip(".")) for name, inner in value.items()]
        return set().union(*below)

    said = set(re.findall(r"^\| `([\w.\[\]]+)` \|", DOCS.read_text(), re.MULTILINE))
    written = {
        re.sub(
            r"^sizes\.\w+", "sizes.NAME", re.sub(r"labels\.(smallest|largest)\.", "labels.smallest.", name)
        )
        for name in names(found)
    }
    assert said - set(FINDINGS) - {"bad"} == written
    assert {*FINDINGS, "bad"} <= said
    assert list(found["counts"]) == ["bad", *FINDINGS]


def test_the_text(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(shards), *OPTIONS, "--limit", "1"]) == 1
    out, err = capsys.readouterr()
    (bad,) = out.split("\n\n")[0].splitlines()
    assert re.fullmatch(r"train-0000\d-of-00005\t\d+\tdamaged JPEG: .*", bad)
    assert "labels      0 to 2 (in the records 1 to 3)" in out
    assert "3 of 4 have records (how many there are: --classes)" in out
    assert "duplicates  3 records of 2 pictures" in out
    assert out.count("  small\t") == 1
    assert "and 1 more small: " in out
    assert "same bytes as train-" in out
    assert err.splitlines()[-1] == "16 records in 5 shards: 1 bad, 9 findings"


def test_the_text_lists_all_that_is_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    for number in range(30):
        (tmp_path / f"a/{number}.jpg").write_bytes(b"no image")
        noise(tmp_path / f"a/{number}.png", number, (30, 20))
    assert main(["verify", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert len(out.split("\n\n")[0].splitlines()) == 30
    assert out.count("  small\t") == 20
    assert "and 10 more small" in out
    assert main(["verify", str(tmp_path), "--limit", "3", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (len(found["bad"]), len(found["findings"]), found["counts"]["bad"]) == (3, 3, 30)


def test_exit_codes(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        (tmp_path / f"{number % 2}").mkdir(exist_ok=True)
        noise(tmp_path / f"{number % 2}/{number}.jpg", number)
    assert main(["verify", str(tmp_path), "--strict", "--crop", "200"]) == 0
    assert main(["verify", str(tmp_path), "--crop", "201"]) == 0
    assert main(["verify", str(tmp_path), "--crop", "201", "--strict"]) == 1
    assert main(["verify", str(tmp_path), "--crop", "200", "--classes", "1", "--strict"]) == 1
    assert "label 2" in capsys.readouterr().out
    assert main(["verify", str(photos), "--crop", "1"]) == 1
    assert main(["verify", str(photos), "--sheet", str(tmp_path / "no/sheet.png")]) == 2
    assert "cannot write" in capsys.readouterr().err
    for wrong in (["--min-spread", "-1"], ["--max-aspect", "nan"], ["--limit", "0"], ["--classes", "x"]):
        with pytest.raises(SystemExit) as ended:
            main(["verify", str(photos), *wrong])
        assert ended.value.code == 2


def test_the_state_may_lie_with_the_shards(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shutil.copytree(shards, tmp_path / "data")
    before = sorted(data.iterdir())
    subprocess.run(
        [sys.executable, "-c", STOPPED, "SIGKILL", "verify", str(data), "--state", str(data)], timeout=60
    )
    assert sorted(data.iterdir()) != before
    assert report(capsys, str(data), "--state", str(data))["counts"] == COUNTS
    assert sorted(data.iterdir()) == before


def test_names_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    noise(tmp_path / os.fsdecode(b"a/\xff.jpg"), 0, (30, 20))
    (tmp_path / os.fsdecode(b"a/\xfe.jpg")).write_bytes(b"no image")
    assert main(["verify", str(tmp_path), "--sheet", str(tmp_path / "sheet.png")]) == 1
    out = capsys.readouterr().out
    assert "\\udcfe.jpg\t" in out
    assert "\\udcff.jpg\t" in out


def test_the_sheet_shows_what_was_flagged(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    from feeder.cli import sheet

    save_sheet = sheet.save_sheet

    def watch(path: Path, images: Any, captions: Any) -> None:
        shown.extend(captions)
        save_sheet(path, images, captions)

    monkeypatch.setattr(sheet, "save_sheet", watch)
    report(capsys, str(shards), "--sheet", str(tmp_path / "sheet.png"))
    kinds = sorted(caption.split(":")[0] for caption in shown)
    assert kinds == ["bad", "conflict", "duplicate", "duplicate", "empty", "long", "small"]
    assert all(re.fullmatch(r".+: .+\n\d+ in train-0000\d-of-00005", caption) for caption in shown)
    with Image.open(tmp_path / "sheet.png") as drawn:
        pixels = np.asarray(drawn.convert("RGB")).reshape(-1, 3)
    for colour in ((3, 90, 9), (200, 60, 60)):  # the empty picture, and the cross of the bad one
        assert (np.abs(pixels.astype(int) - colour).max(axis=1) < 5).sum() > 100

    monkeypatch.setattr("feeder.cli.verify.PICTURES", 2)
    shown.clear()
    report(capsys, str(shards), "--sheet", str(tmp_path / "sheet.png"))
    assert sorted(caption.split(":")[0] for caption in shown) == ["bad", "small"]


def test_an_index_that_is_there_is_used(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.records.build.build_index", None)
    assert report(capsys, str(shards))["counts"] == COUNTS
    monkeypatch.undo()
    bare = shutil.copytree(shards, tmp_path / "bare", ignore=shutil.ignore_patterns("*.feederidx"))
    report(capsys, str(bare), "--index-dir", str(tmp_path / "indexes"))
    assert len(list((tmp_path / "indexes").glob("*.feederidx"))) == 5


def test_objects_are_verified_without_a_folder_for_indexes(
    shards: Path, s3: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in shards.glob("train-*-of-00005"):
        s3.put(f"verify/{path.name}", path.read_bytes())
    assert report(capsys, s3.url("verify/train-*"))["counts"] == COUNTS


STOPPED = """
import os, signal, sys
from feeder.cli import main
from feeder.quality.state import State

save, left = State.save, 3

def stop(*arguments):
    global left
    save(*arguments)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.Signals[sys.argv[1]])

State.save = stop
sys.exit(main(sys.argv[2:]))
"""
"""Verifies, and sends itself a signal when three pieces are kept."""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_an_interrupted_run_goes_on(
    name: str,
    shards: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = [str(shards), "--state", str(tmp_path / "state"), "--jobs", "2"]
    whole = report(capsys, *arguments[:1])
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, name, "verify", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == {"SIGKILL": -9, "SIGINT": 130, "SIGTERM": 143}[name]
    assert done.stdout == ""
    if name != "SIGKILL":
        assert f"what is done is kept in {tmp_path}/state: the same command goes on" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((tmp_path / "state").rglob("*.feederverify"))) == 3

    from feeder.records import Dataset

    read: list[int] = []
    original = Dataset.read

    def counted(self: Dataset, record: int, *rest: Any) -> Any:
        read.append(record)
        return original(self, record, *rest)

    monkeypatch.setattr(Dataset, "read", counted)
    assert report(capsys, *arguments) == whole
    with Dataset.open("train", [str(shards)]) as dataset:
        _, first, _ = dataset.shard_starts()[3]
    assert sorted(read) == list(range(first, 16))
    assert [path.name for path in tmp_path.iterdir()] == []  # neither state nor a temporary folder is left


def test_a_state_of_other_or_damaged_data_is_passed_over(
    shards: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    subprocess.run(
        [sys.executable, "-c", STOPPED, "SIGKILL", "verify", str(shards), "--state", str(state)], timeout=60
    )
    files = sorted(state.rglob("*.feederverify"))
    files[0].write_bytes(files[0].read_bytes()[:-1])
    kept = shutil.copytree(state, tmp_path / "kept")
    assert main(["verify", str(shards), "--state", str(state), *OPTIONS]) == 1
    out, err = capsys.readouterr()
    assert f"{files[0]}: is damaged: its crc32c is wrong: checking its records anew" in err
    assert "records were done before" in err
    assert main(["verify", str(photos), "--state", str(kept), *OPTIONS]) == 1
    other, err = capsys.readouterr()
    assert f"{kept}: passed over 3 files of other records than are here now" in err
    assert not kept.exists()
    assert out.split("sizes")[1].split("labels")[0] == other.split("sizes")[1].split("labels")[0]
