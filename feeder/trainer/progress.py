"""What a person sees of a running training: a live line."""

from __future__ import annotations

import shutil
from typing import TextIO

from feeder.trainer.watch import Finished

__all__ = ["Progress"]

TTY_INTERVAL_S = 0.2
LOG_INTERVAL_S = 10.0
RATE_WINDOW_S = 5.0
"""Rates and shares on the line are over about the last 5 s."""


class Progress:
    """One line about the running training: rewritten in place on a terminal, otherwise a new line each 10
    s. "wait" is the share of time in which the device waited for input."""

    def __init__(self, out: TextIO, batch_size: int) -> None:
        self._out = out
        self._live = out.isatty()
        self._batch_size = batch_size
        self._interval_s = TTY_INTERVAL_S if self._live else LOG_INTERVAL_S
        self._shown_at = 0.0
        #: (time, step, seconds waited for input so far), oldest first.
        self._marks: list[tuple[float, int, float]] = []

    def step(self, finished: Finished, steps: int, waited_s: float) -> None:
        """Tells of a finished step; see feeder.trainer.loop.Listener."""
        now, step = finished.at, finished.step
        if self._marks and step < steps and now - self._shown_at < self._interval_s:
            return
        self._shown_at = now
        self._marks.append((now, step, waited_s))
        while len(self._marks) > 2 and now - self._marks[1][0] >= RATE_WINDOW_S:
            del self._marks[0]
        since, first, waited = self._marks[0]
        speed = ""
        if now > since:
            rate = (step - first) * self._batch_size / (now - since)
            share = max(0.0, waited_s - waited) / (now - since)
            speed = f"{rate:7,.0f} images/s  wait {share:4.0%}  "
        at = f"step {step:>{len(str(steps))}}/{steps}"
        self._show(f"{at}  {speed}loss {finished.loss:.3f}  accuracy {finished.accuracy:4.0%}")

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._live:
            self._out.write("\r\x1b[K")
        self._out.write(f"{text}\n")
        self._out.flush()

    def close(self) -> None:
        """Leaves the last line standing."""
        if self._live and self._marks:
            self._out.write("\n")
            self._out.flush()

    def _show(self, line: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r{line[:width]}\x1b[K")
        else:
            self._out.write(f"{line}\n")
        self._out.flush()
