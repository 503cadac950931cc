"""A stream as a PyTorch data set, and its pixels as a model takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from feeder.client.client import connect
from feeder.client.names import Target
from feeder.client.pixels import MEAN, STD, Chroma, split_planes, to_rgb
from feeder.client.stream import Stream
from feeder.errors import ConfigError
from feeder.order import Position
from feeder.wire.credentials import Credentials

__all__ = ["MEAN", "STD", "FeederDataset", "TorchBatch", "normalize", "yuv420_to_rgb"]


class TorchBatch(NamedTuple):
    """A Batch as tensors that share its memory.

    Attributes:
        images: uint8 [B, 3, S, S], channels last in memory; with output "yuv420" [B, S * S * 3 / 2].
        labels: int64 [B], -1 where masked.
        mask: bool [B].
        position: where a stream goes on after this batch.
    """

    images: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor
    position: Position


class FeederDataset(IterableDataset[TorchBatch]):
    """Whole batches from feeder's workers.

        loader = DataLoader(FeederDataset("host:port", "imagenet-train", batch_size=256), batch_size=None)
        for epoch in range(90):
            for images, labels, mask, position in loader: ...

    Each iteration gives what is left of the current epoch, from where the last one stopped; under remainder
    "wrap", which knows no epochs, it does not end. In evaluation (remainder "pad", no `epochs`) each is a
    pass over everything.

    Use `num_workers=0`, the default: decoding happens in the workers of feeder, and batches are ready ahead
    of time. torchdata's StatefulDataLoader saves and restores it with its own state.
    """

    def __init__(
        self,
        target: Target,
        dataset: str,
        *,
        timeout_s: float = 10.0,
        credentials: Credentials | None = None,
        **stream: Any,
    ) -> None:
        """Connects when it is first iterated over.

        Args:
            target: see `feeder.connect`.
            dataset: the name that the workers serve it under.
            timeout_s: see `feeder.connect`.
            credentials: see `feeder.connect`.
            stream: further arguments of `Client.stream`; `batch_size` is required.
        """
        super().__init__()
        if "batch_size" not in stream:
            raise ConfigError("FeederDataset needs batch_size=, and the DataLoader around it batch_size=None")
        self._target = target
        self._dataset = dataset
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._arguments = stream
        self._stream: Stream | None = None
        self._state: dict[str, Any] = {}

    def __iter__(self) -> Iterator[TorchBatch]:
        """Batches up to the end of the epoch.

        Raises:
            ConfigError: inside a worker process of a DataLoader.
            FeederError: see `feeder.connect`, `Client.stream` and `Stream`.
        """
        if get_worker_info() is not None:
            raise ConfigError(
                "FeederDataset cannot be used in DataLoader worker processes: each would get all batches. "
                "Use DataLoader(..., batch_size=None, num_workers=0); feeder's workers decode ahead of time"
            )
        stream = self._open()
        epoch = stream.position.epoch
        for batch in stream:
            self._state = stream.state_dict()
            images = torch.from_numpy(batch.images)
            yield TorchBatch(
                images if images.ndim == 2 else images.permute(0, 3, 1, 2),
                torch.from_numpy(batch.labels).long(),
                torch.from_numpy(batch.mask),
                batch.position,
            )
            if batch.position.epoch != epoch:
                return

    def _open(self) -> Stream:
        """The stream to go on with; a new one where each iteration is a pass of its own."""
        stream = self._stream
        if stream is not None:
            one_pass = self._arguments.get("epochs") is None and stream.position.spec.remainder == "pad"
            if not one_pass:
                return stream
            stream.close()
            self._state = {}
        arguments = {**self._arguments, "start": self._state or self._arguments.get("start")}
        client = connect(self._target, timeout_s=self._timeout_s, credentials=self._credentials)
        self._stream = client.stream(self._dataset, **arguments)
        return self._stream

    @property
    def stream(self) -> Stream | None:
        """Where batches come from, for its ledger and stats; None before the first iteration."""
        return self._stream

    def state_dict(self) -> dict[str, Any]:
        """Where to go on after the last batch that was handed out, JSON-safe; empty before the first."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there with the next iteration."""
        self.close()
        self._state = dict(state)

    def close(self) -> None:
        """Ends the stream; iterating again connects anew, from the last position."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def yuv420_to_rgb(
    images: torch.Tensor, dtype: torch.dtype = torch.float32, chroma: Chroma = "smooth"
) -> torch.Tensor:
    """RGB of batches with output "yuv420", on the device where `images` is.

    Args:
        images: uint8 [..., S * S * 3 / 2].
        dtype: of the result; whole numbers are rounded.
        chroma: on its way to twice the size: "smooth", weighed 3/4 and 1/4 as libjpeg does it, or "nearest".

    Returns:
        [..., 3, S, S] in [0, 255], channels last in memory, computed in float32.

    Raises:
        ConfigError: the images are no YUV 4:2:0, or `chroma` is unknown.
    """
    y, cb, cr = (plane.float() for plane in split_planes(images))
    rgb = torch.stack(to_rgb(torch, y, cb, cr, chroma), dim=-1)
    rgb = rgb if dtype.is_floating_point else rgb.round()
    return rgb.to(dtype).movedim(-1, -3)


def normalize(
    images: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> torch.Tensor:
    """(images / 255 - mean) / std for each channel, computed in float32 on the device where `images` is.

    Args:
        images: [..., 3, S, S], uint8, or floating point on the same scale, as `yuv420_to_rgb` gives it.
        dtype: of the result, which has the same shape.
        mean: of each channel, in [0, 1].
        std: of each channel, more than 0.
    """
    scale = torch.tensor(std, dtype=torch.float32, device=images.device)[:, None, None]
    shift = torch.tensor(mean, dtype=torch.float32, device=images.device)[:, None, None]
    return ((images.float() / 255.0 - shift) / scale).to(dtype)
