"""What the measures of the records say: distributions, balance, duplicates, and which records are odd.

Pure functions of rows; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from feeder.quality.rows import MODES, Rows, process_name, sampling_name

__all__ = ["FINDINGS", "Duplicates", "Labels", "Review", "Spread", "Thresholds", "review"]

FINDINGS = {
    "small": "the short side is below --crop",
    "long": "the long side is more than --max-aspect times the short one",
    "huge": "more than --max-megapixels",
    "empty": "the picture is nearly of one colour: its spread is below --min-spread",
    "label": "the label is beyond the classes",
    "conflict": "the same bytes are there under another label",
    "duplicate": "the same bytes are there before, under the same label",
    "missing": "the class has no good record",
    "imbalance": "the largest class has more than --max-imbalance times the records of the smallest",
}
"""Kinds of findings, in the order of reports. The last two are of classes, the others of records."""

MISSING_LISTED = 1000
"""Most missing classes that are named; all are counted."""


@dataclass(frozen=True)
class Thresholds:
    """Where findings begin.

    Attributes:
        crop: pixels, side of the training crop; a picture with a shorter side is always enlarged.
        aspect: long side divided by the short one.
        megapixels: width x height / 1e6; such a picture costs a worker as much as 100 of ImageNet's.
        spread: levels, of the standard deviation of the picture at 64 x 64 pixels (see rows.spreads); of 600
            photographs of ImageNet none is below 17, of a blank page as a JPEG it is less than 1.
        imbalance: records of the largest class divided by those of the smallest that has any; ImageNet's is
            1.8.
    """

    crop: int = 224
    aspect: float = 4.0
    megapixels: float = 25.0
    spread: float = 4.0
    imbalance: float = 10.0


@dataclass(frozen=True)
class Spread:
    """Least, middle and largest of some values."""

    min: float
    median: float
    max: float


@dataclass(frozen=True)
class Labels:
    """Records by class, labels from 0.

    Attributes:
        classes: how many there should be.
        counts: good records of each label that occurs, by label.
        missing: classes in [0, classes) without a good record.
        missing_listed: the first of them.
        smallest, largest: of the classes that have records, (label, records); the first label where several
            are alike.
        median: records of a class that has any.
        imbalance: records of the largest class divided by those of the smallest.
    """

    classes: int
    counts: dict[int, int]
    missing: int
    missing_listed: tuple[int, ...]
    smallest: tuple[int, int]
    median: float
    largest: tuple[int, int]
    imbalance: float


@dataclass(frozen=True)
class Duplicates:
    """Records whose encoded images are the same, byte for byte.

    Attributes:
        groups: different images that occur more than once.
        records: int64 [m], those that another one with the same bytes comes before, ascending.
        first: int64 [m], for each of them the first record with these bytes.
        conflict: bool [m], whether the records with these bytes have several labels.
    """

    groups: int
    records: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    conflict: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Review:
    """What the rows say.

    Attributes:
        good: good records; all else is of these alone.
        nbytes: of their encoded images.
        sizes: of width, height (pixels), megapixels, aspect (long side / short side) and bytes.
        modes, processes, samplings: records by colour mode (see rows.MODES), JPEG process and sampling, the
            most frequent first.
        labels: records by class; None where there is no good record.
        duplicates: same bytes.
        flagged: record numbers by the kinds of FINDINGS that are of records, ascending.
        uneven: whether the classes are too uneven.
    """

    good: int
    nbytes: int
    sizes: dict[str, Spread]
    modes: dict[str, int]
    processes: dict[str, int]
    samplings: dict[str, int]
    labels: Labels | None
    duplicates: Duplicates
    flagged: dict[str, npt.NDArray[np.int64]]
    uneven: bool

    @property
    def counts(self) -> dict[str, int]:
        """How often each of FINDINGS was found."""
        found = {kind: len(numbers) for kind, numbers in self.flagged.items()}
        found |= {"missing": self.labels.missing if self.labels else 0, "imbalance": int(self.uneven)}
        return {kind: found[kind] for kind in FINDINGS}


def review(rows: Rows, thresholds: Thresholds, classes: int | None = None) -> Review:
    """Looks at the rows of all records.

    Memory: at most 110 bytes a record besides the rows.

    Args:
        rows: ROW [n].
        thresholds: where findings begin.
        classes: how many there should be; None: as many as the largest label says.
    """
    numbers = np.flatnonzero(rows["good"])
    long = np.maximum(rows["width"], rows["height"])[numbers].astype(np.float32)
    short = np.minimum(rows["width"], rows["height"])[numbers].astype(np.float32)
    sizes = {
        "width": _spread(rows["width"][numbers]),
        "height": _spread(rows["height"][numbers]),
        "megapixels": _spread(long * short / 1e6),
        "aspect": _spread(long / short),
        "bytes": _spread(rows["nbytes"][numbers]),
    }
    labels = _labels(rows["label"][numbers], classes) if len(numbers) else None
    duplicates = _duplicates(rows, numbers)
    beyond = rows["label"][numbers] >= labels.classes if labels else np.zeros(0, bool)
    flagged = {
        "small": numbers[short < thresholds.crop],
        "long": numbers[long > thresholds.aspect * short],
        "huge": numbers[long * short > thresholds.megapixels * 1e6],
        "empty": numbers[rows["spread"][numbers] < thresholds.spread],
        "label": numbers[beyond],
        "conflict": duplicates.records[duplicates.conflict],
        "duplicate": duplicates.records[~duplicates.conflict],
    }
    return Review(
        good=len(numbers),
        nbytes=int(rows["nbytes"][numbers].sum(dtype=np.int64)),
        sizes={name: spread for name, spread in sizes.items() if spread is not None},
        modes={MODES[mode]: count for mode, count in _tally(rows["mode"][numbers])},
        processes=_named(process_name, rows["process"][numbers]),
        samplings=_named(sampling_name, rows["sampling"][numbers]),
        labels=labels,
        duplicates=duplicates,
        flagged=flagged,
        uneven=labels is not None and labels.imbalance > thresholds.imbalance,
    )


def _spread(values: npt.NDArray[np.uint32] | npt.NDArray[np.float32]) -> Spread | None:
    if not len(values):
        return None
    return Spread(values.min().item(), float(np.median(values)), values.max().item())


def _tally(values: npt.NDArray[np.generic]) -> list[tuple[int, int]]:
    """Each value and how often it occurs, the most frequent first."""
    found, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return list(zip(found[order].tolist(), counts[order].tolist(), strict=True))


def _named(name: Callable[[int], str], values: npt.NDArray[np.generic]) -> dict[str, int]:
    """Counts of values by their names; values without one are left out."""
    named: dict[str, int] = {}
    for value, count in _tally(values):
        if called := name(value):
            named[called] = named.get(called, 0) + count
    return named


def _labels(labels: npt.NDArray[np.int32], classes: int | None) -> Labels:
    found, counts = np.unique(labels, return_counts=True)
    if classes is None:
        classes = int(found[-1]) + 1
    smallest, largest = int(counts.argmin()), int(counts.argmax())
    return Labels(
        classes=classes,
        counts=dict(zip(found.tolist(), counts.tolist(), strict=True)),
        missing=classes - int((found < classes).sum()),
        missing_listed=tuple(islice(_gaps(found.tolist(), classes), MISSING_LISTED)),
        smallest=(int(found[smallest]), int(counts[smallest])),
        median=float(np.median(counts)),
        largest=(int(found[largest]), int(counts[largest])),
        imbalance=int(counts[largest]) / int(counts[smallest]),
    )


def _gaps(found: list[int], classes: int) -> Iterator[int]:
    """Numbers in [0, classes) that are not in an ascending list."""
    start = 0
    for label in found:
        yield from range(start, min(label, classes))
        start = label + 1
    yield from range(start, classes)


def _duplicates(rows: Rows, numbers: npt.NDArray[np.int64]) -> Duplicates:
    """Same digests among some records; sorts them."""
    digests = rows["digest"][numbers]
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: the first of a group comes first
    digests = digests[order]
    again = np.zeros(len(order), bool)
    again[1:] = (digests[1:] == digests[:-1]).all(axis=1)
    group = np.cumsum(~again) - 1
    starts = np.flatnonzero(~again)
    labels = rows["label"][numbers][order]
    if len(order):
        mixed = np.minimum.reduceat(labels, starts) != np.maximum.reduceat(labels, starts)
    else:
        mixed = np.zeros(0, bool)
    records = numbers[order[again]]
    of_group = group[again]
    back = np.argsort(records)
    return Duplicates(
        groups=len(np.unique(of_group)),
        records=records[back],
        first=numbers[order[starts[of_group]]][back],
        conflict=mixed[of_group][back],
    )
