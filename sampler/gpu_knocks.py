"""Processes whose injection library has just made its ring: they say so by connecting (bpf/inject/knock.c).

They connect to an abstract socket, as any process of this network namespace may, and say nothing: who it was
the kernel tells. Without it processes are found a little later.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import ExitStack, suppress

from gpuprof.sampler.gpu_discovery import knock_address
from gpuprof.sampler.readable import readable

MAX_KNOCKS = 64  # that wait; others try again
AT_ONCE = 16  # that are taken: whoever knocks without end, with many files open, must not hold up the others
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid


class Knocks:
    """The socket, from `open` to `close`; before and after, nobody knocks. Not thread-safe."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Begin to hear knocks, unless another sampler of this machine does."""
        with suppress(OSError), ExitStack() as undo:
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            undo.enter_context(listening)
            listening.bind(knock_address())
            listening.listen(MAX_KNOCKS)
            listening.setblocking(False)
            undo.pop_all()
            self._socket = listening

    def take(self) -> set[int]:
        """Return processes (pids) that have knocked; the next call has those that were too many."""
        pids: set[int] = set()
        with suppress(OSError):  # there are no more
            for _ in range(AT_ONCE if self._socket is not None else 0):
                assert self._socket is not None
                knocking, _ = self._socket.accept()
                with knocking:
                    size = _CREDENTIALS.size
                    said = knocking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                pids.add(_CREDENTIALS.unpack(said)[0])
        return pids - {0, os.getpid()}

    def wait(self, seconds: float) -> None:
        """Return when somebody has knocked, at the latest after so long."""
        with suppress(OSError):
            readable([self._socket.fileno()] if self._socket is not None else [], seconds)

    def close(self) -> None:
        """Let go of the socket: who knocks is told that nobody is there."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
