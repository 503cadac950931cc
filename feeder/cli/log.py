"""A worker's log: lines for people, or JSON objects for what collects them."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feeder.worker.config import LogLevel

__all__ = ["JsonFormatter", "add_log_options", "log_to_stderr"]

log = logging.getLogger(__name__)

TEXT = "%(asctime)s feeder worker: %(message)s"

FIELDS = ("stream", "session", "job", "request", "peer")
"""What a line says beside its message, where whoever logged it knew (`extra` of logging)."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line, ASCII: ts (RFC 3339, UTC), level, logger, message; `FIELDS` where they are
    known, and the traceback as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Options that say what is logged, and how."""
    group = parser.add_argument_group("the log, on stderr")
    group.add_argument(
        "--log-format",
        choices=["text", "json"],
        default="text",
        help="json: one object a line, with ts, level, logger and message, and with stream, session, job and "
        "request where there is one (default: %(default)s)",
    )
    group.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="least that is logged (default: %(default)s)",
    )


def log_to_stderr(format_name: str, level: LogLevel) -> None:
    """Sends the log there from now on; as JSON also Python's warnings, and tracebacks of threads."""
    from feeder.worker.log_level import set_log_level

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format_name == "json" else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], force=True)
    set_log_level(level)
    if format_name == "json":
        logging.captureWarnings(True)
        threading.excepthook = _log_thread


def _log_thread(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread is not None else "unknown"
    if args.exc_value is not None:
        log.critical("thread %s failed", name, exc_info=args.exc_value)
