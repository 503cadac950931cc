"""Batches on JAX's CPU backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import feeder
from feeder.errors import ConfigError

jax = pytest.importorskip("jax", reason="JAX is not installed (extra trainer)")
import jax.numpy as jnp  # noqa: E402

from feeder.client.jax import MEAN, STD, normalize, prefetch_to_device  # noqa: E402

Make = Callable[..., Any]
TINY: dict[str, Any] = {"batch_size": 8, "image_size": 4, "epochs": 2}


def test_the_same_batches_come_as_jax_arrays(scripted: Make) -> None:
    client = feeder.connect(scripted().address)
    with client.stream("data", **TINY) as plain, client.stream("data", **TINY) as stream:
        count = 0
        for ours, theirs in zip(plain, prefetch_to_device(stream), strict=True):
            assert isinstance(theirs.images, jax.Array)
            assert theirs.images.dtype == jnp.uint8
            assert (np.asarray(theirs.images) == ours.images).all()
            assert (np.asarray(theirs.labels) == ours.labels).all()
            assert (np.asarray(theirs.mask) == ours.mask).all()
            assert theirs.position == ours.position
            count += 1
        assert count == 10


def test_a_device_batch_keeps_its_values_whatever_becomes_of_the_numpy_arrays(scripted: Make) -> None:
    # Pitfall P28: device_put on the CPU backend aliases.
    client = feeder.connect(scripted().address)
    batches: list[feeder.Batch] = []

    def scribbling(stream: feeder.Stream) -> Any:
        for batch in stream:
            batches.append(batch)
            yield batch

    with client.stream("data", **TINY) as stream:
        iterator = prefetch_to_device(scribbling(stream))
        first = next(iterator)
        before = np.array(first.images)
        doubled = jax.jit(lambda images: images * 2)(first.images)
        for batch in batches:
            batch.images[:] = 255
        for _ in iterator:
            pass
        assert (np.asarray(first.images) == before).all()
        assert (np.asarray(doubled) == before * 2).all()


def test_a_sharding_is_honoured(scripted: Make) -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    with feeder.connect(scripted().address).stream("data", **TINY) as stream:
        batch = next(prefetch_to_device(stream, sharding))
        assert batch.images.sharding.is_equivalent_to(sharding, 4)
        assert batch.images.shape == (8, 4, 4, 3)
        assert batch.labels.shape == batch.mask.shape == (8,)


def test_size_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="size"):
        prefetch_to_device([], size=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_normalize_is_the_formula(dtype: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 3), np.uint8)
    expected = (images / 255.0 - np.array(MEAN)) / np.array(STD)
    got = jax.jit(lambda x: normalize(x, dtype=dtype))(images)
    assert got.dtype == dtype
    # bfloat16 has 8 bits of precision; the largest values are near 2.7
    tolerance = 1e-5 if dtype == "float32" else 2.0**-7
    assert np.abs(np.asarray(got, np.float64) - expected).max() < tolerance
