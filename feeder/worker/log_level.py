"""How much of what happens is logged."""

from __future__ import annotations

import logging

from feeder.worker.config import LogLevel

__all__ = ["OURS", "set_log_level"]

OURS = logging.getLogger("feeder")

_OF_OTHERS = logging.WARNING


def set_log_level(level: LogLevel) -> None:
    """Logs what is as grave as `level` or graver; of other libraries warnings and graver at most: below that
    they write down what clients send, and with its headers their tokens."""
    number = logging.getLevelNamesMapping()[level.upper()]
    OURS.setLevel(number)
    logging.getLogger().setLevel(max(number, _OF_OTHERS))
