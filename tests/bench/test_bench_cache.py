import dataclasses
import json

import numpy as np
import pytest

from bench import bench_cache, contest, harness, report
from bench import contestant as contestant_module
from bench.contestant import ContestantFailed
from bench.inputs import decode_input, subsamplings

pytest.importorskip("feeder.decode._kernel", reason="only the native decoder keeps planes")


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(contestant_module, "RIVALS_FOLDER", tmp_path / "rivals")
    monkeypatch.setattr(bench_cache, "INDEX_RECORDS", 20)


def test_rows_of_a_run(imagenet_sample, small, tmp_path, capsys):
    assert bench_cache.run(imagenet_sample, rivals=True, as_json=True, rounds=1, images=12, size=32) == 0
    printed = capsys.readouterr().out
    head, *rows, summary = map(json.loads, printed.splitlines())
    assert (head["bench"], head["images"]) == ("cache", 12)
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in {row["kind"] for row in rows}}
    assert {row["contestant"]: row.get("cached") for row in by_kind["contestant"]} == {
        "feeder": 0,
        "feeder (25 % cached)": 0.25,
        "feeder (50 % cached)": 0.5,
        "feeder (75 % cached)": 0.75,
        "feeder (100 % cached)": 1,
        "feeder (seek points)": None,
        "feeder (cold)": None,
    }
    # The same pixels are as far from the oracle's.
    assert len({json.dumps(row["agreement"]) for row in by_kind["contestant"]}) == 1
    assert {row["contestant"] for row in by_kind["left_out"]} == set(bench_cache.COMPARED)
    index = {row["what"]: row for row in by_kind["index"]}
    assert {what: (row["threads"], row["records"]) for what, row in index.items()} == {
        "feeder index, two threads": (2, 20),
        "feeder index": (1, 20),
        "plain read, two threads": (2, 20),
        "plain read": (1, 20),
    }
    assert all(row["mb_per_s"]["median"] > 0 for row in index.values())
    assert index["plain read"]["of_plain_read"]["median"] == 1
    assert index["plain read, two threads"]["of_read_alike"]["median"] == 1
    assert index["plain read"]["read_bytes"] >= 1 << 17
    assert set(summary["compared"]) == {
        "all cached, nothing cached",
        "all cached, nothing cached but seek points",
    }
    (tmp_path / "cache-here.jsonl").write_text(printed)
    page = report.markdown(report.newest_run(tmp_path / "cache-here.jsonl"))
    assert "| feeder (100 % cached) |" in page
    assert "| feeder index " in page
    assert "| 1/2 |" in page


def test_what_planes_weigh(imagenet_sample):
    data = decode_input(imagenet_sample, 40)
    rows = bench_cache._weigh(data)
    weights = {(row["files"], row["reduction"]): row for row in rows}
    pixels = data.sizes.astype(np.int64).prod(axis=1)
    samplings = np.array(subsamplings(data.files))
    for sampling, samples in (("4:4:4", 3), ("4:2:0", 1.5)):
        row = weights[sampling, 1]
        assert row["images"] == (samplings == sampling).sum()
        assert row["bytes_per_image"] == pytest.approx(
            samples * pixels[samplings == sampling].mean(), rel=0.02
        )
    assert weights["all", 1]["images"] == 40
    assert weights["all", 2]["bytes_per_image"] < weights["all", 1]["bytes_per_image"] / 2


def test_other_images_than_those_without_a_cache_are_an_error(imagenet_sample, tmp_path):
    data, cores = decode_input(imagenet_sample, 4), harness.choose_cores(1)
    other = dataclasses.replace(data, flips=~data.flips)
    with (
        contest.start(contest.FEEDER["native"], cores) as first,
        contest.start(bench_cache.CACHED, cores) as second,
    ):
        contest.load(first, data, 16, 1)
        contest.load(second, data, 16, 1)
        bench_cache._check_same([first, second], data, tmp_path)
        contest.load(second, other, 16, 1)
        with pytest.raises(ContestantFailed, match="its images are not those of feeder"):
            bench_cache._check_same([first, second], data, tmp_path)


def test_the_comparison_takes_the_rival_that_is_nearest():
    def row(name, ratio):
        spread = {"median": ratio, "min": ratio - 1, "max": ratio + 1}
        return {
            "kind": "contestant",
            "contestant": name,
            "feeder_times_faster": spread,
            "feeder_times_less_cpu": spread,
        }

    rows = [row("feeder", 8.0), row("OpenCV", 19.0), row("torchvision", 21.0), {"kind": "index"}]
    found = bench_cache.compared(rows)
    assert {name: one["contestant"] for name, one in found.items()} == {
        "all cached, fastest antialiased rival": "OpenCV",
        "all cached, nothing cached": "feeder",
    }


def test_index_rows_are_bytes_over_time():
    rounds = {
        "feeder index, two threads": [harness.Round(1.0, 2.0, 10)],
        "plain read, two threads": [harness.Round(0.25, 0.5, 10)],
        "plain read": [harness.Round(0.5, 0.5, 10)],
    }
    rows = bench_cache._index_rows("run", rounds, {name: {} for name in rounds}, 10_000_000)
    assert [row["mb_per_s"]["median"] for row in rows] == [10, 40, 20]
    assert [row["of_plain_read"]["median"] for row in rows] == [0.5, 2, 1]
    assert [row["of_read_alike"]["median"] for row in rows] == [0.25, 1, 1]
    assert [row["records"] for row in rows] == [10] * 3
