"""What the page shows, a sample a second, made once for all who watch."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import cached_property
from typing import Any

from feeder.advice.diagnosis import diagnose, verdicts
from feeder.advice.watched import Consumer, Work, consumers, waiting, work
from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["Feed", "stream_id"]

log = logging.getLogger(__name__)

PERIOD_S = 1.0
HISTORY = 180
"""Samples of the charts."""

WINDOW = 10
"""Samples over which shares and stages are taken: one second holds few chunks of a slow stream."""

MAX_CONSUMERS = 64
MAX_BAD = 20
"""At most so many are told, whatever a worker serves; the rest is counted."""

_KEY = secrets.token_bytes(16)


class _Sample:
    """As JSON, for those who may see names and for those who may not; made once somebody wants it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    @cached_property
    def open(self) -> str:
        return json.dumps(self._values)

    @cached_property
    def redacted(self) -> str:
        return json.dumps(_redacted(self._values))


class Feed:
    """Samples of one worker, for any number of watchers; lives on one event loop.

    Args:
        describe: what the worker says of itself now.
    """

    def __init__(self, describe: Callable[[], pb.DescribeReply]) -> None:
        self._describe = describe
        self._changed = asyncio.Condition()
        self._replies: deque[pb.DescribeReply] = deque([describe()], WINDOW + 1)
        self._history: deque[list[float]] = deque(maxlen=HISTORY)
        self._number = 0
        self._sample: _Sample | None = None
        self._ended = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def newest(self) -> pb.DescribeReply:
        """What the worker said last."""
        return self._replies[-1]

    async def watch(self, *, names: bool) -> AsyncIterator[tuple[str, str]]:
        """Events, (kind, JSON): "history" once, then a "sample" a second, "end" when the worker ends.

        Who is slow misses samples, and holds up nobody.

        Args:
            names: whether jobs, peers and records are named.
        """
        yield "history", json.dumps(list(self._history))
        seen = 0
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._ended or self._number > seen)  # noqa: B023
                if self._ended:
                    break
                seen, sample = self._number, self._sample
            assert sample is not None
            yield "sample", sample.open if names else sample.redacted
        yield "end", "{}"

    async def end(self) -> None:
        """Ends every watcher, and the sampling."""
        self._task.cancel()
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                self._replies.append(self._describe())
            except Exception:
                log.exception("status page: no sample this second")
                continue
            last = work("", (self._replies[-2], self.newest))
            look = self._replies[0], self.newest
            lately, served = work("", look), consumers({"": look})
            sent_s = (last.did.bytes_sent + last.did.bytes_placed) / last.seconds
            moment = [time.time(), last.images_s, sent_s, lately.busy or 0.0]
            self._history.append([round(value, 3) for value in moment])
            values = _values(self.newest, last, lately, served)
            values["moment"] = self._history[-1]
            self._sample = _Sample(values)
            async with self._changed:
                self._number += 1
                self._changed.notify_all()


def stream_id(stream: pb.StreamInfo) -> str:
    """Names a stream to the page: sessions are known to their clients only."""
    name = f"{stream.session}/{stream.consumer_index}/{stream.peer}".encode()
    return hashlib.blake2b(name, digest_size=8, key=_KEY).hexdigest()


def _values(now: pb.DescribeReply, last: Work, lately: Work, served: list[Consumer]) -> dict[str, Any]:
    jobs: dict[str, int] = {}  # numbered, so that those whose names are hidden can be told from each other
    return {
        "uptime_s": now.uptime_s,
        "draining": now.draining,
        "streams": now.live_streams,
        "max_streams": now.max_streams,
        "images": now.counters.images,
        "read_s": last.did.bytes_read / last.seconds,
        "busy": lately.busy,
        "waiting": waiting(served),
        "verdicts": [asdict(verdict) for verdict in verdicts(diagnose({"": lately}, served))],
        "stages": [asdict(stage) for stage in lately.stages],
        "caches": [
            _cache(what, getattr(now, name), share)
            for name, what, share in (
                ("cache", "decoded images", lately.hits),
                ("encoded_cache", "records of object stores", lately.encoded_hits),
            )
            if now.HasField(name)
        ],
        "consumers": [
            _consumer(consumer) | {"number": jobs.setdefault(consumer.job, len(jobs))}
            for consumer in served[:MAX_CONSUMERS]
        ],
        "unnamed": max(0, len(served) - MAX_CONSUMERS),
        "bad": [
            {"dataset": bad.dataset, "shard": bad.shard, "index": bad.index, "reason": bad.reason}
            for bad in now.quarantine[:MAX_BAD]
        ],
        "bad_times": now.counters.bad_records,
        "names": True,
    }


def _redacted(values: dict[str, Any]) -> dict[str, Any]:
    consumers = [consumer | {"job": "", "peer": "", "id": ""} for consumer in values["consumers"]]
    said = [verdict | {"jobs": []} for verdict in values["verdicts"]]
    return values | {"consumers": consumers, "verdicts": said, "bad": [], "names": False}


def _cache(what: str, info: pb.CacheInfo, share: float | None) -> dict[str, Any]:
    return {
        "what": what,
        "share": share,  # lately
        "hits": info.hits,
        "misses": info.misses,
        "bytes": info.bytes,
        "budget": info.budget_bytes,
        "full": info.full,
    }


def _consumer(consumer: Consumer) -> dict[str, Any]:
    stream = consumer.stream
    values = {
        "id": stream_id(stream),
        "job": consumer.job,
        "peer": stream.peer,
        "dataset": stream.spec.dataset,
        "index": stream.consumer_index,
        "count": stream.consumer_count,
        "arena": stream.arena,
        "images_s": consumer.images_s,
        "images": stream.images,
        "owed": stream.owed,
        "waiting": consumer.waiting,
        "lanes": [consumer.lanes.start, consumer.lanes.stop, stream.spec.lanes],
        "epoch": stream.epoch,
        "done": consumer.done,
        "step": consumer.step,
        "steps": consumer.steps,
        "report": None,
    }
    if stream.HasField("report"):
        report = stream.report
        values["report"] = {
            field.name: getattr(report, field.name) for field in pb.ClientReport.DESCRIPTOR.fields
        } | {"age_s": stream.report_age_s}
    return values
