"""What the commands say of every odd input."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from odd_corpus import SHARDS, Corpus

from feeder.cli import main
from feeder.decode import decode_crop
from feeder.errors import DataError


@pytest.fixture
def _own_logging() -> Iterator[None]:
    """A worker in this process makes the log its own, on a stderr that is gone after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def is_bad(image: bytes) -> bool:
    """Whether an image is damaged anywhere."""
    try:
        decode_crop(image, None, (8, 8))
    except DataError:
        return True
    return False


def test_index_and_verify_of_every_shard(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each bad record is listed by shard, number and reason; what cannot be served is one line."""
    options = ["--label-base", "0", "--index-dir", str(tmp_path), "--json"]
    for file in corpus.of(*SHARDS):
        indexed = main(["index", str(file.path), *options])
        out, err = capsys.readouterr()
        if file.expect.get("at_open"):
            assert indexed == 2, file.name
            assert re.search(file.refused, err), (file.name, err)
        else:
            assert indexed == 0, file.name
            broken = file.expect.get("then") == "clear_error" and "skippable" not in file.expect
            assert bool(json.loads(out)["damaged"]) == broken, file.name

        verified = main(["verify", str(file.path), *options])
        out, err = capsys.readouterr()
        if file.refused:
            assert verified == 2, file.name
            assert err.startswith("feeder: error: ")
            assert err.count("\n") == 1
            assert re.search(file.refused, err), (file.name, err)
            continue
        found = json.loads(out)
        bad = [number for number, wanted in enumerate(file.records) if wanted is None]
        assert verified == (1 if bad else 0), file.name
        assert found["records"] == len(file.records), file.name
        assert [one["index"] for one in found["bad"]] == bad, file.name
        assert all(one["shard"] == file.path.name and len(one["reason"]) > 8 for one in found["bad"])


def test_verify_decodes_every_image(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = corpus.pack_images(tmp_path / "images")
    bad = [number for number, image in enumerate(images) if is_bad(image.data)]
    for number, image in enumerate(images):
        kind = image.expect["kind"]
        assert kind == "decodes_or_clear_error" or (number in bad) == (kind != "decodes"), image.name
    assert main(["verify", str(tmp_path / "images"), "--label-base", "0", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["index"] for one in found["bad"]] == bad
    assert all(len(one["reason"]) > 8 for one in found["bad"])


@pytest.mark.usefixtures("_own_logging")
def test_a_worker_does_not_start_with_what_it_cannot_serve(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--listen", "127.0.0.1:0", "--threads", "1", "--index-dir", str(tmp_path)]
    refused = [file for file in corpus.of(*SHARDS) if file.unservable]
    assert len(refused) > 10
    for file in refused:
        assert main(["worker", "--dataset", f"odd={file.path}", *options]) == 2, file.name
        out, err = capsys.readouterr()
        assert out == ""
        assert re.search(f"feeder: error: .*{file.unservable}", err), (file.name, err)
