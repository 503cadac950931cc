import json

from bench import bench_jobs


def test_rows_of_a_run(small_images, monkeypatch, capsys):
    monkeypatch.setattr(bench_jobs, "WARM_UP_BATCHES", 1)
    settings = {"folder": small_images, "shards": None, "rounds": 1, "batches": 2, "size": 32, "threads": 1}
    assert bench_jobs.run(as_json=True, **settings) == 0
    head, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert (head["bench"], head["threads"]) == ("jobs", 1)
    assert [row["contestant"] for row in rows] == [
        f"{jobs}, {way}"
        for way in ("TCP", "same host")
        for jobs in ("one job", "two jobs of one spec", "two jobs of two specs")
    ]
    for row in rows:
        assert row["images_per_s"]["median"] > 0
        assert row["run"] == head["run"]
    assert rows[0]["feeder_times_faster"]["median"] == 1
