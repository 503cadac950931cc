from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from PIL import Image

from feeder.cli import main


@pytest.fixture
def photos(imagenet_sample: Path, tmp_path: Path) -> Path:
    src = tmp_path / "photos"
    src.mkdir()
    for path in sorted(imagenet_sample.glob("*.JPEG"))[:12]:
        shutil.copy(path, src / path.name)
    return src


def test_pack_index_verify(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = str(tmp_path / "shards")
    (photos / "n00_broken.JPEG").write_bytes(b"<html>")
    assert main(["pack", str(photos), shards, "--shards", "3"]) == 0
    out, err = capsys.readouterr()
    assert "12 images of 13 classes in 3 shards" in out
    assert "1 file skipped" in out
    assert "skipped n00_broken.JPEG: is no JPEG" in err

    assert main(["index", shards]) == 0
    assert "3 shards, 12 records" in capsys.readouterr().out
    assert main(["verify", shards]) == 0
    assert "12 records in 3 shards: none bad" in capsys.readouterr().err


def test_json_for_machines(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = str(tmp_path / "shards")
    assert main(["pack", str(photos), shards, "--shards", "2", "--json"]) == 0
    packed = json.loads(capsys.readouterr().out)
    assert (packed["records"], packed["classes"], len(packed["shards"]), packed["skipped"]) == (12, 12, 2, [])
    assert Path(packed["labels"]).is_file()

    assert main(["index", shards, "--force", "--json", "--jobs", "1"]) == 0
    indexed = json.loads(capsys.readouterr().out)
    assert (indexed["shards"], indexed["built"], indexed["records"], indexed["bad"]) == (2, 2, 12, 0)
    assert indexed["damaged"] == {}
    assert len(indexed["fingerprint"]) == 64

    assert main(["verify", shards, "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert (verified["records"], verified["shards"], verified["bad"]) == (12, 2, [])


def test_index_learns_seek_points_once(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("feeder.decode._kernel")
    victim = sorted(photos.iterdir())[5]
    victim.write_bytes(victim.read_bytes()[: -victim.stat().st_size // 10])
    Image.new("RGB", (40, 30)).save(photos / "n0_progressive.JPEG", progressive=True)
    shards = str(tmp_path / "shards")
    assert main(["pack", str(photos), shards, "--shards", "2"]) == 0
    capsys.readouterr()
    assert main(["index", shards, "--seek"]) == 0
    out, err = capsys.readouterr()
    assert "2 shards, 13 records" in out
    assert (
        "seek points of 13 records: 11 complete, 1 partial (damaged images), 1 impossible (no baseline JPEG, "
        "or bad); 13 learned now"
    ) in out
    assert "1 image damaged: run feeder verify" in err
    assert len(list((tmp_path / "shards").glob("*.feederseek"))) == 2

    assert main(["index", shards, "--seek", "--json"]) == 0
    indexed = json.loads(capsys.readouterr().out)
    kinds = {"complete": 11, "partial": 1, "none": 1, "bad": 0}
    assert indexed["seek"] == kinds | {"learned": 0, "damaged": 0}
    assert main(["index", shards, "--seek", "--force", "--json", "--jobs", "1"]) == 0
    indexed = json.loads(capsys.readouterr().out)
    assert indexed["seek"] == kinds | {"learned": 13, "damaged": 1}

    assert main(["pack", str(photos), shards, "--shards", "2", "--force"]) == 0
    assert not list((tmp_path / "shards").glob("*.feederseek"))


def test_index_says_where_seek_points_cannot_be_written(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("feeder.decode._kernel")
    shards = tmp_path / "shards"
    assert main(["pack", str(photos), str(shards), "--shards", "1"]) == 0
    (shards / "train-00000-of-00001.feederseek").mkdir()
    capsys.readouterr()
    assert main(["index", str(shards), "--seek"]) == 2
    err = capsys.readouterr().err
    assert "train-00000-of-00001.feederseek: cannot write seek points: Is a directory" in err
    assert "--index-dir" in err


def test_verify_lists_what_is_bad_and_exits_1(
    odd_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--label-base", "0", "--index-dir", str(tmp_path)]
    assert main(["verify", str(odd_files / "tfrecord/mixed_good_and_bad.tfrecord"), *options]) == 1
    out, err = capsys.readouterr()
    lines = [line.split("\t") for line in out.split("\n\n")[0].splitlines()]
    assert [(shard, int(index)) for shard, index, _ in lines] == [
        ("mixed_good_and_bad.tfrecord", 1),
        ("mixed_good_and_bad.tfrecord", 3),
        ("mixed_good_and_bad.tfrecord", 4),
    ]
    assert all(reason for *_, reason in lines)
    assert "6 records in 1 shard: 3 bad" in err
    assert main(["verify", str(odd_files / "tfrecord/cut_in_payload.tfrecord"), *options, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["records"] == 3
    assert report["bad"][0]["index"] == 2
    assert "offset 1665" in report["bad"][0]["reason"]


def test_verify_sees_damage_in_the_last_rows(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crop above the damage would not: verify decodes every row."""
    victim = sorted(photos.iterdir())[5]
    victim.write_bytes(victim.read_bytes()[: -victim.stat().st_size // 10])
    assert main(["pack", str(photos), str(tmp_path / "shards"), "--shards", "2"]) == 0
    assert main(["verify", str(tmp_path / "shards"), "--jobs", "2"]) == 1
    out = capsys.readouterr().out
    assert len(out.split("\n\n")[0].splitlines()) == 2  # pack's line and the bad record


def pack_holding_out(place: Path, share: str) -> int:
    folders = (str(place / "photos"), str(place / "shards"))
    return main(["pack", *folders, "--shards", "1", "--holdout", share])


def test_synth_makes_what_pack_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synth", str(tmp_path / "photos"), "--images", "6", "--classes", "2", "--seed", "3"]) == 0
    assert "6 images of 2 classes" in capsys.readouterr().out
    assert pack_holding_out(tmp_path, "0.34") == 0
    assert "4 images and 2 held out of 2 classes in 2 shards" in capsys.readouterr().out


def test_who_holds_nothing_out_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synth", str(tmp_path / "photos"), "--images", "2", "--classes", "2"]) == 0
    capsys.readouterr()
    assert pack_holding_out(tmp_path, "0.5") == 0
    out, err = capsys.readouterr()
    assert "2 images of 2 classes in 1 shard" in out
    assert err.startswith("feeder: warning: --holdout 0.5 held nothing out")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["index", "{}/none-*"], "matches no shard file"),
        (["verify", "{}/none"], "no such file or folder"),
        (["pack", "{}/none", "{}/out", "--shards", "1"], "no such folder"),
        (["synth", "{}/out", "--images", "1", "--classes", "2"], "images must be"),
    ],
)
def test_errors_are_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main([argument.format(tmp_path) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("feeder: error: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["pack", "synth", "index", "verify"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"examples:\n  feeder {command} " in capsys.readouterr().out


@pytest.mark.parametrize("jobs", ["0", "-1", "4097", "9" * 30])
def test_jobs_has_bounds(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["index", "x", "--jobs", jobs])
    assert ended.value.code == 2
    assert "argument --jobs: must be in [1, 4096]" in capsys.readouterr().err


def test_sigterm_leaves_no_hidden_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("feeder.records.pack._Writer.write_all", killed)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main(["pack", str(photos), str(tmp_path / "shards"), "--shards", "3"])
    assert ended.value.code == 143
    assert list((tmp_path / "shards").iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before
