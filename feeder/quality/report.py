"""The report on a data set as one JSON document, whose names docs/verify.md explains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from feeder.quality.check import Checked
from feeder.quality.review import Review, Thresholds
from feeder.records import Dataset

__all__ = ["document", "flagged"]


def document(
    dataset: Dataset,
    checked: Checked,
    reviewed: Review,
    thresholds: Thresholds,
    *,
    label_base: int | None,
    classes_from: str,
    names: Mapping[int, str],
    most_bad: int | None,
    most_findings: int | None,
) -> dict[str, Any]:
    """All that was found, as JSON takes it.

    Args:
        dataset: that was checked.
        checked: what came of it.
        reviewed: of the same rows.
        thresholds: where findings begin.
        label_base: what the shards call the first class; None where they differ.
        classes_from: what says how many classes there are.
        names: of classes, as far as they are known.
        most_bad: bad records that are listed at most; None lists all.
        most_findings: the same of each kind of finding.
    """

    def bad() -> Iterator[dict[str, Any]]:
        for number, reason in checked.reasons.items():
            shard, index = dataset.locate(number)
            yield {"shard": shard, "index": index, "reason": reason}

    return {
        "records": len(dataset),
        "shards": len(dataset.shards),
        "good": reviewed.good,
        "bytes": reviewed.nbytes,
        "counts": {"bad": len(checked.reasons)} | reviewed.counts,
        "bad": list(islice(bad(), most_bad)),
        "findings": [
            entry
            for kind in reviewed.flagged
            for _, entry in islice(flagged(dataset, checked, reviewed, kind), most_findings)
        ],
        "sizes": {name: asdict(spread) for name, spread in reviewed.sizes.items()},
        "modes": reviewed.modes,
        "processes": reviewed.processes,
        "samplings": reviewed.samplings,
        "labels": _labels(reviewed, label_base, classes_from, names, most_findings),
        "duplicates": {
            "groups": reviewed.duplicates.groups,
            "records": len(reviewed.duplicates.records),
            "conflicts": int(reviewed.duplicates.conflict.sum()),
        },
        "thresholds": asdict(thresholds),
    }


def flagged(
    dataset: Dataset, checked: Checked, reviewed: Review, kind: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and entry of each record of one kind of finding."""
    duplicates = reviewed.duplicates
    wanted = duplicates.conflict if kind == "conflict" else ~duplicates.conflict
    firsts = duplicates.first[wanted] if kind in ("conflict", "duplicate") else None
    for place, number in enumerate(reviewed.flagged[kind].tolist()):
        shard, index = dataset.locate(number)
        row = checked.rows[number]
        if firsts is not None:
            first = int(firsts[place])
            of_shard, of_index = dataset.locate(first)
            detail = f"same bytes as {of_shard} {of_index}"
            if kind == "conflict":
                detail += f", label {checked.rows[first]['label']}"
        else:
            detail = _DETAILS[kind](row)
        label = int(row["label"])
        yield number, {"kind": kind, "shard": shard, "index": index, "label": label, "detail": detail}


def _size(row: Any) -> str:
    return f"{row['width']} x {row['height']} pixels"


_DETAILS: dict[str, Callable[[Any], str]] = {
    "small": _size,
    "long": _size,
    "huge": _size,
    "empty": lambda row: f"spread {row['spread']:.2f}",
    "label": lambda row: f"label {row['label']}",
}


def _labels(
    reviewed: Review,
    label_base: int | None,
    classes_from: str,
    names: Mapping[int, str],
    limit: int | None,
) -> dict[str, Any] | None:
    labels = reviewed.labels
    if labels is None:
        return None

    def named(label: int, records: int | None = None) -> dict[str, Any]:
        entry: dict[str, Any] = {"label": label, "name": names.get(label)}
        return entry if records is None else entry | {"records": records}

    return {
        "classes": labels.classes,
        "classes_from": classes_from,
        "label_base": label_base,
        "min": min(labels.counts),
        "max": max(labels.counts),
        "smallest": named(*labels.smallest),
        "median": labels.median,
        "largest": named(*labels.largest),
        "imbalance": round(labels.imbalance, 3),
        "missing_count": labels.missing,
        "missing": [named(label) for label in labels.missing_listed[:limit]],
        "counts": {str(label): count for label, count in labels.counts.items()},
    }
