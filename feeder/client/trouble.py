"""What keeps a stream from going on, as an error for its consumer."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from feeder.client.link import Link
from feeder.client.session import Session
from feeder.errors import BadRecord, FeederError, ProtocolError, ServiceError, StorageError, WorkerUnavailable
from feeder.wire.messages import Failed, FailureKind

__all__ = ["failure", "named", "refusal", "silence"]

REFUSAL_GRACE_S = 3.0
"""How long a worker's "no" is asked again: one that just lost a session of this name needs a moment to
notice."""


def failure(name: str, reply: Failed) -> tuple[FeederError, bool]:
    """The error that a failed chunk stands for, and whether it would be the same from any worker."""
    if reply.kind is FailureKind.BAD_RECORD and reply.bad is not None:
        return BadRecord(reply.bad.shard, reply.bad.index, reply.bad.reason), True
    text = f"worker {name}: {reply.message}"
    if reply.kind is FailureKind.STORAGE:
        return StorageError(text), False
    if reply.kind is FailureKind.INVALID:
        return ProtocolError(f"{text}; are client and worker of one version?"), True
    return ServiceError(text), False


def refusal(links: Mapping[str, Link], now: float) -> FeederError | None:
    """What all workers have said for REFUSAL_GRACE_S, or one that knows better, where they say no."""
    refused = [
        link
        for link in links.values()
        if link.refused_since_s is not None and now - link.refused_since_s >= REFUSAL_GRACE_S
    ]
    hopeless = len(refused) == len(links)
    for link in refused:
        if (hopeless or link.duplicate) and link.error is not None:
            return link.error
    return None


def named(error: FeederError, session: str) -> FeederError:
    """The same with the session in its message, as workers' logs name it. A copy: the traceback of what is
    raised holds the caller's frames, and through them the Stream."""
    known = copy.copy(error)
    known.args = (f"{error} (session {session})",)
    return known


def silence(dataset: str, timeout_s: float, links: Mapping[str, Link], session: Session) -> FeederError:
    """That nothing came for so long, with what is known of each worker."""
    states = []
    for name, link in links.items():
        view = session.view(name)
        states.append(str(link.error or f"worker {name} is {view.state} and owes {view.outstanding} chunks"))
    known = "; ".join(states) or "no worker has a name any more"
    return WorkerUnavailable(
        f"nothing of data set {dataset!r} came for {timeout_s:g} s: {known}; "
        "start the workers again and go on from the stream's position"
    )
