"""WebDataset shards: members of a tar archive, grouped into samples by name.

The rules are WebDataset's own (tariterators.py, `group_by_keys`): a name splits at the first dot of its last
part into key and suffix, dots in folders never count, suffixes are compared in lower case, and a sample is a
run of neighbours with the same key. A suffix that comes twice makes its sample bad. Passed over are what is
no regular file, names without a suffix, and names that begin like `__this__`. Other than there, hidden files
(`._1.jpg`, as macOS writes them) are passed over, too: they would tear samples apart.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from feeder.errors import BadShard, ConfigError
from feeder.records.crc32c import crc32c
from feeder.records.index import IndexBuilder
from feeder.records.keys import Keys, Unusable, zero_based
from feeder.records.stream import MAX_RECORD_BYTES, Torn, Window
from feeder.records.tar import Member, members

__all__ = ["key_and_suffix", "scan_webdataset"]

MAX_LABEL_BYTES = 64
MAX_JSON_BYTES = 1 << 20
MAX_MEMBERS = 1000
"""Members of one sample."""

_META = re.compile(r"__[^/]*__(?:$|/)")
_NUMBER = re.compile(rb"[+-]?\d{1,19}")
_SHOWN = 80


def key_and_suffix(name: str) -> tuple[str, str] | None:
    """Key and suffix (lower case) of a member's name; None for what belongs to no sample."""
    if _META.match(name):
        return None
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    if not stem or not dot:
        return None
    return folder + slash + stem, suffix.lower()


class _LabelKey(NamedTuple):
    suffix: str
    name: str | None  # member of the JSON object; None: the label is the text


class _Image(NamedTuple):
    offset: int
    size: int
    crc: int


@dataclass
class _Sample:
    key: str
    offset: int
    suffixes: set[str] = field(default_factory=set)
    images: dict[str, _Image] = field(default_factory=dict)
    labels: dict[str, bytes] = field(default_factory=dict)
    problem: str = ""


def scan_webdataset(
    window: Window, keys: Keys, builder: IndexBuilder, max_record_bytes: int = MAX_RECORD_BYTES
) -> None:
    """Adds all samples of a shard to an index.

    Raises:
        Torn: where the archive breaks, after all samples before it.
        BadShard: it is no tar archive.
        ConfigError: a key cannot be one.
        StorageError: it cannot be read.
    """
    scan = _Scan(window, keys, builder, max_record_bytes)
    try:
        for member in members(window):
            scan.take(member)
    except Torn as torn:
        if torn.offset == 0:
            raise BadShard(
                f"{window.path}: is not a tar archive, or damaged from its first byte on ({torn.reason}): "
                f"check the pattern, or copy it again"
            ) from None
        scan.end(torn=True)
        raise
    scan.end()


class _Scan:
    def __init__(self, window: Window, keys: Keys, builder: IndexBuilder, max_record_bytes: int) -> None:
        self._window = window
        self._keys = keys
        self._builder = builder
        self._limit = max_record_bytes
        self._images = [suffix.lower() for suffix in keys.image.split(";") if suffix]
        self._labels = [_label_key(part) for part in keys.label.split(";") if part]
        if not self._images or not self._labels:
            raise ConfigError(f"no suffix in the keys {keys.image!r} and {keys.label!r}")
        self._label_suffixes = {label.suffix for label in self._labels}
        self._sample: _Sample | None = None

    def take(self, member: Member) -> None:
        """Notes one member; its data are next in the window."""
        split = key_and_suffix(member.name) if member.is_file else None
        if split is None:
            return
        key, suffix = split
        sample = self._sample
        if sample is None or sample.key != key:
            self.end()
            sample = self._sample = _Sample(key, member.header)
        if suffix in sample.suffixes:
            sample.problem = sample.problem or f"two members with the suffix {suffix[:_SHOWN]!r}"
        elif len(sample.suffixes) >= MAX_MEMBERS:
            sample.problem = sample.problem or f"more than {MAX_MEMBERS} members"
            return
        sample.suffixes.add(suffix)
        if suffix in self._images:
            self._take_image(sample, suffix, member)
        elif suffix in self._label_suffixes:
            limit = MAX_JSON_BYTES if suffix.endswith("json") else MAX_LABEL_BYTES
            if member.is_sparse or member.size > limit:
                sample.problem = sample.problem or f"label of {member.size} bytes in .{suffix}"
            elif self._window.have(member.size) == member.size:  # else the next step of members() says so
                start = self._window.lo
                sample.labels[suffix] = bytes(self._window.view[start : start + member.size])

    def _take_image(self, sample: _Sample, suffix: str, member: Member) -> None:
        if member.is_sparse:
            sample.problem = sample.problem or "image is stored sparse, which feeder does not read"
        elif member.size > self._limit:
            sample.problem = sample.problem or (
                f"image of {member.size} bytes, above the limit of {self._limit}"
            )
        elif self._window.have(member.size) == member.size:
            start = self._window.lo
            crc = crc32c(self._window.bytes[start : start + member.size])
            sample.images[suffix] = _Image(member.offset, member.size, crc)

    def end(self, *, torn: bool = False) -> None:
        """Ends the sample under way, which counts as lost where the archive broke before it was whole."""
        sample, self._sample = self._sample, None
        if sample is None:
            return
        try:
            image, label = self._of(sample)
        except Unusable as error:
            if not torn:
                self._builder.add_bad(sample.offset, str(error), f"(sample {sample.key[:_SHOWN]!r})")
            return
        self._builder.add(image.offset, image.size, label, image.crc, 0, image.size)

    def _of(self, sample: _Sample) -> tuple[_Image, int]:
        if sample.problem:
            raise Unusable(sample.problem)
        image = next((sample.images[suffix] for suffix in self._images if suffix in sample.images), None)
        if image is None:
            raise Unusable(f"no image ({self._keys.image}), but {_listed(sample.suffixes)}")
        if not image.size:
            raise Unusable("image is empty (0 bytes)")
        label = next((key for key in self._labels if key.suffix in sample.labels), None)
        if label is None:
            raise Unusable(f"no label ({self._keys.label}), but {_listed(sample.suffixes)}")
        return image, zero_based(_label(sample.labels[label.suffix], label), self._keys)


def _label_key(part: str) -> _LabelKey:
    suffix, colon, name = part.partition(":")
    suffix = suffix.lower()
    if suffix.endswith("json"):
        return _LabelKey(suffix, name if colon else "label")
    if colon:
        raise ConfigError(f"label key {part!r}: only json has names in it, such as json:label")
    return _LabelKey(suffix, None)


def _label(data: bytes, key: _LabelKey) -> int:
    """The label in a member.

    Raises:
        Unusable: it is no whole number.
    """
    if key.name is None:
        text = data.strip()
        if _NUMBER.fullmatch(text) is None:
            raise Unusable(f"label in .{key.suffix} is {bytes(data[:_SHOWN])!r}, not one whole number")
        return int(text)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise Unusable(f".{key.suffix} is no JSON") from None
    if isinstance(value, dict):
        if key.name not in value:
            raise Unusable(f"no {key.name!r} in .{key.suffix}, but {_listed(set(value))}")
        value = value[key.name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unusable(f"label in .{key.suffix} is {str(value)[:_SHOWN]!r}, not one whole number")
    return value


def _listed(names: set[str]) -> str:
    shown = sorted(names)[:10]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(name[:_SHOWN] for name in shown) + more if shown else "nothing"
