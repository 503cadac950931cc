"""Reads, checks, decodes and measures every record of a data set."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from feeder.decode import Decoder, open_decoder
from feeder.decode.header import read_header
from feeder.errors import BadRecord, DataError
from feeder.quality.rows import ROW, SIDE, Rows, describe, spreads
from feeder.quality.state import Piece, State
from feeder.records import Dataset
from feeder.records.walk import walk

__all__ = ["Checked", "check"]

PIECE = 4096
"""Most records of a piece: what an interrupted run loses at most, a few seconds of one core."""


@dataclass(frozen=True)
class Checked:
    """What came of it.

    Attributes:
        rows: ROW [n], of each record.
        reasons: why the bad records are bad, by their numbers, in order.
        resumed: records that an earlier run had done.
    """

    rows: Rows
    reasons: dict[int, str]
    resumed: int


def check(
    dataset: Dataset, *, state: State | None = None, jobs: int | None = None, progress: bool = False
) -> Checked:
    """Reads each record, checks its crc and decodes each image to its last row.

    Memory: 43 bytes a record, the reasons of the bad ones, and a few images a thread.

    Args:
        dataset: what to check.
        state: where what is done is kept, so that an interrupted run goes on; clear() is the caller's.
        jobs: threads; None takes the usable cores.
        progress: show a bar on stderr.

    Raises:
        StorageError: a record could not be read, so that nothing can be said of it; or the state not be kept.
    """
    rows = np.zeros(len(dataset), ROW)
    reasons: dict[int, str] = {}
    pieces = _pieces(dataset)
    done: set[Piece] = set()
    for piece, of_rows, of_reasons in state.resume(pieces) if state is not None else ():
        rows[piece.numbers.start : piece.numbers.stop] = of_rows
        reasons |= of_reasons
        done.add(piece)
    todo = [piece for piece in pieces if piece not in done]
    resumed = len(dataset) - sum(len(piece.numbers) for piece in todo)
    threads = jobs or len(os.sched_getaffinity(0))
    with closing(open_decoder(threads)) as decoder:

        def work(numbers: range, stop: threading.Event) -> tuple[range, dict[int, str]]:
            return numbers, _chunk(dataset, decoder, numbers, stop, rows[numbers.start : numbers.stop])

        ends = {piece.numbers.stop: piece for piece in todo}
        of_piece: dict[int, str] = {}
        with closing(
            walk(
                [piece.numbers for piece in todo],
                work,
                threads=threads,
                doing="verifying",
                progress=progress,
                unit="image",
                done=resumed,
            )
        ) as chunks:
            for numbers, found in chunks:
                of_piece |= found
                if (end := ends.get(numbers.stop)) is not None:
                    if state is not None:
                        state.save(end, rows[end.numbers.start : end.numbers.stop], of_piece)
                    reasons |= of_piece
                    of_piece = {}
    return Checked(rows, dict(sorted(reasons.items())), resumed)


def _pieces(dataset: Dataset) -> list[Piece]:
    return [
        Piece(content, at, range(first + at, first + min(at + PIECE, records)))
        for content, first, records in dataset.shard_starts()
        for at in range(0, records, PIECE)
    ]


def _chunk(
    dataset: Dataset, decoder: Decoder, numbers: range, stop: threading.Event, rows: Rows
) -> dict[int, str]:
    """Fills in the rows of some records; returns why the bad ones are bad."""
    reasons: dict[int, str] = {}
    images: list[memoryview] = []
    readable: list[int] = []
    reading = dataset.ask(numbers)
    for position, number in enumerate(numbers):
        if stop.is_set():
            return {}
        rows[position]["label"] = dataset.label(number)
        try:
            image = dataset.read(number, reading).image
            describe(rows[position], image, read_header(image))
        except DataError as error:
            reasons[number] = error.reason if isinstance(error, BadRecord) else str(error)
            continue
        images.append(image)
        readable.append(position)
    windows = np.zeros((len(images), 4), np.int32)
    windows[:, 2], windows[:, 3] = rows["width"][readable], rows["height"][readable]
    thumbnails = np.empty((len(images), SIDE, SIDE, 3), np.uint8)
    damages = decoder.decode(images, windows, np.zeros(len(images), bool), thumbnails)
    rows["spread"][readable] = spreads(thumbnails)
    for position, reason in zip(readable, damages, strict=True):
        if reason is not None:
            reasons[numbers[position]] = reason
        else:
            rows[position]["good"] = True
    return reasons
