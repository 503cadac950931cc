"""A stream as a PyTorch data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from feeder.client.client import connect
from feeder.client.stream import Stream
from feeder.errors import ConfigError
from feeder.order import Position

__all__ = ["FeederDataset", "TorchBatch"]


class TorchBatch(NamedTuple):
    """A Batch as tensors that share its memory.

    Attributes:
        images: uint8 [B, 3, H, W], channels last in memory.
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
        self, target: str | Sequence[str], dataset: str, *, timeout_s: float = 10.0, **stream: Any
    ) -> None:
        """Connects when it is first iterated over.

        Args:
            target: see `feeder.connect`.
            dataset: the name that the workers serve it under.
            timeout_s: see `feeder.connect`.
            stream: further arguments of `Client.stream`; `batch_size` is required.
        """
        super().__init__()
        if "batch_size" not in stream:
            raise ConfigError("FeederDataset needs batch_size=, and the DataLoader around it batch_size=None")
        self._target = target
        self._dataset = dataset
        self._timeout_s = timeout_s
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
            yield TorchBatch(
                torch.from_numpy(batch.images).permute(0, 3, 1, 2),
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
        self._stream = connect(self._target, timeout_s=self._timeout_s).stream(self._dataset, **arguments)
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
