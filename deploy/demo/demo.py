"""The demo: two data workers feed a small ResNet, on this machine, in about a minute.

Run it by `make demo`, which makes the environments first. It keeps everything in one folder: the pictures,
the shards, the workers' logs, compiled code for a quicker next start, and batch.png, a batch as the workers
make them.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FEEDER = ("-P", "-m", "feeder")
"""Python's flags for feeder as it is installed; without -P this checkout's, which has no kernel, would do."""

SYNTH_IMAGES, SYNTH_CLASSES = 2000, 10
SHARDS = 8
HOLDOUT = 0.1
WORKERS = 2
READY = "feeder worker listening on "
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
STDERR_KEPT = 4096
"""Bytes at the end of the trainer's stderr, which hold its error."""

BATCH_SIZE = 64
STEPS = 700
"""About a minute on two cores."""
SECONDS = 180.0
"""On a slow or busy machine the training stops here, wherever it is."""


class DemoError(Exception):
    """The demo cannot go on, or found something wrong; one line for the user."""


@dataclass(frozen=True)
class Data:
    """Shards that are ready to be served.

    Attributes:
        source: what they were made of; tells whether they can be used again.
        folder: of the shards.
        records, holdout: images to train on, and held out.
        classes: number of classes.
    """

    source: str
    folder: str
    records: int
    holdout: int
    classes: int


def main() -> int:
    """Runs the demo; 0: all well, 1: something is wrong, 130: interrupted."""
    args = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(args.folder.resolve(), args.worker_python, args.trainer_python, args.images)
    except DemoError as error:
        print(f"demo: FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted, everything is stopped", file=sys.stderr)
        return 130


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("demo"), help="where everything is kept (%(default)s)"
    )
    parser.add_argument("--images", type=Path, help="folder of your own JPEGs; without it pictures are made")
    parser.add_argument(
        "--worker-python", default=sys.executable, metavar="PYTHON", help="has feeder[worker] (this one)"
    )
    parser.add_argument("--trainer-python", required=True, metavar="PYTHON", help="has feeder[trainer]")
    return parser.parse_args()


def run(folder: Path, worker_python: str, trainer_python: str, images: Path | None) -> int:
    """The demo from pictures to table."""
    folder.mkdir(parents=True, exist_ok=True)
    data = prepare(folder, worker_python, images)
    if data.classes < 2:
        raise DemoError(f"{images}: all images are of one class, there is nothing to learn")
    if not data.holdout:
        _say("too few images a class to hold any out: checks that the loss halves instead")
    with workers(folder, worker_python, data) as addresses:
        target = ",".join(addresses)
        _say(f"two workers serve {data.records:,} images at {target}; a ResNet trains on them for a minute")
        requirement = _requirement(data)
        trained = _train(folder, trainer_python, data, target, requirement)
        sheet = folder / "batch.png"
        _feeder(
            worker_python,
            *("preview", "--connect", target, "--dataset", "train", "--output", str(sheet)),
            *("--images", str(min(32, data.records)), "--image-size", "128"),
        )
    print(f"\n{trained.stdout.rstrip()}", flush=True)
    print(f"\na batch as the workers make them: {sheet}\nworkers stopped, nothing left running", flush=True)
    if trained.returncode:
        raise DemoError(f"the training did not reach {requirement} (see above; logs are in {folder})")
    return 0


def prepare(folder: Path, python: str, images: Path | None) -> Data:
    """Makes or takes pictures and packs them, unless an earlier run did so."""
    if images is None:
        photos, source = folder / "photos", f"synth {SYNTH_IMAGES} {SYNTH_CLASSES}"
        shards, stamp = folder / "shards", folder / "shards.json"
    elif images.is_dir():
        photos, source = images.resolve(), _digest(images.resolve())
        shards, stamp = folder / "own-shards", folder / "own-shards.json"
    else:
        raise DemoError(f"{images}: no such folder; IMAGES= takes one with class folders or ImageNet names")
    if stamp.exists():
        data = Data(**json.loads(stamp.read_text()))
        if data.source == source:
            _say(f"using {shards} of an earlier run")
            return data
    if images is None:
        if photos.exists():
            shutil.rmtree(photos)  # half of an earlier run
        _say(f"making {SYNTH_IMAGES:,} pictures of {SYNTH_CLASSES} classes in {photos}, only this once")
        _feeder(python, "synth", str(photos), "--images", str(SYNTH_IMAGES), "--classes", str(SYNTH_CLASSES))
    if shards.exists():
        shutil.rmtree(shards)
    packed = json.loads(
        _feeder(
            python,
            *("pack", str(photos), str(shards), "--shards", str(_shard_count(photos))),
            *("--holdout", str(HOLDOUT), "--json"),
        )
    )
    data = Data(source, str(shards), packed["records"], packed["holdout"], packed["classes"])
    _say(f"packed {data.records:,} images, and {data.holdout:,} held out, of {data.classes:,} classes")
    stamp.write_text(json.dumps(asdict(data)))
    return data


def _shard_count(photos: Path) -> int:
    """Fewer shards than SHARDS where there are hardly any images."""
    files = sum(len(names) for _, _, names in os.walk(photos))
    return max(1, min(SHARDS, files // 16))


def _digest(images: Path) -> str:
    """Of names, sizes and times of all files in a folder: changes when the images do."""
    digest = hashlib.sha256(os.fsencode(images))
    for folder, folders, names in os.walk(images):
        folders.sort()
        for name in sorted(names):
            stat = os.stat(os.path.join(folder, name))
            digest.update(
                f"{folder}/{name} {stat.st_size} {stat.st_mtime_ns}".encode(errors="surrogateescape")
            )
    return digest.hexdigest()


@contextlib.contextmanager
def workers(folder: Path, python: str, data: Data) -> Iterator[list[str]]:
    """Two daemons that serve the data; their addresses. Afterwards they are gone, whatever happens."""
    sets = ["--dataset", f"train={data.folder}/train-*"]
    if data.holdout:
        sets += ["--dataset", f"validation={data.folder}/validation-*"]
    daemons: list[subprocess.Popen[str]] = []
    addresses: list[str] = []
    try:
        for number in range(1, WORKERS + 1):
            with open(folder / f"worker-{number}.log", "w") as log:
                daemons.append(
                    subprocess.Popen(
                        [
                            python,
                            *FEEDER,
                            "worker",
                            *sets,
                            "--listen",
                            "127.0.0.1:0",
                            "--threads",
                            "1",
                        ],
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                        # Ctrl-C is for the demo, which stops its workers itself.
                        start_new_session=True,
                    )
                )
        deadline = time.monotonic() + READY_TIMEOUT_S
        for number, daemon in enumerate(daemons, 1):
            addresses.append(_address(daemon, deadline, folder / f"worker-{number}.log"))
        yield addresses
    finally:
        _stop(daemons)
    _check_gone(daemons, addresses)


def _address(daemon: subprocess.Popen[str], deadline: float, log: Path) -> str:
    """Where a daemon listens, from the one line that it prints when it is ready."""
    assert daemon.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(daemon.stdout, selectors.EVENT_READ)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise DemoError(f"a worker was not ready within {READY_TIMEOUT_S:g} s, see {log}")
    line = daemon.stdout.readline()
    if not line.startswith(READY):
        raise DemoError(
            f"a worker did not start: {(log.read_text().splitlines() or ['it said nothing'])[-1]}"
        )
    return line.removeprefix(READY).strip()


def _stop(daemons: Sequence[subprocess.Popen[str]]) -> None:
    """SIGTERM, and SIGKILL to what is still there after STOP_TIMEOUT_S. Ctrl-C doesn't hinder it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for daemon in daemons:
        daemon.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for daemon in daemons:
        try:
            daemon.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        assert daemon.stdout is not None
        daemon.stdout.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _check_gone(daemons: Sequence[subprocess.Popen[str]], addresses: Sequence[str]) -> None:
    """Raises unless the daemons ended by themselves, left no child and gave back their ports."""
    for daemon in daemons:
        if daemon.returncode:
            raise DemoError(f"a worker ended with exit code {daemon.returncode}")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, 0)
            raise DemoError(f"a child of worker {daemon.pid} is left")
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            raise DemoError(f"something still listens at {address}")


def _requirement(data: Data) -> str:
    """What the training must reach: four times chance on held-out images, or where the classes are too few
    for that, the middle between chance and all right. Where nothing is held out, half of the loss of
    guessing."""
    if not data.holdout:
        return "loss=0.5x"
    return f"accuracy={min(4.0, (1 + data.classes) / 2):g}x"


def _train(
    folder: Path, python: str, data: Data, target: str, requirement: str
) -> subprocess.CompletedProcess[str]:
    """Trains; the live line goes to our stderr, the table is what is returned. Exit code 0, or 1 where the
    requirement is missed."""
    command = [python, *FEEDER, "train", "--config", "tiny", "--connect", target, "--dataset", "train"]
    if data.holdout:
        command += ["--eval-dataset", "validation"]
    command += ["--classes", str(data.classes), "--batch-size", str(min(BATCH_SIZE, data.records))]
    command += ["--steps", str(STEPS), "--seconds", str(SECONDS), "--require", requirement]
    command += ["--compile-cache", str(folder / "compiled")]
    # JAX takes as many threads as NPROC says: leave each worker a core of its own.
    threads = max(1, len(os.sched_getaffinity(0)) - WORKERS)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": str(threads)}
    done = _run_loud(command, environment)
    if done.returncode not in (0, 1):
        last = (done.stderr.splitlines() or ["it said nothing"])[-1]
        raise DemoError(f"the trainer ended with exit code {done.returncode}: {last}")
    return done


def _run_loud(command: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a command whose stderr shows on ours as it comes: through a terminal of its own where ours is one,
    so that it rewrites its live line. The result holds the end of that stderr, too."""
    heard, said = os.openpty() if sys.stderr.isatty() else os.pipe()
    end = b""
    try:
        try:
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=said, text=True
            )
        finally:
            os.close(said)
        with process:
            try:
                while piece := _read(heard):
                    sys.stderr.buffer.write(piece)
                    sys.stderr.flush()
                    end = (end + piece)[-STDERR_KEPT:]
                printed, _ = process.communicate()
            except BaseException:
                process.kill()
                raise
    finally:
        os.close(heard)
    return subprocess.CompletedProcess(command, process.returncode, printed, end.decode(errors="replace"))


def _read(descriptor: int) -> bytes:
    """What is there next; empty at the end, which a terminal tells by EIO."""
    try:
        return os.read(descriptor, STDERR_KEPT)
    except OSError as error:
        if error.errno == errno.EIO:
            return b""
        raise


def _feeder(python: str, *command: str) -> str:
    """Runs a feeder command to its end; what it printed."""
    done = subprocess.run([python, *FEEDER, *command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise DemoError(f"feeder {command[0]} ended with exit code {done.returncode}")
    return done.stdout


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
