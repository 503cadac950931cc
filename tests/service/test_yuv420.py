"""Streams of YUV 4:2:0 from real workers: by every way the same batches, half as many bytes as RGB."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder.client.pixels import yuv420_to_rgb
from feeder.errors import ConfigError, PositionMismatch

SMALL: dict[str, Any] = {"batch_size": 12, "image_size": 32, "seed": 9, "epochs": 2, "output": "yuv420"}
RECORDS = 120


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_both_ways_to_the_client_give_the_same_as_rgb(
    pair: Any, digest_batches: Callable[..., list[str]], transport: Any
) -> None:
    client = feeder.connect([worker.address for worker in pair])
    alone = feeder.connect(pair[0].address)
    with alone.stream("data", **SMALL, transport="grpc") as stream:
        expected = digest_batches(stream)
        assert stream.stats().received_bytes == 2 * RECORDS * 32 * 32 * 3 // 2
    with client.stream("data", **SMALL, transport=transport) as stream:
        assert digest_batches(stream) == expected
        assert stream.stats().transport == transport
    with (
        client.stream("data", **SMALL, transport=transport) as stream,
        client.stream("data", **{**SMALL, "output": "rgb"}) as rgb,
    ):
        for ours, theirs in zip(stream, rgb, strict=True):
            assert ours.labels.tolist() == theirs.labels.tolist()
            y, cb, cr = ours.planes()
            assert (y.shape, cb.shape, cr.shape) == ((12, 32, 32), (12, 16, 16), (12, 16, 16))
            again = yuv420_to_rgb(ours.images).astype(int)
            gray = [images @ (0.299, 0.587, 0.114) for images in (again, theirs.images)]
            assert np.abs(gray[0] - gray[1]).mean() < 2  # blocks of pure colours: their edges are chroma's


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_what_is_masked_is_black(pair: Any, transport: Any) -> None:
    client = feeder.connect(pair[0].address)
    settings = {"batch_size": 50, "image_size": 32, "augment": "eval", "output": "yuv420"}
    with client.stream("data", **settings, transport=transport) as stream:
        last = list(stream)[-1]
    assert (~last.mask).sum() == 30
    y, cb, cr = (plane[~last.mask] for plane in last.planes())
    assert not y.any()
    assert (cb == 128).all()
    assert (cr == 128).all()
    assert not yuv420_to_rgb(last.images[~last.mask]).any()


def test_it_resumes_as_what_it_is(pair: Any, digest_batches: Callable[..., list[str]]) -> None:
    client = feeder.connect(pair[0].address)
    with client.stream("data", **SMALL) as stream:
        for _ in range(7):
            next(stream)
        saved = json.loads(json.dumps(stream.state_dict()))
        rest = digest_batches(stream)
    with client.stream("data", **SMALL, start=saved) as stream:
        assert digest_batches(stream) == rest
    with pytest.raises(PositionMismatch, match="output: 'yuv420', 'rgb'"):
        client.stream("data", **{**SMALL, "output": "rgb"}, start=saved)
    with pytest.raises(ConfigError, match="needs an even image_size, got 33"):
        client.stream("data", **{**SMALL, "image_size": 33})


def test_a_portable_worker_makes_it_too(shards: Path, start_worker: Any, pair: Any) -> None:
    worker = start_worker(shards, "--decoder", "portable")
    streams = [
        feeder.connect(one.address).stream("data", **SMALL, transport="grpc") for one in (worker, pair[0])
    ]
    for ours, theirs in zip(*streams, strict=True):
        assert ours.labels.tolist() == theirs.labels.tolist()
        difference = np.abs(ours.planes()[0].astype(int) - theirs.planes()[0])
        assert difference.mean() < 1.5
    for stream in streams:
        stream.close()
