"""The actor beside one worker: starts it, says how it is, and ends it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass

import grpc
import ray

from feeder.client.workers import describe
from feeder.demand import Demand
from feeder.errors import ConfigError
from feeder.ray.deployment import Deployment
from feeder.wire.address import Address, parse_address
from feeder.wire.channel import open_channel

__all__ = ["STOP_MARGIN_S", "Host", "State"]

READY = "feeder worker listening on "
"""What `feeder worker` prints before its address."""

ERROR = "feeder: error: "

TAKEN = "another process listens on port"
"""What it says where another took its port after this process had looked: they started at once."""

LISTEN_TRIES = 5

DESCRIBE_TIMEOUT_S = 2.0

STOP_MARGIN_S = 20.0
"""What the end of a worker may take beyond the drain."""

TAIL_LINES = 5


@dataclass(frozen=True, slots=True)
class State:
    """How a worker is.

    Attributes:
        node: address of its node.
        pid: of its process; 0 before it has one.
        address: where clients reach it; empty until it is ready.
        needed: its share of the workers that there should be, see feeder.demand.
        ended: why it ended; empty while it runs.
    """

    node: str
    pid: int
    address: str
    needed: float
    ended: str


class Host:
    """A worker of a deployment, as a child of this process: killed by the system when this process is.

    It is an actor, and may be asked for its state while it waits in `stop`.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._node = ray.util.get_node_ip_address()
        self._process: subprocess.Popen[str] | None = None
        self._address = ""
        self._ended = ""
        self._stopping = False
        self._lock = threading.Lock()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._demand = Demand(deployment.out_s)
        self._needed = 0.0
        self._channel: grpc.Channel | None = None  # to the worker, once it is ready
        # The child lives as long as the thread that starts it, which calls of the actor need not do.
        self._keeper = threading.Thread(target=self._keep, name="feeder-keeper", daemon=True)
        self._keeper.start()

    def state(self) -> State:
        """How the worker is now."""
        if self._channel is not None and not self._ended:
            self._measure(self._channel)
        pid = 0 if self._process is None else self._process.pid
        return State(self._node, pid, self._address, self._needed, self._ended)

    def stop(self) -> None:
        """Lets the worker answer what it owes and go, and kills it when it does not in time."""
        with self._lock:
            self._stopping = True
            if self._process is not None:
                self._process.terminate()
        self._keeper.join(self._deployment.drain_s + STOP_MARGIN_S)
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _keep(self) -> None:
        ended = ""
        try:
            for _ in range(LISTEN_TRIES):
                ended = self._run()
                if self._address or TAKEN not in ended:
                    break
        except OSError as error:
            ended = f"cannot be started: {error}"
        self._ended = ended

    def _run(self) -> str:
        """One worker from start to end; returns why it ended."""
        deployment = self._deployment
        environment = {**os.environ, **deployment.environment, "FEEDER_LISTEN": str(_free(deployment.listen))}
        if deployment.http is not None:
            environment["FEEDER_HTTP"] = str(_free(deployment.http))
        with self._lock:
            if self._stopping:
                return ""
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", "feeder.child", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=deployment.folder if os.path.isdir(deployment.folder) else None,
                text=True,
                errors="replace",
            )
        assert process.stdout is not None
        for line in process.stdout:
            sys.stderr.write(line)  # Ray keeps it among its logs
            sys.stderr.flush()
            if line.startswith(READY):
                address = self._public(parse_address(line.removeprefix(READY)))
                try:
                    self._channel = open_channel(address, deployment.credentials)
                except ConfigError as error:  # a file that this node lacks: the worker serves all the same
                    sys.stderr.write(f"feeder: the worker cannot be asked how it does: {error}\n")
                self._address = str(address)
            else:
                self._tail.append(line.strip())
        return f"{_manner(process.wait())}: {self._reason()}"

    def _public(self, address: Address) -> Address:
        """Where others reach what listens here."""
        if address.host not in ("0.0.0.0", "::"):
            return address
        return dataclasses.replace(address, host=self._node)

    def _measure(self, channel: grpc.Channel) -> None:
        with contextlib.suppress(grpc.RpcError):
            counters = describe(channel, DESCRIBE_TIMEOUT_S).result().counters
            self._needed = self._demand.needed(counters.decode_s, counters.idle_s)

    def _reason(self) -> str:
        errors = [line.removeprefix(ERROR) for line in self._tail if line.startswith(ERROR)]
        return errors[-1] if errors else (self._tail[-1] if self._tail else "it said nothing")


def _free(address: Address) -> Address:
    """The address, with a port that is free where its own is taken."""
    for port in (address.port, 0):
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                break  # the worker says what is wrong
            return dataclasses.replace(address, port=probe.getsockname()[1])
    return address


def _manner(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
