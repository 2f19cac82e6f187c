"""The parent's side of attaching from the screen: one process at a time, without making anyone wait.

The screen asks for a pid and nothing else; which library is loaded, and by which program, is decided here.
The parent runs as who started it: under sudo, or as root, that person may attach to any process, so that
nothing is allowed here that they could not do in the next terminal; as an ordinary user it is the kernel
(ptrace(2)) that decides. A screen that was taken over could have the recording library loaded into a process
that uses CUDA, which then waits for the sampler, and no more.
"""

from __future__ import annotations

import socket

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui import control

TYPE_CHECKING = False  # not typing's: see command.py
if TYPE_CHECKING:
    from gpuprof.tui.attach import Attachment

MAX_REQUESTS = 10_000
_MAX_PID = 1 << 22


class AttachRequests:
    """Answers {"op": "attach"} and {"op": "check"} of the screen (control.py)."""

    def __init__(self) -> None:
        self._attachment: Attachment | None = None
        self._request = "attach"
        self._count = 0

    @property
    def fd(self) -> int:
        """Readable when there is something for `look`; -1: nothing is under way."""
        return self._attachment.fd if self._attachment is not None else -1

    @property
    def deadline(self) -> float | None:
        """When `look` has something to do in any case (monotonic seconds)."""
        return self._attachment.deadline if self._attachment is not None else None

    def begin(self, screen: socket.socket, pid: str, request: str = "attach") -> None:
        """Start to attach to a process, or to see whether that can be done ("check"); or refuse."""
        try:
            if self._attachment is not None:
                raise GpuprofError(
                    f"pid {self._attachment.pid} is being attached to", "try again in a moment"
                )
            if not (pid.isascii() and pid.isdigit() and 0 < int(pid[:8]) < _MAX_PID and len(pid) < 8):
                raise GpuprofError("that is no process id")
            self._count += 1
            if self._count > MAX_REQUESTS:
                raise GpuprofError(
                    f"{MAX_REQUESTS} processes were asked for already", "start gpuprof-tui again"
                )
            from gpuprof.tui.attach import Attachment

            self._attachment, self._request = Attachment(int(pid), check=request == "check"), request
        except (GpuprofError, OSError) as error:
            _refuse(screen, request, error)

    def look(self, screen: socket.socket) -> None:
        """Tell the screen how it went, once that is known."""
        if self._attachment is None:
            return
        try:
            attached = self._attachment.poll()
            if attached is None:
                return
            if self._request == "check":
                control.send(screen, "attachable", message="")
            else:
                control.send(screen, "attached", message=str(attached))
        except (GpuprofError, OSError) as error:
            if self._request == "check" and getattr(error, "code", "") == "loaded":
                control.send(screen, "attachable", message="loaded")
            else:
                _refuse(screen, self._request, error)
        self.close()

    def close(self) -> None:
        """End what is under way."""
        if self._attachment is not None:
            self._attachment.close()
            self._attachment = None


def _refuse(screen: socket.socket, request: str, error: GpuprofError | OSError) -> None:
    if not isinstance(error, GpuprofError):
        error = GpuprofError(f"the program that attaches could not be started: {error.strerror or error}")
    control.send(screen, "refused", request=request, message=error.message, hint=error.hint)
