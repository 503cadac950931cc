"""Reads shards once to index them, or reads them and does nothing else; they are in the page cache."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from protocol import arguments, serve, versions

VARIANTS = ("index", "read")

READ_BYTES = 1 << 20


class Reading:
    """Passes over shards."""

    def __init__(self, variant: str) -> None:
        self._pass = self._index if variant == "index" else self._read

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keeps the paths of the shards."""
        self._shards = [Path(path) for path in request["shards"]]
        return {"versions": versions("numpy")}

    def round(self, request: dict[str, Any]) -> dict[str, Any]:
        """Some passes; `images` are those of one shard after the other, as often as they were passed."""
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(request["passes"]):
            self._pass()
        return {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "images": request["passes"] * request["images"],
        }

    def _index(self) -> None:
        from feeder.records import RecordKeys
        from feeder.records.build import ensure_indexes

        with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
            # Otherwise those that lie beside the shards would do.
            ensure_indexes(self._shards, RecordKeys(), index_dir=Path(folder), jobs=1, force=True)

    def _read(self) -> None:
        buffer = bytearray(READ_BYTES)
        for shard in self._shards:
            with shard.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


if __name__ == "__main__":
    serve(Reading(arguments(__doc__ or "", VARIANTS).variant))
