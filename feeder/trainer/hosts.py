"""Several hosts in one training: one process each, which JAX joins together."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils

from feeder.errors import ConfigError, ServiceError

__all__ = ["join", "total"]

JOIN_TIMEOUT_S = 300


def join(coordinator: str | None = None, processes: int | None = None, index: int | None = None) -> None:
    """Joins this process to the others, before anything else of JAX is used.

    Args:
        coordinator: host:port where process 0 listens.
        processes: how many there are.
        index: of this one, in [0, processes).

    With all three None, the cluster's environment says it (TPU pods, Slurm, Open MPI, Kubernetes).

    Raises:
        ConfigError: some are missing, or the environment does not say them.
        ServiceError: the others did not come within 5 minutes.
    """
    try:
        jax.distributed.initialize(coordinator, processes, index, initialization_timeout=JOIN_TIMEOUT_S)
    except ValueError as error:
        raise ConfigError(
            f"the processes cannot be joined: {error} Give --coordinator, --processes and --process-index"
        ) from error
    except RuntimeError as error:
        raise ServiceError(
            f"process {index} of {processes} could not join at {coordinator}: {error}"
        ) from error


def total(*values: int) -> tuple[int, ...]:
    """The sum of each value over all processes; all call this with as many."""
    gathered = multihost_utils.process_allgather(np.array(values, np.int32))
    return tuple(int(value) for value in gathered.reshape(-1, len(values)).sum(0))
