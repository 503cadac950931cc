"""The thread that fills: what is offered is there after a while; whatever goes wrong, its owner goes on."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from cached_numbers import Numbers, OpenCache, held, planes_of

from feeder.cache import Cache, Filler, Offer
from feeder.cache.fill import BATCH

ALL = range(80)


def offer(cache: Cache, record: int, image: bytes | None = None) -> Offer:
    """The image of a record is its number."""
    content = str(record).encode() if image is None else image
    return Offer(cache.shelf("numbers"), record, content, (100 + record, 50), 1)


def decode(images: Sequence[bytes | memoryview], scales: np.ndarray) -> list[bytes | None]:
    assert len(images) == len(scales) <= BATCH
    return [planes_of(int(bytes(image))) for image in images]


def until(reached: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture
def fill(open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Filler]]:
    monkeypatch.setattr("feeder.cache.fill.IDLE_S", 0.05)
    monkeypatch.setattr("feeder.cache.fill.TROUBLE_PAUSE_S", 0.05)
    fillers: list[Filler] = []

    def start(*arguments: object) -> Filler:
        fillers.append(Filler(*arguments))  # type: ignore[arg-type]
        return fillers[-1]

    yield start
    for filler in fillers:
        filler.close()


def test_what_is_offered_is_found(
    open_cache: OpenCache, fill: Callable[..., Filler], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cache = open_cache()
    filler = fill(cache, decode)
    filler.offer(offer(cache, record) for record in ALL)
    until(lambda: held(cache, ALL) == set(ALL))
    filler.offer(offer(cache, record) for record in ALL)
    filler.close()
    assert cache.counters().filled == len(ALL)
    assert "warm" not in caplog.text  # nobody wanted it warmed


def test_warming_takes_turns_with_offers(open_cache: OpenCache, fill: Callable[..., Filler]) -> None:
    cache = open_cache()
    released = threading.Event()

    def slowly(images: Sequence[bytes | memoryview], scales: np.ndarray) -> list[bytes | None]:
        released.wait(30)
        return decode(images, scales)

    taken = []

    def warm() -> Iterator[Offer]:
        for record in range(60):
            taken.append(record)
            yield offer(cache, record)

    filler = fill(cache, slowly, warm())
    filler.offer([offer(cache, 70)])
    released.set()
    until(lambda: held(cache, ALL) == {*range(60), 70})
    assert taken == list(range(60))


def test_warming_ends_where_the_cache_is_full(
    open_cache: OpenCache, fill: Callable[..., Filler], caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache(Numbers(each=4000), budget=1 << 20)
    taken = []

    def warm() -> Iterator[Offer]:
        for record in range(8000):
            taken.append(record)
            yield offer(cache, record)

    with caplog.at_level(logging.INFO):
        fill(cache, decode, warm())
        until(lambda: "cache: warmed up: " in caplog.text)
    assert 100 < len(taken) < 1000
    until(lambda: cache.counters().segments)
    assert cache.folder.used() <= 1 << 20


def test_warming_goes_on_where_there_is_more_room(
    open_cache: OpenCache, fill: Callable[..., Filler], caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache(Numbers(each=400), budget=1 << 20)
    everything = [offer(cache, record) for record in range(800)]
    with caplog.at_level(logging.INFO):
        filler = fill(cache, decode, everything)
        until(lambda: "cache: warmed up: " in caplog.text)
    cache.resize(8 << 20)
    filler.warm(everything)
    until(lambda: held(cache, range(800)) == set(range(800)))


def test_what_has_no_planes_is_not_asked_for_again(
    open_cache: OpenCache, fill: Callable[..., Filler]
) -> None:
    cache = open_cache()
    asked = []

    def none(images: Sequence[bytes | memoryview], scales: np.ndarray) -> list[bytes | None]:
        asked.extend(images)
        return [None] * len(images)

    filler = fill(cache, none)
    for _ in range(2):
        filler.offer([offer(cache, 3)])
        until(lambda: cache.shelf("numbers").has(3, 1))
    filler.close()
    assert asked == [b"3"]


def test_more_than_may_wait_is_left(
    open_cache: OpenCache, fill: Callable[..., Filler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.cache.fill.QUEUE_BYTES", 100)
    cache = open_cache()
    begun, released = threading.Event(), threading.Event()

    def blocked(images: Sequence[bytes | memoryview], scales: np.ndarray) -> list[bytes | None]:
        begun.set()
        released.wait(30)
        return [planes_of(7) for _ in images]

    filler = fill(cache, blocked)
    filler.offer([offer(cache, 1)])
    begun.wait(30)
    filler.offer(offer(cache, record, bytes(30)) for record in range(10, 20))
    released.set()
    until(lambda: cache.counters().filled == 4)


def test_trouble_with_the_folder_passes(
    open_cache: OpenCache, fill: Callable[..., Filler], caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache()
    path, away = cache.folder.path, cache.folder.path.with_name("away")
    path.rename(away)
    filler = fill(cache, decode)
    until(lambda: "cache: filling rests for" in caplog.text)
    away.rename(path)
    filler.offer([offer(cache, 5)])
    until(lambda: held(cache, [5]))


def test_a_folder_that_is_gone_is_no_trouble_for_who_offers(
    open_cache: OpenCache, fill: Callable[..., Filler], caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache(Numbers(each=400), budget=1 << 20)
    filler = fill(cache, decode)
    filler.offer(offer(cache, record) for record in range(400))
    until(lambda: cache.full)
    gone = cache.folder.path.rename(cache.folder.path.with_name("gone"))  # at once, whatever its writer is at
    shutil.rmtree(gone)
    until(lambda: "cache: filling rests for" in caplog.text)
    filler.offer([offer(cache, 401)])
    assert cache.full


def test_images_that_cannot_be_decoded_for_a_fault_are_left_out(
    open_cache: OpenCache, fill: Callable[..., Filler], caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache()
    faults = [RuntimeError("broken")]

    def broken_once(images: Sequence[bytes | memoryview], scales: np.ndarray) -> Sequence[bytes | None]:
        if faults:
            raise faults.pop()
        return decode(images, scales)

    filler = fill(cache, broken_once)
    filler.offer([offer(cache, 5)])
    until(lambda: "cache: filling leaves 1 out" in caplog.text)
    filler.offer([offer(cache, 6)])
    until(lambda: held(cache, [6]))
    assert held(cache, [5]) == set()


def test_a_fault_in_warming_up_ends_that_and_nothing_else(
    open_cache: OpenCache, fill: Callable[..., Filler], caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache()

    def broken() -> Iterator[Offer]:
        yield offer(cache, 4)
        raise RuntimeError("broken")

    filler = fill(cache, decode, broken())
    until(lambda: "cache: warming up has ended" in caplog.text)
    filler.offer([offer(cache, 5)])
    until(lambda: held(cache, [4, 5]) == {4, 5})


def test_a_fault_in_the_cache_ends_filling_and_nothing_else(
    open_cache: OpenCache, fill: Callable[..., Filler], caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache()

    def wrong(images: Sequence[bytes | memoryview], scales: np.ndarray) -> list[Any]:
        return [object() for _ in images]

    filler = fill(cache, wrong)
    filler.offer([offer(cache, 5)])
    until(lambda: "cache: filling has ended" in caplog.text)
    filler.offer([offer(cache, 6)])
    assert held(cache, ALL) == set()


def test_what_others_do_is_seen_while_idle(open_cache: OpenCache, fill: Callable[..., Filler]) -> None:
    cache, other = open_cache(), open_cache()
    fill(cache, decode)
    filler = fill(other, decode)
    filler.offer([offer(other, 5)])
    until(lambda: held(cache, [5]))
    cache.folder.evict(cache.folder.names())
    until(lambda: not held(cache, [5]))
