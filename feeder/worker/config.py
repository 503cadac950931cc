"""What a worker is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from feeder.cache import Size
from feeder.decode import Kind
from feeder.errors import ConfigError
from feeder.records import FormatName, RecordKeys, SeekMode
from feeder.wire import MAX_NAME
from feeder.wire.address import Address, is_local

__all__ = ["ARENA_BYTES", "LISTEN", "SHARE_BYTES", "LogFormat", "LogLevel", "WorkerConfig"]

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

LISTEN = Address("tcp", "127.0.0.1", 50051)

MAX_STREAMS = 4096
MAX_THREADS = 4096

ARENA_BYTES = 64 << 30
"""Eight trainers of a host with the most that a client keeps ready by default have a fifth of it. The memory
is theirs."""

SHARE_BYTES = 1 << 30
"""7,100 images of 224 pixels: jobs that start within seconds of each other come together, since who is behind
is served faster, until both are at one place."""


@dataclass(frozen=True)
class WorkerConfig:
    """Settings of one worker, checked.

    Attributes:
        datasets: by the name that clients ask for, the patterns of its shards (see Dataset.open).
        listen: where to serve; port 0 lets the system choose.
        threads: decode threads; None: see feeder.worker.cpus.
        max_streams: consumers served at a time; each costs two threads.
        max_streams_per_job: of them, those of one job; None: no limit but max_streams.
        share_bytes: most that is kept of chunks that several streams want; 0: each has its own made.
        drain_s: after SIGTERM, seconds until streams that still owe answers are cut.
        decoder: "native", "portable", or "auto" for the first that is there.
        keys: where image and label are in a record.
        format_name: of the shards of all data sets; None: what their content says.
        index_dir: folder of the indexes; None: beside the shards.
        build_index: whether missing or stale indexes are built at start.
        seek: "learn" keeps seek points beside the indexes and uses them, "use" only uses them.
        cache: how much decoded planes may take; None: they are not kept.
        cache_dir: folder of the cache; None: in shared memory.
        encoded: how much records of object stores may take as they are stored; None: they are not kept.
        encoded_dir: folder where they are kept; None: in shared memory.
        warm: whether the cache is filled from the start, not only by what is asked for.
        http: where to answer for metrics and health, host and port; None: nowhere.
        arena_bytes: most memory of clients on this host that is written into; 0: none.
        arena_dir: folder of the socket over which they hand it over; None: the user's runtime folder.
        log_format: in which it is logged, by who runs the worker.
        log_level: least that is logged; who runs the worker sees to it at the start.
        trace: whether spans of the chunks that clients trace are exported.
        tls_cert: of the worker, in PEM; None: no TLS.
        tls_key: of that; None: it is in the same file.
        tls_client_ca: authorities of certificates that clients must have; None: they need none.
        tokens: file of tokens, see feeder.worker.access; None: none are wanted.
        insecure: whether others than this host may be served without TLS and tokens.
    """

    datasets: Mapping[str, tuple[str, ...]]
    listen: Address = LISTEN
    threads: int | None = None
    max_streams: int = 64
    max_streams_per_job: int | None = None
    share_bytes: int = SHARE_BYTES
    drain_s: float = 30.0
    decoder: Kind = "auto"
    keys: RecordKeys = field(default_factory=RecordKeys)
    format_name: FormatName | None = None
    index_dir: Path | None = None
    build_index: bool = True
    seek: SeekMode = "learn"
    cache: Size | None = None
    cache_dir: Path | None = None
    encoded: Size | None = None
    encoded_dir: Path | None = None
    warm: bool = False
    http: Address | None = None
    arena_bytes: int = ARENA_BYTES
    arena_dir: Path | None = None
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    trace: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens: Path | None = None
    insecure: bool = False

    @property
    def exposed(self) -> list[tuple[str, Address]]:
        """Where other hosts are served with neither TLS nor tokens, and the option that says so."""
        if self.tls_cert is not None or self.tokens is not None:
            return []
        places = (("--listen", self.listen), ("--http", self.http))
        return [
            (option, address) for option, address in places if address is not None and not is_local(address)
        ]

    def __post_init__(self) -> None:
        if self.http is not None and self.http.kind != "tcp":
            raise ConfigError(f"--http wants host:port, got {self.http}")
        if not self.datasets:
            raise ConfigError(
                "no data set given: use --dataset NAME=PATTERN, FEEDER_DATASET, or [worker.dataset] in a file"
            )
        for name in self.datasets:
            if len(name) > MAX_NAME:
                raise ConfigError(f"a data set's name has at most {MAX_NAME} characters, got {name[:40]}...")
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise ConfigError(f"--threads must be in [1, {MAX_THREADS}], got {self.threads}")
        if not 1 <= self.max_streams <= MAX_STREAMS:
            raise ConfigError(f"--max-streams must be in [1, {MAX_STREAMS}], got {self.max_streams}")
        if self.max_streams_per_job is not None and not 1 <= self.max_streams_per_job <= MAX_STREAMS:
            raise ConfigError(
                f"--max-streams-per-job must be in [1, {MAX_STREAMS}], got {self.max_streams_per_job}"
            )
        if self.encoded_dir is not None and self.encoded_dir == self.cache_dir:
            raise ConfigError(
                f"--cache-dir and --encoded-cache-dir must be two folders, each has a budget of its own; got "
                f"{self.cache_dir} for both"
            )
        if not 0 <= self.drain_s <= 86400:
            raise ConfigError(f"--drain-s must be in [0, 86400] seconds, got {self.drain_s}")
        self._check_security()

    def _check_security(self) -> None:
        if self.tls_cert is None:
            for option, path in (("--tls-key", self.tls_key), ("--tls-client-ca", self.tls_client_ca)):
                if path is not None:
                    raise ConfigError(f"{option} {path} needs --tls-cert, the worker's certificate")
        elif self.listen.kind == "unix" and self.http is None:
            raise ConfigError("--tls-cert: a unix socket has no TLS; only this user can reach it anyway")
        if self.exposed and not self.insecure:
            option, address = self.exposed[0]
            raise ConfigError(
                f"{option} {address}: other hosts could reach this, and anybody there could read the "
                "data: use TLS (--tls-cert, --tls-key) or tokens (--tokens), or say --insecure where the "
                "network is closed to others"
            )
