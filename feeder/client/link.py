"""One worker's stream: dial, check, feed, and dial again, on one thread of its own; others carry a part."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Protocol

import grpc
import numpy as np

import feeder
from feeder.client.batch import Landing
from feeder.client.carriers import Carriers
from feeder.client.compression import Choice, Chooser, unpack
from feeder.client.diagnosis import diagnose
from feeder.client.report import send_requests
from feeder.client.workers import WorkerInfo, describe, failure_of
from feeder.errors import (
    ConfigError,
    FeederError,
    NotTrusted,
    ProtocolError,
    Refused,
    WorkersDisagree,
    WorkerUnavailable,
)
from feeder.wire import FEED, MAX_CHUNK_BYTES
from feeder.wire.address import Address
from feeder.wire.call import Call
from feeder.wire.channel import open_channel
from feeder.wire.codec import CHUNK_START_BYTES, encode_request, parse_chunk_start, parse_reply
from feeder.wire.credentials import Credentials
from feeder.wire.headers import CallFailed
from feeder.wire.messages import (
    Chunk,
    ChunkRequest,
    ClientReport,
    Compression,
    Draining,
    Failed,
    Open,
    Opened,
    Reply,
)
from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["Events", "Link", "Spans"]

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
"""A worker that restarts is missed by 2 s at most, and 128 clients that lost one do not all come back at
once."""

DESCRIBE_TIMEOUT_S = 5.0

DIAGNOSE_EVERY_S = 10.0

MAX_REPLY_BYTES = MAX_CHUNK_BYTES + (1 << 20)
"""Of a reply that is read as a whole: a chunk that lists bad records."""


class Events(Protocol):
    """What a link tells its owner; called on the link's thread."""

    def check(self, name: str, info: WorkerInfo) -> None:
        """Raises if the worker serves anything else than the stream needs."""

    def offer(self, name: str, info: WorkerInfo) -> bytes:
        """What Open says of the arena that the worker was given; empty: none. Raises if there must be one."""

    def opened(self, name: str, opened: Opened) -> None:
        """Raises if the worker must take the arena that it was given, and does not."""

    def replied(self, name: str, reply: Failed | Draining) -> None: ...

    def arriving(self, name: str, chunk: Chunk) -> Landing | None:
        """Where the pixels go; None: nowhere. What it returns is ended by one of the next two."""

    def landed(self, name: str, chunk: Chunk, landing: Landing) -> None: ...

    def placed(self, name: str, chunk: Chunk) -> None:
        """The worker wrote the pixels where it was asked to. Raises if it was not."""

    def given_up(self, landing: Landing) -> None: ...

    def spoiled(self, name: str, chunk: Chunk, error: ProtocolError) -> None:
        """A chunk came that cannot be made pixels of, and does not land."""

    def report(self) -> ClientReport:
        """What the worker is told of the consumer; called on the thread that sends requests."""

    def lost(self, name: str) -> None: ...

    def gone(self, name: str) -> None:
        """The link's thread ends: it was stopped, or it met a fault of ours."""


class Spans(Protocol):
    """Who is told of each chunk's way; see feeder.client.tracing."""

    def asked(self, request: ChunkRequest) -> str:
        """What the request says of its trace; called by whoever asks."""

    def ended(self, request: int, error: str = "") -> None:
        """It was answered."""

    def lost(self, error: str) -> None:
        """What was asked and not answered will not be."""


class Link:
    """Keeps one worker connected until `stop`.

    Args:
        compression: of pixels that come over the network.
        missed: that it is not there was said already.
        spans: makes what is told of each chunk's way; None: nobody is.
        credentials: what the worker is shown; None: what the environment says.
        connections: most over which it sends pixels.

    Attributes:
        name: the worker's address.
        reconnects: connections that were opened after the first.
        compression: of the last chunk that it sent; None before the first.
        saved_bytes: of pixels that need not come, thanks to compression.
        land_s: processor time of receiving and unpacking up to the last reply, of each connection on average.
        error: why there is no connection; None while there is one, and after `stop` ended it.
        refused_since_s: when the worker began to say no; None if its last word was another.
        duplicate: its "no" was that another session of this job and consumer lives.
    """

    def __init__(
        self,
        address: Address,
        opening: Open,
        events: Events,
        clock: Callable[[], float],
        compression: Choice = "none",
        missed: bool = False,
        spans: Callable[[str], Spans] | None = None,
        credentials: Credentials | None = None,
        connections: int = 1,
    ) -> None:
        self.name = str(address)
        self.reconnects = 0
        self.compression: Compression | None = None
        self.saved_bytes = 0
        self.land_s = 0.0
        self.error: FeederError | None = WorkerUnavailable(f"worker {address} was not reached yet")
        self.refused_since_s: float | None = None
        self.duplicate = False
        self._address = address
        self._opening = opening
        self._events = events
        self._clock = clock
        self._stopped = False
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._chooser = Chooser(compression)
        self._spans = None if spans is None else spans(self.name)
        #: What `stop` ends.
        self._call: grpc.Future[pb.DescribeReply] | Call | None = None
        self._connections = 0
        self._reports = False  # the worker takes them
        #: The log says that it is gone, and not yet that it is back.
        self._missed = missed
        self._credentials = credentials or Credentials.from_environment()
        self._diagnosed_s = -math.inf
        self._most = connections
        self._carriers = Carriers(self._dial, self._receive, f"feeder-carry-{self.name}")
        self._landing = threading.Lock()  # guards what each connection counts
        # For a thread that may wait for the socket. A SimpleQueue because `stop` may run inside a garbage
        # collection, where only its put is safe. None ends the client's side.
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"feeder-link-{self.name}", daemon=True)

    def start(self) -> None:
        """Starts to dial."""
        self._thread.start()

    @property
    def connections(self) -> int:
        """Over which it sends pixels now; 0 while it is not connected."""
        return 0 if self.error is not None else 1 + self._carriers.count

    def stop(self) -> None:
        """Ends the connection soon, without waiting; safe anywhere, takes no lock."""
        self._stopped = True
        self._woken.put(None)
        self._requests.put(None)
        call = self._call
        if call is not None:
            call.cancel()
        self._carriers.cancel()

    def join(self, timeout_s: float) -> None:
        """Waits until the threads and their sockets are gone, after `stop`."""
        until_s = time.monotonic() + timeout_s
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
            self._carriers.join(until_s - time.monotonic())

    def ask(self, requests: Iterable[ChunkRequest]) -> None:
        """Sends requests without waiting; those made for a connection that was lost meanwhile go nowhere."""
        call = self._call
        if not isinstance(call, Call):
            return
        try:
            if not call.post(*map(self._encoded, requests)):
                self._requests.put(b"")  # has the rest sent by who may wait
        except CallFailed:
            return  # the receiving thread meets it, too

    def _encoded(self, request: ChunkRequest) -> bytes:
        if request.destination is None:
            request = request._replace(compression=self._chooser.choose())
        if self._spans is not None:
            request = request._replace(trace=self._spans.asked(request))
        return encode_request(request)

    def _run(self) -> None:
        try:
            self._keep_connected()
        finally:
            self._events.gone(self.name)

    def _keep_connected(self) -> None:
        failures = 0
        refused = False
        while not self._stopped:
            connections = self._connections
            error = self._connect()
            if self._stopped:
                break
            if self._connections > connections:
                failures = 0
            refuses = self.refused_since_s is not None
            if not self._missed or (refuses and not refused):
                log.warning("%s; keeps trying", error)
            self._missed, refused = True, refuses
            delay_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures, 16))
            failures += 1
            with contextlib.suppress(Empty):
                self._woken.get(timeout=delay_s * random.uniform(0.5, 1.0))

    def _connect(self) -> FeederError:
        """One connection from dial to end; returns why it ended."""
        requests = self._requests = SimpleQueue()
        connections = self._connections
        error: FeederError
        try:
            self._feed(requests, self._check())
            error = WorkerUnavailable(f"worker {self.name} ended the stream")
        except grpc.RpcError as failure:
            error = failure_of(failure, self.name)
            self.duplicate = _code(failure) is grpc.StatusCode.ALREADY_EXISTS
        except (grpc.FutureCancelledError, grpc.FutureTimeoutError):
            error = WorkerUnavailable(f"worker {self.name}: the call was cancelled")
        except FeederError as failure:
            error = failure
        finally:
            self._call = None
        if isinstance(error, WorkerUnavailable) and self._connections == connections and not self._stopped:
            error = self._diagnose() or error
        if not self._stopped:  # what `stop` itself ended is no error
            self.error = error
        if isinstance(error, Refused | NotTrusted | WorkersDisagree | ConfigError | ProtocolError):
            if self.refused_since_s is None:
                self.refused_since_s = self._clock()
        else:
            self.refused_since_s = None
        self._events.lost(self.name)
        if self._spans is not None:
            self._spans.lost(str(error))
        return error

    def _diagnose(self) -> FeederError | None:
        """Whether it is TLS that keeps the worker from answering; looked at now and then."""
        if self._clock() - self._diagnosed_s < DIAGNOSE_EVERY_S:
            return self.error if isinstance(self.error, NotTrusted) else None
        self._diagnosed_s = self._clock()
        return diagnose(self._address, self._credentials)

    def _check(self) -> WorkerInfo:
        with open_channel(self._address, self._credentials) as channel:
            question = describe(channel, DESCRIBE_TIMEOUT_S)
            self._hold(question)
            info = WorkerInfo.from_reply(self.name, question.result())
        self._events.check(self.name, info)
        if info.draining:
            raise WorkerUnavailable(f"worker {self.name} is draining")
        return info

    def _feed(self, requests: SimpleQueue[bytes | None], info: WorkerInfo) -> None:
        opening = replace(self._opening, arena=self._events.offer(self.name, info))
        with self._dial() as call:
            self._hold(call)
            requests.put(encode_request(opening))
            self._reports = False
            sender = threading.Thread(
                target=send_requests,
                args=(call, requests, self._report),
                name=f"feeder-send-{self.name}",
                daemon=True,
            )
            sender.start()
            try:
                with self._carriers.beside(call):
                    self._receive(call)
            finally:
                requests.put(None)
                call.cancel()
                sender.join()

    def _dial(self) -> Call:
        agent = f"feeder/{feeder.__version__}"
        return Call(self._address, FEED, user_agent=agent, credentials=self._credentials)

    def _report(self) -> ClientReport | None:
        return self._events.report() if self._reports else None

    def _receive(self, call: Call) -> None:
        """Takes all that comes on one connection."""
        spent_s = time.thread_time()
        while (size := call.receive()) is not None:
            self._take(call, size)
            now_s = time.thread_time()
            with self._landing:
                self.land_s += (now_s - spent_s) / (1 + self._carriers.count)
            spent_s = now_s

    def _take(self, call: Call, size: int) -> None:
        start = call.read(CHUNK_START_BYTES)
        reply: Reply | None = parse_chunk_start(start, size)
        if reply is None:
            if size > MAX_REPLY_BYTES:
                raise ProtocolError(f"worker {self.name}: a reply of {size} bytes came")
            reply = parse_reply(start + call.read(size))
        if isinstance(reply, Chunk):
            if reply.placed:
                self._events.placed(self.name, reply)
            else:
                self._land(call, reply)
        elif isinstance(reply, Opened):
            if self.error is None:
                raise ProtocolError(f"worker {self.name}: it says twice that the stream is open")
            if not self._chooser.connected(reply.compressions) and not self._connections:
                log.warning("worker %s has not the compression asked for: pixels come as they are", self.name)
            self._reports = reply.reports
            self._events.opened(self.name, reply)
            if self._missed:
                log.warning("worker %s is %s", self.name, "back" if self._connections else "there now")
                self._missed = False
            self.reconnects += self._connections > 0
            self._connections += 1
            self.error, self.refused_since_s, self.duplicate = None, None, False
            if reply.join and not reply.arena:
                self._carriers.start(reply.join, self._most - 1)
        else:
            self._events.replied(self.name, reply)
        if self._spans is not None and isinstance(reply, Chunk | Failed):
            self._spans.ended(reply.id, reply.message if isinstance(reply, Failed) else "")

    def _land(self, call: Call, chunk: Chunk) -> None:
        if chunk.compression is not Compression.NONE and chunk.compression not in self._chooser.codecs:
            self._spoiled(chunk, f"it is compressed with {chunk.compression.name}, which nobody asked for")
            return
        landing = self._events.arriving(self.name, chunk)
        if landing is None:
            return
        begun_s = self._clock()
        try:
            if chunk.compression is Compression.NONE:
                _read(call, chunk.pixels, landing.places)
                wire_s, packing_s = self._clock() - begun_s, 0.0
            else:
                packed = np.empty(chunk.pixel_bytes, np.uint8).data
                _read(call, chunk.pixels, [packed])
                wire_s = self._clock() - begun_s
                packing_s = chunk.packing_s + _unpack(chunk.compression, packed, landing.places)
        except ProtocolError as error:
            self._events.given_up(landing)
            self._spoiled(chunk, str(error))
            return
        except BaseException:
            self._events.given_up(landing)
            raise
        pixel_bytes = sum(map(len, landing.places))
        with self._landing:
            self.compression = chunk.compression
            self.saved_bytes += pixel_bytes - chunk.pixel_bytes
            self._chooser.came(chunk.compression, pixel_bytes, chunk.pixel_bytes, wire_s, packing_s)
        self._events.landed(self.name, chunk, landing)

    def _spoiled(self, chunk: Chunk, reason: str) -> None:
        error = ProtocolError(f"worker {self.name}: chunk {chunk.id} has no pixels: {reason}")
        self._events.spoiled(self.name, chunk, error)
        if self._spans is not None:
            self._spans.ended(chunk.id, str(error))

    def _hold(self, call: grpc.Future[pb.DescribeReply] | Call) -> None:
        """Keeps the call where `stop` finds it; one that `stop` just missed is cancelled here."""
        self._call = call
        if self._stopped:
            call.cancel()


def _read(call: Call, here: memoryview, places: Sequence[memoryview]) -> None:
    """Fills places with the pixels that are here, and those that follow."""
    for place in places:
        part = min(len(place), len(here))
        place[:part], here = here[:part], here[part:]
        call.read_into(place[part:])


def _unpack(compression: Compression, packed: memoryview, places: Sequence[memoryview]) -> float:
    """Fills places; returns the processor time that it took in seconds. Not straight into them: a batch that
    another worker completed meanwhile may be copied or in use, and must never see but final bytes."""
    begun_s = time.thread_time()
    pixels = np.empty(sum(map(len, places)), np.uint8).data
    unpack(compression, packed, pixels)
    for place in places:
        place[:], pixels = pixels[: len(place)], pixels[len(place) :]
    return time.thread_time() - begun_s


def _code(failure: object) -> grpc.StatusCode | None:
    return failure.code() if isinstance(failure, grpc.Call | CallFailed) else None
