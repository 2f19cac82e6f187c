"""Asks a running service to watch this process, before it becomes a workload: a wait that has begun when
watching begins has no stack.
"""

from __future__ import annotations

import select
import socket
import time

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui.sampler_process import SERVICE_SOCKET, connect_service

SECONDS = 6.0  # the longest wait for the answer
_PIECE = 64 << 10


def watch_self(path: str = SERVICE_SOCKET) -> bool:
    """Have the waits of this process and its descendants followed until they end; True once they are.

    False, and quick, without a service; never an error, since the workload matters more.
    """
    connection = connect_service(path)
    if connection is None:
        return False
    with connection:
        try:
            return _ask(connection)
        except (OSError, GpuprofError):
            return False


def _ask(connection: socket.socket) -> bool:
    from gpuprof.snapshots.frames import MAGIC, Done, Failure, Watch
    from gpuprof.snapshots.wire import Decoder, pack

    deadline = time.monotonic() + SECONDS
    connection.sendall(MAGIC + pack(Watch(1)))
    decoder = Decoder()
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([connection], [], [], left)[0]:
            break
        data = connection.recv(_PIECE)
        if not data:
            break
        for frame in decoder.feed(data):
            if isinstance(frame, Done | Failure):
                return isinstance(frame, Done)
    return False
