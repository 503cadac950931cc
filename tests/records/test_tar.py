"""The tar reader against Python's own tarfile, and against damage."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.records.stream import Torn, open_window
from feeder.records.tar import looks_like_tar, members

Found = tuple[str, bytes, bool]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tar") / "shard.tar"


def read(data: bytes, path: Path) -> tuple[list[Found], Torn | None]:
    """(name, data, is a file) of each member that the reader finds, and how it ended."""
    path.write_bytes(data)
    found: list[Found] = []
    fd = os.open(path, os.O_RDONLY)
    try:
        window = open_window(fd, str(path))
        for member in members(window):
            assert member.header <= member.offset == window.position
            taken = b""
            if member.is_file and window.have(member.size) == member.size:
                taken = bytes(window.view[window.lo : window.lo + member.size])
                assert data[member.offset : member.offset + member.size] == taken
            found.append((member.name.rstrip("/"), taken, member.is_file))
    except Torn as torn:
        if found and found[-1][2] and torn.reason.startswith("cut short"):
            found.pop()
        return found, torn
    finally:
        os.close(fd)
    return found, None


def oracle(data: bytes) -> list[Found]:
    found: list[Found] = []
    try:
        tar = tarfile.open(fileobj=io.BytesIO(data), mode="r:")  # noqa: SIM115
    except tarfile.ReadError:  # a global header and no member
        return found
    with tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            found.append((member.name, file.read() if file else b"", member.isreg()))
    return found


names = st.text(
    st.characters(blacklist_characters="\0/", blacklist_categories=["Cs"]), min_size=1, max_size=150
).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
kinds = st.sampled_from(
    [tarfile.REGTYPE] * 6
    + [tarfile.AREGTYPE, tarfile.CONTTYPE]
    + [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]
)


class Archive(bytes):
    """Bytes that Hypothesis shows as what is in them."""

    def __repr__(self) -> str:
        return f"<archive of {[(name, len(data), is_file) for name, data, is_file in oracle(self)]!r:.2000}>"


@st.composite
def archives(draw: st.DrawFn) -> Archive:
    """An archive as tarfile writes it, in one of its formats, with members of many kinds."""
    out = io.BytesIO()
    form = draw(st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]))
    pax = {"comment": draw(names)} if form == tarfile.PAX_FORMAT and draw(st.booleans()) else None
    with tarfile.open(fileobj=out, mode="w", format=form, pax_headers=pax, errors="surrogateescape") as tar:
        for _ in range(draw(st.integers(0, 6))):
            member = tarfile.TarInfo(draw(paths))
            member.type = draw(kinds)
            member.mtime = draw(st.sampled_from([0, 1700000000, 1700000000.25]))
            if member.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                member.linkname = draw(paths)
            data = draw(st.binary(max_size=1500)) if member.isreg() else b""
            member.size = len(data)
            try:
                tar.addfile(member, io.BytesIO(data))
            except ValueError:  # a name that does not fit ustar
                continue
    return Archive(out.getvalue())


@given(archives())
@settings(max_examples=200, deadline=None)
def test_reads_what_tarfile_reads(file: Path, data: bytes) -> None:
    assert looks_like_tar(data[:512])
    assert read(data, file) == (oracle(data), None)


@given(archives(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_cut_archive_gives_whole_members_and_then_says_so(
    file: Path, whole: bytes, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(whole)))
    want = oracle(whole)
    found, torn = read(whole[:cut], file)
    assert found == want[: len(found)]
    if len(found) < len(want):
        # Only where a member ends, all there was is there: nothing tells that more should come.
        assert torn is not None or cut % 512 == 0


@given(archives(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_flipped_bit_in_a_header_is_never_a_silent_end(
    file: Path, whole: bytes, data: st.DataObject
) -> None:
    want = oracle(whole)
    starts = [at for at in range(0, len(whole), 512) if any(whole[at : at + 512])]
    if not starts:
        return
    bit = data.draw(st.integers(0, 512 * 8 - 1))
    at = data.draw(st.sampled_from(starts))
    hurt = bytearray(whole)
    hurt[at + bit // 8] ^= 1 << bit % 8
    found, torn = read(bytes(hurt), file)
    if torn is None:  # it hit the data of a member, or of a PAX header
        assert len(found) == len(want)


@given(st.binary(max_size=3000))
@settings(max_examples=200, deadline=None)
def test_any_bytes_give_members_or_an_error_by_place(file: Path, data: bytes) -> None:
    _, torn = read(data, file)
    if torn is not None:
        assert 0 <= torn.offset <= len(data)


def header(name: str, size: int, kind: bytes = b"0") -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    member.type = kind
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.fixture
def two() -> bytes:
    """Two members of one block each, without the end."""
    return header("a.jpg", 5) + b"first".ljust(512, b"\0") + header("b.jpg", 6) + b"second".ljust(512, b"\0")


def test_an_archive_may_just_end(file: Path, two: bytes) -> None:
    for end in (b"", bytes(512), bytes(1024), bytes(10240), bytes(300)):
        found, torn = read(two + end, file)
        assert [name for name, _, _ in found] == ["a.jpg", "b.jpg"]
        assert (torn is None) == (len(end) % 512 == 0)


def test_a_header_overwritten_with_zeros_is_damage(file: Path, two: bytes) -> None:
    found, torn = read(two[:1024] + bytes(512) + two[1536:] + bytes(1024), file)
    assert [name for name, _, _ in found] == ["a.jpg"]
    assert torn is not None
    assert torn.offset == 1024
    assert "more follows at offset 1536" in torn.reason


def test_joined_archives_are_called_so(file: Path, two: bytes) -> None:
    _, torn = read((two + bytes(1024)) * 2, file)
    assert torn is not None
    assert "several archives were joined" in torn.reason


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_extensions_are_bounded(file: Path, two: bytes, kind: bytes) -> None:
    _, torn = read(two + header("././@LongLink", 1 << 33, kind), file)
    assert torn is not None
    assert torn.offset == 2048
    assert "above the limit" in torn.reason


@pytest.mark.parametrize(
    "record",
    [b"30 path=a\n", b"x path=a\n", b"0 path=a\n", b"9 path=ab\n", b"11 path=aaa ", b"9 pathab\n", b"5"],
)
def test_damaged_pax_headers_are_damage(file: Path, two: bytes, record: bytes) -> None:
    pax = header("pax", len(record), b"x") + record.ljust(512, b"\0")
    found, torn = read(pax + two + bytes(1024), file)
    assert found == []
    assert torn is not None
    assert "PAX header is damaged at its byte 0" in torn.reason


def test_a_size_beyond_the_octal_field(file: Path) -> None:
    huge = header("a.jpg", 1 << 40)  # GNU's base 256
    found, torn = read(huge + b"x" * 1000, file)
    assert found == []
    assert torn is not None
    assert f"cut short: {(1 << 40) - 1000} bytes" in torn.reason


def test_large_members_are_passed_over_unread(file: Path) -> None:
    """What nobody takes is not even read: a hole of 64 GiB takes no time and no memory."""
    with open(file, "wb") as out:
        out.write(header("hole.bin", 64 << 30))
        out.seek(64 << 30, os.SEEK_CUR)
        out.write(header("a.jpg", 1) + b"x".ljust(512, b"\0"))
    fd = os.open(file, os.O_RDONLY)
    try:
        assert [member.name for member in members(open_window(fd, "hole"))] == ["hole.bin", "a.jpg"]
    finally:
        os.close(fd)
        file.unlink()


def test_sparse_members_are_called_so(file: Path) -> None:
    block = bytearray(header("a.jpg", 512, b"S"))
    block[482] = 1  # the map goes on in another block
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    file.write_bytes(bytes(block) + bytes(512) + b"d" * 512 + header("b.jpg", 0) + bytes(1024))
    fd = os.open(file, os.O_RDONLY)
    try:
        found = [(member.name, member.is_sparse) for member in members(open_window(fd, "sparse"))]
    finally:
        os.close(fd)
    assert found == [("a.jpg", True), ("b.jpg", False)]


def test_sparse_members_in_pax_headers_have_their_true_name(file: Path) -> None:
    said = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.jpg"}
    member = tarfile.TarInfo("GNUSparseFile.0/a.jpg")
    member.pax_headers = said
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member)
        tar.addfile(tarfile.TarInfo("a.cls"))
    file.write_bytes(out.getvalue())
    fd = os.open(file, os.O_RDONLY)
    try:
        found = [(member.name, member.is_sparse) for member in members(open_window(fd, "sparse"))]
    finally:
        os.close(fd)
    assert found == [("a.jpg", True), ("a.cls", False)]


@pytest.mark.parametrize(
    ("stated", "reason"), [("", ""), ("\u0663", "of a PAX header"), ("1e3", "of a PAX header")]
)
def test_a_size_in_a_pax_header_is_digits_or_takes_back_what_was_said(
    file: Path, stated: str, reason: str
) -> None:
    member = tarfile.TarInfo("a.jpg")
    member.size = 5
    member.pax_headers = {"size": stated}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO(b"image"))
    found, torn = read(out.getvalue(), file)
    assert found == ([] if reason else [("a.jpg", b"image", True)])
    assert reason in (torn.reason if torn else "")


@pytest.fixture(autouse=True, scope="module")
def _small_reads() -> Iterator[None]:
    """Small enough that members, headers and names lie across the borders of reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feeder.records.stream.READ_BYTES", 700)
        yield
