"""TLS and mutual TLS between real processes, and what either side says where they do not agree."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import re
import socket
import ssl
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

import feeder
from feeder import Credentials
from feeder.cli import main
from feeder.cli.options import CREDENTIALS
from feeder.errors import ConfigError, NotTrusted
from feeder.wire import FEED
from feeder.wire.address import Address, parse_address
from feeder.wire.channel import SERVER_OPTIONS
from feeder.wire.credentials import VARIABLES
from feeder.wire.tls import HTTP, TlsSocket, check_dates, client_context, server_context, validity
from feeder.worker import front as front_module
from feeder.worker import http_door
from feeder.worker.front import Front
from feeder.worker.http import HttpSide
from feeder.worker.refusals import Refusals

DEADLINE_S = 30.0

STREAM: dict[str, Any] = {"batch_size": 24, "image_size": 32, "seed": 5, "epochs": 1}


@pytest.mark.parametrize("transport", ["grpc", "auto"])
def test_an_epoch_over_mutual_tls_is_that_without(
    secure: Any, trusted: Credentials, pair: Any, digest_batches: Callable[..., list[str]], transport: Any
) -> None:
    with feeder.connect(pair[0].address) as client:
        expected = digest_batches(client.stream("data", **STREAM))
    with feeder.connect(secure.address, credentials=trusted) as client:
        assert digest_batches(client.stream("data", transport=transport, **STREAM)) == expected


def test_commands_speak_tls(
    secure: Any, trusted: Credentials, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["--tls-ca", str(trusted.tls_ca), "--tls-cert", str(trusted.tls_cert)]
    assert main(["status", secure.address, *files]) == 0
    assert "data set" in capsys.readouterr().out
    assert main(["status", secure.address]) == 1
    assert "speaks TLS" in capsys.readouterr().out
    monkeypatch.setenv("FEEDER_TLS_CA", str(trusted.tls_ca))
    monkeypatch.setenv("FEEDER_TLS_CERT", str(trusted.tls_cert))  # of a worker: no client shows it
    assert main(["status", secure.address]) == 1
    assert "wants a certificate of this client" in capsys.readouterr().out
    monkeypatch.setenv("FEEDER_CLIENT_CERT", str(trusted.tls_cert))
    assert main(["status", secure.address]) == 0


def test_options_and_environment_name_the_same_credentials() -> None:
    """Options win, one by one."""
    assert CREDENTIALS.keys() == VARIABLES.keys()
    for field, variable in VARIABLES.items():
        assert f"(default: ${variable})" in CREDENTIALS[field]
    environ = {variable: field for field, variable in VARIABLES.items()}
    assert Credentials.from_environment(environ) == Credentials(*VARIABLES)
    assert Credentials.from_environment(environ, tls_ca="x").tls_ca == "x"
    assert Credentials.from_environment({}) == Credentials()
    with pytest.raises(ConfigError, match="needs --tls-ca, FEEDER_TLS_CA or tls_ca"):
        Credentials.from_environment({"FEEDER_CLIENT_CERT": "x"})


def test_clients_say_why(
    secure: Any, trusted: Credentials, pair: Any, authority: Any, stranger: Any, tmp_path: Path
) -> None:
    """Each reason, from the client's side; the worker counts those that it can see."""
    old = authority.issue("old", days=(-5, -2))
    early = authority.issue("early", days=(2, 5))
    for credentials, said in (
        (Credentials(), "speaks TLS, and this client was not told to"),
        (dataclasses.replace(trusted, tls_ca=stranger.file), "of no authority in"),
        (dataclasses.replace(trusted, tls_cert=None), "wants a certificate of this client"),
        (dataclasses.replace(trusted, tls_cert=stranger.issue("x")), "does not take the certificate"),
        (dataclasses.replace(trusted, tls_cert=old), r"expired at \d{4}"),
        (dataclasses.replace(trusted, tls_cert=early), "not valid before"),
    ):
        with pytest.raises(NotTrusted, match=said):
            feeder.connect(secure.address, timeout_s=DEADLINE_S, credentials=credentials)
    with pytest.raises(NotTrusted, match="it speaks no TLS"):
        feeder.connect(pair[0].address, timeout_s=DEADLINE_S, credentials=trusted)
    found = re.search(r"metrics and health at (https://\S+)", secure.log.read_text())
    assert found is not None
    context = client_context(str(trusted.tls_ca), None, None)
    with urllib.request.urlopen(f"{found[1]}/metrics", timeout=DEADLINE_S, context=context) as answer:
        metrics = answer.read().decode()
    counts = dict(re.findall(r'feeder_refused_total\{reason="(\w+)"\} ([1-9]\d*)', metrics))
    assert counts.keys() >= {"no_tls", "no_certificate", "unknown_ca", "distrusted"}, metrics
    assert "it showed no certificate: --tls-client-ca wants one" in secure.log.read_text()
    assert "it speaks TLS, and this worker was not told to" in pair[0].log.read_text()


def test_a_stream_meets_a_worker_that_is_not_trusted_any_more(
    secure: Any, trusted: Credentials, stranger: Any, tmp_path: Path
) -> None:
    """Files are read again for each connection, and one that cannot succeed is an error soon."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Path(str(trusted.tls_ca)).read_bytes())
    with feeder.connect(secure.address, credentials=dataclasses.replace(trusted, tls_ca=ca)) as client:
        ca.write_bytes(stranger.file.read_bytes())
        with pytest.raises(NotTrusted, match="of no authority in"):
            next(iter(client.stream("data", **STREAM)))


@pytest.fixture
def front(local_certificate: Path) -> Iterator[tuple[Front, Refusals]]:
    refusals = Refusals()
    server = grpc.server(None, options=SERVER_OPTIONS)
    context = server_context(local_certificate, None, None)
    made = Front(Address("tcp", "localhost"), server, FEED, 64, tls=context, refusals=refusals)
    server.start()
    made.start(lambda requests, context: iter(()))
    yield made, refusals
    made.close(0.1)
    server.stop(0).wait()


def until(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_certificates_of_workers_that_are_not_right(front: tuple[Front, Refusals], authority: Any) -> None:
    made, refusals = front
    credentials = Credentials(tls_ca=authority.file)
    for certificate, said in (
        (authority.issue("over", "localhost", days=(-5, -1)), "the worker's certificate has expired"),
        (authority.issue("coming", "localhost", days=(1, 5)), "is not valid yet"),
        (authority.issue("elsewhere", "elsewhere.example.org"), "is not for 'localhost'"),
    ):
        made.change_tls(server_context(certificate, None, None))
        with pytest.raises(NotTrusted, match=said):
            feeder.connect(str(made.address), timeout_s=DEADLINE_S, credentials=credentials)
    until(lambda: refusals.counts().get("distrusted", 0) >= 3)


def test_one_worker_of_two_has_let_its_certificate_expire(
    secure: Any,
    trusted: Credentials,
    front: tuple[Front, Refusals],
    authority: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, _ = front
    over = authority.issue("over", "localhost", days=(-5, -1))
    made.change_tls(server_context(over, None, None))
    with feeder.connect(f"{secure.address},{made.address}", timeout_s=DEADLINE_S, credentials=trusted):
        assert (
            f"worker {made.address} does not answer (certificate has expired); not there yet" in caplog.text
        )


def test_a_name_stands_for_addresses_and_the_certificate_is_for_the_name(
    secure: Any, trusted: Credentials, digest_batches: Callable[..., list[str]]
) -> None:
    port = parse_address(secure.address).port
    with feeder.connect(f"dns:localhost:{port}", credentials=trusted) as client:
        assert len(digest_batches(client.stream("data", transport="grpc", **STREAM))) == 5


def test_handshakes_that_do_not_end(
    front: tuple[Front, Refusals], authority: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep nobody else waiting, and are ended."""
    made, refusals = front
    monkeypatch.setattr(front_module, "HANDSHAKE_S", 1.0)
    place = (made.address.host, made.address.port)
    slow = [socket.create_connection(place, DEADLINE_S) for _ in range(20)]
    context = client_context(str(authority.file), None, None)
    try:
        for connection in slow[1:]:
            connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the head of a ClientHello
        with context.wrap_socket(
            socket.create_connection(place, DEADLINE_S), server_hostname="localhost"
        ) as fast:
            assert fast.recv(9)[3] == 4  # SETTINGS
            assert fast.selected_alpn_protocol() == "h2"
            assert fast.version() in ("TLSv1.2", "TLSv1.3")
        assert all(connection.recv(1) == b"" for connection in slow)
    finally:
        for connection in slow:
            connection.close()
    until(lambda: refusals.counts().get("timeout", 0) >= 20)


@pytest.fixture
def https(local_certificate: Path, caplog: pytest.LogCaptureFixture) -> Iterator[tuple[HttpSide, Refusals]]:
    refusals = Refusals()
    context = server_context(local_certificate, None, None, HTTP)
    with HttpSide(Address("tcp", "localhost"), context, refusals=refusals) as side:
        yield side, refusals
    assert not [record for record in caplog.records if record.exc_info]


def test_browsers_and_scrapers_that_know_http_2_are_spoken_http_1_with(
    https: tuple[HttpSide, Refusals], authority: Any
) -> None:
    """They offer both, and begin with what was agreed on."""
    address = https[0].address
    context = client_context(str(authority.file), None, None)
    context.set_alpn_protocols(["h2", "http/1.1"])
    connection = http.client.HTTPSConnection("localhost", address.port, context=context, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        for _ in range(2):
            connection.request("GET", "/livez")
            assert connection.getresponse().read() == b"starting\n"
        assert connection.sock.selected_alpn_protocol() == "http/1.1"


def test_connections_to_the_https_port_that_do_not_speak_tls(
    https: tuple[HttpSide, Refusals], authority: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, refusals = https
    monkeypatch.setattr(http_door, "HANDSHAKE_S", 0.5)
    place = (side.address.host, side.address.port)
    with socket.create_connection(place, DEADLINE_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = plain.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"https://" in answer
    with socket.create_connection(place, DEADLINE_S) as slow:
        slow.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the head of a ClientHello
        assert slow.recv(1) == b""
    socket.create_connection(place, DEADLINE_S).close()  # who only looks whether somebody listens
    stranger = ssl.create_default_context()
    with pytest.raises(ssl.SSLError):
        stranger.wrap_socket(socket.create_connection(place, DEADLINE_S), server_hostname="localhost")
    until(lambda: refusals.counts()["distrusted"] == 1)
    assert {name: count for name, count in refusals.counts().items() if count} == {
        "no_tls": 1,
        "timeout": 1,
        "distrusted": 1,
    }


def test_tls_where_http_is_spoken_without() -> None:
    refusals = Refusals()
    with (
        HttpSide(Address("tcp", "localhost"), refusals=refusals) as side,
        pytest.raises((ssl.SSLError, ConnectionError)),
        socket.create_connection((side.address.host, side.address.port), DEADLINE_S) as connection,
    ):
        ssl.create_default_context().wrap_socket(connection, server_hostname="localhost")
    assert refusals.counts()["tls"] == 1


def test_who_only_looks_whether_somebody_listens_is_nobody(front: tuple[Front, Refusals]) -> None:
    """Such as probes of TCP, every few seconds."""
    made, refusals = front
    place = (made.address.host, made.address.port)
    socket.create_connection(place, DEADLINE_S).close()
    with socket.create_connection(place, DEADLINE_S) as half:
        half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        half.shutdown(socket.SHUT_WR)
        while half.recv(4096):
            pass
    until(lambda: refusals.counts()["protocol"])
    assert sum(refusals.counts().values()) == 1


def test_nothing_below_tls_1_2(front: tuple[Front, Refusals]) -> None:
    made, refusals = front
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection((made.address.host, made.address.port), DEADLINE_S) as connection,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(connection, server_hostname="localhost")
    until(lambda: refusals.counts().get("protocol", 0) >= 1)


def test_two_threads_use_one_connection(local_certificate: Path, authority: Any) -> None:
    """One sends while the other receives, at both ends, through buffers that are always full."""
    near, far = socket.socketpair()
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
    served: list[ssl.SSLSocket] = []
    context = server_context(local_certificate, None, None)
    shaking = threading.Thread(target=lambda: served.append(context.wrap_socket(far, server_side=True)))
    shaking.start()
    client = client_context(str(authority.file), None, None).wrap_socket(near, server_hostname="localhost")
    shaking.join(DEADLINE_S)
    ends = [TlsSocket(client, 1.0), TlsSocket(served[0], 1.0)]
    data = bytes(range(251)) * 20_000

    def send(end: TlsSocket) -> None:
        view = memoryview(data)
        while view:
            with contextlib.suppress(BlockingIOError):
                view = view[end.send(view) :]

    def receive(end: TlsSocket) -> None:
        got = bytearray(len(data))
        at = 0
        while at < len(got):
            at += end.recv_into(memoryview(got)[at:])
        assert got == data

    with futures.ThreadPoolExecutor(4, thread_name_prefix="test-tls") as pool:
        for done in [pool.submit(work, end) for end in ends for work in (send, receive)]:
            done.result(DEADLINE_S)
    for end in ends:
        end.close()


def test_files_that_cannot_be_used(authority: Any, local_certificate: Path, tmp_path: Path) -> None:
    other = authority.issue("other")
    key = load_pem_private_key(local_certificate.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for certificate, key_file, ca, said in (
        (tmp_path / "none.pem", None, None, "none.pem: cannot be read: No such file"),
        (local_certificate, tmp_path / "none.pem", None, "none.pem: cannot be read"),
        (junk, None, None, "is no certificate in PEM"),
        (local_certificate, other, None, "do not belong together"),
        (local_certificate, locked, None, "without a passphrase"),
        (authority.file, None, None, "the file needs the key, too"),
        (local_certificate, None, junk, "is no certificate in PEM"),
    ):
        with pytest.raises(ConfigError, match=said):
            server_context(certificate, key_file, ca)
    for arguments in ({"tls_cert": "x"}, {"tls_ca": "x", "tls_key": "y"}):
        with pytest.raises(ConfigError):
            Credentials(**arguments)
    begins, ends = validity(local_certificate)
    assert (ends - begins).days == 11
    assert not check_dates(local_certificate, begins)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--listen", "0.0.0.0:0"], "--listen 0.0.0.0:0: other hosts could reach this"),
        (["--listen", "[::]:0"], "other hosts could reach this"),
        (["--http", "0.0.0.0:0"], "--http 0.0.0.0:0: other hosts"),
        (["--listen", "example.org:1"], "other hosts could reach this"),
        (["--tls-key", "x"], "--tls-key x needs --tls-cert"),
        (["--listen", "unix:/tmp/x", "--tls-cert", "x"], "a unix socket has no TLS"),
    ],
)
def test_what_is_refused_at_the_start(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", "--dataset", "a=/b", *flags]) == 2
    assert said in capsys.readouterr().err


def test_where_insecure_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--dataset", "a=/b", "--listen", "0.0.0.0:0", "--insecure"]) == 0
    assert main(["config", "show", "--dataset", "a=/b", "--listen", "[::1]:0", "--http", "localhost:1"]) == 0
    assert main(["config", "show", "--dataset", "a=/b"]) == 0
    assert '"127.0.0.1:50051"' in capsys.readouterr().out
