"""What the screen and its parent say to each other: one JSON object per packet of a SOCK_SEQPACKET pair,
with at most one descriptor.

Screen to parent:  {"op": "save"}        a file to write a snapshot to
                   {"op": "discard"}     the file of the last save was not written whole: remove it
                   {"op": "reconnect"}   a new connection to a sampler
                   {"op": "check", "pid": DIGITS}    could a process load the library that records GPU work?
                   {"op": "attach", "pid": DIGITS}   have it do so
Parent to screen:  {"op": "saved", "path": PATH} + descriptor
                   {"op": "connection"} + descriptor
                   {"op": "attachable", "message": "" | "loaded"}   it could; it has loaded it already
                   {"op": "attached", "message": TEXT}
                   {"op": "sampler", "state": "running" | "restarting" | "failed", "message": TEXT}
                   {"op": "refused", "request": OP, "message": TEXT, "hint": TEXT}
Parent to sampler: {"op": "client"} + descriptor     another client; the end of this socket tells the sampler
to exit

A packet that is none of these is ignored: the screen may be under someone else's control, and its parent is
root.
"""

from __future__ import annotations

import array
import json
import os
import socket
from dataclasses import dataclass, field

MAX_PACKET = 8192
_MAX_FDS = 4


@dataclass(frozen=True)
class Packet:
    """One received packet. `fd` belongs to whoever received it (-1: none came along)."""

    op: str
    fields: dict[str, str] = field(default_factory=dict)
    fd: int = -1

    def close(self) -> None:
        """Close the descriptor, for a packet that is not wanted."""
        if self.fd >= 0:
            os.close(self.fd)


def pair() -> tuple[socket.socket, socket.socket]:
    """A control socket pair; packets keep their borders."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, op: str, fd: int = -1, **fields: str) -> bool:
    """Send one packet without ever waiting. False when the other side is gone or does not read."""
    body = json.dumps({"op": op, **{k: v[:2000] for k, v in fields.items()}}).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd >= 0 else []
    try:
        sock.sendmsg([body], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def receive(sock: socket.socket) -> Packet | None:
    """Receive one packet without waiting: None when there is none. EOFError when the other side is gone.

    Malformed packets come back as Packet("") so that the caller can tell them from silence.
    """
    try:
        body, ancillary, _, _ = sock.recvmsg(
            MAX_PACKET, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
    except BlockingIOError:
        return None
    except OSError as error:
        raise EOFError from error
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    for extra in descriptors[1:]:
        os.close(extra)
    fd = descriptors[0] if descriptors else -1
    if not body:
        Packet("", fd=fd).close()
        raise EOFError
    try:
        message = json.loads(body)
        fields = {k: v for k, v in message.items() if isinstance(v, str)}
        return Packet(fields.pop("op", ""), fields, fd)
    except (ValueError, AttributeError, RecursionError):
        return Packet("", fd=fd)
