"""A process that dies at any line of the cache leaves nothing that is served and nothing that stays."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from cached_numbers import BUDGET, PIXELS, SEGMENT_BYTES, Numbers, add, held

from feeder import cache as package
from feeder.cache import Cache, Folder

FOLDER = str(Path(package.__file__).parent)
RECORDS = range(30)  # some three segments


def run(place: Path) -> None:
    """The life of a process that fills a cache, is given another budget, and goes."""
    cache = Cache(Folder(place), BUDGET, PIXELS, {"numbers": Numbers()}, segment_bytes=SEGMENT_BYTES)
    cache.refresh()
    for record in RECORDS:
        if not cache.shelf("numbers").has(record, 1):
            add(cache, record)
    cache.resize(BUDGET // 2)
    cache.close()


def lines_of(place: Path, last: int | None) -> int:
    """Runs in a child that dies at line `last` of the cache; how many lines it took otherwise."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX, if another test has loaded it
        child = os.fork()
    if child == 0:
        count = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal count
            if not frame.f_code.co_filename.startswith(FOLDER):
                return None
            count += event == "line"
            if count == last:
                os._exit(9)
            return trace

        try:
            sys.settrace(trace)
            run(place)
            sys.settrace(None)
            os.write(send, str(count).encode())
        finally:
            os._exit(0)
    os.close(send)
    with open(receive, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return int(told or 0)


def crashes(place: Path, tmp_path: Path, wanted: int) -> None:
    lines = lines_of(tmp_path / "whole", None)
    assert lines > 1000
    random = np.random.default_rng(0)
    died = 0
    for number, last in enumerate(random.permutation(lines).tolist()):
        if died == wanted:
            return
        if number % 5 == 0:  # on what is there already, else from nothing
            place = place.with_name(f"cache-{number}")
        died += lines_of(place, last) == 0
        cache = Cache(Folder(place), BUDGET, PIXELS, {"numbers": Numbers()}, segment_bytes=SEGMENT_BYTES)
        cache.refresh()
        assert held(cache, range(80)) <= set(RECORDS)
        assert not list(place.glob("*.part"))
        assert len(os.listdir(place / "users")) == 1
        assert cache.folder.used() <= cache.counters().bytes + 4096 * (cache.counters().segments + 4)
        assert cache.counters().dropped == 0
        cache.close()
    pytest.fail(
        f"only {died} processes came as far as they should die"
    )  # who finds much there takes fewer lines


def test_a_crash_at_any_line(place: Path, tmp_path: Path) -> None:
    crashes(place, tmp_path, 13)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_crashes_at_very_many_lines(place: Path, tmp_path: Path) -> None:
    crashes(place, tmp_path, 500)
