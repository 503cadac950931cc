import json

import pytest

from bench import bench_service, service
from bench import contestant as contestant_module


def test_rows_of_a_run(small_images, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(contestant_module, "RIVALS_FOLDER", tmp_path / "rivals")
    monkeypatch.setattr(service, "LEAST_RECORDS", 150)  # 100 files, so each is there twice
    monkeypatch.setattr(bench_service, "SLICE_WARM_UP_BATCHES", 1)
    monkeypatch.setattr(bench_service, "CACHED_BATCHES", 2)
    monkeypatch.setattr(bench_service, "ROUNDS_A_LIFE", 1)
    code = bench_service.run(
        folder=small_images, shards=None, rivals=True, as_json=True, rounds=2, batches=2, size=32, threads=1
    )
    rows = list(map(json.loads, capsys.readouterr().out.splitlines()))
    head, *contestants, left_out, summary = rows
    over_tcp, same_host, ceiling, seeking, seeking_same_host, seeking_ceiling = contestants[:6]
    cached, cached_same_host, cached_ceiling = contestants[6:]
    assert code == 0
    assert [len(row["seconds"]) for row in contestants] == [2] * 9
    assert (head["bench"], head["shards"], head["batches"]) == ("service", service.SHARDS, 2)
    assert over_tcp["contestant"] == "feeder"
    assert over_tcp["feeder_times_faster"]["median"] == 1
    assert over_tcp["consumer_cpu_us_per_image"]["median"] < over_tcp["cpu_us_per_image"]["median"]
    assert ceiling["contestant"] == "feeder in-process"
    assert same_host["contestant"] == "feeder, same host"
    assert seeking_same_host["contestant"] == "feeder, same host (seek points)"
    assert [row["contestant"] for row in (cached, cached_same_host, cached_ceiling)] == [
        "feeder (cached)",
        "feeder, same host (cached)",
        "feeder in-process (cached)",
    ]
    for row in (same_host, seeking_same_host, cached_same_host, ceiling, cached_ceiling):
        assert row["copied_bytes_per_image"] == 0
    assert over_tcp["copied_bytes_per_image"] >= 32 * 32 * 3
    assert left_out["contestant"] == "tf.data service"
    assert "make rivals" in left_out["reason"]
    assert seeking["contestant"] == "feeder (seek points)"
    assert seeking["seek_times_faster"]["median"] == 1
    assert list(summary["compared"]) == [
        "the same kernel in-process",
        "the same kernel in-process, on the same host",
        "the same kernel in-process, with seek points",
        "the same kernel in-process, on the same host, with seek points",
        "the same kernel in-process, all cached",
        "the same kernel in-process, on the same host, all cached",
    ]
    ratios = [comparison["ratio"] for comparison in summary["compared"].values()]
    assert ratios[0] == pytest.approx(ceiling["feeder_times_faster"]["median"])
    assert ratios[1] == pytest.approx(ceiling["same_host_times_faster"]["median"])
    assert ratios[2] == pytest.approx(seeking_ceiling["seek_times_faster"]["median"])
    assert ratios[3] == pytest.approx(seeking_ceiling["seek_same_host_times_faster"]["median"])
    assert ratios[4] == pytest.approx(cached_ceiling["cached_times_faster"]["median"])
    assert ratios[5] == pytest.approx(cached_ceiling["cached_same_host_times_faster"]["median"])
