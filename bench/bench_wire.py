"""The wire alone: batches that are ready, from one process to another over TCP loopback, all cores for both.

feeder's server and client beside Arrow Flight and grpc.aio, which send the same batches of random pixels, and
bare sockets, which no protocol over TCP can beat: no contestant decodes, and what its server sends lies in
memory as it wants it. What arrives is checked first.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import harness, tables
from bench.contestant import ContestantFailed, exit_code, rival
from bench.service import BATCH, Party, ServiceRound

__all__ = ["run"]

DIFFERENT = 4
"""Batches that are sent in turn: 38 MB of 224 pixels, more than the second-level caches hold."""

FEEDER = "feeder"
FEEDER_TLS = "feeder (TLS)"
BARE = "bare sockets"
CONTESTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    FEEDER: ("wire_feeder.py", {"connections": 2}),
    "feeder, one connection": ("wire_feeder.py", {"connections": 1}),
    FEEDER_TLS: ("wire_feeder.py", {"connections": 2, "tls": True}),
    BARE: ("wire_raw.py", {"connections": 2}),
    "bare sockets, one connection": ("wire_raw.py", {"connections": 1}),
    "Arrow Flight": ("wire_flight.py", {"connections": 1}),
    "Arrow Flight, two connections": ("wire_flight.py", {"connections": 2}),
    "grpc.aio": ("wire_aio.py", {"connections": 1, "tuned": True}),
    "grpc.aio, two connections": ("wire_aio.py", {"connections": 2, "tuned": True}),
    "grpc.aio, its defaults": ("wire_aio.py", {"connections": 1, "tuned": False}),
}
"""Script of each, and what it is told besides."""


def run(*, as_json: bool = False, rounds: int = 7, batches: int = 200, size: int = 224) -> int:
    """Measures and prints a table, or JSON lines: environment, contestants, what was left out, summary.

    Args:
        as_json: print rows instead of the table.
        rounds: how many are kept.
        batches: timed in each round.
        size: height and width of an image in pixels.

    Returns:
        0, or 1 where a contestant failed.
    """
    cores = sorted(os.sched_getaffinity(0))
    shape = (BATCH, size, size, 3)
    left_out: dict[str, ContestantFailed] = {}
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-")))
        sent = np.random.default_rng(0).integers(0, 256, (DIFFERENT, *shape), np.uint8)
        np.save(place / "batches.npy", sent)
        parties = {}
        for name, (script, told) in CONTESTANTS.items():
            tables.progress(f"checking {name}")
            try:
                parties[name] = _party(name, script, told, place, cores, sent, stack)
            except ContestantFailed as error:
                left_out[name] = error
        if FEEDER not in parties:
            raise left_out[FEEDER]
        results = harness.interleave(
            {name: functools.partial(party.round, batches) for name, party in parties.items()},
            rounds,
            progress=tables.round_progress(rounds),
        )
        facts = {name: party.consumer.facts for name, party in parties.items()}
    tables.progress("")

    head = harness.head_row(
        "wire",
        cores,
        ("numpy", "grpcio", "pyarrow", "h2"),
        size=size,
        batch=BATCH,
        batches=batches,
        rounds=rounds,
    )
    image_bytes = sent[0, 0].nbytes
    rows = [
        _row(head["run"], name, results[FEEDER], theirs, image_bytes) | facts[name]
        for name, theirs in results.items()
    ]
    rows += harness.left_out_rows(head["run"], left_out)
    compared = {name: harness.comparison(row) for name, row in zip(results, rows, strict=False)}
    del compared[FEEDER]
    summary = harness.summary_row(head["run"], compared, FEEDER)
    if as_json:
        harness.write_rows([head, *rows, summary])
    else:
        print(tables.wire_table(rows), *left_out.values(), *tables.summary_lines(summary), sep="\n")
    return exit_code(left_out)


def _party(
    name: str,
    script: str,
    told: Mapping[str, Any],
    place: Path,
    cores: Sequence[int],
    sent: np.ndarray,
    stack: contextlib.ExitStack,
) -> Party:
    """Both sides of a contestant, once what arrives is what was sent."""
    if told.get("tls"):
        told = {**told, "certificate": str(_certificate(name, place))}
    flags = ("--cores", ",".join(map(str, cores)), "--variant")
    server = stack.enter_context(rival(name, None, script, *flags, "server"))
    server.load(path=str(place / "batches.npy"), **told)
    consumer = stack.enter_context(rival(name, None, script, *flags, "consumer"))
    consumer.load(port=server.facts["port"], shape=sent.shape[1:], different=len(sent), **told)
    path = place / "arrived.npy"
    consumer.ask("outputs", path=str(path))
    if not np.array_equal(np.load(path), sent):
        raise ContestantFailed(f"{name}: what arrives is not what was sent")
    return Party(consumer, [server])


def _certificate(name: str, place: Path) -> Path:
    """A file with a certificate for 127.0.0.1, of its own authority, and its key."""
    path = place / "certificate.pem"
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=bench")
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    command = ["openssl", "req", "-x509", "-nodes", *kind, *names, "-keyout", "-", "-out", "-"]
    try:
        made = subprocess.run(command, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise ContestantFailed(f"{name}: the command openssl makes no certificate: {error}") from None
    path.write_bytes(made.stdout)
    return path


def _row(
    run_name: str,
    name: str,
    ours: Sequence[ServiceRound],
    theirs: Sequence[ServiceRound],
    image_bytes: int,
) -> dict[str, Any]:
    return harness.contestant_row(run_name, name, ours, theirs) | {
        "gigabytes_per_s": harness.Spread.of(
            [one.images_per_s * image_bytes / 1e9 for one in theirs]
        ).rounded(3),
        "consumer_cpu_us_per_image": harness.Spread.of(
            [1e6 * one.consumer_cpu_seconds / one.images for one in theirs]
        ).rounded(1),
    }
