"""Who was sent away, and why: counted for all, logged for some."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections import Counter
from typing import Literal, TypeAlias, get_args

__all__ = ["Reason", "Refusals", "why_no_handshake"]

log = logging.getLogger(__name__)

LOG_S = 10.0
LOG_LINES = 5
"""At most so many lines of the log on one reason in so long: whoever is refused comes again at once."""

Reason: TypeAlias = Literal[
    # of connections
    "busy",  # there are as many as there may be, of all or of this host
    "no_tls",  # plain, where TLS is spoken
    "tls",  # TLS, where none is spoken
    "no_certificate",  # it showed none, and must
    "expired",  # its certificate's time is over, or has not come
    "unknown_ca",  # its certificate is of an authority that is not trusted
    "distrusted",  # it does not trust ours
    "protocol",  # another failure of a handshake
    "timeout",  # nothing came in time
    "bad_request",  # what came at the HTTP port is no request
    # of calls
    "no_token",
    "wrong_token",
    "not_allowed",
    "bad_call",  # it ended before its stream was open: limits, wrong data, or nothing that can be understood
]


class Refusals:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Reason] = Counter(dict.fromkeys(get_args(Reason), 0))
        self._unlogged: Counter[Reason] = Counter()
        self._until_s: dict[Reason, float] = {}
        self._lines_left: dict[Reason, int] = {}

    def note(self, reason: Reason, peer: str, text: str) -> None:
        """One was refused; `text` is for the log."""
        with self._lock:
            self._counts[reason] += 1
            self._unlogged[reason] += 1
            now_s = time.monotonic()
            if now_s >= self._until_s.get(reason, 0.0):
                self._until_s[reason], self._lines_left[reason] = now_s + LOG_S, LOG_LINES
            if not self._lines_left[reason]:
                return
            self._lines_left[reason] -= 1
            count = self._unlogged.pop(reason)
        log.warning("%s: refused, %s (%d since the last such line)", peer, text, count)

    def log_rest(self) -> None:
        """Says how many there were that no line was for; when the worker ends."""
        with self._lock:
            rest, self._unlogged = self._unlogged, Counter()
        for reason, count in rest.items():
            log.warning("refused, %s: %d more since the last such line", reason, count)

    def counts(self) -> dict[Reason, int]:
        """How many there were of each."""
        with self._lock:
            return dict(self._counts)


def why_no_handshake(error: ssl.SSLError) -> tuple[Reason, str]:
    """What a handshake failed of, for the counter and for the log."""
    reason = error.reason or "no reason given"
    if isinstance(error, ssl.SSLCertVerificationError):
        kind: Reason = "expired" if error.verify_code in (9, 10) else "unknown_ca"
        return kind, f"its certificate: {error.verify_message}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "no_certificate", "it showed no certificate: --tls-client-ca wants one"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "CA" in reason):
        return "distrusted", f"it does not trust the certificate of this worker ({reason})"
    if reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER"):
        return "no_tls", "it speaks no TLS"
    if reason == "UNEXPECTED_EOF_WHILE_READING":
        return (
            "protocol",
            "it broke off the handshake, as some do that do not trust this worker's certificate",
        )
    return "protocol", f"the handshake failed: {reason}"
