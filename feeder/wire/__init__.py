"""What workers and clients say to each other: messages, addresses, channel settings, errors as statuses.

The service is feeder.v1.Feeder of protos/feeder/v1/feeder.proto. `Feed` moves raw bytes on both sides (see
`feeder.wire.codec`), `Describe` ordinary messages.
"""

from __future__ import annotations

from feeder.order.chunks import MAX_SLOTS

__all__ = ["DESCRIBE", "FEED", "MAX_CHUNK_BYTES", "MAX_NAME", "MAX_SLOTS", "PROTOCOL", "SERVICE", "max_slots"]

PROTOCOL = 1
"""Version of the conversation; `Open.protocol`."""

SERVICE = "feeder.v1.Feeder"
DESCRIBE = f"/{SERVICE}/Describe"
FEED = f"/{SERVICE}/Feed"

MAX_NAME = 256
"""Most characters of a text in an Open: a worker keeps it, logs it and answers with it."""

MAX_CHUNK_BYTES = 256 << 20
"""Most pixel bytes of one chunk, so that no client can make a worker hold gigabytes for one answer."""


def max_slots(image_bytes: int) -> int:
    """The most slots that one chunk request may name, for images of `image_bytes` bytes each; at least 1."""
    return max(1, min(MAX_SLOTS, MAX_CHUNK_BYTES // image_bytes))
