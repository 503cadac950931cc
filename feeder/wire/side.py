"""The side socket of a worker: how the memory of a client on the same host gets to it, and who may bring it.

What is said, and what the end of the socket means, is in feeder.proto at ArenaOffer.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct

from google.protobuf.message import DecodeError

from feeder.errors import ProtocolError, Refused
from feeder.wire import PROTOCOL
from feeder.wire.messages import ArenaOffer
from feeder.wire.v1 import feeder_pb2 as pb

__all__ = [
    "MAX_BUFFERS",
    "SEALS",
    "SIDE_TIMEOUT_S",
    "check_memory",
    "may_share",
    "peer_pid",
    "peer_uid",
    "receive_offer",
    "receive_token",
    "send_offer",
    "send_refusal",
    "send_token",
    "side_socket",
]

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""A file that cannot shrink cannot take pages away from who has it mapped, which would kill it (SIGBUS)."""

SIDE_TIMEOUT_S = 2.0
"""For what takes microseconds where both sides are alive."""

MAX_BUFFERS = 4096
MAX_PACKET_BYTES = 4096

_UCRED = struct.Struct("3i")  # pid, uid, gid
_FD = struct.Struct("i")


def side_socket() -> socket.socket:
    """A socket of the kind that both sides use: packets, in order, and an end."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def peer_uid(connection: socket.socket) -> int:
    """The user who connected, or who listens, as the kernel knows it."""
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)


def peer_pid(connection: socket.socket) -> int:
    """The process who connected, or who listens, as the kernel knows it."""
    pid, _, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(pid)


def may_share(uid: int, own: int) -> bool:
    """Whether memory may be shared between a process of user `uid` and this one, of user `own`: both the
    same, or one of them root."""
    return uid == own or 0 in (uid, own)


def send_offer(connection: socket.socket, fd: int, offer: ArenaOffer) -> None:
    """Offers an arena whose memory is `fd`."""
    message = pb.ArenaOffer(
        protocol=offer.protocol, buffers=offer.buffers, buffer_bytes=offer.buffer_bytes
    ).SerializeToString()
    socket.send_fds(connection, [message], [fd], socket.MSG_NOSIGNAL)


def receive_offer(connection: socket.socket) -> tuple[ArenaOffer, int] | None:
    """What a client offers, and the descriptor of its memory, which the caller closes; None at the end.

    Raises:
        ProtocolError: it is no offer, or one without memory.
    """
    # Not by socket.recv_fds, which forgets the flags.
    data, controls, flags, _ = connection.recvmsg(
        MAX_PACKET_BYTES, socket.CMSG_LEN(_FD.size), socket.MSG_CMSG_CLOEXEC
    )
    fds = [
        fd
        for level, kind, content in controls
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        for (fd,) in _FD.iter_unpack(content[: len(content) // _FD.size * _FD.size])
    ]
    if not data and not fds:
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(fds) != 1:
            raise ProtocolError("an arena is offered in one packet with one descriptor")
        try:
            message = pb.ArenaOffer.FromString(data)
        except DecodeError:
            raise ProtocolError(f"{len(data)} bytes that are no ArenaOffer came") from None
        if message.protocol != PROTOCOL:
            raise ProtocolError(f"the client speaks protocol {message.protocol}, this worker {PROTOCOL}")
        return ArenaOffer(message.buffers, message.buffer_bytes), fds.pop()
    finally:
        for fd in fds:
            os.close(fd)


def check_memory(fd: int, offer: ArenaOffer) -> None:
    """Sees that a descriptor is memory of the size that was offered, which stays so.

    Raises:
        Refused: it is not.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    if not 1 <= offer.buffers <= MAX_BUFFERS or offer.buffer_bytes % page or not offer.buffer_bytes:
        raise Refused(
            f"an arena has 1 to {MAX_BUFFERS} buffers of whole pages of {page} bytes; offered were "
            f"{offer.buffers} of {offer.buffer_bytes} bytes"
        )
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise Refused("an arena must be a memfd; offered was a descriptor without seals") from None
    if seals & SEALS != SEALS or seals & fcntl.F_SEAL_WRITE:
        raise Refused(
            f"an arena must be sealed against shrinking, growing and seals (F_SEAL_SHRINK, F_SEAL_GROW, "
            f"F_SEAL_SEAL), and not against writing; it has the seals {seals:#x}"
        )
    found = os.fstat(fd)
    if os.fstatvfs(fd).f_bsize != page:
        raise Refused("an arena must be of ordinary pages: huge ones (MFD_HUGETLB) may be missing")
    if not stat.S_ISREG(found.st_mode) or found.st_size != offer.nbytes:
        raise Refused(
            f"{offer.buffers} buffers of {offer.buffer_bytes} bytes were offered, and a file of "
            f"{found.st_size} bytes"
        )


def send_token(connection: socket.socket, token: bytes) -> None:
    """Takes the offer."""
    connection.send(pb.ArenaReply(arena=token).SerializeToString(), socket.MSG_NOSIGNAL)


def send_refusal(connection: socket.socket, reason: str) -> None:
    """Says no."""
    connection.send(pb.ArenaReply(refusal=reason).SerializeToString(), socket.MSG_NOSIGNAL)


def receive_token(connection: socket.socket) -> bytes:
    """The worker's word for the arena that it was offered.

    Raises:
        Refused: it says no.
        ProtocolError: it says nothing that can be understood.
    """
    data = connection.recv(MAX_PACKET_BYTES)
    try:
        reply = pb.ArenaReply.FromString(data)
    except DecodeError:
        reply = pb.ArenaReply()
    if reply.refusal:
        raise Refused(reply.refusal)
    if not reply.arena:
        raise ProtocolError("the worker answers an arena with nothing that can be understood")
    return bytes(reply.arena)
