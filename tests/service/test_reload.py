"""Settings that change under running streams: a real process, SIGHUP, and what it takes of them."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import load_pem_x509_certificate

import feeder
from feeder import Credentials
from feeder.cli import main
from feeder.cli.status import describe
from feeder.errors import NotAllowed
from feeder.wire.address import parse_address
from feeder.wire.tls import client_context
from feeder.worker.access import new_token

DEADLINE_S = 60.0

STREAM: dict[str, Any] = {"batch_size": 8, "image_size": 32, "seed": 5, "epochs": 4, "transport": "grpc"}


WRONG = {
    "tokens": "tokens.toml",
    "certificate": "worker.pem",
    "expired": "expired at",
    "setting": "[worker] no-such: there is no such setting",
    "data set": "nowhere",
}
"""What `feeder reload` says of each fault."""


def wait_for_log(worker: Any, text: str, count: int = 1) -> str:
    deadline_s = time.monotonic() + DEADLINE_S
    while (log := worker.log.read_text()).count(text) < count:
        assert time.monotonic() < deadline_s, log
        time.sleep(0.02)
    return str(log)


class Setup:
    """A worker with a file of settings, a certificate and one token, all of which can be changed."""

    def __init__(self, folder: Path, shards: Path, authority: Any, start_worker: Any) -> None:
        self.folder, self._shards, self._authority = folder, shards, authority
        self.config, self.tokens = folder / "feeder.toml", folder / "tokens.toml"
        self.certificate = folder / "worker.pem"
        self.tokens.touch(0o600)
        self.credentials = self.rotate("first")
        self.serve(gone=shards)
        self.worker = start_worker(self.config)

    def rotate(self, name: str, days: tuple[float, float] = (-1, 10)) -> Credentials:
        """A new certificate, and a new token in the place of the one that there was."""
        made = self._authority.issue("worker", "127.0.0.1", days=days, file=f"{name}-next")
        os.replace(made, self.certificate)
        token, entry = new_token("alice")
        self.tokens.write_text(entry)
        path = self.folder / f"{name}.token"
        path.write_text(token)
        return Credentials(tls_ca=self._authority.file, token_file=path)

    def serve(self, **datasets: Path) -> None:
        lines = [f'tls-cert = "{self.certificate}"', f'tokens = "{self.tokens}"', 'http = "127.0.0.1:0"']
        sets = {"data": self._shards, **datasets}
        names = [f'{name} = "{path}"' for name, path in sets.items()]
        self.config.write_text("\n".join(["[worker]", *lines, "[worker.dataset]", *names, ""]))

    def expire(self) -> None:
        """A certificate that is not valid any more, in the place of the one that there was."""
        over = self._authority.issue("worker", "127.0.0.1", days=(-5, -1), file="over")
        os.replace(over, self.certificate)

    def http_port(self) -> int:
        found = re.search(r"health at https://127.0.0.1:(\d+)", self.worker.log.read_text())
        assert found is not None
        return int(found[1])

    def presented(self) -> str:
        """The certificate of both ports, which is one."""
        address = parse_address(self.worker.address)
        certificates = {
            ssl.get_server_certificate((address.host, port), timeout=DEADLINE_S)
            for port in (address.port, self.http_port())
        }
        assert len(certificates) == 1
        return certificates.pop()

    def told_end_s(self) -> float:
        """When the certificate ends, by /metrics."""
        context = client_context(str(self.credentials.tls_ca), None, None)
        url = f"https://127.0.0.1:{self.http_port()}/metrics"
        with urllib.request.urlopen(url, timeout=DEADLINE_S, context=context) as answer:
            found = re.search(
                r"^feeder_tls_certificate_not_after_timestamp_seconds (\S+)", answer.read().decode(), re.M
            )
        assert found is not None
        return float(found[1])


@pytest.fixture
def setup(tmp_path: Path, shards: Path, authority: Any, start_config_worker: Any) -> Setup:
    return Setup(tmp_path, shards, authority, start_config_worker)


def test_sighup_breaks_no_stream(
    setup: Setup, pair: Any, make_shards: Any, make_jpeg: Any, digest_batches: Callable[..., list[str]]
) -> None:
    """1. Two streams run, one of a data set that will be gone.
    2. Certificate and token rotate, one data set goes, another comes; SIGHUP.
    3. Both streams end as if nothing had happened, on their connections.
    4. Who connects anew meets the new certificate, and needs the new token.
    Result: nothing is lost, and nothing of before is left."""
    with feeder.connect(pair[0].address) as client:
        expected = digest_batches(client.stream("data", **STREAM))
    before = setup.presented()
    old = setup.credentials
    with feeder.connect(setup.worker.address, credentials=old) as client:
        streams = [client.stream(name, prefetch_bytes=1, **STREAM) for name in ("data", "gone")]
        iterators = [iter(stream) for stream in streams]
        found = [digest_batches([next(iterator)]) for iterator in iterators]
        new = setup.rotate("second")
        setup.serve(fresh=make_shards(setup.folder / "fresh", [make_jpeg(7)] * 9))
        setup.worker.signal(signal.SIGHUP)
        wait_for_log(setup.worker, "reloaded, read again: certificates, tokens; changed: dataset")
        for position, (stream, iterator) in enumerate(zip(streams, iterators, strict=True)):
            found[position] += digest_batches(iterator)
            assert [worker.reconnects for worker in stream.stats().workers.values()] == [0]
    assert found[0] == expected
    assert len(found[1]) == len(expected)
    assert setup.presented() != before
    with pytest.raises(NotAllowed, match="does not know the token"):
        feeder.connect(setup.worker.address, credentials=old)
    reply = describe(parse_address(setup.worker.address), new)
    assert {info.name: info.records for info in reply.datasets} == {"data": 120, "fresh": 9}


def test_what_is_wrong_changes_nothing(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    before, good = setup.presented(), setup.credentials
    for count, fault in enumerate(WRONG, 1):
        setup.rotate("second")
        setup.serve()
        if fault == "tokens":
            setup.tokens.write_text("[")
        elif fault == "certificate":
            setup.certificate.write_text("nothing")
        elif fault == "expired":
            setup.expire()
        elif fault == "setting":
            setup.config.write_text("[worker]\nno-such = 1\n")
        else:
            setup.serve(missing=setup.folder / "nowhere")
        assert main(["reload", str(setup.worker.process.pid)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(
            f"feeder: error: process {setup.worker.process.pid} goes on with the settings of"
        )
        assert WRONG[fault] in said
        wait_for_log(setup.worker, "reload refused, the settings of before stay", count)
        assert setup.presented() == before
        reply = describe(parse_address(setup.worker.address), good)
        assert [info.name for info in reply.datasets] == ["data", "gone"]


def test_the_end_of_the_certificate_that_is_shown_is_told(setup: Setup) -> None:
    """Not of the one that lies there: between the two is a reload."""

    def shown_end_s() -> float:
        return load_pem_x509_certificate(setup.presented().encode()).not_valid_after_utc.timestamp()

    first = setup.told_end_s()
    assert first == shown_end_s()
    setup.rotate("second", days=(-1, 30))
    assert setup.told_end_s() == first
    setup.worker.signal(signal.SIGHUP)
    log = wait_for_log(setup.worker, "reloaded, read again: certificates, tokens")
    assert setup.told_end_s() == shown_end_s() > first
    assert f"valid until {datetime.fromtimestamp(setup.told_end_s(), UTC):%Y-%m-%d %H:%M} UTC" in log


def test_a_worker_with_tls_says_why_it_decodes_on_so_many_threads(setup: Setup) -> None:
    assert re.search(r"on 1 thread: as --threads says$", setup.worker.log.read_text(), re.MULTILINE)


def test_shards_that_changed_under_the_same_name(
    setup: Setup, make_shards: Any, make_jpeg: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A data set of the same patterns is opened anew where its files changed, and stays where the new ones
    are of no use; neither keeps a new token waiting."""
    folder = make_shards(setup.folder / "fresh", [make_jpeg(7)] * 9)
    setup.serve(fresh=folder)
    reload = ["reload", str(setup.worker.process.pid)]
    assert main(reload) == 0

    def records() -> int:
        reply = describe(parse_address(setup.worker.address), setup.credentials)
        return {info.name: info.records for info in reply.datasets}["fresh"]

    assert records() == 9
    for shard in folder.glob("train-*"):
        shard.chmod(0o600)
    capsys.readouterr()
    assert main(reload) == 0
    assert "data set" not in capsys.readouterr().out  # another change time alone is none
    os.rename(folder, setup.folder / "before")
    make_shards(folder, [make_jpeg(7)] * 12)
    assert main(reload) == 0
    assert "read again: certificates, tokens, data set fresh, whose shards have" in capsys.readouterr().out
    assert records() == 12
    (folder / "train-00001-of-00003").write_bytes(b"")
    (folder / "train-00002-of-00003").unlink()
    setup.credentials = setup.rotate("second")
    assert main(reload) == 0
    assert "data set fresh stays as it was: " in capsys.readouterr().out
    assert records() == 12


def test_tls_ends_and_begins_at_both_ports(setup: Setup) -> None:
    secured = setup.config.read_text()
    setup.config.write_text(secured.replace("tls-cert", "# tls-cert"))
    setup.worker.signal(signal.SIGHUP)
    wait_for_log(setup.worker, "reloaded")
    with urllib.request.urlopen(f"http://127.0.0.1:{setup.http_port()}/livez", timeout=DEADLINE_S) as answer:
        assert answer.status == 200
    token = Credentials(token_file=setup.credentials.token_file)
    assert len(describe(parse_address(setup.worker.address), token).datasets) == 2
    setup.config.write_text(secured)
    setup.worker.signal(signal.SIGHUP)
    wait_for_log(setup.worker, "reloaded", 2)
    assert "BEGIN CERTIFICATE" in setup.presented()


def test_a_worker_that_starts_with_an_expired_certificate_says_so(
    setup: Setup, start_config_worker: Callable[[Path], Any]
) -> None:
    setup.expire()
    worker = start_config_worker(setup.config)
    assert re.search(r"no client will connect: the certificate .* expired at \d{4}-", worker.log.read_text())


def test_a_hang_up_while_a_worker_imports_is_a_reload_once_it_serves(shards: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from feeder.cli import main\n"
        "class HangUp:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'feeder.worker':\n"
        "            os.kill(os.getpid(), signal.SIGHUP)\n"
        "sys.meta_path.insert(0, HangUp())\n"
        "sys.exit(main())\n"
    )
    flags = ["--dataset", f"data={shards}", "--listen", "127.0.0.1:0", "--threads", "1"]
    with subprocess.Popen(
        [sys.executable, "-c", program, "worker", *flags], stderr=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stderr is not None
            assert any("reloaded" in line for line in worker.stderr)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(DEADLINE_S) == 0
        finally:
            worker.kill()


def test_the_command_ends_no_worker_that_has_only_just_begun(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "worker"], stdin=subprocess.PIPE) as beginner:
        assert main(["reload", str(beginner.pid)]) == 2
        assert "has only just begun, and SIGHUP would end it" in capsys.readouterr().err
        beginner.communicate(b"\n")
        assert beginner.returncode == 0


def test_the_command_finds_the_worker(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--tls-ca", str(setup.credentials.tls_ca), "--token-file", str(setup.credentials.token_file)]
    assert main(["reload", setup.worker.address, *files]) == 0
    assert (
        ": reloaded, read again: certificates, tokens; the certificate is valid until "
        in capsys.readouterr().out
    )
    setup.config.write_text(setup.config.read_text().replace("[worker]\n", "[worker]\nmax-streams = 3\n"))
    assert main(["reload", setup.worker.address, *files]) == 0
    assert ": a restart is needed for max-streams\n" in capsys.readouterr().out
    assert "a restart is needed for max-streams" in setup.worker.log.read_text()
    setup.tokens.write_text("")
    assert main(["reload", str(setup.worker.process.pid)]) == 0
    assert "tokens.toml: it has no entries, so nobody may read anything\n" in capsys.readouterr().out
    assert main(["reload", str(os.getpid())]) == 2
    assert "is no `feeder worker`" in capsys.readouterr().err
    assert setup.worker.process.poll() is None
    setup.worker.signal(signal.SIGTERM)
    assert setup.worker.wait() == 0
