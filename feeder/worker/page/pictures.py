"""A few pictures of what a stream asked for last: each source with its crop, and the crop as delivered.

Made again from the records, by a decoder and a thread of their own that give way to everything else.
"""

from __future__ import annotations

import base64
import io
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.batch import BadChunk, ChunkMaker, MadeChunk
from feeder.decode import Decoder, Kind, open_decoder, reductions
from feeder.errors import BadRecord, Closed, ConfigError, printable
from feeder.order import SlotStatus
from feeder.records import Dataset
from feeder.spec import StreamSpec
from feeder.wire.spec import spec_from_proto
from feeder.wire.v1 import feeder_pb2 as pb
from feeder.worker.catalog import Catalog

__all__ = ["Pictures"]

MOST = 8
"""Pictures at a time."""

MOST_BYTES = 16 << 20
"""Of their crops; one is always shown."""

SIDE = 320
"""Longest side in pixels that is shown, of sources and of crops; smaller images are not enlarged."""

SOURCE_PIXELS = 50_000_000
"""Sources with more are not drawn, only their outlines."""

BORROWER = -1
"""Where streams have numbers from 0 on."""

QUALITY = 85
NICE = 19


class Pictures:
    """Makes pictures, one request at a time.

    Args:
        catalog: lends data sets.
        kind: of the decoder, so that crops have the pixels that are served.
    """

    def __init__(self, catalog: Catalog, kind: Kind) -> None:
        self._catalog = catalog
        self._kind = kind
        self._pool = ThreadPoolExecutor(1, "feeder-pictures", initializer=_give_way)

    def ask(self, stream: pb.StreamInfo) -> Future[dict[str, Any]]:
        """Pictures of the first slots that a stream's consumer has in its newest step, for JSON.

        The future raises FeederError where the stream's data cannot be shown.

        Raises:
            Closed: after close().
        """
        try:
            return self._pool.submit(self._make, stream)
        except RuntimeError:
            raise Closed("the worker ends") from None

    def close(self) -> None:
        """Waits for the pictures that are being made."""
        self._pool.shutdown(cancel_futures=True)

    def _make(self, stream: pb.StreamInfo) -> dict[str, Any]:
        # Chroma at full size where the stream has it at half: what is shown is RGB either way.
        spec = replace(spec_from_proto(stream.spec), output="rgb")
        dataset = self._catalog.lend(BORROWER, spec.dataset)
        if dataset is None:
            raise ConfigError(f"the data set {spec.dataset!r} is not served any more")
        try:
            return self._of(dataset, stream, spec)
        finally:
            self._catalog.give_back(BORROWER)

    def _of(self, dataset: Dataset, stream: pb.StreamInfo, spec: StreamSpec) -> dict[str, Any]:
        with closing(open_decoder(1, self._kind)) as decoder:
            maker = ChunkMaker(dataset, decoder, spec)
            slots = maker.order.consumer_slots(stream.consumer_index, stream.consumer_count)
            slots = slots[: min(MOST, max(1, MOST_BYTES // spec.image_bytes))]
            chunk = _Chunk(maker, stream.epoch, stream.taken, np.array(slots, np.int64))
            pictures = [chunk.picture(position) for position in range(len(slots))]
        return {
            "epoch": stream.epoch,
            "step": stream.taken // spec.per_lane,
            "size": spec.image_size,
            "augment": spec.augment,
            "pictures": pictures,
        }


@dataclass(slots=True)
class _Chunk:
    maker: ChunkMaker
    epoch: int
    taken: int
    slots: NDArray[np.int64]

    def picture(self, position: int) -> dict[str, Any]:
        """One slot; made alone, so that a record which fails a whole chunk has its place among the others."""
        maker, slots = self.maker, self.slots[position : position + 1]
        out = np.empty((1, *maker.spec.image_shape), np.uint8)
        try:
            made = maker.make(maker.fetch(self.epoch, self.taken, slots), out)
        except BadChunk as error:
            return {"slot": int(slots[0]), "status": "bad", "reason": printable(str(error))}
        shown: dict[str, Any] = {
            "slot": int(slots[0]),
            "status": SlotStatus(int(made.status[0])).name.lower(),
        }
        if made.bad:
            shown["reason"] = printable(
                "; ".join(f"{bad.shard}: record {bad.index}: {bad.reason}" for bad in made.bad)
            )
        if made.labels[0] < 0:
            return shown
        shown |= {"label": int(made.labels[0]), "record": int(made.records[0]), "crop": _encoded(out[0])}
        return shown | self._source(made, slots)

    def _source(self, made: MadeChunk, slots: NDArray[np.int64]) -> dict[str, Any]:
        maker = self.maker
        record = int(made.records[0])
        shard, index = maker.dataset.locate(record)
        found: dict[str, Any] = {"shard": printable(shard), "index": index}
        try:
            image, _, _ = maker.dataset.read(record)
        except BadRecord:  # in the cache it was whole
            return found
        sizes, reasons = maker.decoder.sizes([image])
        if reasons[0] is not None:
            return found
        epochs = maker.order.epochs_of(self.epoch, self.taken, slots)
        windows, flips = maker.windows(epochs, made.records, sizes)
        width, height = sizes[0].tolist()
        found |= {"width": width, "height": height, "window": windows[0].tolist(), "flip": bool(flips[0])}
        if width * height <= SOURCE_PIXELS:
            found["source"] = _thumbnail(maker.decoder, image, sizes)
        return found


def _thumbnail(decoder: Decoder, image: memoryview, sizes: NDArray[np.int32]) -> str | None:
    width, height = sizes[0].tolist()
    scale = min(1.0, SIDE / max(width, height))
    out = np.empty((1, max(1, round(height * scale)), max(1, round(width * scale)), 3), np.uint8)
    whole = np.array([[0, 0, width, height]], np.int32)
    scales = reductions(min(out.shape[1:3]), sizes, sizes, 1)
    (reason,) = decoder.decode([image], whole, np.zeros(1, np.bool_), out, reductions=scales)
    return None if reason is not None else _encoded(out[0])


def _encoded(pixels: NDArray[np.uint8]) -> str:
    """A JPEG as a data: URL of an image uint8 [H, W, 3], made smaller where it is larger than is shown."""
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _give_way() -> None:
    """Priority of this thread, and of those that it starts, on Linux."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
