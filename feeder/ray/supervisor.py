"""The detached actor that keeps the workers of a deployment running."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from feeder.ray.deployment import Deployment
from feeder.ray.host import STOP_MARGIN_S, Host, State
from feeder.ray.roster import Place, Roster, Scale

__all__ = ["Status", "Supervisor"]

log = logging.getLogger(__name__)

TICK_S = 1.0
"""Between two looks, and for answers; who is late is not asked again meanwhile."""

KILL_MARGIN_S = 10.0
"""For a host to say that its worker is gone."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a supervisor keeps running.

    Attributes:
        wanted: how many workers there should be; None before the nodes are known.
        draining: how many are on their way out.
        places: one for each that should be.
    """

    wanted: int | None
    draining: int
    places: tuple[Place, ...]


class Supervisor:
    """Starts a host for each worker that there should be, and another where one is lost.

    It owns the hosts: if it is killed, Ray kills them, their workers die with them, and Ray starts it again.
    """

    def __init__(self, deployment: Deployment) -> None:
        scale = None
        if deployment.workers is not None:
            scale = Scale(*deployment.workers, deployment.out_s, deployment.in_s)
        self._deployment = deployment
        self._roster = Roster(scale)
        self._known = False  # whether the places are those of the nodes
        self._hosts: dict[str, Any] = {}  # by key of the place
        self._asked: dict[str, Any] = {}  # what their state will be
        self._leaving: dict[Any, tuple[Any, float]] = {}  # what will say that it left -> host, deadline
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder-supervisor", daemon=True)
        self._thread.start()

    def addresses(self) -> list[str]:
        """Where the workers that are ready are reached."""
        with self._lock:
            return [place.address for place in self._roster.places.values() if place.state == "ready"]

    def status(self) -> Status:
        """All that should be."""
        with self._lock:
            wanted = self._roster.wanted if self._known else None
            return Status(wanted, len(self._leaving), tuple(self._roster.places.values()))

    def down(self) -> None:
        """Lets all workers answer what they owe and go; returns when they are gone."""
        self._stopping.set()
        self._thread.join()
        with self._lock:
            for place in self._roster.places.values():
                self._leave(place)
        while self._leaving:
            self._see_off()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tick()
            except Exception:  # the workers go on, and Ray may be asked again
                log.exception("cannot look after the workers")
            self._stopping.wait(TICK_S)

    def _tick(self) -> None:
        for key, host in self._hosts.items():
            if key not in self._asked:
                self._asked[key] = host.state.remote()
        if self._asked:
            answers = list(self._asked.values())
            ray.wait(answers, num_returns=len(answers), timeout=TICK_S)
        if self._leaving:
            self._see_off()
        nodes = [node["NodeID"] for node in ray.nodes() if self._deployment.fits(node)]
        with self._lock:
            for key, answer in list(self._asked.items()):
                self._take(key, answer)
            start, given_up = self._roster.plan(nodes, time.monotonic())
            self._known = True
            for place in given_up:
                self._leave(place)
            for place in start:
                self._hosts[place.key] = self._start(place)

    def _start(self, place: Place) -> Any:
        deployment = self._deployment
        strategy = NodeAffinitySchedulingStrategy(place.key, soft=False) if place.bound else "SPREAD"
        return (
            ray.remote(Host)
            .options(
                num_cpus=deployment.num_cpus,
                resources=dict(deployment.resources),
                scheduling_strategy=strategy,
                max_concurrency=2,
            )
            .remote(deployment)
        )

    def _take(self, key: str, answer: Any) -> None:
        """What a host says of itself, if it did."""
        if not ray.wait([answer], timeout=0)[0]:
            return
        del self._asked[key]
        place = self._roster.places[key]
        try:
            state: State = ray.get(answer)
        except ActorUnavailableError:
            return  # perhaps its node is slow; Ray finds out
        except RayError as error:
            self._lose(place, str(error).strip().partition("\n")[0])
            return
        place.node, place.pid = state.node, state.pid
        if state.ended:
            self._lose(place, state.ended)
        elif state.address:
            place.state, place.address, place.needed = "ready", state.address, state.needed

    def _lose(self, place: Place, reason: str) -> None:
        if place.node:
            reason = f"{reason} (on {place.node})"
        log.warning("a worker is lost: %s", reason)
        ray.kill(self._hosts.pop(place.key))
        self._roster.lost(place, reason, time.monotonic())

    def _leave(self, place: Place) -> None:
        host = self._hosts.pop(place.key, None)
        self._asked.pop(place.key, None)
        if host is not None and place.state != "ready":
            ray.kill(host)  # it owes nobody anything, and Ray may not even have room for it
        elif host is not None:
            deadline_s = time.monotonic() + self._deployment.drain_s + STOP_MARGIN_S + KILL_MARGIN_S
            self._leaving[host.stop.remote()] = host, deadline_s

    def _see_off(self) -> None:
        """Ends the hosts whose workers are gone."""
        wait_s = TICK_S if self._stopping.is_set() else 0
        gone, _ = ray.wait(list(self._leaving), timeout=wait_s)
        for answer, (host, deadline_s) in list(self._leaving.items()):
            if answer in gone or time.monotonic() > deadline_s:
                ray.kill(host)
                del self._leaving[answer]
