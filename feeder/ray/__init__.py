"""Workers on a Ray cluster: `feeder ray up` starts them, `addresses` says where they are.

control (the driver) -> supervisor (a detached actor) -> host (an actor a worker) -> child (`feeder worker`)

The supervisor owns the hosts, and each worker dies with its host: whatever ends, what it started is gone.
"""

from __future__ import annotations

from feeder.ray.control import addresses

__all__ = ["addresses"]
