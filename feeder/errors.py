"""Every error that feeder raises on purpose, by whose fault it is.

    FeederError
    ├── ConfigError (ValueError)     the caller's arguments, flags or position
    │   └── PositionMismatch         a saved position that belongs to another stream
    ├── DataError                    the bytes in the shards
    │   ├── BadRecord                one record: crc, parse or decode
    │   └── BadShard                 a shard or its index as a whole
    ├── StorageError (OSError)       reading failed although the bytes may be fine; it was retried
    ├── ServiceError                 the service between worker and client
    │   ├── WorkerUnavailable        no worker answers in time
    │   ├── WorkersDisagree          workers of one data set serve different data or pixels
    │   ├── NotTrusted               a certificate is not what the other side wants, or one speaks no TLS
    │   ├── Refused                  a worker said no: stream limit, duplicate consumer, unknown data set
    │   │   └── NotAllowed           it wants a token, another one, or one that may do more
    │   └── ProtocolError            the other side sent something this version cannot read
    └── Closed                       used after close, or after fork

The trainer adds one of its own, `feeder.trainer.watch.NonFiniteLoss`.

A message says where it happened, what came, and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "BadRecord",
    "BadShard",
    "Closed",
    "ConfigError",
    "DataError",
    "FeederError",
    "NotAllowed",
    "NotTrusted",
    "PositionMismatch",
    "ProtocolError",
    "Refused",
    "ServiceError",
    "StorageError",
    "WorkerUnavailable",
    "WorkersDisagree",
    "printable",
]


def printable(text: str) -> str:
    """The text in one line, as a log or a terminal can show it.

    Names in shards and folders may hold line feeds, escape sequences, and bytes that are no text (lone
    surrogates): these become backslashes and letters, "\\n" or "\\udcff".
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


class FeederError(Exception):
    """Base of all errors that feeder raises on purpose."""


class ConfigError(FeederError, ValueError):
    """An argument, flag or setting is wrong; the message holds the value that came."""


class PositionMismatch(ConfigError):
    """A saved position was made for other data, another global batch or another spec."""


class DataError(FeederError):
    """Bytes in a shard are damaged."""


class BadRecord(DataError):
    """One record cannot be used.

    Attributes:
        shard: name of the shard file.
        index: number of the record within the shard, from 0.
        reason: what is wrong, in a few words, without the place.
    """

    def __init__(self, shard: str, index: int, reason: str) -> None:
        super().__init__(printable(f"{shard}: record {index}: {reason}"))
        self.shard = shard
        self.index = index
        self.reason = reason

    def __reduce__(self) -> tuple[type[BadRecord], tuple[str, int, str]]:
        return type(self), (self.shard, self.index, self.reason)


class BadShard(DataError):
    """A shard, or the index beside it, cannot be used at all."""


class StorageError(FeederError, OSError):
    """Storage failed (not the bytes): the read was retried and may be tried again later."""


class ServiceError(FeederError):
    """Something between worker and client failed."""


class WorkerUnavailable(ServiceError):
    """No worker answered within the deadline."""


class WorkersDisagree(ServiceError):
    """Two workers serve different records, or different pixels, under one data set name."""


class Refused(ServiceError):
    """A worker refused the request and said why."""


class NotAllowed(Refused):
    """A worker wants a token, does not know the one that it was shown, or one that may do more."""


class NotTrusted(ServiceError):
    """Worker and client cannot agree on TLS: a certificate is missing or not trusted, or one speaks none."""


class ProtocolError(ServiceError):
    """The other side sent a message that this version cannot read."""


class Closed(FeederError):
    """The object was used after close(), or in a child process after fork."""
