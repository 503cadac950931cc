"""feeder's stages, each round up to one of them: what a stage costs is the difference between two rounds.

    {"cmd": "load", "shards": [...], "files": [...], "windows": [...], "flips": [...], "size": n}
    {"cmd": "round", "stop": "read" | "entropy" | "planes" | "pixels", "seek": true | false}

The shards hold the bytes of the files, with seek points beside them. "read" reads each record, in an order of
its own, with its points where they are asked for; the others decode from memory what was read, on one thread.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from protocol import arguments, serve, versions

CHUNK_IMAGES = 32
ORDER_SEED = 1
"""Any fixed number would do: records are not read in the order in which they lie."""


class Stages:
    """Answers the requests of the bench of parts."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Reads all records, and finds the window of each by its bytes."""
        from feeder.decode import SeekPoints
        from feeder.decode._kernel import Kernel
        from feeder.decode.header import DEFAULT_LIMITS as limits
        from feeder.records import Dataset

        number = {Path(name).read_bytes(): index for index, name in enumerate(request["files"])}
        self._dataset = Dataset.open("parts", request["shards"], seek="use")
        self._order = np.random.default_rng(ORDER_SEED).permutation(len(self._dataset)).tolist()
        count = len(self._order)
        self._points = SeekPoints.nothing(count)
        self._images = [
            bytes(self._read(record, self._points.points[slot])) for slot, record in enumerate(self._order)
        ]
        rows = [number[image] for image in self._images]
        self._windows = np.array(request["windows"], dtype=np.int32)[rows]
        self._flips = np.array(request["flips"], dtype=bool)[rows]
        self._reductions = np.ones(count, np.uint8)
        self._out = np.empty((CHUNK_IMAGES, request["size"], request["size"], 3), np.uint8)
        self._kernel = Kernel(
            1,
            limits.max_bytes,
            limits.max_pixels,
            limits.max_scans,
            limits.max_scan_pixels,
            "best",
            False,
        )
        return {"decoder": f"native ({self._kernel.level})", "versions": versions("numpy")}

    def round(self, request: dict[str, Any]) -> dict[str, Any]:
        """One pass over all records up to a stage, of which nothing is kept."""
        cpu, wall = time.process_time(), time.perf_counter()
        if request["stop"] == "read":
            for slot, record in enumerate(self._order):
                self._read(record, self._points.points[slot] if request["seek"] else None)
        else:
            self._decode(request["stop"], request["seek"])
        return {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "images": len(self._order),
        }

    def _read(self, record: int, points: np.ndarray | None) -> Any:
        found = self._dataset.read(record)
        if points is not None and not self._dataset.seek.load(record, found.digest, points):
            raise ValueError(f"record {record} has no seek points")
        return found.image

    def _decode(self, stop: str, seek: bool) -> None:
        for first in range(0, len(self._images), CHUNK_IMAGES):
            span = slice(first, first + CHUNK_IMAGES)
            images = self._images[span]
            failed = self._kernel.decode(
                images,
                self._windows[span],
                self._flips[span],
                self._out[: len(images)],
                "bilinear",
                True,
                self._reductions[span],
                self._points.points[span] if seek else None,
                self._points.outcomes[span] if seek else None,
                stop,
            )
            if any(failed):
                raise ValueError(f"bad image: {next(filter(None, failed))}")


if __name__ == "__main__":
    arguments(__doc__ or "")
    serve(Stages())
