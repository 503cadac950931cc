"""What fills a cache before anybody asks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from feeder.cache import Offer, Shelf
from feeder.decode import Decoder, reductions
from feeder.errors import BadRecord, StorageError
from feeder.order import smallest_window
from feeder.records import Dataset
from feeder.spec import StreamSpec

__all__ = ["warm"]

_READ = 8


def warm(dataset: Dataset, decoder: Decoder, shelf: Shelf) -> Iterator[Offer]:
    """Offers of all records that the cache lacks, in their order, at the scale that a stream with the default
    settings wants. What cannot be read now is left out."""
    spec = StreamSpec(dataset.name, global_batch=1, lanes=1)
    for first in range(0, len(dataset), _READ):
        records, images = [], []
        wanted = range(first, min(first + _READ, len(dataset)))
        lacking = [record for record in wanted if not shelf.has(record, None)]
        reading = dataset.ask(lacking)
        for record in lacking:
            with contextlib.suppress(BadRecord, StorageError):
                images.append(dataset.read(record, reading).image)
                records.append(record)
        sizes, reasons = decoder.sizes(images)
        headed = [position for position, reason in enumerate(reasons) if reason is None]
        smallest = smallest_window(spec.augment, spec.sampler, sizes[headed], spec.image_size)
        scales = reductions(spec.reduce, smallest, sizes[headed], spec.image_size)
        for position, scale in zip(headed, scales.tolist(), strict=True):
            width, height = sizes[position].tolist()
            yield Offer(shelf, records[position], images[position], (width, height), scale)
