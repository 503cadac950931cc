"""Samples of tar shards, grouped as WebDataset groups them."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import BadRecord, BadShard, ConfigError, StorageError
from feeder.records import Dataset, RecordKeys
from feeder.records.formats import build_index
from feeder.records.webdataset import key_and_suffix


def archive(members: Sequence[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def read_all(path: Path, keys: RecordKeys = RecordKeys()) -> list[tuple[bytes, int] | str]:  # noqa: B008
    """Image and label of each record, or why it is bad."""
    found: list[tuple[bytes, int] | str] = []
    with Dataset.open("tar", [str(path)], keys=keys) as dataset:
        for number in range(len(dataset)):
            try:
                record = dataset.read(number)
                found.append((bytes(record.image), record.label))
            except BadRecord as error:
                found.append(error.reason)
    return found


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("000.jpg", ("000", "jpg")),
        ("a/b/000.JPEG", ("a/b/000", "jpeg")),
        ("a.b/c.d/000.jpg", ("a.b/c.d/000", "jpg")),
        ("000.seg.png", ("000", "seg.png")),
        ("./000.cls", ("./000", "cls")),
        ("000.", ("000", "")),
        ("a.b/000", None),
        ("000", None),
        (".hidden.jpg", None),
        ("a/._000.jpg", None),
        ("__meta__.json", ("__meta__", "json")),
        ("__meta__/000.jpg", None),
        ("__meta__", None),
        ("", None),
    ],
)
def test_names_split_at_the_first_dot_of_their_last_part(name: str, split: tuple[str, str] | None) -> None:
    assert key_and_suffix(name) == split


def documented_groups(names: Sequence[str]) -> list[tuple[str, list[str]] | str]:
    """Key and suffixes of each sample by the rules of WebDataset; only the key where one is double."""
    samples: list[tuple[str, list[str]]] = []
    for name in names:
        match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
        if match is None or re.match(r"__[^/]*__($|/)", name):
            continue
        key, suffix = match[1], match[2].lower()
        if not samples or samples[-1][0] != key:
            samples.append((key, []))
        samples[-1][1].append(suffix)
    return [key if len(set(found)) < len(found) else (key, found) for key, found in samples]


stems = st.sampled_from(["0", "1", "00", "x/0", "x.y/0", "./1", "__m__", "__m__/0", "a b"])
suffixes = st.sampled_from(["jpg", "JPG", "png", "cls", "Cls", "json", "txt", "seg.png", ""])


@given(st.lists(st.one_of(st.tuples(stems, suffixes).map(".".join), stems), max_size=12))
@settings(max_examples=300, deadline=None)
def test_samples_are_those_of_webdatasets_rules(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    """Whatever the order of members, each documented sample is one record, good where it is complete."""
    path = tmp_path_factory.mktemp("tar") / "shard.tar"
    members = []
    for number, name in enumerate(names):
        suffix = name.rpartition("/")[2].partition(".")[2].lower()
        data = {"cls": b"%d" % number, "json": json.dumps({"label": number}).encode()}.get(
            suffix, b"image %d" % number
        )
        members.append((name, data))
    path.write_bytes(archive(members))
    index = build_index(path, RecordKeys())
    want = documented_groups(names)
    assert len(index) == len(want)
    assert index.damage is None
    for group, label in zip(want, index.label.tolist(), strict=True):
        good = (
            not isinstance(group, str)
            and {"jpg", "png"} & set(group[1]) != set()
            and {"cls", "json"} & set(group[1]) != set()
        )
        assert (label >= 0) == good


def test_images_and_labels_of_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "train-000.tar"
    path.write_bytes(
        archive(
            [
                ("0.cls", b" 7\n"),
                ("0.JPEG", b"zero"),
                ("1.json", b'{"label": 8, "text": "x"}'),
                ("1.png", b"one"),
                ("2.png", b"not this"),
                ("2.jpg", b"but this"),
                ("2.json", b'{"label": 1}'),
                ("2.cls", b"+9"),
                ("3.webp", b"three"),
                ("3.json", b"10"),
            ]
        )
    )
    assert read_all(path) == [(b"zero", 7), (b"one", 8), (b"but this", 9), (b"three", 10)]
    keys = RecordKeys(image="png;jpg;JPEG;webp", label="json:label;cls", label_base=1)
    assert read_all(path, keys) == [(b"zero", 6), (b"one", 7), (b"not this", 0), (b"three", 9)]
    with Dataset.open("tar", [str(path)]) as dataset:
        assert dataset.nbytes == sum(map(len, (b"zero", b"one", b"but this", b"three")))
        assert dataset.locate(2) == ("train-000.tar", 2)


def test_the_crc_is_that_of_the_image(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(archive([("0.jpg", b"image"), ("0.cls", b"1")]))
    assert build_index(path, RecordKeys()).crc.tolist() == [google_crc32c.value(b"image")]


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (("cls", b""), "b'', not one whole number"),
        (("cls", b"3.0"), "b'3.0'"),
        (("cls", b"1_0"), "b'1_0'"),
        (("cls", b"9" * 20), "not one whole number"),
        (("cls", b"-1"), "is -1; labels here start at 0"),
        (("cls", b"9" * 65), "label of 65 bytes in .cls"),
        (("json", b"{"), ".json is no JSON"),
        (("json", b"[" * 100_000), ".json is no JSON"),
        (("json", b'{"class": 3}'), "no 'label' in .json, but class"),
        (("json", b'{"label": "3"}'), "label in .json is '3'"),
        (("json", b'{"label": true}'), "label in .json is 'True'"),
        (("json", b'{"label": 1.0}'), "label in .json is '1.0'"),
        (("json", b" " * (1 << 20) + b"3"), "label of 1048577 bytes"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, label: tuple[str, bytes], said: str) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(
        archive([("k.jpg", b"image"), (f"k.{label[0]}", label[1]), ("l.jpg", b"i"), ("l.cls", b"1")])
    )
    reason, good = read_all(path)
    assert isinstance(reason, str)
    assert said in reason
    assert "(sample 'k')" in reason
    assert good == (b"i", 1)


def test_keys_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(archive([("0.jpg", b"image"), ("0.cls", b"1")]))
    for keys, said in (
        (RecordKeys(label="cls:label"), "only json has names"),
        (RecordKeys(label=";"), "no suffix"),
    ):
        with pytest.raises(ConfigError, match=said):
            Dataset.open("tar", [str(path)], keys=keys)


def test_damage_loses_what_is_behind_it_and_the_sample_it_hits(tmp_path: Path) -> None:
    whole = archive([(f"{n}.{suffix}", b"%d" % n) for n in range(4) for suffix in ("jpg", "cls")])
    for block, good in ((0, None), (2, 0), (4, 1), (6, 1), (8, 2), (14, 3)):
        hurt = bytearray(whole)
        hurt[512 * block + 20] ^= 1
        path = tmp_path / f"{block}.tar"
        path.write_bytes(hurt)
        if good is None:
            with pytest.raises(BadShard, match="not a tar archive, or damaged from its first byte"):
                Dataset.open("tar", [str(path)])
            continue
        found = read_all(path)
        assert found[:-1] == [(b"%d" % n, n) for n in range(good)]
        assert found[-1] == f"at offset {512 * block}: checksum of a tar header is wrong"


def test_many_bad_samples_keep_the_index_small(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(archive([(f"{n}.{'x' * (n % 50)}{n}", b"") for n in range(4000)]))
    index = build_index(path, RecordKeys())
    assert len(index) == 4000
    assert len(index.reasons) <= 2001


def test_an_image_that_changes_in_place(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(archive([("0.jpg", b"image"), ("0.cls", b"1"), ("1.jpg", b"other"), ("1.cls", b"2")]))
    with Dataset.open("tar", [str(path)]) as dataset:
        with open(path, "r+b") as file:
            file.seek(512)
            file.write(b"I")
        with pytest.raises(StorageError, match=r"was changed in place|not the file that was indexed"):
            dataset.read(0)
