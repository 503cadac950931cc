"""The client: many workers, one stream of batches. Imports nothing of records, decode, batch or worker.

Adapters are modules of their own, since they import their framework: `feeder.client.jax` and
`feeder.client.torch`.
"""

from __future__ import annotations

from feeder.client.batch import Batch
from feeder.client.client import Client, connect
from feeder.client.stream import Stream, StreamStats, WorkerStats

__all__ = ["Batch", "Client", "Stream", "StreamStats", "WorkerStats", "connect"]
