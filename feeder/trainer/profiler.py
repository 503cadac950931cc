"""JAX's profiler around a few steps of a run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType

import jax

__all__ = ["Profiler"]

FIRST, STEPS = 10, 10
"""Steps of this run before the trace begins, and that it covers: by then batches come at their own pace."""


class Profiler:
    """Traces steps 11 to 20 of this run into a folder that TensorBoard's profile plugin or Perfetto show. A
    context manager; without a folder it does nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._seen = 0
        self._running = False

    def step(self, number: int) -> AbstractContextManager[None]:
        """Around what dispatches a step, by its number."""
        if self._folder is None:
            return nullcontext()
        # The device is at most two steps behind what is dispatched.
        if self._running and self._seen == FIRST + STEPS + 2:
            self._stop()
        if self._seen == FIRST:
            jax.profiler.start_trace(self._folder)
            self._running = True
        self._seen += 1
        return jax.profiler.StepTraceAnnotation("train", step_num=number)

    def _stop(self) -> None:
        if self._running:
            self._running = False
            jax.profiler.stop_trace()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Profiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
