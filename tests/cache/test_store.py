"""The store: what is sealed is found, by every process of the folder, within the budget, and nothing else."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cached_numbers import BUDGET, PIXELS, SEGMENT_BYTES, Numbers, OpenCache, add, find, held, planes_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from odd_corpus import Corpus

import feeder
from feeder.cache import Cache, Folder
from feeder.errors import Closed, ConfigError, StorageError

ALL = range(80)


def fill(cache: Cache, records: range = ALL) -> list[int]:
    """The records for which there was room."""
    taken = []
    for record in records:
        if not add(cache, record):
            break
        taken.append(record)
    cache.seal()
    return taken


def sealed(place: Path) -> list[Path]:
    return sorted(place.glob("*.arrow"))


def test_only_what_is_sealed_is_found(open_cache: OpenCache) -> None:
    cache = open_cache()
    assert add(cache, 3)
    assert held(cache, [3]) == set()
    cache.seal()
    assert held(cache, [3, 4]) == {3}
    counters = cache.counters()
    assert (counters.hits, counters.misses, counters.filled, counters.segments) == (1, 2, 1, 1)


def test_a_full_segment_is_sealed_and_the_next_begun(open_cache: OpenCache, place: Path) -> None:
    cache = open_cache()
    assert fill(cache) == list(ALL)
    assert held(cache, ALL) == set(ALL)
    assert len(sealed(place)) > 3
    assert all(path.stat().st_size <= SEGMENT_BYTES for path in sealed(place))
    assert cache.counters().bytes == sum(path.stat().st_size for path in sealed(place))


def test_padding_is_neither_hit_nor_miss(open_cache: OpenCache) -> None:
    cache = open_cache()
    fill(cache)
    found = find(cache.shelf("numbers"), [-1, 79, -1])
    assert [planes is None for planes in found.planes] == [True, False, True]
    assert (cache.counters().hits, cache.counters().misses) == (1, 0)


def test_scales_are_kept_apart(open_cache: OpenCache) -> None:
    cache = open_cache()
    add(cache, 5, reduction=2)
    cache.seal()
    assert held(cache, [5], reduction=2) == {5}
    assert held(cache, [5], reduction=1) == set()
    add(cache, 5, reduction=1)
    cache.seal()
    assert held(cache, [5], reduction=1) == {5}


def test_a_restart_finds_everything(open_cache: OpenCache) -> None:
    first = open_cache()
    fill(first)
    first.close()
    assert held(open_cache(), ALL) == set(ALL)


def test_closing_seals(open_cache: OpenCache, place: Path) -> None:
    first = open_cache()
    add(first, 1)
    first.close()
    assert held(open_cache(), [1]) == {1}
    assert not list(place.glob("*.part"))


def test_two_share_a_folder(open_cache: OpenCache) -> None:
    one, other = open_cache(), open_cache()
    fill(one, range(40))
    assert other.refresh()
    assert not other.shelf("numbers").has(40, 1)
    fill(other, range(40, 80))
    one.refresh()
    assert held(one, ALL) == held(other, ALL) == set(ALL)


def test_what_two_fill_at_once_is_kept_once(open_cache: OpenCache, place: Path) -> None:
    one, other = open_cache(), open_cache()
    for record in range(10):
        add(one, record)
        add(other, record + 5)
    one.seal()
    other.seal()
    one.refresh()
    assert held(one, range(15)) == held(other, range(15)) == set(range(15))
    assert one.counters().filled + other.counters().filled == 15
    assert len(sealed(place)) == 2


def test_a_shard_of_two_data_sets_is_kept_once(open_cache: OpenCache) -> None:
    both = open_cache(Numbers("ab", name="numbers"), Numbers("ca", name="others"))
    fill(both, range(40))  # shard a
    found = find(both.shelf("others"), range(80))
    assert [planes is not None for planes in found.planes] == [False] * 40 + [True] * 40


def test_other_bytes_of_a_record_are_not_its_own(open_cache: OpenCache) -> None:
    first = open_cache()
    fill(first)
    first.close()

    class Changed(Numbers):
        def digest(self, record: int) -> int:
            return super().digest(record) ^ (record == 7)

    assert held(open_cache(Changed()), ALL) == set(ALL) - {7}


def test_other_pixels_are_removed(
    open_cache: OpenCache, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_cache()
    fill(first)
    first.close()
    with caplog.at_level(logging.INFO):
        second = open_cache(pixels="native-9999")
    assert not sealed(place)
    assert "segments of other pixels, or of another version: removed" in caplog.text
    assert held(second, ALL) == set()


def test_other_pixels_stay_where_somebody_uses_them(open_cache: OpenCache) -> None:
    first = open_cache()
    fill(first)
    second = open_cache(pixels="native-9999")
    assert held(second, ALL) == set()
    first.refresh()
    assert held(first, ALL) == set(ALL)


def test_one_that_leaves_just_now_is_no_user(open_cache: OpenCache, place: Path) -> None:
    cache = open_cache()
    (place / "users" / "0badcafe").mkdir()
    assert [user.pid for user in cache.folder.users()] == [os.getpid()]


def test_segments_of_no_use_that_are_gone_are_forgotten(open_cache: OpenCache, place: Path) -> None:
    other = open_cache(Numbers(("c",), name="others"))
    for record in range(40):
        add(other, record, name="others")
    other.seal()
    cache = open_cache()
    assert cache._useless.keys() == {path.name for path in sealed(place)} != set()
    cache.folder.evict(cache.folder.names())
    cache.refresh()
    assert cache._useless == {}


def test_what_cannot_be_kept_is_remembered(open_cache: OpenCache) -> None:
    shelf = open_cache().shelf("numbers")
    assert not shelf.has(4, 1)
    shelf.refuse(4)
    assert shelf.has(4, 1)
    assert shelf.has(4, 2)


def test_what_is_there_is_not_added_again(open_cache: OpenCache) -> None:
    cache = open_cache()
    for _ in range(2):
        add(cache, 1)
    cache.seal()
    add(cache, 1)
    cache.seal()
    assert held(cache, [1]) == {1}
    assert (cache.counters().filled, cache.counters().segments) == (1, 1)


def test_planes_larger_than_a_segment_are_refused(open_cache: OpenCache) -> None:
    cache = open_cache()
    shelf = cache.shelf("numbers")
    assert cache.add(shelf, 0, 1, (10, 10), bytes(SEGMENT_BYTES))
    assert shelf.has(0, 1)
    assert not cache.full


class TestBudget:
    def test_is_kept_and_what_fits_stays(self, open_cache: OpenCache, place: Path) -> None:
        cache = open_cache(Numbers(each=400), budget=2 << 20)
        taken = []
        for record in range(800):
            if not add(cache, record):
                break
            taken.append(record)
            assert cache.folder.used() <= 2 << 20
        assert 0.8 * (2 << 20) < cache.folder.used() <= 2 << 20
        cache.seal()
        assert cache.full
        assert not add(cache, 799)
        assert held(cache, taken) == set(taken)

    def test_is_one_for_all(self, open_cache: OpenCache) -> None:
        one = open_cache(Numbers(each=400), budget=2 << 20)
        other = open_cache(Numbers(each=400), budget=2 << 20)
        for record in range(400):
            add(one, record)
            add(other, 400 + record)
            assert one.folder.used() <= 2 << 20

    def test_of_another_one_is_refused(self, open_cache: OpenCache) -> None:
        open_cache()
        with pytest.raises(
            ConfigError, match=rf"keeps a cache of at most {BUDGET} bytes here, not {BUDGET * 2}"
        ):
            open_cache(budget=BUDGET * 2)

    def test_that_shrinks_evicts_the_oldest(self, open_cache: OpenCache) -> None:
        first = open_cache(Numbers(each=400), budget=3 << 20)
        taken = fill(first, range(800))
        first.close()
        second = open_cache(Numbers(each=400), budget=1 << 20)
        assert second.folder.used() <= 1 << 20
        left = held(second, taken)
        assert left
        assert min(left) > min(taken)

    def test_makes_room_by_what_nobody_serves(
        self, open_cache: OpenCache, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = open_cache(Numbers("xy", each=400, name="old"), budget=2 << 20)
        for record in range(800):
            if not add(first, record, name="old"):
                break
        first.close()
        with caplog.at_level(logging.INFO):
            second = open_cache(Numbers(each=400), budget=2 << 20)
            taken = fill(second, range(100))
        assert held(second, range(100)) == set(taken) == set(range(100))
        assert "evicted, no worker serves what it holds" in caplog.text

    def test_leaves_what_others_serve(self, open_cache: OpenCache) -> None:
        first = open_cache(Numbers(each=400), budget=2 << 20)
        taken = fill(first, range(800))
        second = open_cache(Numbers("xy", each=400, name="numbers"), budget=2 << 20)
        assert fill(second, range(800)) == []
        first.refresh()
        assert held(first, taken) == set(taken)

    def test_of_nothing_is_refused(self, open_cache: OpenCache) -> None:
        with pytest.raises(ConfigError, match="at least 1048576 bytes, got 4096"):
            open_cache(budget=4096)


class TestAnotherBudget:
    def test_evicts_the_oldest_at_once_and_what_was_found_stays_valid(self, open_cache: OpenCache) -> None:
        cache = open_cache(Numbers(each=400), budget=3 << 20)
        taken = fill(cache, range(800))
        found = find(cache.shelf("numbers"), taken[:60])
        cache.resize(1 << 20)
        assert cache.folder.held() <= 1 << 20 < cache.folder.used()
        left = held(cache, taken)
        assert left
        assert min(left) > 60
        assert [bytes(planes or b"") for planes in found.planes] == list(map(planes_of, taken[:60]))
        assert not add(cache, 0)  # as long as that is mapped
        del found
        assert 0.8 * (1 << 20) < cache.folder.used() <= 1 << 20

    def test_is_kept_while_it_fills(self, open_cache: OpenCache) -> None:
        cache = open_cache(Numbers(each=400), budget=3 << 20)
        for record in range(100):
            add(cache, record)
        cache.resize(1 << 20)
        fill(cache, range(100, 800))
        assert 0.8 * (1 << 20) < cache.folder.used() <= 1 << 20
        assert cache.full

    def test_that_is_larger_has_room_again(self, open_cache: OpenCache) -> None:
        cache = open_cache(Numbers(each=400), budget=1 << 20)
        taken = fill(cache, range(800))
        assert cache.full
        cache.resize(2 << 20)
        assert not cache.full
        more = fill(cache, range(800))
        assert len(more) > 1.7 * len(taken)
        assert held(cache, range(800)) == set(more)
        assert cache.folder.used() <= 2 << 20

    def test_of_one_process_holds_for_all_until_they_have_it_too(
        self, open_cache: OpenCache, caplog: pytest.LogCaptureFixture
    ) -> None:
        one, other = (open_cache(Numbers(each=400), budget=2 << 20) for _ in range(2))
        fill(one, range(400))
        other.refresh()
        one.resize(1 << 20)
        assert not add(other, 700)
        other.refresh()
        assert one.folder.used() <= 1 << 20
        fill(other, range(800))
        assert one.folder.used() <= 1 << 20
        one.resize(3 << 20)
        other.resize(3 << 20)
        assert f"process {os.getpid()} keeps it below 2.1 MB" in caplog.text
        fill(one, range(800))
        assert 2 << 20 < one.folder.used() <= 3 << 20

    def test_lets_others_with_it_in(self, open_cache: OpenCache) -> None:
        cache = open_cache()
        cache.resize(2 * BUDGET)
        open_cache(budget=2 * BUDGET)
        with pytest.raises(ConfigError, match=f"at most {2 * BUDGET} bytes here, not {BUDGET}"):
            open_cache()

    def test_that_cannot_be_changes_nothing(
        self, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("feeder.cache.folder.LOCK_DEADLINE_S", 0.05)
        cache = open_cache()
        with pytest.raises(ConfigError, match="at least 1048576 bytes, got 4096"):
            cache.resize(4096)
        with Folder(cache.folder.path).locked(), pytest.raises(StorageError, match="does not go on"):
            cache.resize(BUDGET // 2)
        assert cache.budget == BUDGET
        cache.close()
        with pytest.raises(Closed):
            cache.resize(BUDGET // 2)

    def test_comes_while_others_find_and_add(self, open_cache: OpenCache) -> None:
        cache = open_cache(Numbers(each=400), budget=2 << 20)
        ended = threading.Event()

        def look() -> None:
            while not ended.is_set():
                held(cache, range(0, 800, 7))

        def change() -> None:
            while not ended.is_set():
                fill(cache, range(800))
                cache.refresh()

        with ThreadPoolExecutor(2) as pool:
            working = [pool.submit(look), pool.submit(change)]
            try:
                for budget in (1 << 20, 3 << 20) * 10:
                    cache.resize(budget)
            finally:
                ended.set()
        for work in working:
            work.result()
        cache.resize(1 << 20)
        assert cache.folder.used() <= 1 << 20


class TestEviction:
    def test_leaves_what_is_in_use_valid_and_counted(self, open_cache: OpenCache) -> None:
        cache = open_cache()
        fill(cache, range(5))
        before = cache.folder.used()
        found = find(cache.shelf("numbers"), [2])
        cache.folder.evict(cache.folder.names())
        assert cache.refresh()
        assert held(cache, [2]) == set()
        assert found.planes[0] is not None
        assert bytes(found.planes[0]) == planes_of(2)
        assert cache.folder.used() == before
        del found
        assert cache.folder.used() < before

    def test_is_seen_by_others_who_let_go(self, open_cache: OpenCache) -> None:
        one, other = open_cache(), open_cache()
        fill(one)
        other.refresh()
        full = one.folder.used()
        one.folder.evict(one.folder.names())
        one.refresh()
        assert one.folder.used() == full
        other.refresh()
        assert one.folder.used() < full // 10


@pytest.mark.parametrize("how", ["cut", "flip", "empty", "torn"])
def test_what_is_damaged_is_dropped_and_made_again(
    open_cache: OpenCache, place: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    first = open_cache()
    fill(first)
    first.close()
    victim = sealed(place)[0]
    content = bytearray(victim.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 4
    victim.chmod(0o600)
    victim.write_bytes(
        {"cut": content[:-100], "flip": content, "empty": b"", "torn": bytes(len(content))}[how]
    )
    second = open_cache()
    lost = set(ALL) - held(second, ALL)
    assert lost
    assert not victim.exists()
    assert f"{victim}: dropped: " in caplog.text
    for record in sorted(lost):
        add(second, record)
    second.seal()
    assert held(second, ALL) == set(ALL)
    assert second.counters().dropped == 1


def test_an_odd_arrow_file_in_place_of_a_segment_is_dropped_and_made_again(
    corpus: Corpus, place: Path, caplog: pytest.LogCaptureFixture, open_cache: OpenCache
) -> None:
    for odd in corpus.of("arrow"):
        with contextlib.closing(open_cache()) as first:
            fill(first)
        victim = sealed(place)[0]
        victim.chmod(0o600)
        victim.write_bytes(odd.data)
        with contextlib.closing(open_cache()) as second:
            lost = set(ALL) - held(second, ALL)
            assert lost, odd.name
            assert not victim.exists()
            assert f"{victim}: dropped: " in caplog.text
            for record in sorted(lost):
                add(second, record)
            second.seal()
            assert held(second, ALL) == set(ALL)
        caplog.clear()


def test_leftovers_of_the_dead_go(open_cache: OpenCache, place: Path) -> None:
    script = (
        "import os, sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from feeder.cache import Cache, Folder\n"
        "from cached_numbers import *\n"
        "cache = Cache(Folder(Path(sys.argv[1])), BUDGET, PIXELS, {'numbers': Numbers()},"
        " segment_bytes=SEGMENT_BYTES)\n"
        "for record in range(20): add(cache, record)\n"
        "os._exit(9)\n"
    )
    root = Path(feeder.__file__).resolve().parent.parent
    dead = subprocess.run(
        [sys.executable, "-c", script, str(place), str(root), str(Path(__file__).parent)], timeout=60
    )
    assert dead.returncode == 9
    assert list(place.glob("*.part"))
    assert os.listdir(place / "users")
    cache = open_cache()
    assert not list(place.glob("*.part"))
    assert len(os.listdir(place / "users")) == 1
    there = held(cache, range(20))
    fill(cache)
    assert held(cache, ALL) == set(ALL)
    assert there < set(range(20))


class TestFolder:
    def test_of_another_kind_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(ConfigError, match="cannot keep a cache here"):
            Folder(tmp_path / "file")
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        with pytest.raises(ConfigError, match="nobody else can write to"):
            Folder(tmp_path / "open")
        (tmp_path / "link").symlink_to(tmp_path / "open")
        with pytest.raises(ConfigError, match="nobody else can write to"):
            Folder(tmp_path / "link")

    def test_that_somebody_holds_is_an_error_in_time(
        self, open_cache: OpenCache, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("feeder.cache.folder.LOCK_DEADLINE_S", 0.05)
        cache = open_cache()
        with Folder(place).locked(), pytest.raises(StorageError, match="by a process that does not go on"):
            add(cache, 1)

    def test_that_is_gone_is_an_error(self, open_cache: OpenCache, place: Path) -> None:
        cache = open_cache()
        shutil.rmtree(place)
        with pytest.raises(StorageError):
            add(cache, 1)


_SMALL = """
import logging, subprocess, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from feeder.cache import Cache, Folder, Size, resolve
from cached_numbers import *
place = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], check=True)
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
print(resolve(Size(64 << 30, None), Path(place)))
(Path(place) / "other").write_bytes(bytes(1 << 20))
cache = Cache(Folder(Path(place) / "cache"), 9 << 20, PIXELS, {"numbers": Numbers(each=400)},
              segment_bytes=SEGMENT_BYTES)
taken = []
for record in range(800):
    if not add(cache, record):
        break
    taken.append(record)
cache.seal()
assert held(cache, range(800)) == set(taken), taken
with open(Path(place) / "rest", "wb", buffering=0) as rest:
    try:
        while rest.write(bytes(4096)):
            pass
    except OSError:
        pass
cache.resize(1 << 20)
assert 0 < cache.folder.used() <= 1 << 20, cache.folder.used()
cache.resize(64 << 30)
print("kept", len(taken))
(Path(place) / "other").unlink()
cache.close()
"""


def test_a_small_tmpfs_is_full_without_a_signal_and_takes_another_budget(tmp_path: Path) -> None:
    may = subprocess.run(["unshare", "-rm", "true"], capture_output=True)
    if may.returncode:
        pytest.skip(f"no mounts in a user namespace here: {may.stderr.decode().strip()}")
    root = Path(feeder.__file__).resolve().parent.parent
    done = subprocess.run(
        [
            "unshare",
            "-rm",
            sys.executable,
            "-c",
            _SMALL,
            str(tmp_path),
            str(root),
            str(Path(__file__).parent),
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "which is less than the 68719476736 that the cache may take" in done.stdout
    assert "is full, what is cached stays: make it larger (docker run --shm-size)" in done.stdout
    assert int(done.stdout.split("kept ")[1]) > 50


class Model(RuleBasedStateMachine):
    """Two processes and a vandal; the model is which records may be found, and that they are right."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.budgets = [1 << 20, 1 << 20]
        self.caches = [self._open(), self._open()]
        self.added: set[int] = set()

    def _open(self) -> Cache:
        cache = Cache(
            Folder(self.root / "cache"),
            self.budgets[0],
            PIXELS,
            {"numbers": Numbers(each=100)},
            segment_bytes=SEGMENT_BYTES,
        )
        cache.refresh()
        return cache

    def teardown(self) -> None:
        if hasattr(self, "root"):
            for cache in self.caches:
                cache.close()
            shutil.rmtree(self.root)

    @rule(which=st.integers(0, 1), record=st.integers(0, 199), count=st.integers(1, 40))
    def add(self, which: int, record: int, count: int) -> None:
        cache = self.caches[which]
        for number in range(record, min(record + count, 200)):
            if not cache.shelf("numbers").has(number, 1) and add(cache, number):
                self.added.add(number)

    @rule(which=st.integers(0, 1))
    def seal(self, which: int) -> None:
        self.caches[which].seal()

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self._take_same_budget()
        self.caches[which].close()
        self.caches[which] = self._open()

    @rule(which=st.integers(0, 1), budget=st.sampled_from([1 << 20, 5 << 18, 3 << 19]))
    def resize(self, which: int, budget: int) -> None:
        self.caches[which].resize(budget)
        self.budgets[which] = budget

    def _take_same_budget(self) -> None:
        """Without which a cache cannot be opened beside another."""
        self.resize(1, self.budgets[0])

    @rule(which=st.integers(0, 1), victim=st.integers(0, 100))
    def evict(self, which: int, victim: int) -> None:
        folder = self.caches[which].folder
        names = folder.names()
        with folder.locked():
            folder.evict(names[victim : victim + 1])

    @rule(victim=st.integers(0, 100), at=st.integers(0, 10**6), how=st.sampled_from(["flip", "cut"]))
    def damage(self, victim: int, at: int, how: str) -> None:
        """While nobody has it mapped, as in a machine that lost its power."""
        self._take_same_budget()
        for cache in self.caches:
            cache.close()
        paths = sorted((self.root / "cache").glob("*.arrow"))
        if victim < len(paths):
            content = bytearray(paths[victim].read_bytes())
            if how == "cut":
                content = content[: at % len(content)]
            else:
                content[at % len(content)] ^= 1
            paths[victim].chmod(0o600)
            paths[victim].write_bytes(content)
        self.caches = [self._open(), self._open()]

    @invariant()
    def what_is_found_is_right_and_the_budget_holds(self) -> None:
        if not hasattr(self, "root"):
            return
        for cache in self.caches:
            cache.refresh()
            there = held(cache, range(200))
            assert there <= self.added
            assert not [record for record in there if not cache.shelf("numbers").has(record, 1)]
        assert self.caches[0].folder.used() <= min(self.budgets)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_an_empty_cache_asks_for_no_scales(open_cache: OpenCache) -> None:
    shelf = open_cache().shelf("numbers")
    found = shelf.find(np.arange(80), lambda sizes: pytest.fail("nothing is known"))
    assert set(found.places.tolist()) == {-1}
