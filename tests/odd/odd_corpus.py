"""Odd and damaged inputs, each with what has to come of it: a folder of them, or those made here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from made_images import images
from made_shards import shards

__all__ = ["Corpus", "OddFile", "made", "read"]

GROUPS = ("images", "tfrecord", "webdataset", "parquet", "datasets", "arrow")


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
