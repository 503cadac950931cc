"""What each stream was given, and what its client says of itself."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from feeder.wire.codec import report_to_proto
from feeder.wire.messages import ClientReport
from feeder.wire.spec import spec_to_proto
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.sessions import Ticket
from feeder.worker.stream import Spent

__all__ = ["Served", "stream_infos"]


@dataclass(slots=True)
class Served:
    """One stream since it was opened.

    Attributes:
        arena: its pixels go into its client's memory.
        chunks, images: that it was given.
        owed: requests of it that are not answered.
        epoch, taken: of its newest request.
        report: the newest; None: there was none yet.
        reported_s: when it came, by the monotonic clock.
        spent: what its chunks waited for the socket.
    """

    arena: bool
    chunks: int = 0
    images: int = 0
    owed: int = 0
    epoch: int = 0
    taken: int = 0
    report: ClientReport | None = None
    reported_s: float = 0.0
    spent: Spent = field(default_factory=Spent)


def stream_infos(tickets: Iterable[Ticket], served: Mapping[int, Served]) -> list[pb.StreamInfo]:
    """What Describe says of the streams that are open.

    Args:
        tickets: of all streams.
        served: by the number of a ticket.
    """
    now_s = time.monotonic()
    infos = []
    for ticket in tickets:
        opening, stream = ticket.opening, served.get(ticket.number)
        if opening is None or stream is None:
            continue  # it is just coming, or going
        report = stream.report
        infos.append(
            pb.StreamInfo(
                job=opening.job,
                session=opening.session,
                consumer_index=opening.consumer_index,
                consumer_count=opening.consumer_count,
                peer=ticket.peer,
                arena=stream.arena,
                spec=spec_to_proto(opening.spec),
                chunks=stream.chunks,
                images=stream.images,
                owed=stream.owed,
                epoch=stream.epoch,
                taken=stream.taken,
                age_s=now_s - ticket.opened_s,
                report=None if report is None else report_to_proto(report),
                report_age_s=0.0 if report is None else now_s - stream.reported_s,
                unsent_s=stream.spent.unsent_s,
                paced_s=stream.spent.paced_s,
            )
        )
    return infos
