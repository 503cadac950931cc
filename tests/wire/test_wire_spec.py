"""StreamSpec over the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.spec import StreamSpec
from feeder.wire.spec import spec_from_proto, spec_to_proto
from feeder.wire.v1 import feeder_pb2 as pb

SPECS = st.builds(
    lambda per_lane, **rest: StreamSpec(global_batch=per_lane * rest["lanes"], **rest),
    per_lane=st.integers(1, 64),
    dataset=st.text(min_size=1, max_size=20),
    lanes=st.integers(1, 4096),
    seed=st.integers(0, 2**63 - 1),
    image_size=st.integers(1, 4096),
    augment=st.sampled_from(["train", "eval", "none"]),
    sampler=st.sampled_from(["torchvision", "inception"]),
    resample=st.sampled_from(["bilinear", "bicubic", "tf1_bicubic"]),
    antialias=st.booleans(),
    reduce=st.one_of(st.sampled_from(["auto", None]), st.integers(1, 10**9)),
    shuffle=st.booleans(),
    remainder=st.sampled_from(["drop", "pad", "wrap"]),
    on_bad=st.sampled_from(["replace", "fail"]),
)


@given(SPECS)
def test_specs_come_back(spec: StreamSpec) -> None:
    assert spec_from_proto(pb.Spec.FromString(spec_to_proto(spec).SerializeToString())) == spec


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reduce", "maybe"),
        ("reduce", ""),
        ("reduce", "9" * 5000),
        ("reduce", "²"),
        ("lanes", 3),
        ("lanes", 0),
        ("image_size", 0),
        ("seed", 2**63),
        ("augment", "mixup"),
        ("dataset", ""),
        ("output", "yuv444"),
    ],
)
def test_bad_values_are_named(field: str, value: object) -> None:
    message = spec_to_proto(StreamSpec(dataset="d", global_batch=8, lanes=4))
    setattr(message, field, value)
    with pytest.raises(ConfigError, match=field):
        spec_from_proto(message)
