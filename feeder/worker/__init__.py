"""The data worker: one process that serves the chunks of its data sets over gRPC."""

from __future__ import annotations

from feeder.worker.config import WorkerConfig
from feeder.worker.daemon import serve

__all__ = ["WorkerConfig", "serve"]
