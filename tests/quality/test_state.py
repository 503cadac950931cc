"""What is kept of a check that was interrupted."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from feeder.errors import StorageError
from feeder.quality.rows import ROW, Rows
from feeder.quality.state import Piece, State

PIECES = [Piece("ab", 0, range(10, 14)), Piece("ab", 4, range(14, 16)), Piece("cd", 0, range(16, 19))]


def some(piece: Piece) -> tuple[Rows, dict[int, str]]:
    rows = np.zeros(len(piece.numbers), ROW)
    rows["label"] = piece.numbers
    return rows, {piece.numbers[-1]: "is bad: ü"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state with the first and last piece."""
    state = State(tmp_path / "state")
    for piece in (PIECES[0], PIECES[2]):
        state.save(piece, *some(piece))
    return state.folder


def test_what_was_saved_comes_back(folder: Path) -> None:
    state = State(folder)
    found = list(state.resume(PIECES))
    assert [piece for piece, *_ in found] == [PIECES[0], PIECES[2]]
    for piece, rows, reasons in found:
        assert (rows.tobytes(), reasons) == (some(piece)[0].tobytes(), some(piece)[1])
    assert state.passed_over == []


def test_equal_content_elsewhere_is_known_and_other_content_not(folder: Path) -> None:
    state = State(folder)
    moved = Piece("ab", 0, range(100, 104))
    ((piece, rows, reasons),) = state.resume([moved, Piece("ab", 0, range(5)), Piece("ef", 0, range(16, 19))])
    assert (piece, rows["label"].tolist(), reasons) == (moved, [10, 11, 12, 13], {103: "is bad: ü"})
    assert state.passed_over == [f"{folder}: passed over 1 file of other records than are here now"]


def test_a_damaged_file_is_passed_over_with_a_line(folder: Path) -> None:
    path = folder / f"feeder-verify/{PIECES[0].key}.feederverify"
    whole = path.read_bytes()
    cuts = [whole[:cut] for cut in range(0, len(whole), 7)]
    flips = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(0, len(whole), 7)]
    empty = b"feeder verify 1\n"  # of nothing the crc32c is 0, as that of no bytes is read
    for damaged in [*cuts, *flips, whole + b"\0", empty, empty + bytes(4)]:
        path.write_bytes(damaged)
        state = State(folder)
        assert [piece for piece, *_ in state.resume(PIECES)] == [PIECES[2]]
        (line,) = state.passed_over
        assert line.startswith(f"{path}: is damaged")
        assert line.endswith("checking its records anew")


def test_clear_leaves_what_is_not_its_own(folder: Path) -> None:
    state = State(folder)
    (folder / "notes.txt").write_text("mine")
    state.indexes.mkdir()
    (state.indexes / "a.feederidx").touch()
    state.clear()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    State(folder).clear()
    assert not folder.exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file: cannot keep the state there: .* \(--state\)"):
        State(tmp_path / "file")
    state = State(tmp_path / "gone")
    shutil.rmtree(state.folder)
    with pytest.raises(StorageError, match="gone: cannot keep the state there"):
        state.save(PIECES[0], *some(PIECES[0]))
