"""feeder.v1.Feeder: translates calls into sessions, streams and the pipeline, and errors into statuses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import grpc

import feeder
from feeder.batch import ChunkMaker
from feeder.decode import Decoder
from feeder.errors import Closed, FeederError, ProtocolError, WorkersDisagree
from feeder.wire import PROTOCOL, SERVICE
from feeder.wire.codec import bad_to_proto, encode_reply, parse_request
from feeder.wire.context import CallContext
from feeder.wire.messages import ClientReport, Join, Open, Opened
from feeder.wire.serve import ServedCall
from feeder.wire.status import Refusal, to_status
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.access import Grant
from feeder.worker.arenas import Arenas
from feeder.worker.caching import Caching, EncodedCaching
from feeder.worker.catalog import Catalog
from feeder.worker.gate import Gate
from feeder.worker.joins import Joins
from feeder.worker.packing import CODECS
from feeder.worker.pipeline import Pipeline
from feeder.worker.quarantine import Quarantine
from feeder.worker.served import stream_infos
from feeder.worker.sessions import SessionRegistry, Ticket, job_of
from feeder.worker.stream import Stream

__all__ = ["FeederServicer", "Identity"]

log = logging.getLogger(__name__)

OPEN_DEADLINE_S = 10.0
"""A call that does not say Open for so long is ended: it takes the place of a stream."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker says of itself; threads are those that decode."""

    worker_id: str
    threads: int
    pixel_fingerprint: str
    pixel_digests: Mapping[str, str] = field(default_factory=dict)


class FeederServicer:
    """Answers calls on threads of gRPC, or of the front; each Feed call has another that reads requests."""

    def __init__(
        self,
        identity: Identity,
        datasets: Catalog,
        decoder: Decoder,
        sessions: SessionRegistry,
        pipeline: Pipeline,
        quarantine: Quarantine,
        caching: Caching | None,
        arenas: Arenas | None,
        encoded: EncodedCaching | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._identity = identity
        self._datasets = datasets
        self._decoder = decoder
        self._sessions = sessions
        self._pipeline = pipeline
        self._quarantine = quarantine
        self._caching = caching
        self._arenas = arenas
        self._encoded = encoded
        self._gate = gate or Gate()
        self._joins = Joins(sessions.max_streams)
        self._started_s = time.monotonic()

    def handler(self) -> grpc.GenericRpcHandler:
        """What a grpc.Server wants; Feed's messages are raw bytes on both sides."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Describe": grpc.unary_unary_rpc_method_handler(
                    self.describe,
                    request_deserializer=pb.DescribeRequest.FromString,
                    response_serializer=pb.DescribeReply.SerializeToString,
                ),
                "Feed": grpc.stream_stream_rpc_method_handler(self.feed),
            },
        )

    def describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.DescribeReply:
        """`describe_now`, as a call, with what the caller may know of."""
        try:
            grant = self._gate.admit(context)
        except Refusal as error:
            _abort(context, error)
        reply = self.describe_now()
        if grant.sees_all:
            return reply
        datasets = [info for info in reply.datasets if grant.may_read(info.name)]
        quarantine = [bad for bad in reply.quarantine if grant.may_read(bad.dataset)]
        streams = [
            one for one in reply.streams if grant.may_read(one.spec.dataset) and grant.may_run(one.job)
        ]
        del reply.datasets[:], reply.quarantine[:], reply.streams[:]
        reply.datasets.extend(datasets)
        reply.quarantine.extend(quarantine)
        reply.streams.extend(streams)
        return reply

    def describe_now(self) -> pb.DescribeReply:
        """What the worker is, what it serves, and what it did since its start."""
        counters = self._pipeline.counters()
        datasets = self._datasets.current
        seek = [dataset.seek.counters for dataset in datasets.values() if dataset.seek is not None]
        return pb.DescribeReply(
            version=feeder.__version__,
            worker_id=self._identity.worker_id,
            threads=self._identity.threads,
            decoder=self._decoder.name,
            pixel_fingerprint=self._identity.pixel_fingerprint,
            pixel_digests=self._identity.pixel_digests,
            datasets=[
                pb.DatasetInfo(
                    name=name,
                    records=len(dataset),
                    shards=len(dataset.shards),
                    fingerprint=dataset.fingerprint,
                    bytes=dataset.nbytes,
                )
                for name, dataset in datasets.items()
            ],
            draining=self._sessions.draining,
            live_streams=self._sessions.live,
            max_streams=self._sessions.max_streams,
            counters=pb.Counters(
                images=counters.images,
                chunks=counters.chunks,
                bytes_read=sum(dataset.bytes_read for dataset in datasets.values()),
                bytes_sent=counters.bytes_sent,
                bad_records=counters.bad_records,
                storage_retries=sum(dataset.storage_retries for dataset in datasets.values()),
                read_s=counters.read_s,
                decode_s=counters.decode_s,
                idle_s=counters.idle_s,
                store_requests=sum(dataset.requests.requests for dataset in datasets.values()),
                store_merged=sum(dataset.requests.merged for dataset in datasets.values()),
                seek_used=sum(counts.used for counts in seek),
                seek_learned=sum(counts.learned for counts in seek),
                seek_refused=sum(counts.refused for counts in seek),
                seek_torn=sum(counts.torn for counts in seek),
                seek_dropped=sum(counts.dropped for counts in seek),
                bytes_placed=counters.bytes_placed,
                images_shared=counters.images_shared,
                bytes_shared=counters.bytes_shared,
            ),
            uptime_s=time.monotonic() - self._started_s,
            quarantine=[bad_to_proto(info) for info in self._quarantine.newest()],
            cache=None if self._caching is None else self._caching.info(),
            side_socket="" if self._arenas is None else self._arenas.path,
            encoded_cache=None if self._encoded is None else self._encoded.info(),
            kept_bytes=self._pipeline.kept_bytes,
            stages=self._pipeline.stages(),
            streams=stream_infos(self._sessions.tickets(), self._pipeline.served()),
        )

    def feed(self, requests: Iterator[bytes], context: CallContext) -> Generator[bytes]:
        """One consumer's stream; the context is gRPC's, or a ServedCall."""
        try:
            grant = self._gate.admit(context)
            ticket = self._sessions.enter()
        except Refusal as error:
            self._gate.refused(context, error)
            _abort(context, error)
        stream = Stream(ticket.number)
        end = self._ending(stream, ticket)
        try:
            # Also runs when the client goes while nobody here is at work on the call.
            if not context.add_callback(end) or not context.add_callback(partial(self._joins.cut, stream)):
                return
            threading.Thread(
                target=self._receive,
                args=(requests, stream, ticket, context, grant),
                name=f"feeder-receive-{ticket.number}",
                daemon=True,
            ).start()
            arena = stream.wait_opened(OPEN_DEADLINE_S)
            most = self._pipeline.max_outstanding
            key = self._joins.offer(stream, grant.name) if stream.of is stream else b""
            yield encode_reply(Opened(self._identity.worker_id, most, arena, tuple(CODECS), True, key))
            if isinstance(context, ServedCall):
                stream.posts(context.post, grant.pace)
            yield from self._pipeline.answers(stream.of, grant.pace)
        except Closed as error:  # only a client that lost another of its connections is there to be told
            _abort(context, error)
        except FeederError as error:
            if stream.of is not stream:
                pass  # the call that it joined tells
            elif ticket.opening is None:  # strangers can have as many of these as they like
                self._gate.refused(context, error)
            else:
                log.info("stream %d: %s", ticket.number, error, extra=stream.names)
            _abort(context, error)
        finally:
            end()

    def _open(
        self, opening: Open, stream: Stream, ticket: Ticket, context: CallContext, grant: Grant
    ) -> None:
        peer = self._gate.name(context)
        stream.names |= {"session": opening.session, "job": opening.job, "peer": peer}
        self._gate.check(grant, context, opening.spec.dataset, opening.job)
        try:
            maker = self._maker(opening, ticket, grant)
            self._sessions.claim(ticket, opening, peer)
        except BaseException:
            self._datasets.give_back(ticket.number)  # the call may be over already
            raise
        arena = self._arenas.claim(opening.arena) if self._arenas is not None and opening.arena else None
        slots = maker.order.consumer_slots(opening.consumer_index, opening.consumer_count)
        self._pipeline.open(stream, maker, job_of(opening), slots, arena)
        spec = opening.spec
        log.info(
            "stream %d opened: %s, %s, job %r, session %r, consumer %d of %d, batch %d, %s, %d px%s",
            ticket.number,
            peer + (f", token {grant.name}" if grant.name else ""),
            spec.dataset,
            opening.job,
            opening.session,
            opening.consumer_index,
            opening.consumer_count,
            spec.global_batch,
            spec.augment,
            spec.image_size,
            "" if arena is None else ", into the client's memory",
            extra=stream.names,
        )
        stream.opened(arena=arena is not None)
        if self._sessions.draining:
            self._pipeline.drain()  # it came in just before, and would not hear of it

    def _maker(self, opening: Open, ticket: Ticket, grant: Grant) -> ChunkMaker:
        if opening.protocol != PROTOCOL:
            raise ProtocolError(f"the client speaks protocol {opening.protocol}, this worker {PROTOCOL}")
        name = opening.spec.dataset
        dataset = self._datasets.lend(ticket.number, name)
        if dataset is None:
            raise Refusal(
                grpc.StatusCode.NOT_FOUND,
                f"no data set {name!r} here; this worker serves "
                f"{', '.join(repr(other) for other in self._datasets.current if grant.may_read(other))}",
            )
        if opening.fingerprint != dataset.fingerprint:
            raise WorkersDisagree(
                f"data set {name!r}: the client expects the data {opening.fingerprint[:12]}, this worker has "
                f"{dataset.fingerprint[:12]}: all workers of a data set must serve the same shards"
            )
        if opening.pixel_fingerprint != self._identity.pixel_fingerprint:
            raise WorkersDisagree(
                f"the client expects the pixels {opening.pixel_fingerprint}, this worker makes "
                f"{self._identity.pixel_fingerprint} ({self._decoder.name}): all workers of a stream "
                f"must have the same decoder"
            )
        if self._caching is None:
            maker = ChunkMaker(dataset, self._decoder, opening.spec)
        else:
            maker = self._caching.maker(dataset, opening.spec)
        maker.order.consumer_lanes(
            opening.consumer_index, opening.consumer_count
        )  # raises where they do not fit
        return maker

    def _receive(
        self,
        requests: Iterator[bytes],
        stream: Stream,
        ticket: Ticket,
        context: CallContext,
        grant: Grant,
    ) -> None:
        opened = False
        try:
            for data in requests:
                request = parse_request(data)
                if isinstance(request, (Open, Join)) == opened:
                    raise ProtocolError("Open or Join must be the first message of a call, and come once")
                opened = True
                if isinstance(request, Open):
                    self._open(request, stream, ticket, context, grant)
                elif isinstance(request, Join):
                    joined = self._joins.join(request.key, stream, grant.name, context.cancel)
                    self._sessions.leave(ticket)  # it is no stream of its own
                    stream.opened(of=joined)
                elif stream.of is not stream:
                    raise ProtocolError("a call that joined another takes nothing but Join")
                elif isinstance(request, ClientReport):
                    self._pipeline.report(stream, request)
                else:
                    self._pipeline.ask(stream, request)
            stream.finish()
        except FeederError as error:
            stream.fail(error)
        except grpc.RpcError:
            stream.close()  # the call is over
        except Exception as error:
            log.exception("stream %d: reading requests failed", stream.number, extra=stream.names)
            stream.fail(FeederError(f"{type(error).__name__}: {error}"))
        finally:
            if isinstance(context, ServedCall):  # gRPC hears its peers by itself
                context.hear_out()

    def _ending(self, stream: Stream, ticket: Ticket) -> Callable[[], None]:
        started_s = time.monotonic()
        ended = threading.Lock()

        def end() -> None:
            if not ended.acquire(blocking=False):
                return
            stream.close()
            self._joins.forget(stream)
            self._pipeline.close_stream(stream)
            self._sessions.leave(ticket)
            self._datasets.give_back(ticket.number)
            if ticket.opening is not None:
                open_s = time.monotonic() - started_s
                log.info("stream %d closed after %.1f s", ticket.number, open_s, extra=stream.names)

        return end


def _abort(context: CallContext, error: FeederError) -> NoReturn:
    context.abort(*to_status(error))
    raise AssertionError("abort always raises")
