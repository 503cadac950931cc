"""Errors of feeder as gRPC statuses and back."""

from __future__ import annotations

import grpc

from feeder.errors import (
    Closed,
    ConfigError,
    DataError,
    FeederError,
    NotAllowed,
    NotTrusted,
    ProtocolError,
    Refused,
    StorageError,
    WorkersDisagree,
    WorkerUnavailable,
)

__all__ = ["Refusal", "from_status", "to_status"]

_Code = grpc.StatusCode


class Refusal(Refused):
    """A worker's "no", with the status code that tells its kind.

    Attributes:
        code: NOT_FOUND (no such data set), ALREADY_EXISTS (duplicate consumer), RESOURCE_EXHAUSTED (a limit),
            UNAVAILABLE (the worker is draining), UNAUTHENTICATED (no token, or an unknown one) or
            PERMISSION_DENIED (the token is not for that).
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


# From the most special to the most general.
_CODES: tuple[tuple[type[FeederError], grpc.StatusCode], ...] = (
    (ConfigError, _Code.INVALID_ARGUMENT),
    (
        ProtocolError,
        _Code.UNIMPLEMENTED,
    ),  # what gRPC itself says where the other side does not know the method
    (WorkersDisagree, _Code.FAILED_PRECONDITION),
    (NotAllowed, _Code.PERMISSION_DENIED),
    (NotTrusted, _Code.UNAUTHENTICATED),
    (Refused, _Code.RESOURCE_EXHAUSTED),
    (WorkerUnavailable, _Code.UNAVAILABLE),
    (DataError, _Code.DATA_LOSS),
    (StorageError, _Code.ABORTED),
    (Closed, _Code.CANCELLED),
)

_ERRORS: dict[grpc.StatusCode, type[FeederError]] = {code: error for error, code in _CODES}
_ERRORS |= {
    _Code.NOT_FOUND: Refused,
    _Code.ALREADY_EXISTS: Refused,
    _Code.UNAUTHENTICATED: NotAllowed,
    # The stream of a worker that died ends in any of these; another worker may do better.
    _Code.CANCELLED: WorkerUnavailable,
}


def to_status(error: FeederError) -> tuple[grpc.StatusCode, str]:
    """The status code and text that a worker ends a call with."""
    if isinstance(error, Refusal):
        return error.code, str(error)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), _Code.INTERNAL)
    return code, str(error)


def from_status(error: grpc.RpcError, where: object) -> FeederError:
    """What a failed call to the worker at `where` means; all that is no plain "no" is WorkerUnavailable."""
    # grpc's own errors are also Calls; RpcError by itself promises nothing.
    code = error.code() if hasattr(error, "code") else _Code.UNKNOWN
    text = (error.details() if hasattr(error, "details") else str(error)) or code.name
    kind = _ERRORS.get(code, WorkerUnavailable)
    if kind is WorkerUnavailable:
        return WorkerUnavailable(f"worker {where} does not answer ({code.name}: {text})")
    return kind(f"worker {where}: {text}")
