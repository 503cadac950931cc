"""A training job of a Ray cluster, told on stdin what to do; answers each line with one of JSON.

"status NAME", "open NAME EPOCHS AHEAD", "take N" batches, take them slowly "until ADDRESS" has made some, or
as fast as they come "until_many" workers have, take all the "rest", "close".
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from functools import partial
from typing import Any

import feeder
import feeder.ray
from feeder.ray import control

ARGUMENTS: dict[str, Any] = {"batch_size": 12, "image_size": 32, "seed": 9}
BATCH_BYTES = 12 * 32 * 32 * 3


def digest(batch: feeder.Batch) -> str:
    return hashlib.sha256(b"".join((batch.images, batch.labels, batch.mask))).hexdigest()


class Job:
    """What is open."""

    def status(self, name: str) -> Any:
        return dataclasses.asdict(control.status(name))

    def open(self, name: str, epochs: str, ahead: str) -> Any:
        self.client = feeder.connect(partial(feeder.ray.addresses, name), resolve_s=0.5)
        self.stream = self.client.stream(
            "train", epochs=int(epochs), prefetch_bytes=int(ahead) * BATCH_BYTES, **ARGUMENTS
        )
        self.digests: list[str] = []
        return sorted(self.client.workers)

    def take(self, count: str) -> Any:
        self.digests += [digest(next(self.stream)) for _ in range(int(count))]
        return len(self.digests)

    def until(self, address: str) -> Any:
        while address not in (workers := self.stream.stats().workers) or not workers[address].images:
            self.digests.append(digest(next(self.stream)))
            time.sleep(0.1)
        return len(self.digests)

    def until_many(self, count: str) -> Any:
        while sum(worker.images > 0 for worker in self.stream.stats().workers.values()) < int(count):
            next(self.stream)
        return sorted(self.stream.stats().workers)

    def rest(self) -> Any:
        self.digests += [digest(batch) for batch in self.stream]
        totals = self.stream.ledger().totals
        self.close()
        return self.digests, dataclasses.asdict(totals)

    def close(self) -> Any:
        self.client.close()


def main() -> None:
    import ray  # not where the module is only read

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray says on stdout what dies
    ray.init(address="auto", log_to_driver=False)
    job = Job()
    for line in sys.stdin:
        method, *words = line.split()
        print(json.dumps(getattr(job, method)(*words)), file=answers, flush=True)


if __name__ == "__main__":
    main()
