"""Consumers as processes that can be killed: each is forked from one that has imported everything.

    fault_consumer.py FD

FD is a SOCK_SEQPACKET socket. Each packet holds a consumer's orders as JSON, and a stream socket over which
it is led: "n" wants the next batch, "r" a stream that is closed and made again from its `state_dict`. It
answers in lines of JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

import feeder
import feeder.client.engine


def held() -> int:
    """Sockets and shared memory that this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(("socket:", "/memfd:"))
        except OSError:
            continue
    return found


def open_stream(orders: dict[str, Any], start: dict[str, Any] | None) -> feeder.Stream:
    client = feeder.connect(orders["target"], timeout_s=60)
    return client.stream("data", **orders["arguments"], start=start)


def account(stream: feeder.Stream) -> dict[str, Any]:
    totals, stats = stream.ledger().totals, stream.stats()
    workers = stats.workers.values()
    return {
        "lost": totals.lost,
        "repeated": totals.repeated,
        "delivered": totals.delivered,
        "images": stats.images,
        "failovers": sum(worker.failovers for worker in workers),
        "reconnects": sum(worker.reconnects for worker in workers),
        "placed": stats.images * 32 * 32 * 3 - stats.received_bytes,
    }


def consume(orders: dict[str, Any], conversation: socket.socket) -> None:
    feeder.client.engine.SUSPECT_AFTER_S = orders["suspect_after_s"]
    before = held()
    stream = open_stream(orders, orders["start"])

    def say(**what: Any) -> None:
        conversation.sendall(json.dumps(what).encode() + b"\n")

    while command := conversation.recv(1):
        if command == b"r":
            state = stream.state_dict()
            stream.close()
            say(account=account(stream))
            stream = open_stream(orders, state)
            continue
        batch = next(stream, None)
        if batch is None:
            stream.close()
            say(account=account(stream))
            break
        digest = hashlib.sha256(b"".join((batch.images, batch.labels, batch.mask))).hexdigest()
        say(digest=digest, state=stream.state_dict())
    deadline_s = time.monotonic() + 10
    while (threading.active_count() > 1 or held() > before) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    say(threads=[thread.name for thread in threading.enumerate()][1:], held=held() - before)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            consume(json.loads(data), socket.socket(fileno=fds[0]))
            return
        os.close(fds[0])
        control.send(str(pid).encode())


if __name__ == "__main__":
    main()
