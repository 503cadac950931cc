"""Memory of clients on this host: taken over the side socket, written into by the pipeline, and let go.

One thread owns all sockets. The end of a client's socket, or of its call, ends its arena; its own end follows
when the last chunk that was being written into it is done, and tells the client so.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import secrets
import selectors
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError, ProtocolError, Refused
from feeder.figures import size
from feeder.wire.messages import ArenaOffer, ChunkRequest
from feeder.wire.side import (
    SIDE_TIMEOUT_S,
    check_memory,
    may_share,
    peer_uid,
    receive_offer,
    send_refusal,
    send_token,
    side_socket,
)
from feeder.worker.listen import is_abandoned, listen_unix

__all__ = ["Arena", "Arenas", "Target", "default_folder"]

log = logging.getLogger(__name__)

SPARE_PEERS = 16
"""Connections beyond one an arena: those that have not offered anything yet."""

RETRY_S = 0.1

STALE_S = 60.0
"""Age of a socket that never got its name: its worker died between two system calls."""

_SOCKET, _UNNAMED = ".sock", ".new"
_MAX_PATH_BYTES = 107  # sun_path of sockaddr_un holds 108 with its closing zero (man 7 unix)


class Target(NamedTuple):
    """Where a chunk's pixels go: images of `out`, uint8 [m, *image_shape]; `places`, int64 [n], one of them a
    slot; None: they are the slots' in turn."""

    out: NDArray[np.uint8]
    places: NDArray[np.int64] | None


class Arena:
    """A client's batch buffers, mapped.

    Args:
        done: is called once, when nobody writes any more and nobody will.
    """

    def __init__(self, fd: int, offer: ArenaOffer, done: Callable[[], None]) -> None:
        self.nbytes = offer.nbytes
        self._buffers, self._buffer_bytes = offer.buffers, offer.buffer_bytes
        self._memory: NDArray[np.uint8] | None = np.frombuffer(mmap.mmap(fd, offer.nbytes), np.uint8)
        self._done = done
        self._lock = threading.Lock()
        self._writers = 0
        self._ended = False

    def check(self, request: ChunkRequest, image_bytes: int) -> None:
        """Sees that a request stays within its buffer.

        Raises:
            ConfigError: it does not.
        """
        assert request.destination is not None
        buffer, offset = request.destination
        span = (request.slots[-1] - request.slots[0] + 1) * image_bytes
        if buffer >= self._buffers or offset + span > self._buffer_bytes:
            raise ConfigError(
                f"chunk request {request.id} wants {span} bytes at {offset} of buffer {buffer}; the arena "
                f"has {self._buffers} buffers of {self._buffer_bytes} bytes"
            )

    def begin(self, request: ChunkRequest, image_shape: tuple[int, ...]) -> Target | None:
        """Where the pixels of a checked request go, until `written`; None where the arena has ended."""
        assert request.destination is not None
        buffer, offset = request.destination
        slots = request.slots
        count = slots[-1] - slots[0] + 1
        shape, at = (count, *image_shape), buffer * self._buffer_bytes + offset
        places = None if count == len(slots) else np.array(slots) - slots[0]
        with self._lock:
            if self._ended or self._memory is None:
                return None
            target = Target(np.ndarray(shape, np.uint8, self._memory, at), places)
            self._writers += 1
            return target

    def written(self) -> None:
        """What went to a target of `begin` is in its place, and nothing is written there any more."""
        with self._lock:
            self._writers -= 1
            finished = self._ended and not self._writers
        if finished:
            self._finish()

    def end(self) -> None:
        """Lets nobody begin to write; does nothing the second time."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            finished = not self._writers
        if finished:
            self._finish()

    def _finish(self) -> None:
        self._memory = None
        self._done()


@dataclass(slots=True, eq=False)
class _Peer:
    """A connection, from accept to close.

    Attributes:
        deadline_s: until when it must have offered something.
        refusal: what it is told whatever it offers.
        arena: what it offered.
        done: the arena is let go.
    """

    connection: socket.socket
    deadline_s: float
    refusal: str = ""
    token: bytes = b""
    arena: Arena | None = None
    done: bool = False


class Arenas:
    """Takes arenas that clients offer.

    Args:
        folder: where the socket is made, under a name of its own; made where it is missing.
        most: arenas at a time.
        most_bytes: of all of them.

    Attributes:
        path: of the socket.

    Raises:
        ConfigError: the folder cannot be used: somebody else's, or open to others, or no folder.
    """

    def __init__(self, folder: Path, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._own = os.geteuid()
        self._lock = threading.Lock()  # of what follows, which `claim` looks at
        self._offered: dict[bytes, Arena] = {}
        # For the thread alone.
        self._peers: dict[int, _Peer] = {}
        self._mapped_bytes = 0
        self._closing = False
        self._listener, self.path = _listen(folder)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="feeder-arenas", daemon=True)
        self._thread.start()

    def claim(self, token: bytes) -> Arena | None:
        """The arena of this name, for one call only; None where there is none (any more)."""
        with self._lock:
            return self._offered.pop(token, None)

    def close(self) -> None:
        """Removes the socket and lets go of all arenas; nobody writes any more by now."""
        self._closing = True
        self._nudge()
        self._thread.join()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        for one in (self._listener, self._woken, self._wake, self._selector):
            one.close()

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):  # then it is awake anyway
            self._wake.send(b"\0")

    def _serve(self) -> None:
        while not self._closing:
            deadlines = [peer.deadline_s for peer in self._peers.values() if peer.arena is None]
            timeout_s = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            for key, _ in self._selector.select(timeout_s):
                try:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        self._woken.recv(4096)
                    else:
                        self._hear(self._peers[key.fd])
                except OSError as error:
                    log.warning("side socket: %s", error.strerror or error)
                    time.sleep(RETRY_S)  # such as too many open files, which the next round meets again
            self._let_go(time.monotonic())
        for peer in list(self._peers.values()):
            if peer.arena is not None:
                peer.arena.end()
            self._drop(peer)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        if len(self._peers) >= self._most + SPARE_PEERS:
            _refuse(connection, Refused("too many connections to the side socket: close some"))
            connection.close()
            return
        peer = _Peer(connection, time.monotonic() + SIDE_TIMEOUT_S)
        uid = peer_uid(connection)
        if not may_share(uid, self._own):
            peer.refusal = f"the worker runs as user {self._own} and shares no memory with user {uid}"
        self._peers[connection.fileno()] = peer
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, peer: _Peer) -> None:
        if peer.arena is None:
            try:
                offered = receive_offer(peer.connection)
                if offered is None:
                    self._drop(peer)
                else:
                    self._take(peer, *offered)
            except BlockingIOError:
                return
            except (Refused, ProtocolError) as error:
                _refuse(peer.connection, error)
                self._drop(peer)
            except Exception as error:  # noqa: BLE001  # a worker outlives whatever one client does
                log.warning("side socket: %s: %s", type(error).__name__, error)
                self._drop(peer)
            return
        with contextlib.suppress(BlockingIOError, ConnectionError):
            if peer.connection.recv(1):
                log.warning("an arena's client said something more; its arena ends")
        # The socket stays open until nobody writes any more: its end is what the client waits for.
        self._selector.unregister(peer.connection)
        peer.arena.end()

    def _take(self, peer: _Peer, offer: ArenaOffer, fd: int) -> None:
        try:
            if peer.refusal:
                raise Refused(peer.refusal)
            check_memory(fd, offer)
            if sum(other.arena is not None for other in self._peers.values()) >= self._most:
                raise Refused(f"{self._most} arenas are mapped, as many as --max-streams")
            if self._mapped_bytes + offer.nbytes > self._most_bytes:
                raise Refused(
                    f"an arena of {offer.nbytes} bytes is refused: {self._mapped_bytes} are mapped, and "
                    f"--arena-bytes is {self._most_bytes}"
                )
            try:
                peer.arena = Arena(fd, offer, lambda: self._done(peer))
            except OSError as error:
                raise Refused(f"the arena cannot be mapped: {error.strerror}") from None
        finally:
            os.close(fd)
        self._mapped_bytes += offer.nbytes
        peer.token = secrets.token_bytes(16)
        with self._lock:
            self._offered[peer.token] = peer.arena
        with contextlib.suppress(OSError):  # it is gone, as the next event says
            send_token(peer.connection, peer.token)
        log.info("arena of %s mapped", size(offer.nbytes))

    def _done(self, peer: _Peer) -> None:
        """On any thread."""
        peer.done = True
        self._nudge()

    def _let_go(self, now: float) -> None:
        for peer in list(self._peers.values()):
            if peer.done or (peer.arena is None and now >= peer.deadline_s):
                self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        with contextlib.suppress(KeyError):  # it ended before
            self._selector.unregister(peer.connection)
        del self._peers[peer.connection.fileno()]
        peer.connection.close()
        if peer.arena is not None:
            self._mapped_bytes -= peer.arena.nbytes
            with self._lock:
                self._offered.pop(peer.token, None)


def default_folder() -> Path:
    """Where the side socket is unless told otherwise: the user's own runtime folder, or one under /tmp."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isdir(runtime):
        return Path(runtime, "feeder")
    return Path(tempfile.gettempdir(), f"feeder-{os.geteuid()}")


def _refuse(connection: socket.socket, error: Exception) -> None:
    log.warning("side socket: %s", error)
    with contextlib.suppress(OSError):  # it does not wait for the answer
        send_refusal(connection, str(error))


def _listen(folder: Path) -> tuple[socket.socket, str]:
    """A socket with a name that no other worker has or will have: hosts and containers may share the
    folder."""
    try:
        folder = folder.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.stat(folder, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ConfigError(
                f"{folder}: the side socket needs a folder of your own that nobody else can write to: "
                f"name another one (--arena-dir)"
            )
        path = folder / (secrets.token_hex(8) + _SOCKET)
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise ConfigError(
                f"{folder}: the path of a socket has at most {_MAX_PATH_BYTES} bytes: "
                f"name a shorter folder (--arena-dir)"
            )
        _sweep(folder)
        unnamed = path.with_suffix(_UNNAMED)
        listener = side_socket()
        try:
            listen_unix(listener, str(unnamed))
            os.rename(unnamed, path)  # whoever sweeps finds it listening
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot make the side socket here: {error.strerror or error}: "
            f"name another folder (--arena-dir)"
        ) from error
    return listener, str(path)


def _sweep(folder: Path) -> None:
    """Removes the sockets of workers that died."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another worker sweeps, too
            found = path.lstat()
            if not stat.S_ISSOCK(found.st_mode):
                continue
            if path.suffix == _UNNAMED and time.time() - found.st_mtime < STALE_S:
                continue
            if path.suffix in (_SOCKET, _UNNAMED) and is_abandoned(str(path), socket.SOCK_SEQPACKET):
                path.unlink()
