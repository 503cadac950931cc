"""Real worker processes over small data sets."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import feeder
from feeder.cli.status import describe
from feeder.records.tfrecord import frame
from feeder.wire.address import parse_address

READY = "feeder worker listening on "
START_TIMEOUT_S = 60.0
FILL_TIMEOUT_S = 60.0
RECORDS = 120

ROOT = Path(feeder.__file__).resolve().parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def jpeg(number: int) -> bytes:
    """A smooth random picture of some 40 to 90 pixels, another for each number."""
    random = np.random.default_rng(number)
    height, width = (int(side) for side in random.integers(40, 90, 2))
    coarse = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    pixels = np.ascontiguousarray(coarse.repeat(8, 0).repeat(8, 1)[:height, :width])
    return bytes(simplejpeg.encode_jpeg(pixels, quality=85))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def example(image: bytes, label: int) -> bytes:
    """A tf.train.Example; the label counts from 0 here and from 1 in it."""
    features = {
        "image/encoded": _field(1, _field(1, image)),
        "image/class/label": _field(3, _field(1, _varint(label + 1))),
    }
    entries = (_field(1, _field(1, key.encode()) + _field(2, value)) for key, value in features.items())
    return _field(1, b"".join(entries))


def write_shards(folder: Path, images: Sequence[bytes], shards: int = 3) -> Path:
    """Record i holds image i and label i."""
    folder.mkdir()
    for shard in range(shards):
        with open(folder / f"train-{shard:05d}-of-{shards:05d}", "wb") as file:
            for record in range(shard * len(images) // shards, (shard + 1) * len(images) // shards):
                payload = example(images[record], record)
                before, after, _ = frame(payload)
                file.write(before + payload + after)
    return folder


def digests(batches: Iterable[feeder.Batch]) -> list[str]:
    """One hash a batch, over all that a trainer sees."""
    return [
        hashlib.sha256(b"".join((batch.images, batch.labels, batch.mask))).hexdigest() for batch in batches
    ]


class Worker:
    """A `feeder worker` process."""

    def __init__(self, log: Path, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-c", "from feeder.cli import main; raise SystemExit(main())", "worker"]
        self.log = log
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=stderr, env=ENVIRONMENT, text=True
            )
        assert self.process.stdout is not None
        select.select([self.process.stdout], [], [], START_TIMEOUT_S)
        line = self.process.stdout.readline() if self.process.poll() is None else ""
        if not line.startswith(READY):
            self.kill()
            raise AssertionError(f"the worker did not start: {line!r}; {log.read_text()}")
        self.address = line.removeprefix(READY).strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, and gone."""
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


StartWorker = Callable[..., Worker]


def _starter(folder: Path) -> Iterator[StartWorker]:
    workers: list[Worker] = []

    def start(shards: Path, *flags: str, listen: str = "127.0.0.1:0", name: str = "data") -> Worker:
        arguments = ["--dataset", f"{name}={shards}", "--listen", listen, "--threads", "1", *flags]
        workers.append(Worker(folder / f"worker-{len(workers)}.log", arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers that are gone after the test."""
    yield from _starter(tmp_path)


@pytest.fixture
def start_config_worker(tmp_path: Path) -> Iterator[Callable[[Path], Worker]]:
    """Starts a worker that is told all but its port by a file."""
    started: list[Worker] = []

    def start(config: Path) -> Worker:
        arguments = ["--config", str(config), "--listen", "127.0.0.1:0", "--threads", "1"]
        started.append(Worker(tmp_path / "worker.log", arguments))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture(scope="module")
def start_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """The same for workers that the tests of a module share."""
    yield from _starter(tmp_path_factory.mktemp("workers"))


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of three shards with 120 records; the label of each is its number."""
    return write_shards(tmp_path_factory.mktemp("data") / "shards", [jpeg(n) for n in range(RECORDS)])


@pytest.fixture(scope="session")
def pair(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Worker]]:
    """Two workers for tests that leave them in peace."""
    starter = _starter(tmp_path_factory.mktemp("pair"))
    start = next(starter)
    yield start(shards), start(shards)
    next(starter, None)


@pytest.fixture
def wait_for_cache() -> Callable[[Worker, int], None]:
    """Waits until a worker has put so many images into its cache, and they are served."""

    def wait(worker: Worker, images: int) -> None:
        deadline_s = time.monotonic() + FILL_TIMEOUT_S
        while (cache := describe(parse_address(worker.address)).cache).filled < images or not cache.bytes:
            assert time.monotonic() < deadline_s, cache
            time.sleep(0.05)

    return wait


@pytest.fixture(scope="session")
def digest_batches() -> Callable[[Iterable[feeder.Batch]], list[str]]:
    return digests


@pytest.fixture(scope="session")
def make_shards() -> Callable[..., Path]:
    return write_shards


@pytest.fixture(scope="session")
def make_jpeg() -> Callable[[int], bytes]:
    return jpeg


@pytest.fixture
def run_client(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a client script in a process of its own, with every warning an error and Python in development
    mode."""

    def run(script: str, *arguments: str) -> subprocess.Popen[str]:
        path = tmp_path / "client.py"
        path.write_text(script)
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-X", "dev", str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
        )

    return run


class Authority:
    """Makes certificates, of its own or of nobody's."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        made = self._certificate(self._name, self._key, -1, 10)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str, *names: str, days: tuple[float, float] = (-1, 10), file: str = "") -> Path:
        """A file with a certificate of common name `name`, for hosts or addresses `names`, and its key; valid
        between two days, counted from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._certificate(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), key, *days)
        if names:
            made = made.add_extension(x509.SubjectAlternativeName([_general(one) for one in names]), False)
        path = self._folder / f"{file or name}.pem"
        text = made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(text + secret)
        return path

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, begins: float, ends: float
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=begins))
            .not_valid_after(now + datetime.timedelta(days=ends))
        )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that this test run trusts."""
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="session")
def local_certificate(authority: Authority) -> Path:
    """For 127.0.0.1 and localhost, with its key."""
    return authority.issue("worker", "127.0.0.1", "localhost")


@pytest.fixture(scope="session")
def secure(
    shards: Path, authority: Authority, local_certificate: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """A worker that speaks TLS alone, wants certificates of clients, and has an HTTP port."""
    starter = _starter(tmp_path_factory.mktemp("secure"))
    flags = ["--tls-cert", str(local_certificate), "--tls-client-ca", str(authority.file)]
    yield next(starter)(shards, *flags, "--http", "127.0.0.1:0")
    next(starter, None)


@pytest.fixture(scope="session")
def trusted(authority: Authority) -> feeder.Credentials:
    """What the worker of `secure` takes."""
    return feeder.Credentials(tls_ca=authority.file, tls_cert=authority.issue("trainer"))
