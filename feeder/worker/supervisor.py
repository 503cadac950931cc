"""What a worker tells the service manager that started it, by systemd's protocol (sd_notify(3)).

Where there is none, NOTIFY_SOCKET is not set and nothing is said.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

__all__ = ["Supervisor"]

log = logging.getLogger(__name__)


class Supervisor:
    """The other side of NOTIFY_SOCKET.

    Attributes:
        beat_s: how often `beat` must be called, in seconds; None where nobody watches. Half of what the
            manager waits for, as sd_watchdog_enabled(3) recommends.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environ.get("WATCHDOG_USEC", "")
        self.beat_s = int(usec) / 2e6 if self._address and watched and usec.isdecimal() else None

    def ready(self, status: str) -> None:
        """The worker takes streams now; `status` is shown by `systemctl status`."""
        self._tell("READY=1", f"STATUS={status}")

    def beat(self) -> None:
        """The worker is alive."""
        if self.beat_s is not None:
            self._tell("WATCHDOG=1")

    def stopping(self, within_s: float) -> None:
        """The worker drains, for at most so long: it must not be killed before."""
        self._tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}", "STATUS=draining")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        # A name that starts with @ lies in Linux's abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            log.warning("cannot tell the service manager (%s): %s", self._address, error.strerror)
