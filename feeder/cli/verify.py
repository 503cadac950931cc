"""`feeder verify`: is a data set whole, and what is odd about it?"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feeder.cli.data import EXIT_FOUND_BAD, Subparsers, clean_on_sigterm, count
from feeder.cli.options import add_record_options, positive, record_format, record_keys, thread_count
from feeder.errors import ConfigError, printable

if TYPE_CHECKING:
    from feeder.quality import Checked, Review, State
    from feeder.records import Dataset

__all__ = ["register"]

LISTED = 20
"""Findings of each kind that the table lists unless --limit says otherwise."""

PICTURES = 60
"""Most pictures on a sheet."""

_TEXT = """\
Reads every record, checks its crc, decodes every row of its image, and reports on the whole: sizes, colours,
labels and their balance, duplicates, pictures with nothing in them.

Bad records (they cannot be read, or their image is damaged) are errors. They are listed first, one a line:
shard, number in the shard, reason. All else that is odd is a finding:

  small      the short side is below --crop, so that it is always enlarged
  long       the long side is more than --max-aspect times the short one
  huge       more than --max-megapixels
  empty      nearly of one colour: the standard deviation of its levels, at 64 x 64, is below --min-spread
  label      its label is beyond the classes
  conflict   the same bytes are there under another label
  duplicate  the same bytes are there before
  missing    a class without a good record
  imbalance  the largest class has more than --max-imbalance times the records of the smallest

Exit code 0: no bad record, 1: bad records, or with --strict findings, 2: it could not be checked,
130: interrupted. Nothing is written beside the data.
"""
_EXAMPLES = """\
examples:
  feeder verify shards/
  feeder verify '/data/imagenet/train-*' --classes 1000 --sheet flagged.png
  feeder verify '/data/imagenet/train-*' --json --state verify-state/ > report.json    # can be interrupted
"""


def register(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "verify",
        help="check every record, and look for what is odd",
        description=_TEXT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "patterns", nargs="+", metavar="PATTERN", help="shard, glob or folder, or the URL of one"
    )
    add_record_options(parser)
    group = parser.add_argument_group("what is a finding")
    group.add_argument(
        "--classes",
        type=positive,
        metavar="N",
        help="number of classes (as in labels.json beside the shards, or as the largest label says)",
    )
    group.add_argument(
        "--crop",
        type=positive,
        default=224,
        metavar="PX",
        help="side of the training crop in pixels (%(default)s)",
    )
    for name, default, what in (
        ("--max-aspect", 4.0, "long side divided by the short one"),
        ("--max-megapixels", 25.0, "width x height / 1,000,000"),
        ("--min-spread", 4.0, "levels of 255"),
        ("--max-imbalance", 10.0, "records of the largest class divided by those of the smallest"),
    ):
        group.add_argument(name, type=_number, default=default, metavar="X", help=f"{what} (%(default)s)")
    group.add_argument("--strict", action="store_true", help="exit with 1 where there is any finding")
    parser.add_argument(
        "--sheet",
        type=Path,
        metavar="FILE.png",
        help=f"draw what was flagged, with names and reasons, at most {PICTURES} pictures",
    )
    parser.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help=f"list at most N of each kind (all bad records; {LISTED} of each finding, in JSON all)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="keep what is done there, so that the same command goes on if interrupted; removed at the end",
    )
    parser.add_argument("--jobs", type=thread_count, metavar="N", help="threads (all usable cores)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, see docs/verify.md")
    parser.set_defaults(run=clean_on_sigterm(_verify))


def _verify(args: argparse.Namespace) -> int:
    from feeder.quality import State, check
    from feeder.records import Dataset

    if args.sheet is not None and (args.sheet.is_dir() or not args.sheet.absolute().parent.is_dir()):
        raise ConfigError(f"cannot write {args.sheet}: name a file in a folder that is there")
    progress = sys.stderr.isatty()
    with ExitStack() as stack:
        state = State(args.state) if args.state is not None else None
        if state is not None:
            stack.push(lambda kind, error, trace: _say_kept(state, error))
        index_dir = args.index_dir or (state.indexes if state is not None else None)
        if index_dir is None:
            index_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-verify-")))
        dataset = stack.enter_context(
            Dataset.open(
                "verify",
                args.patterns,
                keys=record_keys(args),
                index_dir=index_dir,
                jobs=args.jobs,
                progress=progress,
                format_name=record_format(args),
            )
        )
        checked = check(dataset, state=state, jobs=args.jobs, progress=progress)
        reviewed, report = _report(args, dataset, checked)
        if args.sheet is not None:
            _draw(args.sheet, dataset, checked, reviewed)
        if args.json:
            print(json.dumps(report, indent=1))
        else:
            for line in _lines(report):
                print(line)
            print(_verdict(report), file=sys.stderr)
        sys.stdout.flush()  # only then is what was done of no more use
        if state is not None:
            for line in state.passed_over:
                print(line, file=sys.stderr)
            if checked.resumed:
                print(f"{checked.resumed} of {len(dataset)} records were done before", file=sys.stderr)
            state.clear()
    found = checked.reasons or (args.strict and any(reviewed.counts.values()))
    return EXIT_FOUND_BAD if found else 0


def _report(args: argparse.Namespace, dataset: Dataset, checked: Checked) -> tuple[Review, dict[str, Any]]:
    """What the rows say, and the document of it."""
    from feeder.quality import Thresholds, document, review

    thresholds = Thresholds(
        args.crop, args.max_aspect, args.max_megapixels, args.min_spread, args.max_imbalance
    )
    names, named_by = _class_names(args.patterns, dataset)
    classes = args.classes or (max(names) + 1 if names else None)
    reviewed = review(checked.rows, thresholds, classes)
    bases = {record_keys(args).of(shard.format).label_base for shard in dataset.shards}
    report = document(
        dataset,
        checked,
        reviewed,
        thresholds,
        label_base=bases.pop() if len(bases) == 1 else None,
        classes_from="--classes" if args.classes else named_by or "largest label",
        names=names,
        most_bad=args.limit,
        most_findings=args.limit if args.limit or args.json else LISTED,
    )
    return reviewed, report


def _say_kept(state: State, error: BaseException | None) -> None:
    if isinstance(error, KeyboardInterrupt | SystemExit):
        print(f"what is done is kept in {state.folder}: the same command goes on from there", file=sys.stderr)


def _class_names(patterns: list[str], dataset: Dataset) -> tuple[Mapping[int, str], str]:
    """Names of classes and what has them; nothing and "" where nothing has."""
    from feeder.cli.sheet import label_names
    from feeder.records.folder import LABELS_FILE, find_images

    if names := {label: name for label, name in label_names(patterns).items() if label >= 0}:
        return names, LABELS_FILE
    if len(dataset.shards) == 1 and dataset.shards[0].format == "folder":
        path = dataset.shards[0].path
        assert isinstance(path, Path)
        return dict(enumerate(find_images(path)[0])), "class folders"
    return {}, ""


def _draw(path: Path, dataset: Dataset, checked: Checked, reviewed: Review) -> None:
    """Draws flagged records, of each kind in turn, so that each is seen."""
    from feeder.cli.sheet import save_sheet
    from feeder.quality import flagged, pictures

    def bad() -> Iterator[tuple[int, str]]:
        for number, reason in checked.reasons.items():
            yield number, f"bad: {reason}"

    def odd(kind: str) -> Iterator[tuple[int, str]]:
        for number, entry in flagged(dataset, checked, reviewed, kind):
            yield number, f"{kind}: {entry['detail']}"

    captions: dict[int, str] = {}
    for turn in zip_longest(bad(), *(odd(kind) for kind in reviewed.flagged)):
        for one in turn:
            if one is not None and len(captions) < PICTURES:
                captions.setdefault(*one)
        if len(captions) == PICTURES:
            break
    if not captions:
        print(f"{path}: not drawn, nothing was flagged", file=sys.stderr)
        return
    numbers = sorted(captions)
    places = [dataset.locate(number) for number in numbers]
    texts = [
        f"{captions[number]}\n{index} in {shard}"
        for number, (shard, index) in zip(numbers, places, strict=True)
    ]
    save_sheet(path, pictures(dataset, numbers), texts)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """The report for people."""
    for one in report["bad"]:
        yield f"{printable(one['shard'])}\t{one['index']}\t{printable(one['reason'])}"
    if report["bad"]:
        yield ""
    yield f"{'sizes':<12}{'min':>14}{'median':>14}{'max':>14}"
    for name, spread in report["sizes"].items():
        yield f"  {name:<10}" + "".join(f"{spread[which]:>14,.6g}" for which in ("min", "median", "max"))
    for title, tally in (("colours", "modes"), ("JPEG", "processes"), ("sampling", "samplings")):
        if report[tally]:
            yield f"{title:<12}" + ", ".join(f"{name} {records:,}" for name, records in report[tally].items())
    yield from _label_lines(report["labels"])
    duplicates = report["duplicates"]
    yield (
        f"{'duplicates':<12}{count(duplicates['records'], 'record')} of "
        f"{count(duplicates['groups'], 'picture')}, {duplicates['conflicts']} of them in label conflicts"
    )
    found = [f"{kind} {number:,}" for kind, number in report["counts"].items() if number]
    yield f"{'found':<12}{', '.join(found) or 'nothing'}"
    for one in report["findings"]:
        yield f"  {one['kind']}\t{printable(one['shard'])}\t{one['index']}\t{printable(one['detail'])}"
    for kind, number in report["counts"].items():
        listed = sum(one["kind"] == kind for one in report["findings"])
        if 0 < listed < number:
            yield f"  and {number - listed:,} more {kind}: see them with --json, or a larger --limit"


def _label_lines(labels: dict[str, Any] | None) -> Iterator[str]:
    if labels is None:
        return
    base = labels["label_base"]
    stored = f" (in the records {labels['min'] + base} to {labels['max'] + base})" if base else ""
    have = labels["classes"] - labels["missing_count"]
    yield f"{'labels':<12}{labels['min']} to {labels['max']}{stored}"
    yield (
        f"  {'classes':<10}{have:,} of {labels['classes']:,} have records "
        f"(how many there are: {labels['classes_from']})"
    )
    if labels["missing"]:
        more = ", ..." if labels["missing_count"] > len(labels["missing"]) else ""
        yield f"  {'missing':<10}" + ", ".join(map(_called, labels["missing"])) + more
    for which in ("smallest", "largest"):
        yield f"  {which:<10}{count(labels[which]['records'], 'record')}: class {_called(labels[which])}"
    yield f"  {'median':<10}{labels['median']:,.6g} records"
    yield f"  {'imbalance':<10}{labels['imbalance']:.3g} (largest / smallest)"


def _called(one: dict[str, Any]) -> str:
    return f"{one['label']} {printable(one['name'])}" if one["name"] else str(one["label"])


def _verdict(report: dict[str, Any]) -> str:
    bad = report["counts"]["bad"]
    findings = sum(report["counts"].values()) - bad
    counted = f"{count(report['records'], 'record')} in {count(report['shards'], 'shard')}"
    return f"{counted}: {bad or 'none'} bad, {count(findings, 'finding')}"


def _number(text: str) -> float:
    """The value of a threshold."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number from 0 on, got {text!r}")
    return number
