"""Tokens: what a file of them may say, and what a worker that has one lets whom do."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

import feeder
from feeder import Credentials
from feeder.cli import main
from feeder.cli.status import describe
from feeder.errors import ConfigError, NotAllowed, Refused
from feeder.spec import StreamSpec
from feeder.wire import FEED
from feeder.wire.address import Address, parse_address
from feeder.wire.call import Call
from feeder.wire.channel import open_channel
from feeder.wire.codec import encode_request, parse_reply
from feeder.wire.messages import Join, Open, Opened
from feeder.wire.status import Refusal
from feeder.worker import access as access_module
from feeder.worker.access import Access, Grant, Pace, new_token, read_tokens
from feeder.worker.config import WorkerConfig
from feeder.worker.doubts import doubts

DEADLINE_S = 30.0
STREAM: dict[str, Any] = {"batch_size": 24, "image_size": 32, "seed": 5, "epochs": 1}


class Tokens:
    """A file of tokens, and one file for each of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "tokens.toml"
        self.file.touch(0o600)

    def add(self, name: str, *lines: str) -> Credentials:
        token, entry = new_token(name)
        with open(self.file, "a") as file:
            file.write(entry + "".join(f"{line}\n" for line in lines))
        path = self._folder / f"{name}.token"
        path.write_text(f"{token}\n")
        return Credentials(token_file=path)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def callers(tokens: Tokens) -> dict[str, Credentials]:
    stranger = tokens.file.with_name("stranger.token")
    stranger.write_text(new_token("stranger")[0])
    return {
        "all": tokens.add("all"),
        "jobs": tokens.add("jobs", 'datasets = ["data"]', 'jobs = ["resnet-*", "small"]'),
        "other": tokens.add("other", 'datasets = ["other"]'),
        "slow": tokens.add("slow", "images-per-s = 400"),
        "seer": tokens.add("seer", "datasets = []", "sees-all = true"),
        "stranger": Credentials(token_file=stranger),
        "none": Credentials(),
    }


@pytest.fixture(scope="module")
def worker(
    start_workers: Callable[..., Any], shards: Path, tokens: Tokens, callers: dict[str, Credentials]
) -> Any:
    http = ("--http", "127.0.0.1:0")
    return start_workers(shards, "--dataset", f"other={shards}", "--tokens", str(tokens.file), *http)


def flags(credentials: Credentials) -> list[str]:
    return ["--token-file", str(credentials.token_file)]


def test_names_and_pictures_want_a_token_that_sees_all(
    worker: Any, callers: dict[str, Credentials], capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"metrics and health at (http://\S+)", worker.log.read_text())
    assert found is not None

    def get(path: str, caller: str | None = None) -> tuple[int, str]:
        token_file = None if caller is None else callers[caller].token_file
        header = {} if token_file is None else {"Authorization": f"Bearer {token_file.read_text().strip()}"}
        request = urllib.request.Request(found[1] + path, headers=header)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    with (
        feeder.connect(worker.address, credentials=callers["all"]) as client,
        client.stream("data", **{**STREAM, "epochs": 30}, job="secret-job") as stream,
    ):
        next(stream)
        assert 'job_name="secret-job"' in get("/metrics", "seer")[1]
        for caller in (None, "stranger", "all"):
            status, text = get("/metrics", caller)
            assert status == 200
            assert "feeder_consumer_served_images_total" in text
            assert "secret-job" not in text
            assert get("/pictures?stream=x", caller)[0] == 403
        assert get("/pictures?stream=x", "seer")[0] == 404  # no such stream
        counts = dict(re.findall(r'refused_total\{reason="(\w+)"\} ([\d.]+)', get("/metrics")[1]))
        assert float(counts["wrong_token"]) >= 2  # of the stranger
        assert get("/sign-in")[0] == 401
        address = parse_address(worker.address)
        jobs = {
            name: [one.job for one in describe(address, callers[name]).streams] for name in ("other", "seer")
        }
        assert jobs == {"other": [], "seer": ["secret-job"]}
        assert main(["doctor", worker.address, "--seconds", "1", *flags(callers["other"])]) == 0
        assert "nothing that this token may see: 1 stream on" in capsys.readouterr().out
        assert main(["top", worker.address, "--once", *flags(callers["other"])]) == 0
        assert "not for this token to see" in " ".join(capsys.readouterr().out.split())
    assert get("/readyz")[0] == 200


def test_who_may_what(
    worker: Any, pair: Any, callers: dict[str, Credentials], digest_batches: Callable[..., list[str]]
) -> None:
    with feeder.connect(pair[0].address) as client:
        expected = digest_batches(client.stream("data", **STREAM))
    for name, job in (("all", None), ("jobs", "resnet-7"), ("jobs", "small"), ("slow", None)):
        with feeder.connect(worker.address, credentials=callers[name]) as client:
            assert digest_batches(client.stream("data", job=job, **STREAM)) == expected
    with feeder.connect(worker.address, credentials=callers["jobs"]) as client:
        assert [*next(iter(client.workers.values())).datasets] == ["data"]
        with pytest.raises(
            Refused, match=r"no worker serves 'other'; .* serves data; what this client's token may"
        ):
            next(iter(client.stream("other", job="small", **STREAM)))
        with pytest.raises(NotAllowed, match=r"not for the job 'vit', its jobs are 'resnet-\*', 'small'"):
            next(iter(client.stream("data", job="vit", **STREAM)))
    assert "token jobs, data, job 'resnet-7'" in worker.log.read_text()


def test_who_has_no_token_that_is_known(worker: Any, callers: dict[str, Credentials]) -> None:
    with pytest.raises(NotAllowed, match="this worker wants a token"):
        feeder.connect(worker.address, credentials=callers["none"])
    with pytest.raises(NotAllowed, match="does not know the token"):
        feeder.connect(worker.address, credentials=callers["stranger"])
    log = worker.log.read_text()
    assert "refused, it has no token" in log
    assert "refused, its token is unknown" in log


def test_clients_that_ask_for_more_than_describe_told(
    worker: Any, callers: dict[str, Credentials], opening_of: Callable[..., bytes]
) -> None:
    """Bare calls, over both ways into the worker: Feed is checked whatever Describe had said."""
    address = parse_address(worker.address)
    reply = describe(address, callers["all"])
    for name, code in (
        ("other", grpc.StatusCode.PERMISSION_DENIED),
        ("stranger", grpc.StatusCode.UNAUTHENTICATED),
        ("none", grpc.StatusCode.UNAUTHENTICATED),
    ):
        for served in (open_bare, open_relayed):
            with pytest.raises(grpc.RpcError) as failure:
                served(address, callers[name], opening_of(reply, "data"))
            assert failure.value.code() is code  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "s3://bucket/x", "data/", ".", "other\0"]
)
def test_a_data_set_is_a_name_and_never_a_path(pair: Any, name: str) -> None:
    """The worker has no such name, and looks nowhere else."""
    address = parse_address(pair[0].address)
    reply = describe(address)
    for served in (open_bare, open_relayed):
        spec = StreamSpec(name, global_batch=8, lanes=4, image_size=32)
        opening = Open("session", spec, "f", pixel_fingerprint=reply.pixel_fingerprint)
        with pytest.raises(grpc.RpcError) as failure:
            served(address, Credentials(), encode_request(opening))
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]


def open_bare(address: Any, credentials: Credentials, opening: bytes) -> None:
    with Call(address, FEED, user_agent="test", credentials=credentials) as call:
        call.send(opening)
        call.receive()


def open_relayed(address: Any, credentials: Credentials, opening: bytes) -> None:
    with open_channel(address, credentials) as channel:
        next(channel.stream_stream(FEED)(iter([opening]), timeout=30))


def test_a_further_connection_shows_the_token_of_its_stream(
    worker: Any, callers: dict[str, Credentials]
) -> None:
    """Another's data sets and rate are not those that the stream was opened with."""
    address = parse_address(worker.address)
    reply = describe(address, callers["all"])
    (fingerprint,) = {info.fingerprint for info in reply.datasets if info.name == "data"}
    spec = StreamSpec("data", global_batch=8, lanes=4, image_size=32)
    opening = Open("joined", spec, fingerprint, pixel_fingerprint=reply.pixel_fingerprint)

    def joined(caller: str, key: bytes) -> bool:
        with Call(address, FEED, user_agent="test", credentials=callers[caller]) as call:
            call.send(encode_request(Join(key)))
            return call.receive() is not None

    with Call(address, FEED, user_agent="test", credentials=callers["slow"]) as first:
        first.send(encode_request(opening))
        opened = parse_reply(first.read(first.receive() or 0))
        assert isinstance(opened, Opened)
        for caller in ("all", "seer"):
            with pytest.raises(grpc.RpcError) as failure:
                joined(caller, opened.join)
            assert failure.value.code() is grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]
        assert joined("slow", opened.join)


def test_a_certificate_stands_for_a_token(
    start_worker: Callable[..., Any],
    shards: Path,
    tmp_path: Path,
    authority: Any,
    local_certificate: Path,
    digest_batches: Callable[..., list[str]],
) -> None:
    """Over both ways into the worker: by gRPC behind the front for Describe, in the front for Feed."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[token.trainers]\ncertificate = "trainer"\ndatasets = ["data"]\n')
    tokens.chmod(0o640)
    flags = ["--tls-cert", local_certificate, "--tls-client-ca", authority.file, "--tokens", tokens]
    worker = start_worker(shards, *map(str, flags))
    known = Credentials(tls_ca=authority.file, tls_cert=authority.issue("trainer", file="known"))
    with feeder.connect(worker.address, credentials=known) as client:
        assert len(digest_batches(client.stream("data", **STREAM))) == 5
    unknown = Credentials(tls_ca=authority.file, tls_cert=authority.issue("guest"))
    with pytest.raises(NotAllowed, match="knows no certificate 'guest'"):
        feeder.connect(worker.address, credentials=unknown)
    assert re.search(r"stream 1 opened: ipv4:127.0.0.1:\d+, token trainers, data", worker.log.read_text())
    assert re.search(r"ipv4:127.0.0.1:\d+: refused, it has no token", worker.log.read_text())


def test_no_token_is_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "new", "alice"]) == 0
    token, entry = capsys.readouterr()
    assert token.strip() not in entry
    path = tmp_path / "tokens.toml"
    path.write_text(entry)
    path.chmod(0o600)
    access = Access(path)
    assert access.grant(f"Bearer {token.strip()}").name == "alice"
    for wrong in (None, "", "Bearer ", "Bearer x", f"Basic {token.strip()}", token.strip(), "Bearer \udcff"):
        with pytest.raises(Refusal):
            access.grant(wrong)
    assert main(["token", "new", "a b"]) == 2


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("", 0o644, r"others may use the file \(mode 0644\)"),
        ("[", 0o600, "is not TOML"),
        ("a = 1", 0o600, "and nothing else"),
        ("[token.a]", 0o600, r"\[token.a\] needs either sha256 or certificate"),
        ('[token.a]\nsha256 = "ab"', 0o600, "64 digits"),
        ('[token.a]\ncertificate = "a"\nrate = 1', 0o600, r"\[token.a\] rate: there is no such"),
        ("token.a = 1", 0o600, r"\[token.a\] must be a table, got 1"),
        ('[token.a]\ncertificate = "a"\nimages-per-s = 0', 0o600, "images-per-s must be a number"),
        ('[token.a]\ncertificate = "a"\ndatasets = "train"', 0o600, "must be a list of names"),
        ('[token.a]\ncertificate = "a"\nsees-all = 1', 0o600, "true or false"),
        ('[token.a]\ncertificate = "a"\nsees-all = true', 0o600, "sees-all is for tokens"),
        (
            '[token.a]\ncertificate = "a"\n[token.b]\ncertificate = "a"',
            0o600,
            r"\[token.a\] and \[token.b\] have one",
        ),
    ],
)
def test_files_of_tokens_that_cannot_be(text: str, mode: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=said):
        read_tokens(path)


def test_what_is_hardly_meant_is_said(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"

    def said(text: str | None, **settings: Any) -> str:
        if text is not None:
            path.write_text(text)
            path.chmod(0o600)
            settings["tokens"] = path
        config = WorkerConfig({"a": ("/b",)}, **settings)
        return "\n".join(doubts(config, Access(config.tokens)))

    tls = {"tls_cert": tmp_path, "tls_client_ca": tmp_path}
    entry = '[token.a]\ncertificate = "a"\n'
    far = Address("tcp", "0.0.0.0")
    assert said(None) == said(entry, **tls) == said(new_token("a")[1], listen=far) == ""
    assert said(None, http=far, insecure=True).startswith("--http 0.0.0.0:0: --insecure, so whoever")
    assert "it has no entries" in said("", **tls)
    assert "[token.a] lets nobody in" in said(entry)


def test_a_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(access_module.time, "monotonic", lambda: now_s[0])
    pace = Pace(100.0)
    sent = 0
    while now_s[0] < 110.0:
        now_s[0] += pace.delay_s(8)
        sent += 8
    assert 1000 <= sent <= 1000 + 2 * 8 + 100 * access_module.BURST_S
    now_s[0] += 1000
    assert [pace.delay_s(100) for _ in range(3)] == [0.0, pytest.approx(0.75), pytest.approx(1.75)]
    pace.change(None)
    assert pace.delay_s(10**9) == 0.0


def test_what_a_grant_is_for() -> None:
    grant = Grant("a", frozenset({"train"}), ("x-*",), Pace(None), False)
    grant.check("train", "x-1")
    for dataset, job in (("val", "x-1"), ("train", "y"), ("train", "")):
        with pytest.raises(Refusal):
            grant.check(dataset, job)


@pytest.fixture
def opening_of() -> Callable[..., bytes]:
    def build(reply: Any, dataset: str) -> bytes:
        fingerprints = {info.name: info.fingerprint for info in reply.datasets}
        spec = StreamSpec(dataset, global_batch=8, lanes=4, image_size=32)
        return encode_request(
            Open("session", spec, fingerprints[dataset], pixel_fingerprint=reply.pixel_fingerprint)
        )

    return build
