"""A folder that keeps what a check has done, so that one that was interrupted goes on.

There is one file for each piece, a run of records of one shard. Its name is a hash of the shard's content
(see ShardIndex.content) and of the piece's place there, so that results of other data are never taken; its
bytes are guarded by a crc32c, and it appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from feeder.errors import StorageError
from feeder.quality.rows import ROW, Rows
from feeder.records.storage import temporary

__all__ = ["Piece", "State"]

SUFFIX = ".feederverify"

_MAGIC = b"feeder verify 1\n"
"""Changes with every change of ROW or of what it means; files of other versions are made anew."""

_HEAD = struct.Struct("<II")


@dataclass(frozen=True)
class Piece:
    """Some records of one shard.

    Attributes:
        content: of the shard.
        start: number of the first within the shard.
        numbers: of the records in the data set.
    """

    content: str
    start: int
    numbers: range

    @property
    def key(self) -> str:
        """Equal for equal records."""
        place = f"{self.content} {self.start} {len(self.numbers)}"
        return hashlib.sha256(place.encode()).hexdigest()[:32]


class State:
    """Results of pieces, in a folder of their own within one that is made if need be.

    So that folder may hold anything else, even the shards.

    Attributes:
        folder: the one that was named.
        indexes: a folder for the indexes that had to be built.
        passed_over: lines on files that were there and not of use.

    Raises:
        StorageError: the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own = folder / "feeder-verify"
        self.indexes = self._own / "indexes"
        self.passed_over: list[str] = []
        with self._used():
            self._own.mkdir(parents=True, exist_ok=True)

    def resume(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Rows, dict[int, str]]]:
        """What was saved of those pieces that are done.

        Args:
            pieces: of the whole data set.
        """
        names = {piece.key + SUFFIX for piece in pieces}
        with self._used():
            others = [name for name in os.listdir(self._own) if name.endswith(SUFFIX) and name not in names]
        if others:
            files = "1 file" if len(others) == 1 else f"{len(others)} files"
            self.passed_over.append(f"{self.folder}: passed over {files} of other records than are here now")
        for piece in pieces:
            path = self._path(piece)
            try:
                yield piece, *_parse(path.read_bytes(), piece)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self.passed_over.append(f"{path}: {error}: checking its records anew")

    def save(self, piece: Piece, rows: Rows, reasons: dict[int, str]) -> None:
        """Keeps what is known of a piece.

        Args:
            piece: the records.
            rows: of all of them.
            reasons: why the bad ones are bad, by their numbers in the data set.

        Raises:
            StorageError: the folder cannot be written.
        """
        first = piece.numbers.start
        said = json.dumps({number - first: reason for number, reason in reasons.items()}).encode()
        body = _HEAD.pack(len(rows), len(said)) + said + rows.tobytes()
        path = self._path(piece)
        with (
            self._used(),
            temporary(path) as (fd, hidden),
            os.fdopen(fd, "wb", closefd=False) as file,
        ):
            file.write(_MAGIC + google_crc32c.value(body).to_bytes(4, "little") + body)
            file.flush()
            os.fsync(fd)
            os.replace(hidden, path)

    def clear(self) -> None:
        """Removes all that is kept, and the folder if nothing else is there."""
        shutil.rmtree(self._own, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _path(self, piece: Piece) -> Path:
        return self._own / (piece.key + SUFFIX)

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self.folder}: cannot keep the state there: {error.strerror or error}: "
                "name another folder (--state)"
            ) from error


def _parse(data: bytes, piece: Piece) -> tuple[Rows, dict[int, str]]:
    """Rows and reasons of a file.

    Raises:
        ValueError: it is damaged, or of another version; the text says which.
    """
    if len(data) < len(_MAGIC) + 4 + _HEAD.size or not data.startswith(_MAGIC):
        raise ValueError("is damaged, or of another version of feeder")
    body = data[len(_MAGIC) + 4 :]
    if google_crc32c.value(body) != int.from_bytes(data[len(_MAGIC) :][:4], "little"):
        raise ValueError("is damaged: its crc32c is wrong")
    count, length = _HEAD.unpack_from(body)
    at = _HEAD.size
    said = json.loads(body[at : at + length])
    rows = np.frombuffer(body[at + length :], ROW)
    if not count == len(rows) == len(piece.numbers):
        raise ValueError(f"holds {len(rows)} records instead of {len(piece.numbers)}")
    return rows, {piece.numbers.start + int(number): reason for number, reason in said.items()}
