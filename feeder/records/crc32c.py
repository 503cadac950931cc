"""crc32c (RFC 3720) of bytes: by our extension where it is built, several times as fast as google_crc32c."""

from __future__ import annotations

try:
    from feeder.records._frames import crc32c
except ImportError:
    from google_crc32c import value as crc32c

__all__ = ["crc32c"]
