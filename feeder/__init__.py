"""feeder keeps accelerators fed: data workers decode, crop and stream image batches to training hosts.

    for batch in feeder.connect("host:port,host:port").stream("imagenet-train", batch_size=256):
        ...  # batch.images uint8 [256, 224, 224, 3], batch.labels int32 [256]

Names are loaded when they are first used: `import feeder` alone costs nothing, and never imports what only
a worker needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeder.client import Batch, Client, Stream, StreamStats, WorkerStats, connect
    from feeder.errors import FeederError
    from feeder.order import Position
    from feeder.spec import StreamSpec
    from feeder.wire.credentials import Credentials

__all__ = [
    "Batch",
    "Client",
    "Credentials",
    "FeederError",
    "Position",
    "Stream",
    "StreamSpec",
    "StreamStats",
    "WorkerStats",
    "connect",
]

__version__ = "0.1.0"

_HOMES = {
    "Batch": "feeder.client",
    "Client": "feeder.client",
    "Credentials": "feeder.wire.credentials",
    "FeederError": "feeder.errors",
    "Position": "feeder.order",
    "Stream": "feeder.client",
    "StreamSpec": "feeder.spec",
    "StreamStats": "feeder.client",
    "WorkerStats": "feeder.client",
    "connect": "feeder.client",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'feeder' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
