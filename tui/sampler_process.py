"""The sampler as its parent sees it: found as a running service, or started as a child, with the reason when
it ends.

The sampler is never imported here, only named: what runs as root does not share a process with what draws.
"""

from __future__ import annotations

import os
import shlex
import socket
import stat
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, GpuprofError
from gpuprof.tui import children, control, privileges

SERVICE_SOCKET = "/run/gpuprof/sampler.sock"
_SAID_BYTES = 4096
_CONNECT_SECONDS = 1.0


@dataclass(frozen=True)
class SamplerOptions:
    """How a sampler is started. `program`: what to run instead of the sampler (for tests)."""

    hz: int = 99
    socket_path: str = SERVICE_SOCKET
    use_service: bool = True
    program: tuple[str, ...] = ()
    gpu_overhead: str | None = None  # as a person writes it; None: the sampler's default
    offcpu: tuple[str, ...] = ()  # the sampler's --offcpu-* arguments
    socket_given: bool = False  # the person named `socket_path`: no other sampler will do


def running_service(options: SamplerOptions) -> socket.socket | None:
    """A connection to the service that the options name; None where a sampler of one's own is to be started.

    GpuprofError when the person has named a socket and there is no service to talk to: another sampler, with
    other settings, is not what was asked for.
    """
    if not options.use_service:
        return None
    try:
        return _connected(options.socket_path)
    except GpuprofError:
        if options.socket_given:
            raise
        return None


def closed_service(options: SamplerOptions) -> str:
    """How to get to use the service, where one runs that this user may not; else empty."""
    if not options.use_service:
        return ""
    try:
        _connected(options.socket_path).close()
    except GpuprofError as error:
        if isinstance(error.__cause__, PermissionError):
            shown = _plain(options.socket_path)
            return f"or join the group that may use the sampler at {shown}: sudo usermod -aG gpuprof $USER"
    return ""


def connect_service(path: str) -> socket.socket | None:
    """A connection to the running service; None when there is none, or this user may not connect."""
    try:
        return _connected(path)
    except GpuprofError:
        return None


def _connected(path: str) -> socket.socket:
    """A connection to the service at `path`; GpuprofError when there is none.

    The other side must be root or this same user: a socket that someone else has put there is not used.
    """
    shown = _plain(path)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(_CONNECT_SECONDS)
    try:
        sock.connect(path)
        _, uid, _ = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except PermissionError as error:
        sock.close()
        raise GpuprofError(
            f"you may not use the sampler at {shown}",
            "whoever is in the group gpuprof may: sudo usermod -aG gpuprof $USER, and log in again",
            EXIT_NO_PERMISSION,
        ) from error
    except (OSError, ValueError) as error:
        sock.close()
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise GpuprofError(
            f"no sampler listens at {shown}: {reason}",
            f"start one: sudo {own_command()} sampler --socket {shlex.quote(path)}\n"
            "or leave --socket out: then one is started, or that of the service is used",
            EXIT_UNAVAILABLE,
        ) from error
    if uid not in (0, os.geteuid()):
        sock.close()
        raise GpuprofError(
            f"the sampler at {shown} is another user's (uid {uid}), which is not trusted",
            "name the socket of one that runs as root or as you, or leave --socket out",
            EXIT_NO_PERMISSION,
        )
    sock.settimeout(None)
    return sock


def own_command() -> str:
    """The absolute path of the `gpuprof-tui` that was started, for lines that a person can paste."""
    for candidate in (sys.argv[0], os.path.join(os.path.dirname(sys.executable), "gpuprof-tui")):
        path = os.path.abspath(candidate)
        with suppress(OSError):
            found = os.stat(path)
            if (
                os.path.basename(path).startswith("gpuprof")
                and stat.S_ISREG(found.st_mode)
                and found.st_mode & 0o111
            ):
                return path
    return "gpuprof-tui"


class SamplerProcess:
    """A sampler that was started as a child. Ends when `close` is called, and by itself when this process
    ends."""

    def __init__(
        self,
        options: SamplerOptions,
        environ: Mapping[str, str],
        caller: privileges.Identity | None,
        client: socket.socket,
        *,
        quiet: bool = True,
    ) -> None:
        """Start it and give it `client`, its end of a socket pair, which is closed here.

        `quiet`: what it writes to standard error is kept for `said`, since a screen owns the terminal.
        """
        self.started = time.monotonic()
        self.code: int | None = None
        self._said = b""
        parent = os.getpid()
        self.control, theirs = control.pair()
        self.stderr_fd, stderr_w = os.pipe() if quiet else (-1, 2)
        is_root = os.geteuid() == 0
        argv = [
            *(options.program or children.python_argv("gpuprof.sampler")),
            *("--fd", str(client.fileno())),
            *("--control-fd", str(theirs.fileno())),
            *("--hz", str(options.hz)),
            *(("--gpu-overhead", options.gpu_overhead) if options.gpu_overhead else ()),
            *options.offcpu,
            *("--command", own_command()),
        ]

        def setup() -> tuple[str, ...]:
            privileges.die_with_parent(parent)
            return ()

        null = os.open(os.devnull, os.O_RDWR)
        try:
            self.pid = children.spawn(
                argv,
                privileges.root_environment(environ, caller)
                if is_root
                else privileges.own_environment(environ),
                keep=(client.fileno(), theirs.fileno()),
                stdin=null,
                stdout=null,
                stderr=stderr_w,
                setup=setup,
                own_session=True,  # a Ctrl-C or a hang-up of the terminal is the parent's to pass on
            )
        except BaseException:
            self.control.close()
            if quiet:
                os.close(self.stderr_fd)
            raise
        finally:
            os.close(null)
            theirs.close()
            client.close()
            if quiet:
                os.close(stderr_w)
        if quiet:
            os.set_blocking(self.stderr_fd, False)

    def listen(self) -> None:
        """Take what it has written to standard error; only the end of it is kept."""
        while self.stderr_fd >= 0:
            try:
                piece = os.read(self.stderr_fd, 65536)
            except OSError:
                return
            if not piece:
                os.close(self.stderr_fd)
                self.stderr_fd = -1
                return
            self._said = (self._said + piece)[-_SAID_BYTES:]

    @property
    def said(self) -> str:
        """Its last words, in one line fit for a screen; empty when it said nothing."""
        lines = [line.strip() for line in self._said.decode(errors="replace").splitlines() if line.strip()]
        for at, line in enumerate(lines):
            if line.startswith("gpuprof sampler: "):
                return _plain(" ".join(lines[at : at + 2]).removeprefix("gpuprof sampler: "))
        return _plain(lines[-1]) if lines else ""

    def new_client(self) -> socket.socket:
        """Another connection to it. GpuprofError when it does not take one."""
        ours, theirs = socket.socketpair()
        taken = control.send(self.control, "client", theirs.fileno())
        theirs.close()
        if not taken:
            ours.close()
            raise GpuprofError("the sampler does not answer", exit_code=EXIT_UNAVAILABLE)
        return ours

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        if self.code is None:
            self.code = children.wait_until(self.pid, 0.0)
            if self.code is not None:
                self.listen()
        return self.code

    def close(self, seconds: float = 0.8) -> None:
        """End it and release everything."""
        self.control.close()
        if self.code is None:
            self.code = children.end(self.pid, seconds)
        self.listen()
        if self.stderr_fd >= 0:
            os.close(self.stderr_fd)
            self.stderr_fd = -1


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)[:300]
