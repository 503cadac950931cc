"""Writing shards in each format, one record after another, so that every record can be read alone."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from feeder.errors import DataError
from feeder.records.example import encode_example
from feeder.records.keys import FormatName
from feeder.records.stream import MAX_RECORD_BYTES
from feeder.records.tfrecord import frame

__all__ = ["SUFFIXES", "Sample", "ShardWriter", "open_writer"]

SUFFIXES: dict[FormatName, str] = {"tfrecord": "", "webdataset": ".tar", "parquet": ".parquet"}
"""Formats that are written, and what the names of their shards end in."""

ROW_GROUP_BYTES = 16 << 20
"""Images that are held until they are written as one row group."""


class Sample(NamedTuple):
    """One record to write.

    Attributes:
        image: the encoded image.
        label: class as it is stored.
        file: name of the image's file; its suffix tells WebDataset what the image is.
        about: more features, for a TFRecord.
    """

    image: bytes
    label: int
    file: str
    about: dict[str, bytes | int]


class ShardWriter(Protocol):
    """Takes the records of one shard."""

    def add(self, sample: Sample) -> None:
        """Writes a record, or keeps it to be written with the next."""

    def finish(self) -> None:
        """Writes what is kept, and the end of the shard; the file stays open."""


class _TFRecordWriter:
    def __init__(self, file: BinaryIO, classes: Sequence[str]) -> None:
        self._file = file

    def add(self, sample: Sample) -> None:
        payload = encode_example(
            {"image/class/label": sample.label, **sample.about, "image/encoded": sample.image}
        )
        if len(payload) > MAX_RECORD_BYTES:
            raise DataError(f"{sample.file}: {len(payload)} bytes are too many for a record")
        header, footer, _ = frame(payload)
        self._file.write(header)
        self._file.write(payload)
        self._file.write(footer)

    def finish(self) -> None:
        pass


class _WebDatasetWriter:
    """Samples are numbered; names and times are those of the numbers, so that the same records make the same
    bytes."""

    def __init__(self, file: BinaryIO, classes: Sequence[str]) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        self._count = 0

    def add(self, sample: Sample) -> None:
        suffix = os.path.splitext(sample.file)[1].lower() or ".jpg"
        self._member(suffix, sample.image)
        self._member(".cls", b"%d" % sample.label)
        self._count += 1

    def _member(self, suffix: str, data: bytes) -> None:
        member = tarfile.TarInfo(f"{self._count:08d}{suffix}")
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))

    def finish(self) -> None:
        self._tar.close()


class _ParquetWriter:
    """What Hugging Face's data sets are, with images neither compressed nor in a dictionary: they lie in the
    file as they are."""

    def __init__(self, file: BinaryIO, classes: Sequence[str]) -> None:
        features: dict[str, object] = {"image": {"_type": "Image"}}
        features["label"] = (
            {"names": list(classes), "_type": "ClassLabel"}
            if classes
            else {"dtype": "int64", "_type": "Value"}
        )
        self._schema = pa.schema(
            {"image": pa.struct({"bytes": pa.binary(), "path": pa.string()}), "label": pa.int64()},
            metadata={"huggingface": json.dumps({"info": {"features": features}})},
        )
        self._writer = pq.ParquetWriter(
            file, self._schema, compression="none", use_dictionary=False, write_statistics=["label"]
        )
        self._rows: list[dict[str, object]] = []
        self._bytes = 0

    def add(self, sample: Sample) -> None:
        path = sample.file.encode("utf-8", "backslashreplace").decode()
        self._rows.append({"image": {"bytes": sample.image, "path": path}, "label": sample.label})
        self._bytes += len(sample.image)
        if self._bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows = []
        self._bytes = 0

    def finish(self) -> None:
        if self._rows:
            self._write()
        self._writer.close()


_WRITERS: dict[FormatName, Callable[[BinaryIO, Sequence[str]], ShardWriter]] = {
    "tfrecord": _TFRecordWriter,
    "webdataset": _WebDatasetWriter,
    "parquet": _ParquetWriter,
}


def open_writer(format_name: FormatName, file: BinaryIO, classes: Sequence[str] = ()) -> ShardWriter:
    """A writer of one shard into an open file.

    Args:
        format_name: one of SUFFIXES.
        file: open for writing, at its start.
        classes: names of the classes, by label, for formats that keep them.
    """
    return _WRITERS[format_name](file, classes)
