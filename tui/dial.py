"""`gpuprof-tui dial-stdio`: joins standard input and output to this node's sampler, for a screen at the
other end of ssh.

It copies bytes both ways and understands none of them. There is at most one piece per direction in memory:
it reads from one side only when the other has taken the last piece. The end of standard input is passed on,
so that answers still due arrive.
"""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, GpuprofError
from gpuprof.tui import privileges
from gpuprof.tui.sampler_process import SamplerOptions, SamplerProcess, running_service

_PIECE = 128 << 10


def run(options: SamplerOptions) -> int:
    """Serve until either side closes; the exit code. GpuprofError when there is no sampler to talk to."""
    connection = running_service(options)
    sampler: SamplerProcess | None = None
    if connection is None:
        connection, theirs = socket.socketpair()
        caller = privileges.sudo_caller(os.environ) if os.geteuid() == 0 else None
        # What the sampler says goes to standard error, which ssh keeps apart from the stream.
        sampler = SamplerProcess(options, os.environ, caller, theirs, quiet=False)
    try:
        received = relay(connection, 0, 1)
        if not received:
            raise GpuprofError("the sampler ended before it said anything", exit_code=EXIT_UNAVAILABLE)
    finally:
        connection.close()
        if sampler is not None:
            sampler.close()
    return 0


def relay(connection: socket.socket, in_fd: int, out_fd: int) -> int:
    """Copy in_fd -> connection -> out_fd until the connection ends or out_fd's reader is gone; bytes
    received."""
    connection.setblocking(False)
    received = 0
    to_sampler, to_client = b"", b""
    in_open = out_open = True
    while out_open or to_client:
        poll = select.poll()
        # An error or hang-up of standard output is always reported, so it is watched even with nothing to
        # write.
        poll.register(out_fd, select.POLLOUT if to_client else 0)
        if in_open and not to_sampler:
            poll.register(in_fd, select.POLLIN)
        events = (select.POLLOUT if to_sampler else 0) | (select.POLLIN if out_open and not to_client else 0)
        if events:
            poll.register(connection, events)
        ready = dict(poll.poll())
        with suppress(BlockingIOError):
            if ready.get(connection.fileno(), 0) & ~select.POLLOUT and not to_client:
                to_client = _receive(connection)
                received += len(to_client)
                out_open = bool(to_client)
        with suppress(BlockingIOError):
            if ready.get(connection.fileno(), 0) & select.POLLOUT and to_sampler:
                to_sampler = to_sampler[_send(connection, to_sampler) :]
        if ready.get(in_fd):
            to_sampler = os.read(in_fd, _PIECE)
            if not to_sampler:
                in_open = False
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
        if ready.get(out_fd, 0) & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            return received
        if ready.get(out_fd, 0) & select.POLLOUT and to_client:
            try:
                to_client = to_client[os.write(out_fd, to_client[:_PIPE_ATOMIC]) :]
            except BrokenPipeError:
                return received
    return received


_PIPE_ATOMIC = select.PIPE_BUF  # a writable pipe takes this much without blocking


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_PIECE)
    except ConnectionError:
        return b""


def _send(connection: socket.socket, data: bytes) -> int:
    try:
        return connection.send(data)
    except ConnectionError:
        return len(data)  # the end will be read in a moment
