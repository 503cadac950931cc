"""Shards and Arrow files, odd or damaged in one way each, made here, with what has to come of them."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from made_images import flat_jpeg, rgb_of

from feeder.records.example import encode_example
from feeder.records.tfrecord import frame

__all__ = ["IMAGE", "LABEL", "shards", "tfrecord"]

IMAGE, LABEL = "image/encoded", "image/class/label"

Made = tuple[str, bytes, dict[str, Any]]
Members = Sequence[tuple[str, bytes]]


def good(*labels: int) -> list[dict[str, Any]]:
    return [{"label": label, "rgb": rgb_of(label)} for label in labels]


def expect(records: list[dict[str, Any]], then: str | None = None, **more: Any) -> dict[str, Any]:
    return {"kind": "records", "records": records, "then": then} | more


def either(*labels: int) -> dict[str, Any]:
    return expect(good(*labels)) | {"kind": "records_or_clear_error"}


def error(what: str) -> dict[str, Any]:
    return {"error": what}


def shards() -> Iterator[Made]:
    """Name with its folder, bytes and expectation of each."""
    yield from _tfrecords()
    yield from _tars()
    yield from _parquets()
    yield from _datasets()
    yield from _arrows()


def example(label: int) -> bytes:
    return encode_example({IMAGE: flat_jpeg(label), LABEL: label})


def tfrecord(payloads: Sequence[bytes]) -> bytes:
    """A shard of these records."""
    parts = []
    for payload in payloads:
        before, after, _ = frame(payload)
        parts += [before, payload, after]
    return b"".join(parts)


def _between(payload: bytes) -> bytes:
    """A record between two good ones."""
    return tfrecord([example(0), payload, example(1)])


def varint(value: int) -> bytes:
    value %= 1 << 64
    return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80,)) + varint(value >> 7)


def nested(*fields: tuple[int, bytes]) -> bytes:
    """A message of fields that are messages or bytes."""
    return b"".join(varint(number << 3 | 2) + varint(len(content)) + content for number, content in fields)


def example_with(label: bytes, *more: tuple[str, bytes]) -> bytes:
    """An Example of picture 2 with a feature as its label, and others."""
    features = [(IMAGE, nested((1, nested((1, flat_jpeg(2)))))), (LABEL, label), *more]
    return nested((1, nested(*((1, nested((1, key.encode()), (2, value))) for key, value in features))))


def int64s(*values: int) -> bytes:
    return nested((3, nested((1, b"".join(map(varint, values))))))


def _tfrecords() -> Iterator[Made]:
    six = tfrecord([example(label) for label in range(6)])
    start = len(tfrecord([example(0), example(1)]))
    third = len(tfrecord([example(2)]))
    for name, data, expected in (
        ("ok.tfrecord", six, expect(good(*range(6)))),
        ("ok-00000-of-00001", six, expect(good(*range(6)))),
        ("ok.tfrecord.gz", gzip.compress(six), either(*range(6))),
        ("gzip_under_plain_name.tfrecord", gzip.compress(six), either(*range(6))),
        ("zlib.tfrecord", zlib.compress(six), either(*range(6))),
        ("empty_file.tfrecord", b"", expect([])),
        ("cut_in_length.tfrecord", six[: start + 5], expect(good(0, 1), "clear_error")),
        ("cut_in_payload.tfrecord", six[: start + 200], expect(good(0, 1), "clear_error")),
        ("cut_one_byte_short.tfrecord", six[: start + third - 1], expect(good(0, 1), "clear_error")),
        (
            "bit_flip_in_payload.tfrecord",
            _flipped(six, start + 300),
            expect(good(0, 1), "clear_error", skippable=good(3, 4, 5)),
        ),
        ("bad_length_crc.tfrecord", _flipped(six, start + 9), expect(good(0, 1), "clear_error")),
        (
            "huge_length.tfrecord",
            tfrecord([example(0)]) + _header(1 << 40) + bytes(50),
            expect(good(0), "clear_error"),
        ),
    ):
        yield f"tfrecord/{name}", data, expected
    for name, payload, middle in (
        ("label_missing", encode_example({IMAGE: flat_jpeg(2)}), error("label missing")),
        ("image_missing", encode_example({LABEL: 2}), error("image missing")),
        ("image_empty_bytes", encode_example({IMAGE: b"", LABEL: 2}), error("image empty")),
        ("label_text", encode_example({IMAGE: flat_jpeg(2), LABEL: b"n01440764"}), error("label is text")),
        ("cut_protobuf", example(2)[:-9], error("protobuf cut")),
        ("not_protobuf", flat_jpeg(2), error("not an Example")),
        ("label_two_values", example_with(int64s(2, 3)), error("label has 2 values")),
        ("label_negative", example_with(int64s(-1)), {"label": -1}),
        ("label_unpacked", example_with(nested((3, b"\x08\x02"))), good(2)[0]),
        (
            "unknown_features",
            example_with(int64s(2), ("größe", nested((2, nested((1, bytes(800)))))), ("nothing", b"")),
            good(2)[0],
        ),
        ("image_is_html", encode_example({IMAGE: b"<html>", LABEL: 2}), error("not decodable")),
        ("image_truncated", encode_example({IMAGE: flat_jpeg(2)[:-20], LABEL: 2}), error("truncated")),
    ):
        records = [*good(0), middle, *good(1)]
        yield f"tfrecord/example_{name}.tfrecord", _between(payload), expect(records)
    mixed = [
        example(0),
        encode_example({IMAGE: flat_jpeg(1)[:-20], LABEL: 1}),
        example(2),
        encode_example({IMAGE: b"<html>", LABEL: 3}),
        encode_example({LABEL: 4}),
        example(5),
    ]
    yield (
        "tfrecord/mixed_good_and_bad.tfrecord",
        tfrecord(mixed),
        expect(
            [
                *good(0),
                error("truncated"),
                *good(2),
                error("not decodable"),
                error("image missing"),
                *good(5),
            ]
        ),
    )
    late = encode_example({IMAGE: flat_jpeg(2) + bytes(5 << 20), LABEL: 2})
    yield "tfrecord/record_over_4mb.tfrecord", _between(late), expect(good(0, 2, 1))


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :]


def _header(length: int) -> bytes:
    """Length and its masked crc."""
    packed = struct.pack("<Q", length)
    crc = google_crc32c.value(packed)
    return packed + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def tar(members: Members, kind: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def pair(key: str, label: int, text: bytes | None = None) -> Members:
    return [(f"{key}.jpg", flat_jpeg(label)), (f"{key}.cls", b"%d" % label if text is None else text)]


def _tars() -> Iterator[Made]:
    six = [member for label in range(6) for member in pair(f"{label:06d}", label)]
    blocks = tar(six)
    second = blocks.index(b"000001.jpg")
    long_names = [*pair("d" * 40 + "/" + "n" * 240 + "0", 0), *pair("d" * 40 + "/" + "n" * 240 + "1", 1)]
    for name, data, expected in (
        ("ok_ustar.tar", blocks, expect(good(*range(6)))),
        ("ok_gnu.tar", tar(six, tarfile.GNU_FORMAT), expect(good(*range(6)))),
        ("ok_pax.tar", tar(six, tarfile.PAX_FORMAT), expect(good(*range(6)))),
        ("long_names_pax.tar", tar(long_names, tarfile.PAX_FORMAT), expect(good(0, 1))),
        (
            "dotted_directory.tar",
            tar([*pair("v1.0/a", 0), *pair("v1.0/b", 1)]),
            expect(good(0, 1)),
        ),
        ("dotted_basename.tar", tar([*pair("photo.05", 0), *pair("photo.06", 1)]), either(0, 1)),
        ("leading_dot_slash.tar", tar([(f"./{name}", data) for name, data in six]), expect(good(*range(6)))),
        (
            "duplicate_member.tar",
            tar([("0.jpg", flat_jpeg(0)), *pair("0", 0), *pair("2", 2)]),
            expect([error("duplicate member"), *good(2)]),
        ),
        ("unsorted_pairs.tar", tar([*six[0:1], *six[2:3], *six[1:2], *six[3:4]]), either(0, 1)),
        ("same_key_a.tar", tar(pair("0", 0)), expect(good(0))),
        ("same_key_b.tar", tar(pair("0", 1)), expect(good(1))),
        (
            "missing_label.tar",
            tar([*pair("0", 0), ("1.jpg", flat_jpeg(1)), *pair("2", 2)]),
            expect([*good(0), error("label missing"), *good(2)]),
        ),
        (
            "missing_image.tar",
            tar([*pair("0", 0), ("1.cls", b"1"), *pair("2", 2)]),
            expect([*good(0), error("image missing"), *good(2)]),
        ),
        ("empty_archive.tar", tar([]), expect([])),
        ("zero_bytes.tar", b"", expect([])),
        (
            "empty_members.tar",
            tar([("0.jpg", b""), ("0.cls", b"0"), *pair("1", 1)]),
            expect([error("image empty"), *good(1)]),
        ),
        ("cut_in_member.tar", blocks[: second + 700], expect(good(0), "clear_error")),
        ("no_end_blocks.tar", blocks[: blocks.rindex(b"000005.cls") + 1024], expect(good(*range(6)))),
        ("bad_header_checksum.tar", _flipped(blocks, second + 3), expect(good(0), "clear_error")),
        ("gzip.tar.gz", gzip.compress(blocks), either(*range(6))),
        ("gzip_under_tar_name.tar", gzip.compress(blocks), either(*range(6))),
        ("label_newline.tar", tar(pair("0", 3, b"3\n")), expect(good(3))),
        ("label_plus_spaces.tar", tar(pair("0", 3, b"  3  ")), expect(good(3))),
        ("label_in_json.tar", tar([("0.jpg", flat_jpeg(3)), ("0.json", b'{"label": 3}')]), either(3)),
        *(
            (
                f"label_{name}.tar",
                tar([*pair("0", 0, text), *pair("1", 1)]),
                expect([error("label"), *good(1)]),
            )
            for name, text in (("text", b"tench"), ("float", b"3.0"), ("empty", b""), ("two", b"3 4"))
        ),
    ):
        yield f"webdataset/{name}", data, expected


def parquet(columns: dict[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, **options)
    return out.getvalue()


def _parquets() -> Iterator[Made]:
    labels = list(range(6))
    flat = [flat_jpeg(label) for label in labels]
    struct_of = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    embedded = [{"bytes": image, "path": f"{label}.jpg"} for label, image in enumerate(flat)]
    all_six = expect(good(*labels))
    refused = expect([], "clear_error", at_open=True)
    for name, data, expected in (
        ("hf_struct", parquet({"image": pa.array(embedded, struct_of), "label": labels}), all_six),
        ("plain_binary", parquet({"image": flat, "label": labels}), all_six),
        ("large_binary", parquet({"image": pa.array(flat, pa.large_binary()), "label": labels}), all_six),
        (
            "bytes_null_path_only",
            parquet(
                {
                    "image": pa.array([{"bytes": None, "path": "/data/0.jpg"}, embedded[1]], struct_of),
                    "label": [0, 1],
                }
            ),
            expect([error("image not embedded"), *good(1)]),
        ),
        (
            "null_struct_and_label",
            parquet({"image": pa.array([None, *embedded[1:3]], struct_of), "label": [0, None, 2]}),
            expect([error("image missing"), error("label missing"), *good(2)]),
        ),
        ("label_int32", parquet({"image": flat, "label": pa.array(labels, pa.int32())}), all_six),
        ("schema_a", parquet({"image": flat, "label": labels}), all_six),
        (
            "schema_b",
            parquet({"image": flat, "label": pa.array(labels, pa.int32()), "more": ["x"] * 6}),
            all_six,
        ),
        ("label_string", parquet({"image": flat, "label": [str(label) for label in labels]}), refused),
        ("label_float", parquet({"image": flat, "label": [float(label) for label in labels]}), refused),
        ("label_list", parquet({"image": flat, "label": [[label] for label in labels]}), refused),
        ("other_column_names", parquet({"img": flat, "fine_label": labels}), refused),
        (
            "extra_columns",
            parquet({"id": labels, "image": flat, "text": ["x"] * 6, "label": labels}),
            all_six,
        ),
        (
            "zero_rows",
            parquet({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}),
            expect([]),
        ),
        ("many_row_groups", parquet({"image": flat, "label": labels}, row_group_size=1), all_six),
        ("zstd", parquet({"image": flat, "label": labels}, compression="zstd"), all_six),
    ):
        yield f"parquet/{name}.parquet", data, expected


def _datasets() -> Iterator[Made]:
    first = 0
    for number, size in enumerate((7, 5, 1, 0, 11)):
        labels = range(first, first + size)
        first += size
        yield (
            f"datasets/uneven/train-{number:05d}-of-00005.tfrecord",
            tfrecord([example(label) for label in labels]),
            expect(good(*labels)),
        )
    yield (
        "datasets/one_shard/train-00000-of-00001.tfrecord",
        tfrecord([example(label) for label in range(10)]),
        expect(good(*range(10))),
    )

    for version, shift in (("v1", 0), ("v2", 50)):  # of one size
        images = [flat_jpeg(label + shift).ljust(2000, b"\0") for label in range(8)]
        yield (
            f"datasets/stale/{version}/train-00000-of-00001.tfrecord",
            tfrecord([encode_example({IMAGE: image, LABEL: label}) for label, image in enumerate(images)]),
            expect([{"label": label, "rgb": rgb_of(label + shift)} for label in range(8)]),
        )


def _arrows() -> Iterator[Made]:
    table = pa.table({"planes": [bytes(np.random.default_rng(7).bytes(3000)) for _ in range(30)]})
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    whole = out.getvalue()
    half = len(whole) // 2
    yield "arrow/ok_file.arrow", whole, {"kind": "control"}
    for name, data in (
        ("cut_half", whole[:half]),
        ("cut_last_byte", whole[:-1]),
        ("sparse_tail", whole[:half] + bytes(len(whole) - half)),
        ("zero_bytes", b""),
        ("magic_only", b"ARROW1\0\0"),
    ):
        yield f"arrow/{name}.arrow", data, {"kind": "cache_dropped"}
