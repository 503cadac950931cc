"""Odd and damaged inputs, each with what has to come of it: a folder of them, or those made here."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from made_images import images
from made_shards import IMAGE, LABEL, shards, tfrecord

from feeder.records.example import encode_example

__all__ = ["GROUPS", "SHARDS", "Corpus", "OddFile", "made", "read"]

SHARDS = ("tfrecord", "webdataset", "parquet", "datasets")
GROUPS = ("images", *SHARDS, "arrow")

NEIGHBOURS_MISSING = {"dotted_basename.tar": 1, "unsorted_pairs.tar": 4}
"""Tars in which WebDataset's rules of naming and grouping find so many samples, none with its other half."""

Expected = dict[str, Any] | None
"""Label, and perhaps the colour (rgb) of a record; None: the record is bad."""


@dataclass(frozen=True)
class OddFile:
    """One input.

    Attributes:
        name: path below the folder; its first part is the group.
        path: of the file.
        expect: what has to come of it; see `made_images` and `made_shards`.
    """

    name: str
    path: Path
    expect: dict[str, Any]

    @property
    def group(self) -> str:
        return self.name.split("/")[0]

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()

    @property
    def refused(self) -> str:
        """Of a shard that cannot be served: what the error says; else ""."""
        if self.data.startswith((b"\x1f\x8b", b"\x78")):
            return rf"{self.path.name}: is compressed with (gzip|zlib)"
        if self.expect.get("at_open"):
            return rf"{self.path.name}: (column 'label'|no column 'image')"
        return "" if self.records else "no record in any of its 1 shards"

    @property
    def unservable(self) -> str:
        """Of a shard that a worker does not start with: what the error says; else ""."""
        if not self.refused and not any(record is not None for record in self.records):
            return rf"none of its {len(self.records)} records can be used"
        return self.refused

    @property
    def records(self) -> list[Expected]:
        """Of a shard: what each of its records gives, and the one that stands for what a break has lost."""
        if self.path.name in NEIGHBOURS_MISSING:
            return [None] * NEIGHBOURS_MISSING[self.path.name]
        if "count" in self.expect:
            return [{}] * int(self.expect["count"])
        found = list(self.expect["records"])
        if self.expect.get("then") == "clear_error" and not self.expect.get("at_open"):
            found += [{"error": "what is broken"}, *self.expect.get("skippable", [])]
        # -1 is read as what it is, not as 2**64 - 1, and can be no class.
        return [None if "error" in record or record["label"] < 0 else record for record in found]


@dataclass(frozen=True)
class Corpus:
    """The inputs of one folder."""

    folder: Path
    files: Sequence[OddFile]

    def of(self, *groups: str) -> list[OddFile]:
        """Those of some groups, all of each."""
        assert set(groups) <= set(GROUPS)
        found = [file for file in self.files if file.group in groups]
        assert {file.group for file in found} == set(groups)
        return found

    def pack_images(self, path: Path) -> list[OddFile]:
        """Writes a TFRecord of all images, good and bad mixed; the label of each is its number, from 0."""
        found = self.of("images")
        random.Random(0).shuffle(found)
        records = [encode_example({IMAGE: image.data, LABEL: number}) for number, image in enumerate(found)]
        path.write_bytes(tfrecord(records))
        return found


def read(folder: Path) -> Corpus:
    """What manifest.json of a folder describes."""
    described = json.loads((folder / "manifest.json").read_text())["files"]
    return Corpus(folder, [OddFile(one["file"], folder / one["file"], one["expect"]) for one in described])


def made(folder: Path) -> Corpus:
    """Writes what is made here into a folder."""
    files = []
    for name, data, expect in (*((f"images/{name}", *rest) for name, *rest in images()), *shards()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        files.append(OddFile(name, path, expect))
    return Corpus(folder, files)
