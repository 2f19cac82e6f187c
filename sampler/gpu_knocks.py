"""Processes whose injection library has just made its ring: they say so by a datagram (bpf/inject/knock.c).

It goes to an abstract socket, which any process of this network namespace may write to, and tells nothing but
who sent it, which the kernel says. Without it processes are found a little later.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import ExitStack, suppress

from gpuprof.sampler.gpu_discovery import knock_address

MAX_KNOCKS = 64  # that are taken at once; others wait in their processes
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid


class Knocks:
    """The socket, from `open` to `close`; before and after, nobody knocks. Not thread-safe."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Begin to hear knocks, unless another sampler of this machine does."""
        with suppress(OSError), ExitStack() as undo:
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            undo.enter_context(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            listening.bind(knock_address())
            listening.setblocking(False)
            undo.pop_all()
            self._socket = listening

    def take(self) -> set[int]:
        """Return the processes (pids) that have knocked since the last call."""
        pids: set[int] = set()
        for _ in range(MAX_KNOCKS if self._socket is not None else 0):
            try:
                assert self._socket is not None
                _, control, _, _ = self._socket.recvmsg(0, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:
                break
            for level, kind, data in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    pids.add(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0])
        return pids - {0, os.getpid()}

    def wait(self, seconds: float) -> None:
        """Return when somebody has knocked, at the latest after so long."""
        with suppress(OSError):
            select.select([self._socket] if self._socket is not None else [], [], [], max(seconds, 0.0))

    def close(self) -> None:
        """Let go of the socket: who knocks is told that nobody is there."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
