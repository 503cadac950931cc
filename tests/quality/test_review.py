"""Distributions, balance, duplicates and findings of rows that are made here."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from feeder.quality import FINDINGS, Thresholds, review
from feeder.quality.rows import MODES, ROW, Rows


def made(count: int) -> Rows:
    """Rows of good records, all different: 300 x 200 pixels, classes 0 and 1."""
    rows = np.zeros(count, ROW)
    rows["digest"][:, 1] = np.arange(count)
    rows["width"], rows["height"], rows["nbytes"], rows["spread"] = 400, 300, 1000, 50
    rows["label"] = np.arange(count) % 2
    rows["mode"], rows["process"], rows["sampling"] = MODES.index("YCbCr"), 0xC0, 0x111122
    rows["good"] = True
    return rows


def test_a_plain_set_has_no_finding() -> None:
    found = review(made(10), Thresholds())
    assert found.counts == dict.fromkeys(FINDINGS, 0)
    assert (found.good, found.nbytes) == (10, 10_000)
    assert (found.modes, found.processes, found.samplings) == ({"YCbCr": 10}, {"baseline": 10}, {"4:2:0": 10})
    assert found.labels is not None
    assert (found.labels.classes, found.labels.counts, found.labels.imbalance) == (2, {0: 5, 1: 5}, 1.0)


def test_sizes() -> None:
    rows = made(3)
    rows["width"], rows["height"] = [300, 1000, 500], [600, 500, 500]
    sizes = review(rows, Thresholds()).sizes
    assert (sizes["width"].min, sizes["width"].median, sizes["width"].max) == (300, 500, 1000)
    assert (sizes["height"].min, sizes["height"].median, sizes["height"].max) == (500, 500, 600)
    assert (sizes["aspect"].min, sizes["aspect"].median, sizes["aspect"].max) == (1, 2, 2)
    megapixels = sizes["megapixels"]
    assert (megapixels.min, megapixels.median, megapixels.max) == pytest.approx((0.18, 0.25, 0.5))


@pytest.mark.parametrize(
    ("kind", "field", "odd", "even"),
    [
        ("small", "height", 223, 224),
        ("long", "width", 1201, 1200),
        ("huge", "height", 62_501, 62_500),
        ("empty", "spread", 3.9, 4.0),
        ("label", "label", 2, 1),
    ],
)
def test_each_threshold_from_both_sides(kind: str, field: str, odd: float, even: float) -> None:
    rows = made(6)
    limits = Thresholds(aspect=1000) if kind == "huge" else Thresholds()
    rows[field][2], rows[field][5] = odd, even
    found = review(rows, limits, classes=2)
    assert found.flagged[kind].tolist() == [2]
    assert sum(found.counts.values()) == 1
    rows["good"][2] = False
    assert sum(review(rows, limits, classes=2).counts.values()) == 0  # a bad record is no finding, too


def test_missing_classes_and_imbalance() -> None:
    rows = made(24)
    rows["label"] = [0] * 22 + [3, 5]
    found = review(rows, Thresholds(), classes=8)
    assert found.labels is not None
    assert (found.labels.missing, found.labels.missing_listed) == (5, (1, 2, 4, 6, 7))
    assert (found.labels.smallest, found.labels.largest, found.labels.median) == ((3, 1), (0, 22), 1)
    assert found.labels.imbalance == 22
    assert (found.counts["missing"], found.counts["imbalance"], found.counts["label"]) == (5, 1, 0)
    assert review(rows, Thresholds(imbalance=22)).counts["imbalance"] == 0


def test_a_label_out_of_all_proportion_costs_no_memory() -> None:
    rows = made(4)
    rows["label"][3] = 2**31 - 1
    labels = review(rows, Thresholds()).labels
    assert labels is not None
    assert (labels.classes, labels.missing, len(labels.missing_listed)) == (2**31, 2**31 - 3, 1000)


def test_duplicates_are_those_of_a_dictionary() -> None:
    rng = np.random.default_rng(1)
    rows = made(500)
    rows["digest"] = rng.integers(0, 12, (500, 2))  # many share one half of the digest
    rows["label"] = rng.choice(3, 500, p=[0.9, 0.05, 0.05])
    rows["good"] = rng.random(500) < 0.9
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number in np.flatnonzero(rows["good"]).tolist():
        groups[tuple(rows["digest"][number].tolist())].append(number)
    several = [group for group in groups.values() if len(group) > 1]
    slow = {
        number: (group[0], len(set(rows["label"][group].tolist())) > 1)
        for group in several
        for number in group[1:]
    }
    found = review(rows, Thresholds())
    duplicates = found.duplicates
    assert duplicates.groups == len(several) > 50
    assert duplicates.records.tolist() == sorted(slow)
    fast = zip(duplicates.first.tolist(), duplicates.conflict.tolist(), strict=True)
    assert list(fast) == [slow[number] for number in sorted(slow)]
    assert found.counts["conflict"] + found.counts["duplicate"] == len(slow)
    assert 0 < found.counts["conflict"] < len(slow)


def test_nothing_good() -> None:
    rows = made(3)
    rows["good"] = False
    found = review(rows, Thresholds(), classes=5)
    assert (found.good, found.sizes, found.labels, found.modes) == (0, {}, None, {})
    assert found.counts == dict.fromkeys(FINDINGS, 0)
