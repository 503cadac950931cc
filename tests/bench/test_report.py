import json

import pytest

from bench import report, tables


def rows(run, *, rate=100.0):
    def spread(middle):
        return {
            "median": middle,
            "low": middle * 0.9,
            "high": middle * 1.1,
            "min": middle / 2,
            "max": middle * 2,
        }

    def contestant(name, antialias, rate):
        return {
            "kind": "contestant",
            "run": run,
            "contestant": name,
            "note": f"what {name} calls",
            "antialias": antialias,
            "windows": "exact",
            "versions": {"numpy": "2.0"},
            "images_per_s": spread(rate),
            "cpu_us_per_image": spread(1e6 / rate),
            "feeder_times_faster": spread(100.0 / rate),
            "feeder_times_less_cpu": spread(100.0 / rate),
            "seconds": [1.0],
            "agreement": {"mean_abs": 0.5, "far_off": 0.0, "worst_image": 1.0},
        }

    return [
        {
            "kind": "environment",
            "run": run,
            "bench": "decode",
            "date": "2026-11-29T12:00:00+00:00",
            "commit": "abc123",
            "dirty": False,
            "cpu": "A CPU",
            "cpus": 2,
            "cores_used": [1],
            "load_average": 1.0,
            "threads": 1,
            "size": 224,
            "batch": 64,
            "rounds": 7,
            "images": 600,
            "mean_pixels": 200_000,
            "mean_window_pixels": 90_000,
            "mean_bytes": 110_000,
        },
        contestant("Pillow", True, 50.0),
        contestant("feeder", True, rate),
        {"kind": "left_out", "run": run, "contestant": "DALI", "reason": "DALI: not installed"},
        {
            "kind": "summary",
            "run": run,
            "feeder": "feeder",
            "compared": {
                "fastest antialiased rival": {
                    "contestant": "Pillow",
                    "ratio": 2.0,
                    "min": 1.0,
                    "max": 4.0,
                    "by_cpu": 2.0,
                }
            },
        },
    ]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_page_shows_the_newest_run(tmp_path, capsys):
    write(tmp_path / "decode-here.jsonl", [*rows("old", rate=77.0), *rows("new", rate=100.0)])
    assert report.main(["--results", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert page.index("| feeder ") < page.index("| Pillow")
    assert "| 100 " in page
    assert "77" not in page
    assert (
        "\n## Decode: JPEG bytes in memory to cropped, resized, flipped batches in memory, on A CPU\n" in page
    )
    assert "A CPU, 1 core of 2, 2026-11-29, commit abc123, load average 1.0 at the end." in page
    assert "- left out: DALI: not installed" in page
    assert (
        "- fastest antialiased rival: feeder is 2.00 times as fast as Pillow (from 1.00 to 4.00), "
        "2.00 times by CPU time" in page
    )
    assert "- Pillow: what Pillow calls (numpy 2.0)" in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not end with a summary row"),
        ("{}\nnot json\n", "line 2 is not JSON"),
        ('{"kind": "summary", "run": "x"}\n', "no environment row"),
    ],
)
def test_a_file_that_is_no_run_is_named(tmp_path, capsys, text, message):
    (tmp_path / "broken.jsonl").write_text(text)
    assert report.main(["--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "broken.jsonl" in error


def test_an_empty_folder(tmp_path, capsys):
    assert report.main(["--results", str(tmp_path)]) == 2
    assert "holds no *.jsonl" in capsys.readouterr().err


def test_parts_and_scale_have_pages_of_their_own(tmp_path, capsys):
    head, pillow, feeder, _, summary = rows("new")
    cost = {"kind": "part", "run": "new", "cpu_us_per_image": feeder["cpu_us_per_image"]}
    parts = [
        cost | {"part": part, "seek": seek, "instructions_per_image": 12345}
        for part in ("read", "decode")
        for seek in (False, True)
    ]
    write(
        tmp_path / "parts-here.jsonl",
        [head | {"bench": "parts", "decoder": "native (best)"}, *parts, summary | {"compared": {}}],
    )
    scaled = [
        row | {"sweep": sweep, "at": at, "times_one_thread": row["feeder_times_faster"]}
        for sweep, at in (("threads", 1), ("area", 0.08), ("size", 40e6))
        for row in (feeder, pillow)
    ]
    write(
        tmp_path / "scale-here.jsonl",
        [head | {"bench": "scale"}, *scaled, summary | {"compared": {}}],
    )
    assert report.main(["--results", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert page.index("## Parts") < page.index("## Scale")
    assert "native (best), median of 7" in page
    assert "| 12,345 " in page
    assert "| 8 % " in page
    assert "| 40 million " in page
    assert page.count("- Pillow: what Pillow calls") == 1


def test_a_table_says_what_seek_points_give_where_all_rows_do():
    with_seek = [
        row | {f"seek_{ratio}": row[f"feeder_{ratio}"] for ratio in ("times_faster", "times_less_cpu")}
        for row in rows("new")
        if row["kind"] == "contestant"
    ]
    assert "| with seek points " in tables.decode_table(with_seek)
    assert "seek" not in tables.decode_table([with_seek[0], rows("new")[2]])


def test_committed_rows_can_be_reported():
    for path in sorted(report.RESULTS.glob("*.jsonl")):
        assert report.markdown(report.newest_run(path))
