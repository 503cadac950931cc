"""`connect`: find the workers, see that they agree, make streams."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from feeder.client.arguments import boolean, integer, seconds, text
from feeder.client.compression import Choice, check_choice
from feeder.client.diagnosis import diagnose
from feeder.client.engine import Engine
from feeder.client.names import Target, ask, resolve
from feeder.client.session import Rebalance
from feeder.client.sharing import Transport
from feeder.client.stream import Stream
from feeder.client.workers import WorkerInfo, check_agreement, describe_all
from feeder.errors import (
    Closed,
    ConfigError,
    FeederError,
    NotAllowed,
    NotTrusted,
    Refused,
    WorkerUnavailable,
)
from feeder.order import Order, Position, default_lanes
from feeder.spec import Augment, OnBad, Output, Remainder, Resample, Sampler, StreamSpec
from feeder.wire import MAX_NAME
from feeder.wire.address import Address, parse_target
from feeder.wire.credentials import Credentials
from feeder.wire.messages import Open

if TYPE_CHECKING:
    from feeder.client.tracing import ChunkSpans

__all__ = ["Client", "connect"]

log = logging.getLogger(__name__)

RETRY_S = 0.2
"""Between two tries while no worker answers at all."""

DEFAULT_BATCHES = 4
MAX_BATCHES = 64
MIN_PREFETCH_BYTES = 32 << 20
MAX_PREFETCH_BYTES = 1 << 30
"""Prefetch by default: 4 batches; more of small ones, so that all workers have something to do; at most 1
GiB."""

MAX_CONNECTIONS = 8
MAX_BATCH_BYTES = 16 << 30
"""Pixels of one consumer's batch: 114,000 images of 224 pixels, more than an accelerator takes at a time."""


def connect(
    target: Target,
    *,
    timeout_s: float = 10.0,
    resolve_s: float = 30.0,
    credentials: Credentials | None = None,
) -> Client:
    """Finds the workers at `target` and asks them what they serve.

    Args:
        target: "host:port", several with commas, "dns:name:port" for all addresses of a name, "unix:/path",
            or a list of these; or a function without arguments that returns such, called here and, on a
            thread of the stream, every `resolve_s` seconds.
        timeout_s: seconds until an answer must be there. While no worker answers, or a name stands for
            nothing, all are tried again until then.
        resolve_s: how often a stream looks up "dns:" names again, or asks the function. Workers that are new
            take part; one that is not reached any more is forgotten when it is not named any more, either.
        credentials: what workers are shown, and whose certificates are trusted. None: what FEEDER_TLS_CA,
            FEEDER_CLIENT_CERT, FEEDER_CLIENT_KEY and FEEDER_TOKEN_FILE say; without them neither TLS nor a
            token.

    Workers that don't answer are left out with a warning as long as one does; streams keep trying to reach
    them.

    Raises:
        ConfigError: `target` is not an address, one of the others no time span, or a file of the credentials
            cannot be used.
        NotTrusted: none can be spoken to, since the two sides do not agree on TLS.
        NotAllowed: none takes the token.
        WorkerUnavailable: none answered, a name stands for nothing, or the function raised or named none.
    """
    timeout_s = seconds("timeout_s", timeout_s)
    resolve_s = seconds("resolve_s", resolve_s)
    deadline = time.monotonic() + timeout_s
    if callable(target):
        find, moving = partial(ask, target), True
    else:
        targets = parse_target(target)
        find, moving = partial(resolve, targets), any(one.kind == "dns" for one in targets)
    credentials = credentials or Credentials.from_environment()
    diagnosed = False
    while True:
        try:
            addresses = find()
        except WorkerUnavailable:
            if deadline - time.monotonic() <= RETRY_S:
                raise
            time.sleep(RETRY_S)
            continue
        found, missing = describe_all(addresses, credentials, max(0.1, deadline - time.monotonic()))
        if found:
            break
        if not diagnosed:
            diagnosed = True
            _raise_hopeless(addresses, credentials, missing)
        remaining_s = deadline - time.monotonic()
        if remaining_s <= RETRY_S:
            reasons = "; ".join(str(error) for error in missing.values())
            raise WorkerUnavailable(
                f"no worker answered within {timeout_s:g} s: {reasons}; check the address, or start one with "
                "`feeder worker --dataset NAME=PATTERN --listen ADDRESS`"
            )
        time.sleep(RETRY_S)
    for error in missing.values():
        log.warning("%s; not there yet, streams keep trying to reach it", error)
    return Client(addresses, found, (find, resolve_s) if moving else None, credentials)


def _raise_hopeless(
    addresses: Sequence[Address], credentials: Credentials, missing: Mapping[str, FeederError]
) -> None:
    """Raises where no worker will answer until somebody changes certificates, tokens or settings."""
    reasons = []
    for address in addresses:
        error = missing[str(address)]
        reasons.append(diagnose(address, credentials) if isinstance(error, WorkerUnavailable) else error)
    if all(isinstance(reason, NotTrusted | NotAllowed | ConfigError) for reason in reasons):
        raise reasons[0] or AssertionError


def _spans() -> type[ChunkSpans]:
    """What makes spans: OpenTelemetry is imported only where it is wanted.

    Raises:
        ConfigError: it is not there.
    """
    try:
        from feeder.client.tracing import ChunkSpans
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"trace=True needs {error.name}, which is not installed here: pip install 'feeder[tracing]'"
        ) from None
    return ChunkSpans


class Client:
    """The workers at one target; made by `connect`.

    It holds no connection itself, each stream has its own. A stream outlives a client that is dropped, but
    not one that is closed.

    Attributes:
        workers: what each worker said when it was found, by address.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        workers: Mapping[str, WorkerInfo],
        watched: tuple[Callable[[], list[Address]], float] | None,
        credentials: Credentials,
    ) -> None:
        self.workers = workers
        self._credentials = credentials
        self._watched = watched  # how to find them again, and how often; None: they stay where they are
        self._addresses = addresses
        self._missing = {str(address) for address in addresses} - workers.keys()
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._closed = False
        self._pid = os.getpid()

    def stream(
        self,
        dataset: str,
        *,
        batch_size: int,
        consumer_index: int = 0,
        consumer_count: int = 1,
        seed: int = 0,
        epochs: int | None = None,
        image_size: int = 224,
        augment: Augment = "train",
        sampler: Sampler = "torchvision",
        resample: Resample = "bilinear",
        antialias: bool = True,
        reduce: Literal["auto"] | int | None = "auto",
        output: Output = "rgb",
        shuffle: bool | None = None,
        remainder: Remainder | Literal["auto"] = "auto",
        on_bad: OnBad = "replace",
        start: Position | Mapping[str, Any] | None = None,
        job: str | None = None,
        prefetch_bytes: int | None = None,
        transport: Transport = "auto",
        beside: str | Sequence[str] = (),
        rebalance: Rebalance = "now",
        compression: Choice = "none",
        connections: int = 2,
        stall_timeout_s: float = 60.0,
        trace: bool = False,
    ) -> Stream:
        """This consumer's batches of a data set.

        All consumers of one training pass the same arguments, but for `consumer_index`. See StreamSpec for
        those that are not described here.

        Args:
            dataset: the name that the workers serve it under.
            batch_size: slots of each batch, of this consumer; the global batch is batch_size *
                consumer_count.
            consumer_index: in [0, consumer_count).
            epochs: the stream ends before this epoch, counted from epoch 0 also where `start` lies later.
                None: endless, or one epoch where remainder is "pad".
            shuffle: None: where augment is "train".
            remainder: "auto": "drop" where augment is "train", else "pad".
            start: a position (or its `to_dict()`) to go on from; it may come from any number of consumers
                that divides its lanes. None: from the beginning.
            job: a name for this training. A worker refuses a second live session of one (job,
                consumer_index), and one whose other arguments differ. None: anybody may ask for anything.
            prefetch_bytes: room for batches that are ready or in the making, at least one is. None: 4
                batches, more of small ones, at most 1 GiB unless one batch is larger. Memory shared with
                workers has room for 4 more, which the caller may be using.
            transport: "auto": a worker on this host writes batches into this process's memory, if its side
                socket can be reached; others send them. "shm": a worker that cannot do so is refused. "grpc":
                all send them.
            beside: addresses of workers on this host, as `connect` takes them, beyond those that write into
                this process's memory. With W workers for R consumers, each worker beside one makes R / W of
                its batches: all, where every consumer has its own. This changes who makes a batch, never what
                is in it.
            rebalance: when a worker that is new to this stream takes its part: "now", or with the next
                "epoch", so that decoded images stay where they are cached. One that comes back, and one that
                comes when no other is left, takes its part at once.
            compression: of pixels that workers send over the network: "none", "lz4", "zstd", or "auto", which
                measures and takes whatever costs least time, chunk by chunk. Photos of uint8 lose 7 % with
                LZ4 and 14 % with zstd (14 and 21 as yuv420), so that it pays below some 40 MB/s. A worker
                that has not what is asked for sends pixels as they are, see `stats()`.
            connections: most over which each worker sends pixels, in [1, 8]. One keeps a thread busy on each
                side, which is up to 4 GB/s, or 0.8 GB/s under TLS.
            stall_timeout_s: after so many seconds without any data, `next()` raises WorkerUnavailable.
            trace: make a span of each chunk, from request to batch, by this program's OpenTelemetry tracer
                provider; workers with `--trace` add theirs. Wants the extra "tracing".

        Raises:
            ConfigError: an argument is wrong, `trace` wants what is not installed, or the data set is smaller
                than one batch under remainder "drop".
            PositionMismatch: `start` belongs to another stream.
            Refused: no worker serves `dataset`.
            WorkersDisagree: workers serve different data or pixels under that name.
            Closed: after `close()`, or in a child process.
        """
        self._check_usable()
        transport = _one_of("transport", transport, Transport)
        rebalance = _one_of("rebalance", rebalance, Rebalance)
        near = {str(address) for address in parse_target(beside)} if beside else set()
        compression = check_choice(compression)
        connections = integer("connections", connections, least=1)
        if connections > MAX_CONNECTIONS:
            raise ConfigError(f"connections must be at most {MAX_CONNECTIONS}, got {connections}")
        batch_size = integer("batch_size", batch_size, least=1)
        consumer_count = integer("consumer_count", consumer_count, least=1)
        consumer_index = integer("consumer_index", consumer_index)
        epochs = None if epochs is None else integer("epochs", epochs, least=1)
        if prefetch_bytes is not None:
            prefetch_bytes = integer("prefetch_bytes", prefetch_bytes, least=1)
        image_size = integer("image_size", image_size, least=1)
        shuffle = None if shuffle is None else boolean("shuffle", shuffle)
        job = None if job is None else text("job", job)
        if job is not None and len(job) > MAX_NAME:
            raise ConfigError(f"job has at most {MAX_NAME} characters, got {job[:40]!r}...")
        stall_timeout_s = seconds("stall_timeout_s", stall_timeout_s)
        spans = partial(_spans(), dataset=dataset) if boolean("trace", trace) else None
        if not isinstance(reduce, str) and reduce is not None:
            reduce = integer("reduce", reduce)
        for name, value in (
            ("dataset", dataset),
            ("augment", augment),
            ("sampler", sampler),
            ("resample", resample),
            ("output", output),
            ("remainder", remainder),
            ("on_bad", on_bad),
        ):
            text(name, value)
        if not 0 <= consumer_index < consumer_count:
            raise ConfigError(f"consumer_index must be in [0, {consumer_count}), got {consumer_index}")
        if not isinstance(start, Position | Mapping | None):
            raise ConfigError(f"start must be a position, or what its to_dict() gives, got {start!r}")
        if isinstance(start, Mapping):
            start = Position.from_dict(start)

        reference = self._reference(dataset)
        info = reference.datasets[dataset]
        global_batch = batch_size * consumer_count
        if remainder == "auto":
            remainder = "drop" if augment == "train" else "pad"
        if start is not None and start.spec.global_batch == global_batch:
            lanes = start.spec.lanes  # the default depends on the number of consumers, which may have changed
        else:
            lanes = default_lanes(info.records, global_batch, consumer_count)
        spec = StreamSpec(
            dataset=dataset,
            global_batch=global_batch,
            lanes=lanes,
            seed=integer("seed", seed),
            image_size=image_size,
            augment=augment,
            sampler=sampler,
            resample=resample,
            antialias=boolean("antialias", antialias),
            reduce=reduce,
            output=output,
            shuffle=augment == "train" if shuffle is None else shuffle,
            remainder=remainder,
            on_bad=on_bad,
        )
        batch_bytes = batch_size * spec.image_bytes
        if batch_bytes > MAX_BATCH_BYTES:
            raise ConfigError(
                f"a batch of {batch_size} images of {spec.image_size} px has {batch_bytes / 2**30:.1f} GiB, "
                f"at most {MAX_BATCH_BYTES >> 30} are possible: use a smaller batch_size or image_size"
            )
        order = Order(spec, info.records)
        order.check_steps()
        order.consumer_lanes(
            consumer_index, consumer_count
        )  # says it if the consumers don't divide saved lanes
        if start is None:
            start = Position(0, 0, spec, info.records, info.fingerprint)
        start.check(spec, info.records, info.fingerprint)
        if epochs is None and remainder == "pad":
            epochs = 1

        opening = Open(
            session="",
            spec=spec,
            fingerprint=info.fingerprint,
            pixel_fingerprint=reference.pixel_fingerprint,
            consumer_index=consumer_index,
            consumer_count=consumer_count,
            job=job or "",
        )
        depth = _depth(batch_bytes, prefetch_bytes)
        addresses = self._serving(dataset, self._addresses)
        if self._watched is None and (strangers := near - {str(address) for address in self._addresses}):
            raise ConfigError(
                f"beside names {', '.join(sorted(strangers))}, and the workers are "
                f"{', '.join(map(str, self._addresses))}: write the address as it is there"
            )
        watched = None
        if self._watched is not None:
            find, resolve_s = self._watched
            watched = (lambda: self._serving(dataset, find()), resolve_s)

        def make_engine(order: Order, start: Position, steps: int | None) -> Engine:
            return Engine(
                order,
                start,
                steps,
                dataclasses.replace(opening, session=uuid.uuid4().hex),
                addresses,
                reference,
                missing=self._missing,
                depth=depth,
                transport=transport,
                beside=near,
                rebalance=rebalance,
                watched=watched,
                compression=compression,
                connections=connections,
                stall_timeout_s=stall_timeout_s,
                spans=spans,
                credentials=self._credentials,
            )

        stream = Stream(order, start, (consumer_index, consumer_count), epochs, make_engine)
        self._streams.add(stream)
        return stream

    def close(self) -> None:
        """Closes all streams that were made here. May be called twice."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled or copied: call feeder.connect where it is used")

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise Closed("this client belongs to the parent process; call feeder.connect in the child")
        if self._closed:
            raise Closed("the client was closed; call feeder.connect again")

    def _reference(self, dataset: str) -> WorkerInfo:
        """A worker that serves the data set, after seeing that all who do agree."""
        serving = [info for info in self.workers.values() if dataset in info.datasets]
        if not serving:
            served = sorted({name for info in self.workers.values() for name in info.datasets})
            shown = self._credentials.token_file or self._credentials.tls_cert
            raise Refused(
                f"no worker serves {dataset!r}; "
                f"{', '.join(self.workers)} {'serves' if len(self.workers) == 1 else 'serve'} "
                f"{', '.join(served) or 'nothing'}"
                + ("; what this client's token may not read is not named" if shown else "")
            )
        for other in serving[1:]:
            check_agreement(dataset, serving[0], other)
        return serving[0]

    def _serving(self, dataset: str, addresses: Sequence[Address]) -> list[Address]:
        """All workers but those known not to serve the data set; one that did not answer yet may."""
        return [
            address
            for address in addresses
            if (info := self.workers.get(str(address))) is None or dataset in info.datasets
        ]


def _one_of(name: str, value: str, choices: Any) -> Any:
    """The value, if it is one of those that a Literal type names."""
    *most, last = map(repr, get_args(choices))
    if text(name, value) not in get_args(choices):
        raise ConfigError(f"{name} {value!r} is unknown; use {', '.join(most)} or {last}")
    return value


def _depth(batch_bytes: int, prefetch_bytes: int | None) -> int:
    """How many batches may be ready or in the making."""
    if prefetch_bytes is not None:
        return max(1, prefetch_bytes // batch_bytes)
    room = min(MAX_PREFETCH_BYTES, max(MIN_PREFETCH_BYTES, DEFAULT_BATCHES * batch_bytes))
    return min(MAX_BATCHES, max(1, room // batch_bytes))
