"""Who may do what: tokens, and certificates of clients, by a file that holds no secret.

    [token.alice]
    sha256 = "9f86d08…"                # of the token; `feeder token new alice` makes both
    datasets = ["train", "validation"]  # not said: all
    jobs = ["resnet-*"]                 # names, * for anything; not said: all, and streams without a job
    images-per-s = 20000                # over all its streams of this worker; not said: no limit
    sees-all = true                     # names of all jobs and peers, and pictures; not said: no

    [token.cluster]
    certificate = "trainer.example.org" # instead of a token: common name of a certificate that was checked

A token is 256 random bits, so that a plain hash of it tells nobody anything.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import threading
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import grpc

from feeder.errors import ConfigError
from feeder.wire.status import Refusal

__all__ = ["Access", "Caller", "Grant", "Pace", "new_token", "read_tokens"]

BURST_S = 0.25
"""What a limited stream may send at once after a pause."""

MAX_FILE_BYTES = 1 << 20
MAX_RATE = 1e9

_PREFIX = "feeder_"
_SCHEME = "bearer "
_KEYS = {"sha256", "certificate", "datasets", "jobs", "images-per-s", "sees-all"}


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose connection it is.

    Attributes:
        name: of the peer, as gRPC writes it.
        certificate: common name of the certificate that it showed, and that was checked; None: none.
    """

    name: str
    certificate: str | None = None


class Pace:
    """A rate that several streams share; safe to use from any thread."""

    def __init__(self, images_per_s: float | None) -> None:
        self.images_per_s = images_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0  # by the monotonic clock

    def delay_s(self, images: int) -> float:
        """Takes the turn of so many images: the seconds until it comes."""
        with self._lock:
            if self.images_per_s is None:
                return 0.0
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s - BURST_S)
            delay_s = self._free_s - now_s
            self._free_s += images / self.images_per_s
            return max(0.0, delay_s)

    def change(self, images_per_s: float | None) -> None:
        """Another rate from now on; what was taken before is forgotten."""
        with self._lock:
            if images_per_s != self.images_per_s:
                self.images_per_s, self._free_s = images_per_s, 0.0


@dataclass(frozen=True, slots=True)
class Grant:
    """What one caller may do.

    Attributes:
        name: of the token; empty where none is wanted.
        datasets: None: all.
        jobs: patterns of their names; None: all, and streams without a job.
        pace: of what it is sent.
        sees_all: the names of all jobs and peers, and over HTTP pictures, whatever it may read.
    """

    name: str
    datasets: frozenset[str] | None
    jobs: tuple[str, ...] | None
    pace: Pace
    sees_all: bool

    @property
    def rate(self) -> float | None:
        """Images a second, over all its streams; None: no limit."""
        return self.pace.images_per_s

    def may_read(self, dataset: str) -> bool:
        """Whether a data set is for it."""
        return self.datasets is None or dataset in self.datasets

    def may_run(self, job: str) -> bool:
        """Whether a job's name, or none (""), is for it."""
        return self.jobs is None or any(fnmatchcase(job, pattern) for pattern in self.jobs)

    def check(self, dataset: str, job: str) -> None:
        """Sees whether a stream is for it.

        Raises:
            Refusal: PERMISSION_DENIED.
        """
        if not self.may_read(dataset):
            allowed = ", ".join(map(repr, sorted(self.datasets or ()))) or "none"
            what = f"not for the data set {dataset!r}, it may read {allowed}"
        elif not self.may_run(job):
            allowed = ", ".join(map(repr, self.jobs or ())) or "none"
            what = f"not for {f'the job {job!r}' if job else 'streams without a job'}, its jobs are {allowed}"
        else:
            return
        raise Refusal(grpc.StatusCode.PERMISSION_DENIED, f"the token {self.name!r} is {what}")


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes  # empty: none
    certificate: str | None
    grant: Grant


class Access:
    """Grants what a file of tokens says; without one, everything to everybody.

    Args:
        path: of the file; None: no tokens are wanted.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        self._everything = Grant("", None, None, Pace(None), True)
        self._entries = None if path is None else read_tokens(path)

    @property
    def wanted(self) -> bool:
        """Whether there are tokens at all."""
        return self._entries is not None

    @property
    def entries(self) -> Mapping[str, _Entry]:
        """Those of the file, by name; none without a file."""
        return self._entries or {}

    def change(self, entries: Mapping[str, _Entry] | None) -> None:
        """Takes what `read_tokens` gave. Streams go on with what they were granted, but for the rate."""
        before = self.entries
        for name, entry in (entries or {}).items():
            if name in before:
                before[name].grant.pace.change(entry.grant.rate)
        self._entries = (
            {
                name: entry if name not in before else _with_pace(entry, before[name].grant.pace)
                for name, entry in entries.items()
            }
            if entries is not None
            else None
        )

    def grant(self, authorization: str | None, certificate_name: str | None = None) -> Grant:
        """What a caller may do who sends this header, or has shown a certificate of this name.

        Raises:
            Refusal: UNAUTHENTICATED where it has neither, or a token that nobody has.
        """
        entries = self._entries
        if entries is None:
            return self._everything
        if authorization is None:
            for entry in entries.values():
                if certificate_name is not None and entry.certificate == certificate_name:
                    return entry.grant
            known = "" if certificate_name is None else f", and knows no certificate {certificate_name!r}"
            raise Refusal(
                grpc.StatusCode.UNAUTHENTICATED,
                f"this worker wants a token{known}: name its file with --token-file, FEEDER_TOKEN_FILE or "
                f"feeder.Credentials(token_file=...)",
            )
        token = authorization[len(_SCHEME) :] if authorization.lower().startswith(_SCHEME) else ""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for entry in entries.values():  # all of them, so that the time tells nothing
            if hmac.compare_digest(entry.digest, digest):
                found = entry.grant
        if found is None or not token:
            raise Refusal(
                grpc.StatusCode.UNAUTHENTICATED,
                "this worker does not know the token: it was mistyped, or is no more in the worker's file of "
                "tokens",
            )
        return found


def new_token(name: str) -> tuple[str, str]:
    """A random token, and what the file of tokens says of it.

    Raises:
        ConfigError: such a name cannot be.
    """
    _check_name(name)
    token = _PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    return token, f'[token.{name}]\nsha256 = "{digest}"\n'


def read_tokens(path: Path) -> dict[str, _Entry]:
    """The entries of a file of tokens, by name.

    Raises:
        ConfigError: it cannot be read, others can read it, or it has something that cannot be.
    """
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--tokens: {path}: cannot be read: {error.strerror}") from None
    if mode & 0o007:
        raise ConfigError(f"--tokens: {path}: others may use the file (mode {mode:04o}): chmod o= {path}")
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"--tokens: {path}: has more than {MAX_FILE_BYTES} bytes")
    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--tokens: {path}: is not TOML: {error}") from None
    tables = document.pop("token", {})
    if document or not isinstance(tables, dict):
        raise ConfigError(f"--tokens: {path}: entries are tables [token.NAME], and nothing else")
    entries = {}
    for name, values in tables.items():
        try:
            entries[name] = _entry(name, values)
        except ConfigError as error:
            raise ConfigError(f"--tokens: {path}: [token.{name}] {error}") from None
    names: dict[tuple[bytes, str | None], str] = {}
    for name, entry in entries.items():
        if (other := names.setdefault((entry.digest, entry.certificate), name)) != name:
            what = "token" if entry.certificate is None else "certificate"
            raise ConfigError(f"--tokens: {path}: [token.{other}] and [token.{name}] have one {what}")
    return entries


def _entry(name: str, values: object) -> _Entry:
    _check_name(name)
    if not isinstance(values, dict):
        raise ConfigError(f"must be a table, got {values!r}")
    if unknown := ", ".join(sorted(values.keys() - _KEYS)):
        raise ConfigError(f"{unknown}: there is no such setting; there are {', '.join(sorted(_KEYS))}")
    digest, certificate = values.get("sha256"), values.get("certificate")
    if (digest is None) == (certificate is None):
        raise ConfigError("needs either sha256 or certificate")
    if digest is not None and not (
        isinstance(digest, str) and len(digest) == 64 and set(digest.lower()) <= set("0123456789abcdef")
    ):
        raise ConfigError("sha256 has 64 digits, as `feeder token new` prints them")
    if certificate is not None and not (isinstance(certificate, str) and certificate):
        raise ConfigError("certificate must be the common name of a certificate")
    rate = values.get("images-per-s")
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= MAX_RATE
    ):
        raise ConfigError(f"images-per-s must be a number in (0, {MAX_RATE:g}], got {rate!r}")
    sees_all = values.get("sees-all", False)
    if not isinstance(sees_all, bool):
        raise ConfigError(f"sees-all must be true or false, got {sees_all!r}")
    if sees_all and digest is None:
        raise ConfigError("sees-all is for tokens: the HTTP port asks nobody for a certificate")
    datasets, jobs = _names(values, "datasets"), _names(values, "jobs")
    grant = Grant(name, None if datasets is None else frozenset(datasets), jobs, Pace(rate), sees_all)
    return _Entry(b"" if digest is None else bytes.fromhex(digest), certificate, grant)


def _names(values: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    names = values.get(key)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{key} must be a list of names, got {names!r}")
    return tuple(names)


def _check_name(name: str) -> None:
    if not 0 < len(name) <= 64 or not all(one.isascii() and (one.isalnum() or one in "-_") for one in name):
        raise ConfigError(f"a token's name has up to 64 letters, digits, - and _, got {name!r}")


def _with_pace(entry: _Entry, pace: Pace) -> _Entry:
    grant = entry.grant
    return _Entry(
        entry.digest,
        entry.certificate,
        Grant(grant.name, grant.datasets, grant.jobs, pace, grant.sees_all),
    )
