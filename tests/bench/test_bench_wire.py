import json

import pytest

from bench import bench_wire, service


def test_rows_of_a_run(monkeypatch, capsys):
    monkeypatch.setattr(service, "WARM_UP_BATCHES", 1)
    code = bench_wire.run(as_json=True, rounds=1, batches=100, size=16)
    head, *contestants, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert code == 0
    assert (head["bench"], head["batches"], head["batch"]) == ("wire", 100, 64)
    rows = {row["contestant"]: row for row in contestants}
    assert list(rows) == [
        "feeder",
        "feeder, one connection",
        "feeder (TLS)",
        "bare sockets",
        "bare sockets, one connection",
        "Arrow Flight",
        "Arrow Flight, two connections",
        "grpc.aio",
        "grpc.aio, two connections",
        "grpc.aio, its defaults",
    ]
    ours, secure, flight = rows["feeder"], rows["feeder (TLS)"], rows["Arrow Flight"]
    assert ours["gigabytes_per_s"]["median"] == pytest.approx(
        ours["images_per_s"]["median"] * 16 * 16 * 3 / 1e9, abs=1e-3
    )
    assert "TLSv1.3" in secure["note"]
    assert summary["compared"]["Arrow Flight"]["ratio"] == flight["feeder_times_faster"]["median"]


def test_what_arrives_changed_is_no_contestant(monkeypatch):
    monkeypatch.setattr(
        bench_wire, "CONTESTANTS", {bench_wire.FEEDER: bench_wire.CONTESTANTS[bench_wire.FEEDER]}
    )
    monkeypatch.setattr(bench_wire.np, "array_equal", lambda arrived, sent: False)
    with pytest.raises(bench_wire.ContestantFailed, match="not what was sent"):
        bench_wire.run(rounds=1, batches=1, size=8)
