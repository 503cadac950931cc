import json

import numpy as np
import pytest

from bench import bench_decode, contest, harness
from bench import contestant as contestant_module
from bench.contestant import ContestantFailed, rival
from bench.inputs import decode_input, jpeg_files
from bench.oracle import agreement
from feeder.errors import ConfigError


@pytest.fixture
def no_rivals(monkeypatch, tmp_path):
    monkeypatch.setattr(contestant_module, "RIVALS_FOLDER", tmp_path / "rivals")


def test_a_contestant_makes_its_batches_in_order(imagenet_sample, tmp_path):
    data = decode_input(imagenet_sample, 20)
    core = str(harness.choose_cores(1)[0])
    path = tmp_path / "outputs.npy"
    with rival("feeder", None, "decode_feeder.py", "--cores", core, "--variant", "portable") as one:
        contest.load(one, data, 64, 1)
        result = one.ask("round")
        one.ask("outputs", path=str(path), count=13)
    assert result["images"] == 20
    assert result["seconds"] > 0
    assert result["cpu_seconds"] > 0
    outputs = np.load(path)
    assert outputs.shape == (13, 64, 64, 3)
    assert one.facts["antialias"] is True
    assert one.facts["windows"] == "exact"
    wanted = contest._oracle(data, 13, 64, True)
    assert agreement(outputs, wanted).mean_abs < 1


@pytest.mark.parametrize("variant", ["native", "seek"])
def test_threads_and_seek_points_change_no_pixel(imagenet_sample, tmp_path, variant):
    data = decode_input(imagenet_sample, 3 * contest.BATCH // 2)
    core = str(harness.choose_cores(1)[0])
    outputs = []
    with rival("feeder", None, "decode_feeder.py", "--cores", core, "--variant", variant) as one:
        for threads in (1, 3):
            contest.load(one, data, 32, threads)
            assert one.ask("round")["images"] == len(data.files)
            one.ask("outputs", path=str(tmp_path / "outputs.npy"), count=len(data.files))
            outputs.append(np.load(tmp_path / "outputs.npy"))
    np.testing.assert_array_equal(*outputs)
    assert agreement(outputs[0], contest._oracle(data, len(data.files), 32, True)).mean_abs < 1.5


def test_a_contestant_that_does_another_job_is_left_out(imagenet_sample):
    data = decode_input(imagenet_sample, 8)
    core = str(harness.choose_cores(1)[0])
    with rival("feeder", None, "decode_feeder.py", "--cores", core, "--variant", "portable") as one:
        contest.load(one, data, 64, 1)
        data.flips[:] = ~data.flips
        with pytest.raises(ContestantFailed, match="another job"):
            contest.check(one, data, 64)


def test_rows_of_a_run(imagenet_sample, no_rivals, capsys):
    code = bench_decode.run(
        imagenet_sample, decoder="portable", rivals=True, as_json=True, rounds=2, images=8, size=32
    )
    head, ours, *left_out, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert code == 0
    assert (head["kind"], head["bench"], head["images"], head["rounds"]) == ("environment", "decode", 8, 2)
    assert ours["contestant"] == "feeder portable"
    assert ours["feeder_times_faster"]["median"] == 1
    assert len(ours["seconds"]) == 2
    assert [row["contestant"] for row in left_out] == [entry.name for entry in contest.RIVALS]
    assert all("make rivals" in row["reason"] for row in left_out)
    assert summary == {"kind": "summary", "run": head["run"], "feeder": "feeder portable", "compared": {}}


def test_a_table_for_people(imagenet_sample, no_rivals, capsys):
    assert bench_decode.run(imagenet_sample, decoder="portable", rounds=1, images=4, size=32) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("| contestant ")
    assert "| feeder portable |" in captured.out
    assert captured.err == ""


def test_the_comparison_takes_the_rival_that_is_nearest():
    def row(name, antialias, ratio):
        def spread(middle):
            return {"median": middle, "min": middle - 0.1, "max": middle + 0.1}

        return {
            "kind": "contestant",
            "contestant": name,
            "antialias": antialias,
            "feeder_times_faster": spread(ratio),
            "feeder_times_less_cpu": spread(ratio),
            "seek_times_faster": spread(ratio + 1),
            "seek_times_less_cpu": spread(ratio + 2),
        }

    rows = [
        row("feeder", True, 1.0),
        row("feeder (seek points)", True, 0.8),
        row("feeder portable", True, 1.1),
        row("OpenCV", True, 2.0),
        row("Pillow", True, 3.0),
        row("tf.data", False, 1.5),
        {"kind": "left_out", "contestant": "DALI", "reason": "not installed"},
    ]
    found = bench_decode.compared(rows)
    assert {name: (one["contestant"], one["ratio"], one["by_cpu"]) for name, one in found.items()} == {
        "fastest antialiased rival": ("OpenCV", 2.0, 2.0),
        "fastest antialiased rival, with seek points": ("OpenCV", 3.0, 4.0),
        "tf.data without antialias": ("tf.data", 1.5, 1.5),
        "tf.data without antialias, with seek points": ("tf.data", 2.5, 3.5),
    }


def test_windows_are_the_same_each_time_and_files_evenly_spread(imagenet_sample):
    first, second = decode_input(imagenet_sample, 10), decode_input(imagenet_sample, 10)
    np.testing.assert_array_equal(first.windows, second.windows)
    np.testing.assert_array_equal(first.flips, second.flips)
    files = jpeg_files(imagenet_sample)
    assert first.files == [files[index * len(files) // 10] for index in range(10)]


def test_folders_without_images(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        jpeg_files(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"holds no \.jpg"):
        jpeg_files(tmp_path)
    (tmp_path / "text.jpg").write_text("not an image")
    with pytest.raises(ConfigError, match="no file could be read, the first one because"):
        decode_input(tmp_path, 10)


def test_a_missing_decoder_is_an_error_and_not_another_row(imagenet_sample, monkeypatch):
    monkeypatch.setattr(
        contest,
        "FEEDER",
        {"native": contest.Entry("feeder", None, "decode_feeder.py", "no-such-kind")},
    )
    with pytest.raises(ContestantFailed, match="feeder: ended"):
        bench_decode.run(imagenet_sample, rounds=1, images=2, size=32)
