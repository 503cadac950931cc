"""Lets calls in: whose they are, and what they may do."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from feeder.errors import FeederError
from feeder.wire.context import CallContext
from feeder.wire.status import Refusal
from feeder.worker.access import Access, Caller, Grant
from feeder.worker.refusals import Refusals

__all__ = ["Gate"]

_NOTED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
"""Kinds of refusals that `admit` and `check` have counted."""


class Gate:
    """Safe to use from any thread.

    Args:
        access: what tokens and certificates are good for.
        refusals: is told of calls that are sent away.
        caller: whose call it is, by the name that its context has.
    """

    def __init__(
        self,
        access: Access | None = None,
        refusals: Refusals | None = None,
        caller: Callable[[str], Caller] = Caller,
    ) -> None:
        self._access = access or Access(None)
        self._refusals = refusals or Refusals()
        self._caller = caller

    def name(self, context: CallContext) -> str:
        """Of the peer, also where gRPC knows but the front's."""
        return self._caller(context.peer()).name

    def admit(self, context: CallContext) -> Grant:
        """What a call may do.

        Raises:
            Refusal: UNAUTHENTICATED.
        """
        caller = self._caller(context.peer())
        found = [value for key, value in context.invocation_metadata() if key == "authorization"]
        header = found[0] if found and isinstance(found[0], str) else None
        try:
            return self._access.grant(header, caller.certificate)
        except Refusal:
            if header is None:
                self._refusals.note("no_token", caller.name, "it has no token")
            else:
                self._refusals.note("wrong_token", caller.name, "its token is unknown")
            raise

    def refused(self, context: CallContext, error: FeederError) -> None:
        """A call ends before its stream was open."""
        if not (isinstance(error, Refusal) and error.code in _NOTED):
            self._refusals.note("bad_call", self.name(context), str(error))

    def check(self, grant: Grant, context: CallContext, dataset: str, job: str) -> None:
        """Sees whether a stream is for it.

        Raises:
            Refusal: PERMISSION_DENIED.
        """
        try:
            grant.check(dataset, job)
        except Refusal as error:
            self._refusals.note("not_allowed", self.name(context), str(error))
            raise

    def sees_all(self, authorization: str | None) -> bool:
        """Whether who sends this header may see pictures, and names of jobs and peers, over HTTP."""
        try:
            return self._access.grant(authorization).sees_all
        except Refusal:
            if authorization is not None:
                self._refusals.note("wrong_token", "http", "its token is unknown")
            return False
