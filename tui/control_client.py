"""The screen's side of the control socket (control.py), as coroutines: a new connection, a file to save to,
a process to attach to."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, GpuprofError
from gpuprof.tui import control

_ANSWERS = {"save": "saved", "reconnect": "connection", "check": "attachable", "attach": "attached"}


@dataclass(frozen=True)
class SamplerEvent:
    """The parent's news of the sampler. `state`: running, restarting or failed; `message` says why, in a
    sentence."""

    state: str
    message: str


class ControlClient:
    """Requests to the parent. One of each kind at a time; not thread-safe (use it in the loop that called
    `start`)."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=fd)
        self._sock.setblocking(False)
        self._waiting: dict[str, asyncio.Future[control.Packet]] = {}
        self._on_event: Callable[[SamplerEvent], None] = lambda event: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone = False

    def start(self, on_event: Callable[[SamplerEvent], None] | None = None) -> None:
        """Begin to listen, in the running loop."""
        self._on_event = on_event or self._on_event
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock.fileno(), self._readable)

    async def new_connection(self) -> socket.socket:
        """A connected socket to a sampler that lives; the parent starts one if need be, which may take
        seconds.

        GpuprofError when the parent has given up, or is gone.
        """
        packet = await self._ask("reconnect", answer="connection")
        return socket.socket(fileno=packet.fd)

    async def save_descriptor(self) -> tuple[int, str]:
        """A new, empty file opened for writing, and its path. GpuprofError when it cannot be created."""
        packet = await self._ask("save", answer="saved")
        return packet.fd, packet.fields.get("path", "")

    async def attachable(self, pid: int) -> bool:
        """Whether a process could be attached to; False: it has the library already. Nothing is done to it.

        GpuprofError with the reason and the next step, when it could not.
        """
        packet = await self._ask("check", answer="attachable", with_fd=False, pid=str(pid))
        packet.close()
        return packet.fields.get("message", "") != "loaded"

    def discard_saved(self) -> None:
        """Have the parent remove the file of the last `save_descriptor`, which could not be written."""
        if not self._gone:
            control.send(self._sock, "discard")

    async def attach(self, pid: int) -> str:
        """Have a process load the library that records its GPU work; what the parent says of it.

        GpuprofError with the reason and the next step, when that cannot be done.
        """
        packet = await self._ask("attach", answer="attached", with_fd=False, pid=str(pid))
        packet.close()
        return packet.fields.get("message", "")

    def close(self) -> None:
        """Stop listening and close the socket."""
        if self._loop is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._loop = None
        self._sock.close()
        self._fail_all()

    async def _ask(self, op: str, answer: str, *, with_fd: bool = True, pid: str = "") -> control.Packet:
        if self._gone or self._loop is None:
            raise _parent_gone()
        if answer in self._waiting:
            raise GpuprofError(f"a request to {op} is already under way")
        future: asyncio.Future[control.Packet] = self._loop.create_future()
        self._waiting[answer] = future
        try:
            if not control.send(self._sock, op, -1, **({"pid": pid} if pid else {})):
                raise _parent_gone()
            packet = await future
        finally:
            self._waiting.pop(answer, None)
        if packet.op == answer and (packet.fd >= 0 or not with_fd):
            return packet
        packet.close()
        message = packet.fields.get("message") or "the parent process sent no descriptor"
        raise GpuprofError(message, packet.fields.get("hint", ""), EXIT_UNAVAILABLE)

    def _readable(self) -> None:
        while True:
            try:
                packet = control.receive(self._sock)
            except EOFError:
                self._gone = True
                if self._loop is not None:
                    self._loop.remove_reader(self._sock.fileno())
                self._fail_all()
                return
            if packet is None:
                return
            self._dispatch(packet)

    def _dispatch(self, packet: control.Packet) -> None:
        if packet.op == "sampler":
            packet.close()
            self._on_event(SamplerEvent(packet.fields.get("state", ""), packet.fields.get("message", "")))
            return
        key = packet.op
        if packet.op == "refused":
            key = _ANSWERS.get(packet.fields.get("request", ""), "")
        future = self._waiting.get(key)
        if future is None or future.done():
            packet.close()
        else:
            future.set_result(packet)

    def _fail_all(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_parent_gone())


def _parent_gone() -> GpuprofError:
    return GpuprofError("the parent process is gone", "start gpuprof-tui again", EXIT_UNAVAILABLE)


def open_control(fd: int | None) -> ControlClient | None:
    """The control socket of `--control-fd N`; None when there is none or N is no open descriptor."""
    if fd is None:
        return None
    try:
        os.fstat(fd)
    except OSError:
        return None
    return ControlClient(fd)
