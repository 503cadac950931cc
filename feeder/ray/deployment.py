"""What shall run on a Ray cluster, as the supervisor is told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feeder.errors import ConfigError
from feeder.wire.address import Address
from feeder.wire.credentials import Credentials

__all__ = ["Deployment"]

MAX_WORKERS = 4096


@dataclass(frozen=True)
class Deployment:
    """Workers of one name, checked.

    Attributes:
        environment: variables that tell `feeder worker` all but where it listens.
        folder: where relative paths of the settings start.
        listen: where each worker listens; where the port is taken on its node, at any free one.
        http: the same for metrics and health; None: nowhere.
        drain_s: how long a worker that is to go may take for what it owes.
        workers: fewest and most; None: one on each node.
        num_cpus: CPUs of Ray's count that each worker takes; 0: none.
        resources: what else of Ray's resources each takes.
        out_s: seconds over which demand is measured before there are more workers.
        in_s: seconds that fewer workers must have been enough before there are fewer.
        credentials: what a worker is shown by who asks how it does; None: what the node's environment says.
    """

    environment: Mapping[str, str]
    folder: str
    listen: Address
    http: Address | None
    drain_s: float
    workers: tuple[int, int] | None = None
    num_cpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    out_s: float = 60.0
    in_s: float = 600.0
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        if self.listen.kind != "tcp":
            raise ConfigError(f"--listen wants host:port for workers on several nodes, got {self.listen}")
        if self.workers is not None and not 1 <= self.workers[0] <= self.workers[1] <= MAX_WORKERS:
            least, most = self.workers
            raise ConfigError(f"--workers must be N or LEAST-MOST in [1, {MAX_WORKERS}], got {least}-{most}")
        if self.num_cpus < 0:
            raise ConfigError(f"--num-cpus must be at least 0, got {self.num_cpus:g}")
        for name, amount in self.resources.items():
            if not amount > 0:
                raise ConfigError(f"--resource {name} must be above 0, got {amount:g}")
        for option, value in (("--scale-out-after", self.out_s), ("--scale-in-after", self.in_s)):
            if not 1 <= value <= 86400:
                raise ConfigError(f"{option} must be in [1, 86400] seconds, got {value:g}")

    def fits(self, node: Mapping[str, Any]) -> bool:
        """Whether a node, as `ray.nodes()` has it, is alive, and has room for a worker when it is empty."""
        has = node["Resources"]
        wanted = {"CPU": self.num_cpus, **self.resources}
        return bool(node["Alive"]) and all(has.get(name, 0) >= amount for name, amount in wanted.items())
