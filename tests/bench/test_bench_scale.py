import json
import math

import numpy as np
import pytest

from bench import bench_scale, tables
from bench import contestant as contestant_module
from bench.inputs import decode_input, with_area, write_resized
from feeder.decode import open_decoder


def test_windows_of_an_area_lie_within_and_keep_the_shape(imagenet_sample):
    data = decode_input(imagenet_sample, 30)
    for area in (0.08, 0.5, 1.0):
        changed = with_area(data, area)
        assert changed.windows.dtype == np.int32
        assert (changed.windows[:, :2] >= 0).all()
        assert (changed.windows[:, :2] + changed.windows[:, 2:] <= data.sizes).all()
        shares = changed.windows[:, 2:].astype(float).prod(axis=1) / data.sizes.astype(float).prod(axis=1)
        np.testing.assert_allclose(shares, area, rtol=0.03)
    np.testing.assert_array_equal(with_area(data, 1.0).windows[:, 2:], data.sizes)


def test_resized_images_have_the_size_and_the_shape(imagenet_sample, tmp_path):
    data = decode_input(imagenet_sample, 3)
    write_resized(data, 100, 5, tmp_path)
    files = sorted(tmp_path.iterdir())
    decoder = open_decoder(1)
    sizes, reasons = decoder.sizes([path.read_bytes() for path in files])
    decoder.close()
    assert not any(reasons)
    assert len(files) == 5
    for (width, height), (was_wide, was_high) in zip(sizes, np.resize(data.sizes, (5, 2)), strict=True):
        assert math.sqrt(width * height) == pytest.approx(100, rel=0.02)
        assert width / height == pytest.approx(was_wide / was_high, rel=0.03)


def test_rows_of_a_run(imagenet_sample, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(contestant_module, "RIVALS_FOLDER", tmp_path / "rivals")
    monkeypatch.setattr(bench_scale, "AREAS", (0.25, 1.0))
    monkeypatch.setattr(bench_scale, "SIDES", (64, 600))
    monkeypatch.setattr(bench_scale, "ROUND_PIXELS", 1e6)
    assert bench_scale.run(imagenet_sample, rivals=True, as_json=True, rounds=1, images=6, size=32) == 0
    head, *rows, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert head["bench"] == "scale"
    assert summary["kind"] == "summary"
    left_out = [row for row in rows if row["kind"] == "left_out"]
    assert {row["contestant"].split()[0] for row in left_out} == {"OpenCV", "tf.data"}
    measured = [row for row in rows if row["kind"] == "contestant"]
    places = {(row["sweep"], row["at"], row["contestant"]) for row in measured}
    feeder = {"feeder", "feeder (seek points)"}
    assert {name for sweep, at, name in places if (sweep, at) == ("threads", 1)} == feeder
    assert {name for sweep, at, name in places if (sweep, at) == ("area", 0.25)} == feeder
    assert {name for sweep, at, name in places if (sweep, at) == ("size", 64.0**2)} == {
        *feeder,
        "feeder (reduced)",
    }
    table = tables.scale_table(rows)
    assert "| 25 % " in table
    assert "| 4,096 " in table
    assert "(1.00 x one thread)" in table
