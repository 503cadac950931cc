from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError, PositionMismatch
from feeder.order import Order, Position
from feeder.spec import Remainder, StreamSpec

SPEC = StreamSpec("imagenet", 16, 8, seed=3)


def start(spec: StreamSpec = SPEC, records: int = 100) -> Position:
    return Position(0, 0, spec, records, "ab12")


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 30), st.sampled_from(["drop", "pad", "wrap"]), st.sampled_from([1, 2, 4]))
def test_resume_from_any_position_gives_the_steps_that_would_have_come(
    stop: int, remainder: Remainder, consumers: int
) -> None:
    """P09: stop anywhere, resume by way of JSON with another number of consumers: no step is lost or
    repeated.
    """
    spec = StreamSpec("d", 20, 4, seed=9, remainder=remainder)
    order = Order(spec, 73)
    slots = np.arange(20)
    position = start(spec, 73)
    undisturbed, saved = [], position.to_dict()
    for number in range(36):
        if number == stop:
            saved = position.to_dict()
        undisturbed.append(order.records(position.epoch, position.taken, slots).tolist())
        assert position.steps_before(order) == number
        position = position.advance(order)
    resumed = Position.from_dict(json.loads(json.dumps(saved)))
    resumed.check(spec, 73, "ab12")
    for number in range(stop, 36):
        parts = [np.array(order.consumer_slots(index, consumers)) for index in range(consumers)]
        step = [r for part in parts for r in order.records(resumed.epoch, resumed.taken, part).tolist()]
        assert step == undisturbed[number]
        resumed = resumed.advance(order)
    assert resumed == position


def test_epoch_rolls_over_after_its_last_step_and_never_under_wrap() -> None:
    position = start()
    order = Order(SPEC, 100)  # six steps of two samples a lane
    for _ in range(5):
        position = position.advance(order)
    assert (position.epoch, position.taken) == (0, 10)
    assert (position.advance(order).epoch, position.advance(order).taken) == (1, 0)
    wrap = dataclasses.replace(SPEC, remainder="wrap")
    position = dataclasses.replace(start(wrap), taken=1000).advance(Order(wrap, 100))
    assert (position.epoch, position.taken) == (0, 1002)


@pytest.mark.parametrize("reduce", ["auto", None, 256])
def test_dict_is_json_of_plain_values_and_comes_back(reduce: Any) -> None:
    position = Position(7, 4, dataclasses.replace(SPEC, reduce=reduce, seed=2**63 - 1), 2**40, "ff")
    saved = position.to_dict()
    flat = {**saved, **saved["spec"]}
    assert all(type(value) in (int, str, bool) for key, value in flat.items() if key != "spec")
    assert Position.from_dict(json.loads(json.dumps(saved))) == position
    assert len(json.dumps(saved)) < 500


def test_check_names_every_difference() -> None:
    other = StreamSpec("imagenet", 32, 16, seed=3, sampler="inception")
    with pytest.raises(PositionMismatch) as caught:
        start().check(other, 101, "cd34")
    message = str(caught.value)
    for part in (
        "global_batch: 16, 32",
        "lanes: 8, 16",
        "sampler: 'torchvision', 'inception'",
        "records: 100, 101",
        "ab12, cd34",
    ):
        assert part in message
    assert "seed" not in message


def test_check_passes_for_the_same_stream_only_at_the_start_of_a_step() -> None:
    start().check(SPEC, 100, "ab12")
    for epoch, taken in ((0, 1), (0, 12), (-1, 0)):
        with pytest.raises(ConfigError):
            Position(epoch, taken, SPEC, 100, "ab12").check(SPEC, 100, "ab12")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"version": "1"}, "version must be a whole number, got '1'"),
        ({"epoch": -1}, "at least 0"),
        ({"epoch": True}, "epoch must be a whole number, got True"),
        ({"taken": 1.5}, "taken must be a whole number"),
        ({"taken": None}, "taken must be a whole number"),
        ({"records": 0}, "records at least 1"),
        ({"fingerprint": 5}, "fingerprint must be a string"),
        ({"spec": "x"}, "spec must be a mapping"),
        ({"extra": 1}, "unknown entry 'extra'"),
    ],
)
def test_damaged_dict_is_refused_by_entry(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Position.from_dict({**start().to_dict(), **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": "1"}, "spec: seed must be a whole number"),
        ({"seed": -1}, r"seed must be in \[0, 2\*\*63\)"),
        ({"antialias": 1}, "antialias must be true or false"),
        ({"augment": "mixup"}, "augment must be one of"),
        ({"reduce": 1.5}, "reduce must be a string"),
        ({"reduce": "half"}, "reduce must be 'auto'"),
        ({"lanes": 5}, "lanes must divide"),
        ({"color": "red"}, "unknown entry 'color'"),
    ],
)
def test_damaged_spec_is_refused_by_field(change: dict[str, Any], words: str) -> None:
    saved = start().to_dict()
    saved["spec"].update(change)
    with pytest.raises(ConfigError, match=words):
        Position.from_dict(saved)


def test_missing_entries_are_named() -> None:
    for name in ("version", "epoch", "taken", "records", "fingerprint", "spec"):
        saved = start().to_dict()
        del saved[name]
        with pytest.raises(ConfigError, match=f"'{name}' is missing"):
            Position.from_dict(saved)
    saved = start().to_dict()
    del saved["spec"]["lanes"]
    with pytest.raises(ConfigError, match="spec: entry 'lanes' is missing"):
        Position.from_dict(saved)
    with pytest.raises(ConfigError, match="must be a mapping"):
        Position.from_dict([])  # type: ignore[arg-type]
