"""Turns a folder of images into shards; TFRecords get the features of the reference ImageNet converters."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import simplejpeg
from PIL import Image
from tqdm import tqdm

from feeder.errors import ConfigError, DataError, StorageError
from feeder.records.build import ensure_indexes
from feeder.records.folder import LABELS_FILE, find_images, label_map, shuffled
from feeder.records.keys import MAX_LABEL, FormatName, RecordKeys
from feeder.records.seek import seek_path
from feeder.records.sidecar import index_path
from feeder.records.storage import locked
from feeder.records.stream import MAX_RECORD_BYTES
from feeder.records.writers import SUFFIXES, Sample, open_writer

__all__ = ["LABELS_FILE", "PackResult", "pack", "split"]

HOLDOUT_NAME = "validation"
MAX_SHARDS = 99_999

_OTHER_FORMATS = ("PNG", "GIF", "WEBP", "BMP", "JPEG")
_SET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TEMPORARY = ".feeder-pack-"


@dataclass(frozen=True)
class PackResult:
    """What was written.

    Attributes:
        records: images in the main shards.
        holdout: images in the validation shards.
        classes: class names; the position is the label from 0.
        shards: paths of all shards.
        nbytes: size of all shards.
        skipped: (file, reason) of what could not be packed, sorted by file.
    """

    records: int
    holdout: int
    classes: list[str]
    shards: list[Path]
    nbytes: int
    skipped: list[tuple[str, str]] = field(default_factory=list)


def split(
    images: Sequence[tuple[str, int]], seed: int, holdout: float
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Shuffles images and takes the given share of each class away, at least one image a class staying."""
    order = shuffled(images, seed)
    if not holdout:
        return order, []
    sizes: dict[int, int] = {}
    for _, label in order:
        sizes[label] = sizes.get(label, 0) + 1
    quota = {label: min(size - 1, int(size * holdout + 0.5)) for label, size in sizes.items()}
    kept: list[tuple[str, int]] = []
    held: list[tuple[str, int]] = []
    for image in order:
        if quota[image[1]] > 0:
            quota[image[1]] -= 1
            held.append(image)
        else:
            kept.append(image)
    return kept, held


def pack(
    src: Path,
    dst: Path,
    *,
    shards: int,
    seed: int = 0,
    name: str = "train",
    label_base: int | None = None,
    holdout: float = 0.0,
    strict: bool = False,
    force: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    format_name: FormatName = "tfrecord",
) -> PackResult:
    """Writes dst/NAME-00000-of-NNNNN and so on, their indexes, and the label map labels.json.

    Files are kept byte for byte, whatever their format. Shards are written in a hidden folder and get their
    names only when all are complete, so that nobody sees half a shard.

    Args:
        src: folder of images, see find_images().
        dst: folder for the shards; made if it is missing.
        shards: number of shards, at most one an image.
        seed: of the shuffle; the same seed and files give the same bytes.
        name: of the set, in the shard names.
        label_base: label of the first class in the records; None takes what is usual for the format.
        holdout: share in [0, 1) of each class that goes into validation-* shards instead; nothing of a class
            with one image.
        strict: fail on the first file that is not an image, instead of leaving it out.
        force: replace shards of these names.
        jobs: threads, each of which writes one shard and holds one image, or 16 MiB of them for Parquet;
            None takes the usable cores.
        progress: show a bar on stderr.
        format_name: of the shards: "tfrecord", "webdataset" or "parquet".

    Raises:
        ConfigError: an argument is wrong, there is nothing to pack, or such shards exist.
        DataError: a file is not an image, under `strict`; or none is.
        StorageError: reading or writing failed.
    """
    if not 1 <= shards <= MAX_SHARDS:
        raise ConfigError(f"shards must be in [1, {MAX_SHARDS}], got {shards}")
    if not 0 <= holdout < 1:
        raise ConfigError(f"holdout must be a share in [0, 1), got {holdout}")
    if not _SET_NAME.fullmatch(name) or (holdout and name == HOLDOUT_NAME):
        raise ConfigError(
            f"name must be of letters, digits, '_', '-', '.', and not {HOLDOUT_NAME!r}, got {name!r}"
        )
    if format_name not in SUFFIXES:
        raise ConfigError(f"format must be one of {', '.join(SUFFIXES)}, got {format_name!r}")
    keys = RecordKeys(label_base=label_base)
    label_base = keys.of(format_name).label_base
    if label_base < 0:
        raise ConfigError(f"label base must be 0 or more, got {label_base}")
    classes, images = find_images(src)
    if len(classes) + label_base > MAX_LABEL:
        raise ConfigError(f"{len(classes)} classes from {label_base} on do not fit the int32 of labels")
    kept, held = split(images, seed, holdout)
    if shards > len(kept):
        raise ConfigError(f"{shards} shards for {len(kept)} images: ask for fewer shards")
    plan = _plan(name, kept, shards, SUFFIXES[format_name])
    if held:
        count = min(len(held), max(1, round(shards * len(held) / len(kept))))
        plan |= _plan(HOLDOUT_NAME, held, count, SUFFIXES[format_name])
    sets = {name, HOLDOUT_NAME} if held else {name}
    labels = label_map(classes)
    with _storage(dst):
        dst.mkdir(parents=True, exist_ok=True)
        if not force:
            _refuse_existing(src, dst, sets, labels)
        with (
            _hidden_folder(dst) as folder,
            tqdm(total=len(images), unit="image", disable=not progress) as bar,
        ):
            bar.set_description("packing")
            writer = _Writer(src, classes, label_base, strict, format_name, bar.update)
            writer.write_all(folder, plan, jobs or len(os.sched_getaffinity(0)))
            if writer.written == 0:
                raise DataError(
                    f"{src}: none of {len(images)} files is an image, such as {writer.skipped[0]}"
                )
            (folder / LABELS_FILE).write_text(labels)
            with locked(dst):
                if not force:  # another pack may have been faster
                    _refuse_existing(src, dst, sets, labels)
                # The old go before the new come: a pack killed here leaves shards missing, which readers
                # refuse, and never old beside new ones.
                for path in _existing(dst, sets):
                    index_path(path).unlink(missing_ok=True)
                    seek_path(path).unlink(missing_ok=True)
                    path.unlink()
                _sync_folder(dst)
                for file in (LABELS_FILE, *plan):
                    os.replace(folder / file, dst / file)
                _sync_folder(dst)
    paths = [dst / file for file in plan]
    ensure_indexes(paths, keys, jobs=jobs, progress=progress, format_name=format_name)
    skipped = sorted(writer.skipped)
    lost = {path for path, _ in skipped}
    return PackResult(
        records=sum(path not in lost for path, _ in kept),
        holdout=sum(path not in lost for path, _ in held),
        classes=classes,
        shards=paths,
        nbytes=sum(path.stat().st_size for path in paths),
        skipped=skipped,
    )


def _plan(
    name: str, images: Sequence[tuple[str, int]], shards: int, suffix: str
) -> dict[str, Sequence[tuple[str, int]]]:
    """Which images go into which file; sizes differ by one at most."""
    cuts = [len(images) * number // shards for number in range(shards + 1)]
    return {
        f"{name}-{number:05d}-of-{shards:05d}{suffix}": images[cuts[number] : cuts[number + 1]]
        for number in range(shards)
    }


def _refuse_existing(src: Path, dst: Path, sets: set[str], labels: str) -> None:
    """Raises ConfigError where a pack without `force` would replace something."""
    if old := _existing(dst, sets):
        raise ConfigError(
            f"{dst}: holds {old[0].name} already: name another folder, or replace it with --force"
        )
    if (dst / LABELS_FILE).exists() and (dst / LABELS_FILE).read_bytes() != labels.encode():
        raise ConfigError(
            f"{dst / LABELS_FILE}: is there and has other classes than {src}: name another folder, "
            f"or replace it with --force"
        )


def _existing(dst: Path, sets: set[str]) -> list[Path]:
    pattern = re.compile(
        rf"({'|'.join(map(re.escape, sorted(sets)))})-\d{{5}}-of-\d{{5}}({'|'.join(SUFFIXES.values())})"
    )
    return sorted(dst / name for name in os.listdir(dst) if pattern.fullmatch(name))


class _Writer:
    """Writes planned shards, several at a time."""

    def __init__(
        self,
        src: Path,
        classes: list[str],
        label_base: int,
        strict: bool,
        format_name: FormatName,
        advance: Callable[[int], object],
    ) -> None:
        self._src = src
        self._classes = classes
        self._label_base = label_base
        self._strict = strict
        self._format = format_name
        self._advance = advance
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.written = 0
        self.skipped: list[tuple[str, str]] = []

    def write_all(self, folder: Path, plan: dict[str, Sequence[tuple[str, int]]], jobs: int) -> None:
        with ThreadPoolExecutor(min(jobs, len(plan)), thread_name_prefix="feeder-pack") as pool:
            futures = [pool.submit(self._write, folder / file, images) for file, images in plan.items()]
            try:
                for future in futures:
                    future.result()
            finally:
                self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)

    def _write(self, path: Path, images: Sequence[tuple[str, int]]) -> None:
        with open(path, "wb", buffering=1 << 20) as file:
            writer = open_writer(self._format, file, self._classes)
            for image, label in images:
                if self._stop.is_set():
                    return
                try:
                    sample = self._sample(image, label)
                except _NotAnImage as error:
                    if self._strict:
                        raise DataError(f"{self._src / image}: {error}") from error
                    with self._lock:
                        self.skipped.append((image, str(error)))
                        self._advance(1)
                    continue
                writer.add(sample)
                with self._lock:
                    self.written += 1
                    self._advance(1)
            writer.finish()
            file.flush()
            os.fsync(file.fileno())

    def _sample(self, image: str, label: int) -> Sample:
        try:
            if not stat.S_ISREG((self._src / image).stat().st_mode):
                raise _NotAnImage("is no regular file")
            encoded = (self._src / image).read_bytes()
        except OSError as error:
            raise _NotAnImage(f"cannot read: {error.strerror}") from error
        width, height, channels, format_name = _describe(encoded)
        if len(encoded) > MAX_RECORD_BYTES // 2:
            raise _NotAnImage(f"{len(encoded)} bytes are too many for a record")
        return Sample(
            encoded,
            label + self._label_base,
            os.path.basename(image),
            {
                "image/class/synset": os.fsencode(self._classes[label]),
                "image/filename": os.fsencode(os.path.basename(image)),
                "image/format": format_name.encode(),
                "image/height": height,
                "image/width": width,
                "image/colorspace": _COLORSPACES[channels],
                "image/channels": channels,
            },
        )


class _NotAnImage(Exception):
    """A file cannot be packed; the text says why."""


_COLORSPACES = {1: b"Gray", 3: b"RGB", 4: b"CMYK"}


def _describe(encoded: bytes) -> tuple[int, int, int, str]:
    """(width, height, channels, format) by the header alone; the rest of the file may still be damaged."""
    if not encoded:
        raise _NotAnImage("is empty (0 bytes)")
    if encoded.startswith(b"\xff\xd8"):
        with contextlib.suppress(ValueError):
            height, width, colorspace, _ = simplejpeg.decode_jpeg_header(encoded)
            if min(width, height) > 0:
                return width, height, {"Gray": 1, "CMYK": 4, "YCCK": 4}.get(colorspace, 3), "JPEG"
    try:
        with Image.open(io.BytesIO(encoded), formats=_OTHER_FORMATS) as image:
            channels = {"1": 1, "L": 1, "CMYK": 4}.get(image.mode, 3)
            return image.width, image.height, channels, image.format or ""
    except (
        OSError,
        ValueError,
        SyntaxError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise _NotAnImage("is no JPEG, PNG, GIF, WebP or BMP image, or its header is damaged") from error


@contextlib.contextmanager
def _hidden_folder(dst: Path) -> Iterator[Path]:
    """A folder of our own below `dst`, gone afterwards; those of packs that were killed are removed, too.

    A living pack holds a lock on its folder, which ends with the process.
    """
    for name in os.listdir(dst):
        if name.startswith(_TEMPORARY):
            with contextlib.suppress(OSError):
                fd = os.open(dst / name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(dst / name, ignore_errors=True)
                finally:
                    os.close(fd)
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=dst))
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(fd)
        shutil.rmtree(folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _storage(dst: Path) -> Iterator[None]:
    """Turns an error of the file system into ours, with the place."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        where = error.filename or dst
        raise StorageError(f"{where}: cannot write: {error.strerror or error}") from error
