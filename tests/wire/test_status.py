"""Errors as statuses and back."""

from __future__ import annotations

import grpc
import pytest

from feeder import errors
from feeder.errors import ConfigError, FeederError, ProtocolError, Refused, WorkersDisagree, WorkerUnavailable
from feeder.wire.status import Refusal, from_status, to_status


class Status(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str | None) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details


def instances() -> list[FeederError]:
    made: list[FeederError] = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        made.append(kind("s", 1, "r") if kind is errors.BadRecord else kind("text"))
    return made


@pytest.mark.parametrize("error", instances(), ids=lambda error: type(error).__name__)
def test_every_error_has_a_status_and_comes_back_as_a_feeder_error(error: FeederError) -> None:
    code, text = to_status(error)
    assert code is not grpc.StatusCode.OK
    back = from_status(Status(code, text), "w:1")
    assert isinstance(back, FeederError)
    assert str(error) in str(back)
    assert "w:1" in str(back)


@pytest.mark.parametrize("kind", [ConfigError, ProtocolError, WorkersDisagree, Refused, WorkerUnavailable])
def test_errors_of_the_service_keep_their_kind(kind: type[FeederError]) -> None:
    assert type(from_status(Status(*to_status(kind("text"))), "w")) is kind


@pytest.mark.parametrize("code", list(grpc.StatusCode), ids=lambda code: code.name)
def test_every_status_is_an_error(code: grpc.StatusCode) -> None:
    assert isinstance(from_status(Status(code, None), "w"), FeederError)


@pytest.mark.parametrize("name", ["NOT_FOUND", "ALREADY_EXISTS", "RESOURCE_EXHAUSTED"])
def test_refusals(name: str) -> None:
    code = grpc.StatusCode[name]
    assert to_status(Refusal(code, "no")) == (code, "no")
    assert type(from_status(Status(code, "no"), "w")) is Refused


def test_an_error_without_code_is_an_unavailable_worker() -> None:
    assert type(from_status(grpc.RpcError("odd"), "w")) is WorkerUnavailable
