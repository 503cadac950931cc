"""Data sets that are lent to streams, and what becomes of those that are served no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from feeder.errors import Closed
from feeder.records import Dataset
from feeder.worker.catalog import Catalog


@pytest.fixture
def opened(shards: Path) -> Iterator[Callable[[], Dataset]]:
    made: list[Dataset] = []

    def open_one() -> Dataset:
        made.append(Dataset.open("train", (str(shards / "train" / "*"),)))
        return made[-1]

    yield open_one
    for dataset in made:
        dataset.close()


def is_open(dataset: Dataset) -> bool:
    try:
        dataset.read(0)
    except Closed:
        return False
    return True


def test_one_that_is_lent_stays_open_until_it_is_given_back(opened: Callable[[], Dataset]) -> None:
    old, new = opened(), opened()
    catalog = Catalog({"train": old})
    assert catalog.lend(1, "train") is old
    catalog.change({"train": new})
    assert catalog.lend(2, "train") is new
    assert is_open(old)
    catalog.give_back(1)
    assert not is_open(old)
    catalog.give_back(2)
    assert is_open(new)
    catalog.close()
    assert not is_open(new)


def test_those_of_stores_are_closed_first_whenever_they_came(opened: Callable[[], Dataset]) -> None:
    leaving, later, near = opened(), opened(), opened()
    leaving.is_remote = later.is_remote = True
    catalog = Catalog({"train": leaving, "near": near})
    catalog.lend(1, "train")
    catalog.change({"train": later, "near": near})
    catalog.close_remote()
    assert (is_open(leaving), is_open(later), is_open(near)) == (False, False, True)
