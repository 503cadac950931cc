"""Where a stream stands: what goes into the model's checkpoint beside the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feeder.errors import ConfigError, PositionMismatch
from feeder.order.lanes import Order
from feeder.spec import StreamSpec

__all__ = ["Position"]

_VERSION = 1
_FIELD_TYPES: dict[str, type] = {
    "dataset": str,
    "global_batch": int,
    "lanes": int,
    "seed": int,
    "image_size": int,
    "augment": str,
    "sampler": str,
    "resample": str,
    "antialias": bool,
    "output": str,
    "shuffle": bool,
    "remainder": str,
    "on_bad": str,
}


@dataclass(frozen=True)
class Position:
    """The start of a global step of a stream. The number of consumers is no part of it.

    Attributes:
        epoch: from 0; stays 0 under remainder "wrap".
        taken: samples that each lane gave in this epoch before the step.
        spec: the stream's spec.
        records: records of the data set.
        fingerprint: of the data set (hex).
    """

    epoch: int
    taken: int
    spec: StreamSpec
    records: int
    fingerprint: str

    def advance(self, order: Order) -> Position:
        """The position after one more step: the next epoch's start after the last step of an epoch."""
        epoch, taken = self.epoch, self.taken + self.spec.per_lane
        if self.spec.remainder != "wrap" and taken >= order.steps_per_epoch * self.spec.per_lane:
            epoch, taken = epoch + 1, 0
        return Position(epoch, taken, self.spec, self.records, self.fingerprint)

    def steps_before(self, order: Order) -> int:
        """Global steps from the start of the stream up to this position."""
        return self.epoch * order.steps_per_epoch + self.taken // self.spec.per_lane

    def check(self, spec: StreamSpec, records: int, fingerprint: str) -> None:
        """Raises PositionMismatch with every difference, unless the position belongs to this stream.

        Another number of consumers is fine wherever it divides the lanes.

        Raises:
            PositionMismatch: another spec, or other data.
            ConfigError: the position is not the start of a step.
        """
        differences = [f"{line} now" for line in self.spec.differences(spec)]
        if self.records != records:
            differences.append(f"records: {self.records}, {records} now")
        if self.fingerprint != fingerprint:
            differences.append(f"fingerprint of the data: {self.fingerprint}, {fingerprint} now")
        if differences:
            raise PositionMismatch(
                f"the saved position belongs to another stream (saved, now): {'; '.join(differences)}; "
                f"open the stream with the saved values, or start anew without the position"
            )
        Order(spec, records).check(self.epoch, self.taken)

    def to_dict(self) -> dict[str, Any]:
        """The position as JSON-safe values: ints, strings and bools, the spec nested one level deep."""
        spec = dataclasses.asdict(self.spec)
        if spec["reduce"] is None:
            spec["reduce"] = "none"
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "taken": self.taken,
            "records": self.records,
            "fingerprint": self.fingerprint,
            "spec": spec,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Position:
        """The position that `to_dict` wrote.

        Raises:
            ConfigError: not what `to_dict` writes, or written by a later version; names the entry.
        """
        _check_entries("position", saved, {"version": int})
        if saved["version"] != _VERSION:
            raise ConfigError(
                f"position: has version {saved['version']}, this feeder reads version {_VERSION}: "
                f"resume with the feeder that saved it"
            )
        types: dict[str, type] = {
            "version": int,
            "epoch": int,
            "taken": int,
            "records": int,
            "fingerprint": str,
        }
        _check_entries("position", saved, {**types, "spec": Mapping})
        fields = dict(saved["spec"])
        reduce = fields.get("reduce")
        _check_entries("position: spec", fields, {**_FIELD_TYPES, "reduce": int if _is_int(reduce) else str})
        for where, entries, known in (
            ("position", saved, {*types, "spec"}),
            ("position: spec", fields, {*_FIELD_TYPES, "reduce"}),
        ):
            unknown = sorted(set(entries) - known)
            if unknown:
                raise ConfigError(f"{where}: unknown entry {unknown[0]!r}")
        fields["reduce"] = None if reduce == "none" else reduce
        if saved["epoch"] < 0 or saved["taken"] < 0 or saved["records"] < 1:
            raise ConfigError(
                f"position: epoch and taken must be at least 0 and records at least 1, "
                f"got {saved['epoch']}, {saved['taken']} and {saved['records']}"
            )
        return cls(
            saved["epoch"], saved["taken"], StreamSpec(**fields), saved["records"], saved["fingerprint"]
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_entries(where: str, entries: object, types: Mapping[str, type]) -> None:
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{where}: must be a mapping as to_dict() gives it, got {type(entries).__name__}")
    for name, kind in types.items():
        if name not in entries:
            raise ConfigError(f"{where}: entry {name!r} is missing")
        value = entries[name]
        if not isinstance(value, kind) or (kind is int and not _is_int(value)):
            raise ConfigError(f"{where}: {name} must be {_name(kind)}, got {value!r}")


def _name(kind: type) -> str:
    return {int: "a whole number", str: "a string", bool: "true or false"}.get(kind, "a mapping")
