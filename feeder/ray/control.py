"""The driver's side: starts a deployment, asks for it, and ends it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from feeder.errors import ConfigError, WorkerUnavailable

if TYPE_CHECKING:
    from feeder.ray.deployment import Deployment
    from feeder.ray.supervisor import Status

__all__ = ["addresses", "connected", "down", "status", "up"]

DEFAULT_NAME = "feeder"

NAMESPACE = "feeder"
"""Of the supervisors; jobs of any other namespace find them there."""

ANSWER_S = 30.0

KNOCK_S = 5.0

HEAD = "node:__internal_head__"
"""A resource that Ray gives to the head node: if that dies, so does the cluster."""


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """While this process is a driver of a Ray cluster; what Ray says on stdout meanwhile goes to stderr.

    Args:
        address: as `ray.init` takes it; None: RAY_ADDRESS, or the cluster that runs on this host.

    Raises:
        ConfigError: there is none.
    """
    import ray

    named = address or os.environ.get("RAY_ADDRESS")
    place = f"at {named}" if named else "on this host"
    try:
        _knock(named or "")
        ray.init(address or "auto", namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().rstrip(".")
        raise ConfigError(
            f"no Ray cluster can be reached {place}: {reason}; start one with `ray start --head`, or say "
            "where it is with --ray-address"
        ) from None
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Ray itself tries for a quarter of an hour to reach an address where nothing listens."""
    host, _, port = address.rpartition(":")
    if host and "//" not in host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()


def addresses(name: str = DEFAULT_NAME) -> list[str]:
    """Where the workers of a deployment are reached now, those that are ready.

    For processes that are connected to the Ray cluster, such as its tasks and actors. It is meant to be given
    to `feeder.connect`, which calls it again while a stream runs, so that workers which join or move take
    part: `feeder.connect(feeder.ray.addresses)`.

    Raises:
        ConfigError: this process is not connected to a Ray cluster.
        WorkerUnavailable: there is no such deployment, or its supervisor does not answer.
    """
    found: list[str] = _ask(name, "addresses", ANSWER_S)
    return found


def status(name: str = DEFAULT_NAME) -> Status:
    """What a deployment's supervisor keeps running.

    Raises:
        ConfigError, WorkerUnavailable: see `addresses`.
    """
    found: Status = _ask(name, "status", ANSWER_S)
    return found


def up(name: str, deployment: Deployment) -> None:
    """Starts a deployment, which then lives as long as the cluster, or until `down`; does not wait for its
    workers.

    Raises:
        ConfigError: there is one of that name.
    """
    import ray

    from feeder.ray.supervisor import Supervisor

    try:
        ray.remote(Supervisor).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=-1,  # who asks while it starts again is answered then
            max_concurrency=8,
            num_cpus=0,
            resources={HEAD: 0.001},
        ).remote(deployment)
    except ValueError as error:
        if _find(name) is None:
            raise
        raise ConfigError(
            f"there is a deployment {name!r} on this cluster already; end it with `feeder ray down`, or give "
            "this one another --name"
        ) from error


def down(name: str, timeout_s: float) -> None:
    """Ends a deployment: its workers answer what they owe, for as long as it says.

    Args:
        timeout_s: after so long all are killed.

    Raises:
        ConfigError: this process is not connected to a Ray cluster.
        WorkerUnavailable: there is no such deployment, or it had to be killed.
    """
    import ray

    try:
        _ask(name, "down", timeout_s)
    finally:
        supervisor = _find(name)
        if supervisor is not None:
            ray.kill(supervisor)  # Ray kills what it owns, should there be something left


def _find(name: str) -> Any:
    """The supervisor; None where there is no deployment of that name."""
    import ray

    if not ray.is_initialized():
        raise ConfigError("this process is not connected to a Ray cluster; call ray.init(address=...) first")
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def _ask(name: str, method: str, timeout_s: float) -> Any:
    import ray
    from ray.exceptions import RayError

    supervisor = _find(name)
    if supervisor is None:
        raise WorkerUnavailable(
            f"there is no deployment {name!r} on this Ray cluster; start it with `feeder ray up`"
        )
    try:
        return ray.get(getattr(supervisor, method).remote(), timeout=timeout_s)
    except RayError as error:
        reason = str(error).strip().partition("\n")[0]
        raise WorkerUnavailable(f"the supervisor of {name!r} does not answer: {reason}") from error
