"""StreamSpec as a protobuf message and back."""

from __future__ import annotations

import dataclasses
from typing import Any

from feeder.errors import ConfigError
from feeder.spec import StreamSpec
from feeder.wire.v1 import feeder_pb2 as pb

__all__ = ["spec_from_proto", "spec_to_proto"]

_FIELDS = tuple(field.name for field in dataclasses.fields(StreamSpec) if field.name != "reduce")


def spec_to_proto(spec: StreamSpec) -> pb.Spec:
    """The message for a spec."""
    values: dict[str, Any] = {name: getattr(spec, name) for name in _FIELDS}
    return pb.Spec(reduce="none" if spec.reduce is None else str(spec.reduce), **values)


def spec_from_proto(message: pb.Spec) -> StreamSpec:
    """The spec of a message.

    Raises:
        ConfigError: a field holds a value that StreamSpec does not allow.
    """
    values: dict[str, Any] = {name: getattr(message, name) for name in _FIELDS}
    reduce: str | int | None = message.reduce
    if reduce == "none":
        reduce = None
    elif message.reduce.isascii() and message.reduce.isdecimal() and len(message.reduce) <= 10:
        reduce = int(message.reduce)
    elif reduce != "auto":
        raise ConfigError(f"reduce must be 'auto', 'none' or a number of pixels, got {message.reduce[:40]!r}")
    return StreamSpec(reduce=reduce, **values)  # type: ignore[arg-type]  # checked by StreamSpec itself
