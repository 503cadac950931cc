"""Objects in a GCS server (an emulator's), by Arrow's own client."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from feeder.errors import StorageError
from feeder.records import Dataset
from feeder.records.shards import expand

_SERVER = """
import sys
from gcp_storage_emulator.server import create_server
with create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket") as server:
    print(server._api._httpd.server_port, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    pytest.importorskip("gcp_storage_emulator", reason="no GCS server here: pip install gcp-storage-emulator")
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    yield int(process.stdout.readline())
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def put(port: int, name: str, data: bytes) -> None:
    name = name.replace("/", "%2F")
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/upload/storage/v1/b/bucket/o?uploadType=media&name={name}",
        data,
        {"Content-Type": "application/octet-stream"},
        method="POST",
    )
    urllib.request.urlopen(request, timeout=30).close()


def test_objects_are_read_and_told_apart_by_generation(
    port: int, tmp_path: Path, make_payload: Callable[..., bytes], framed: Callable[[bytes], bytes]
) -> None:
    def shard(*images: bytes) -> bytes:
        return b"".join(framed(make_payload(image, number + 1)) for number, image in enumerate(images))

    put(port, "set/a-0.tfrecord", shard(b"one", b"two"))
    put(port, "set/a-1.tfrecord", shard(b"three"))
    options = f"?endpoint_override=127.0.0.1:{port}&scheme=http"
    for pattern in ("gs://anonymous@bucket/set/", "gs://anonymous@bucket/set/a-*"):
        with Dataset.open("x", [pattern + options], index_dir=tmp_path) as dataset:
            reading = dataset.ask(range(3))
            images = [bytes(dataset.read(record, reading).image) for record in range(3)]
            assert images == [b"one", b"two", b"three"]
    with Dataset.open(
        "x", [f"gs://bucket/set/a-0.tfrecord{options}&anonymous=true"], index_dir=tmp_path
    ) as dataset:
        put(port, "set/a-0.tfrecord", shard(b"ONE", b"TWO"))
        with pytest.raises(StorageError, match="is not the object that was indexed"):
            dataset.read(1)
    for missing in ("bucket/none", "none/x-*"):
        with pytest.raises(StorageError, match="there is no such object or bucket"):
            expand([f"gs://anonymous@{missing}{options}"])
