from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from feeder.errors import ConfigError, DataError
from feeder.records import Dataset, RecordKeys, pack, writers
from feeder.records.folder import find_images
from feeder.records.pack import pack as pack_images
from feeder.records.pack import split


def picture(colour: int, mode: str = "RGB", format_name: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (8 + colour % 5, 6), colour if mode == "L" else (colour,) * len(mode)).save(
        file, format_name
    )
    return file.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes with 6, 4 and 1 images, some below a folder of their own, and what does not belong."""
    src = tmp_path / "photos"
    for label, (name, count) in enumerate((("ant", 6), ("bee", 4), ("cow", 1))):
        (src / name / "deep").mkdir(parents=True)
        for number in range(count):
            place = src / name / ("deep" if number == 1 else "") / f"{number}.jpg"
            place.write_bytes(picture(50 * label + number))
    (src / "ant" / "notes.txt").write_text("no image")
    (src / "ant" / ".hidden.jpg").write_bytes(b"")
    (src / ".cache").mkdir()
    (src / ".cache" / "x.jpg").write_bytes(b"")
    return src


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if not path.name.endswith(".feederidx")
    }


def read_all(pattern: str, base: int = 1) -> list[tuple[bytes, int]]:
    with Dataset.open("packed", [pattern], keys=RecordKeys(label_base=base), build=False) as dataset:
        return [(bytes(image), label) for image, label, _ in map(dataset.read, range(len(dataset)))]


def test_other_formats_hold_the_same_and_replace_one_another(photos: Path, tmp_path: Path) -> None:
    pack.pack(photos, tmp_path / "tfrecord", shards=2)
    want = read_all(str(tmp_path / "tfrecord"))
    dst = tmp_path / "other"
    for name, suffix in (("webdataset", ".tar"), ("parquet", ".parquet")):
        result = pack.pack(photos, dst, shards=2, format_name=name, force=True)  # type: ignore[arg-type]
        assert [path.name for path in result.shards] == [f"train-0000{n}-of-00002{suffix}" for n in range(2)]
        assert read_all(str(dst), base=0) == want
        assert len(list(dst.glob("train-*"))) == 4  # two shards, two indexes
        twin = pack.pack(photos, tmp_path / f"twin{suffix}", shards=2, format_name=name)  # type: ignore[arg-type]
        assert [path.read_bytes() for path in twin.shards] == [path.read_bytes() for path in result.shards]
    with pytest.raises(ConfigError, match="format must be one of"):
        pack.pack(photos, dst, shards=2, format_name="folder")


def test_every_image_comes_back_with_its_label(photos: Path, tmp_path: Path) -> None:
    result = pack_images(photos, tmp_path / "out", shards=3)
    want = sorted(
        (path.read_bytes(), label)
        for label, name in enumerate(("ant", "bee", "cow"))
        for path in (photos / name).rglob("[0-9].jpg")
    )
    got = read_all(str(tmp_path / "out"))
    assert sorted(got) == want
    assert got != want  # shuffled
    assert (result.records, result.holdout, result.classes, result.skipped) == (
        11,
        0,
        ["ant", "bee", "cow"],
        [],
    )
    assert json.loads((tmp_path / "out" / "labels.json").read_text()) == {"ant": 0, "bee": 1, "cow": 2}
    names = [f"train-{number:05d}-of-00003" for number in range(3)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["labels.json", *names, *(f"{name}.feederidx" for name in names)]
    )
    with Dataset.open("packed", [str(tmp_path / "out")]) as dataset:
        assert [shard.records for shard in dataset.shards] == [3, 4, 4]


def test_all_features_of_the_reference(photos: Path, tmp_path: Path, example_class: Any) -> None:
    """Read by protobuf's own parser, gray and CMYK and PNG among them."""
    src = tmp_path / "flat"
    src.mkdir()
    (src / "n01_1.JPEG").write_bytes(picture(1))
    (src / "n01_2.JPEG").write_bytes(picture(2, "L"))
    (src / "n02_3.JPEG").write_bytes(picture(3, "CMYK"))
    (src / "n02_4.JPEG").write_bytes(picture(4, format_name="PNG"))
    pack_images(src, tmp_path / "out", shards=1)
    with Dataset.open("packed", [str(tmp_path / "out")]) as dataset:
        payloads = [dataset.read(number).image.obj for number in range(4)]
    found = {}
    for payload in payloads:
        features = example_class.FromString(payload).features.feature
        values = {
            name: (feature.bytes_list.value or feature.int64_list.value)[0]
            for name, feature in features.items()
        }
        found[values["image/filename"].decode()] = values
    assert found["n01_1.JPEG"] == {
        "image/encoded": (src / "n01_1.JPEG").read_bytes(),
        "image/class/label": 1,
        "image/class/synset": b"n01",
        "image/format": b"JPEG",
        "image/filename": b"n01_1.JPEG",
        "image/height": 6,
        "image/width": 9,
        "image/colorspace": b"RGB",
        "image/channels": 3,
    }
    about = {
        name: (
            values["image/class/label"],
            values["image/format"],
            values["image/colorspace"],
            values["image/channels"],
        )
        for name, values in found.items()
    }
    assert about["n01_2.JPEG"] == (1, b"JPEG", b"Gray", 1)
    assert about["n02_3.JPEG"] == (2, b"JPEG", b"CMYK", 4)
    assert about["n02_4.JPEG"] == (2, b"PNG", b"RGB", 3)
    assert found["n02_4.JPEG"]["image/encoded"] == (src / "n02_4.JPEG").read_bytes()


def test_the_real_sample(imagenet_sample: Path, tmp_path: Path) -> None:
    result = pack_images(imagenet_sample, tmp_path, shards=4, label_base=0)
    files = sorted(imagenet_sample.glob("*.JPEG"))
    assert result.records == len(files)
    assert result.classes == sorted({path.name.split("_")[0] for path in files})
    want = {path.read_bytes(): result.classes.index(path.name.split("_")[0]) for path in files}
    got = read_all(str(tmp_path), base=0)
    assert dict(got) == want
    assert len(got) == len(files)


def test_same_seed_same_bytes_whatever_the_threads(photos: Path, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("one", "two", "other")]
    pack_images(photos, outs[0], shards=2, jobs=1)
    pack_images(photos, outs[1], shards=2, jobs=4)
    pack_images(photos, outs[2], shards=2, seed=1)
    assert hashes(outs[0]) == hashes(outs[1])
    assert hashes(outs[0]) != hashes(outs[2])


def test_the_shuffle_is_pinned() -> None:
    """The order is part of what makes runs comparable: it may never change between versions."""
    images = [(f"c/{number}.jpg", 0) for number in range(8)]
    assert [int(path[2]) for path, _ in split(images, 0, 0)[0]] == [3, 2, 0, 5, 6, 4, 1, 7]
    kept, _ = split([*images, ("c/new.jpg", 0)], 0, 0)
    assert [image for image in kept if image in images] == split(images, 0, 0)[0]


def test_holdout_takes_its_share_of_each_class(photos: Path, tmp_path: Path) -> None:
    result = pack_images(photos, tmp_path / "out", shards=2, holdout=0.25)
    held = [label for _, label in read_all(f"{tmp_path}/out/validation-*")]
    kept = [label for _, label in read_all(f"{tmp_path}/out/train-*")]
    assert sorted(held) == [0, 0, 1]  # of 6 and 4; of a class with one image nothing
    assert sorted(kept) == [0, 0, 0, 0, 1, 1, 1, 2]
    assert (result.records, result.holdout) == (8, 3)
    with pytest.raises(ConfigError, match="several data sets"):
        Dataset.open("both", [str(tmp_path / "out")])


def test_holdout_of_single_images_is_nothing(tmp_path: Path) -> None:
    images = [(f"{number}.jpg", number) for number in range(5)]
    assert split(images, 0, 0.9)[1] == []
    kept, held = split([(f"{number}.jpg", 0) for number in range(5)], 0, 0.9)
    assert (len(kept), len(held)) == (1, 4)


def test_what_is_no_image_is_named_and_left_out_or_fails(photos: Path, tmp_path: Path) -> None:
    (photos / "bee" / "empty.jpg").write_bytes(b"")
    (photos / "bee" / "page.jpg").write_bytes(b"<html>404</html>")
    (photos / "cow" / "cut.jpg").write_bytes(picture(1)[:20])
    result = pack_images(photos, tmp_path / "out", shards=2)
    assert [path for path, _ in result.skipped] == ["bee/empty.jpg", "bee/page.jpg", "cow/cut.jpg"]
    assert "empty (0 bytes)" in result.skipped[0][1]
    assert result.records == 11 == len(read_all(str(tmp_path / "out")))
    with pytest.raises(DataError, match=r"(bee|cow)/(empty|page|cut)\.jpg"):
        pack_images(photos, tmp_path / "strict", shards=2, strict=True)
    assert list((tmp_path / "strict").iterdir()) == []


def test_existing_shards_are_not_mixed_with_new_ones(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack_images(photos, out, shards=4)
    before = hashes(out)
    with pytest.raises(ConfigError, match=r"holds train-00000-of-00004 already: .*--force"):
        pack_images(photos, out, shards=2)
    assert hashes(out) == before
    pack_images(photos, out, shards=2, force=True)
    assert [path.name for path in sorted(out.glob("train-*")) if path.suffix != ".feederidx"] == [
        "train-00000-of-00002",
        "train-00001-of-00002",
    ]
    assert len(list(out.glob("*.feederidx"))) == 2
    (photos / "dog").mkdir()
    (photos / "dog" / "1.jpg").write_bytes(picture(9))
    with pytest.raises(ConfigError, match=r"labels\.json: is there and has other classes"):
        pack_images(photos, out, shards=2, name="more")


def test_killed_in_the_middle_nothing_has_a_final_name(photos: Path, tmp_path: Path) -> None:
    """Story: a pack dies after some images. Result: a hidden folder is left, which the next pack removes."""
    out = tmp_path / "out"
    program = (
        "import os, sys, itertools\n"
        "from pathlib import Path\n"
        "import feeder.records.pack as p, feeder.records.writers as w\n"
        "real, count = w.frame, itertools.count()\n"
        "w.frame = lambda payload: os._exit(9) if next(count) == 7 else real(payload)\n"
        "p.pack(Path(sys.argv[1]), Path(sys.argv[2]), shards=3, jobs=1)\n"
    )
    arguments = [sys.executable, "-c", program, str(photos), str(out)]
    assert subprocess.run(arguments, timeout=60).returncode == 9
    left = list(out.iterdir())
    assert len(left) == 1
    assert left[0].name.startswith(".feeder-pack-")
    pack_images(photos, out, shards=3)
    assert not list(out.glob(".*"))
    assert len(read_all(str(out))) == 11


def test_a_pack_that_is_alive_keeps_its_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two packs into one folder at the same time, under different names."""
    out = tmp_path / "out"
    real = writers.frame
    inner: list[int] = []

    def frame_and_pack(payload: bytes) -> tuple[bytes, bytes, int]:
        if not inner:
            inner.append(1)
            pack_images(photos, out, shards=1, name="inner", jobs=1)
        return real(payload)

    monkeypatch.setattr(writers, "frame", frame_and_pack)
    pack_images(photos, out, shards=1, name="outer", jobs=1)
    assert sorted(read_all(f"{out}/inner-*")) == sorted(read_all(f"{out}/outer-*"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"shards": 0}, "shards must be in"),
        ({"shards": 12}, "12 shards for 11 images"),
        ({"holdout": 1.0}, "holdout"),
        ({"holdout": -0.1}, "holdout"),
        ({"name": "../x"}, "name must be"),
        ({"name": "validation", "holdout": 0.5}, "name must be"),
        ({"label_base": -1}, "label base"),
    ],
)
def test_wrong_settings(photos: Path, tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pack_images(photos, tmp_path / "out", **{"shards": 1, **settings})
    assert not (tmp_path / "out").exists()


def test_folders_that_cannot_be_packed(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        find_images(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no image in it"):
        find_images(tmp_path / "empty")
    (photos / "loose_1.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match="both beside and in folders"):
        find_images(photos)
    (tmp_path / "empty" / "noclass.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"1 name has no class, such as noclass\.jpg"):
        find_images(tmp_path / "empty")
    (tmp_path / "bad" / "a").mkdir(parents=True)
    (tmp_path / "bad" / "a" / "x.jpg").write_bytes(b"text")
    with pytest.raises(DataError, match="none of 1 files is an image"):
        pack_images(tmp_path / "bad", tmp_path / "out", shards=1)


def test_memory_stays_flat(tmp_path: Path) -> None:
    """One image is held at a time, however many there are."""
    src = tmp_path / "src" / "a"
    src.mkdir(parents=True)
    big = picture(3) + bytes(1 << 20)
    for number in range(40):
        (src / f"{number}.jpg").write_bytes(big)
    tracemalloc.start()
    try:
        pack_images(tmp_path / "src", tmp_path / "out", shards=4, jobs=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20


def test_a_pack_killed_between_its_renames_leaves_a_set_that_is_refused(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack_images(photos, out, shards=3)
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "import feeder.records.pack as p\n"
        "replace, done = os.replace, []\n"
        "def dying(*paths):\n"
        "    replace(*paths)\n"
        "    done.append(paths)\n"
        "    len(done) == 3 and os._exit(9)\n"  # labels and two shards
        "p.os.replace = dying\n"
        "p.pack(Path(sys.argv[1]), Path(sys.argv[2]), shards=3, seed=1, force=True)\n"
    )
    run = subprocess.run([sys.executable, "-c", program, str(photos), str(out)], timeout=60)
    assert run.returncode == 9
    with pytest.raises(ConfigError, match="2 of the 3 shards"):
        Dataset.open("killed", [str(out)])
    pack_images(photos, out, shards=3, seed=1, force=True)
    assert len(read_all(str(out))) == 11


def test_of_two_packs_at_once_one_is_refused(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other finishes while this one writes."""
    out = tmp_path / "out"
    write_all = pack._Writer.write_all

    def slow(writer: Any, *args: Any) -> None:
        monkeypatch.undo()
        pack_images(photos, out, shards=2)
        write_all(writer, *args)

    monkeypatch.setattr(pack._Writer, "write_all", slow)
    with pytest.raises(ConfigError, match="holds train-00000-of-00002 already"):
        pack_images(photos, out, shards=3)
    assert sorted(path.name for path in out.glob("train-*[0-9]")) == [
        "train-00000-of-00002",
        "train-00001-of-00002",
    ]


def test_links_are_followed_but_not_in_circles(photos: Path, tmp_path: Path) -> None:
    want = find_images(photos)[1]
    (photos / "ant").rename(tmp_path / "elsewhere")
    (photos / "ant").symlink_to(tmp_path / "elsewhere")
    (photos / "bee" / "round").symlink_to(photos)
    assert find_images(photos) == (["ant", "bee", "cow"], want)


def test_what_is_no_regular_file_is_skipped(photos: Path, tmp_path: Path) -> None:
    os.mkfifo(photos / "ant" / "p.jpg")
    assert pack_images(photos, tmp_path / "out", shards=1).skipped == [("ant/p.jpg", "is no regular file")]


def test_a_label_map_that_is_no_text(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "labels.json").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="other classes"):
        pack_images(photos, tmp_path / "out", shards=1)
