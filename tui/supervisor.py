"""The minimal parent of a live screen: starts the sampler and the screen, keeps both apart, and cleans up
after either.

    parent (root under sudo) ── control ──> screen (the caller's user, or nobody)
        └── control ──> sampler (root) <── socket pair ──┘

It draws nothing and parses nothing but the small packets of control.py. It restarts a sampler that died,
passes signals on, and restores the terminal when the screen could not. Started as an ordinary user, all
three are that user.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui import children, control, privileges
from gpuprof.tui.attach_requests import AttachRequests
from gpuprof.tui.rescue import Terminal
from gpuprof.tui.sampler_process import SamplerOptions, SamplerProcess, running_service

MAX_RESTARTS = 5
_FIRST_PAUSE_S = 0.2
_HEALTHY_S = 30.0  # a sampler that ran this long may be restarted as often again
_END_S = 0.7
_MAX_SAVES = 1000
_PACKETS_PER_TURN = 16
_READ_BY_THE_SCREEN = ("textual", "rich", "numpy", "msgpack", "zstandard")


def run(
    sampler: SamplerOptions,
    screen: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> int:
    """Run a live screen until it ends; its exit code (128 + n for signal n).

    `screen`: what to run instead of the screen (for tests). GpuprofError when it cannot be started.
    """
    return _Supervisor(sampler, screen, os.environ if environ is None else environ).run()


@dataclass
class _Supervisor:
    options: SamplerOptions
    screen: Sequence[str]
    environ: Mapping[str, str]
    sampler: SamplerProcess | None = None
    restarts: int = 0
    restart_at: float | None = None
    reconnect_wanted: bool = False
    given_up: str = ""
    ending: float | None = None  # when the screen will be killed
    told: int = 0  # the signal that this process was told to end by
    saves: int = 0
    saved: tuple[str, int, int] | None = None  # name, device and inode of the last file
    attaching: AttachRequests = field(default_factory=AttachRequests)
    _signals: list[int] = field(default_factory=list)

    def run(self) -> int:
        """See `run`."""
        self.is_root = os.geteuid() == 0
        self.caller = privileges.sudo_caller(self.environ) if self.is_root else None
        self.as_nobody = self.is_root and self.caller is None
        self.folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        terminal = Terminal()
        wake_r = children.wake_on_signals()
        connection = running_service(self.options)
        theirs: socket.socket | None = None
        if connection is None:
            connection, theirs = socket.socketpair()
        self.control, screen_control = control.pair()
        try:
            self.screen_pid = self._start_screen(connection, screen_control)
            connection.close()
            screen_control.close()
            if theirs is not None:
                self._start_sampler(theirs)
            code = self._watch(wake_r)
            if code == 128 + signal.SIGTERM and self.told:  # it had no handlers yet, and was told to end
                code = 128 + self.told
        finally:
            self.attaching.close()
            if self.sampler is not None:
                self.sampler.close(_END_S)
        if code >= 128 or terminal.changed():
            terminal.restore()
        if (name := children.signal_of(code)) and not self.told:  # the shell tells of its own children only
            print(f"gpuprof-tui: the screen was ended by {name}", file=sys.stderr)
        if self.given_up:
            print(f"gpuprof-tui: the sampler ended, {self.given_up}", file=sys.stderr)
        return code

    # ---------------------------------------------------------------------------------------------- children

    def _start_screen(self, connection: socket.socket, screen_control: socket.socket) -> int:
        parent = os.getpid()
        identity = self.caller or (privileges.nobody() if self.as_nobody else None)
        readable = files_of_the_screen() if identity else []
        fds = (connection.fileno(), screen_control.fileno())

        def setup() -> Sequence[str]:
            # Ctrl-C reaches the whole group, and Python alone would tell of it by a traceback: until the
            # screen has handlers of its own, this parent ends it.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            kept = identity is not None and privileges.become(identity, readable)
            privileges.die_with_parent(parent)
            return ("--drop-caps",) if kept else ()

        argv = [
            *(self.screen or children.python_argv("gpuprof.tui")),
            *("--fd", str(fds[0])),
            *("--control-fd", str(fds[1])),
            *(("--save-through-parent",) if self.as_nobody else ()),
        ]
        environ = (
            privileges.user_environment(identity, self.environ)
            if identity
            else privileges.own_environment(self.environ)
        )
        return children.spawn(argv, environ, keep=fds, setup=setup)

    def _start_sampler(self, client: socket.socket) -> None:
        try:
            self.sampler = SamplerProcess(self.options, self.environ, self.caller, client)
        except (GpuprofError, OSError) as error:
            client.close()
            self._give_up(str(error))

    def _sampler_ended(self, sampler: SamplerProcess) -> None:
        lived = time.monotonic() - sampler.started
        reason = sampler.said or f"exit code {sampler.code}"
        sampler.close()
        self.sampler = None
        if lived > _HEALTHY_S:
            self.restarts = 0
        if self.restarts >= MAX_RESTARTS:
            self._give_up(f"{MAX_RESTARTS + 1} times: {reason}")
            return
        self.restart_at = time.monotonic() + _FIRST_PAUSE_S * 2**self.restarts
        self.restarts += 1
        message = f"the sampler ended ({reason}); it is started again, {self.restarts} of {MAX_RESTARTS}"
        control.send(self.control, "sampler", state="restarting", message=message)

    def _restart(self) -> None:
        self.restart_at = None
        ours, theirs = socket.socketpair()
        self._start_sampler(theirs)
        if self.sampler is None:
            ours.close()
            return
        control.send(self.control, "sampler", state="running", message="the sampler runs again")
        if self.reconnect_wanted:
            self.reconnect_wanted = False
            control.send(self.control, "connection", ours.fileno())
        ours.close()

    def _give_up(self, reason: str) -> None:
        self.given_up = reason
        message = f"the sampler ended, {reason}"
        control.send(self.control, "sampler", state="failed", message=message)
        if self.reconnect_wanted:
            self.reconnect_wanted = False
            self._refuse("reconnect", message, "gpuprof-tui doctor says what works here")

    # -------------------------------------------------------------------------------------------------- loop

    def _watch(self, wake_r: int) -> int:
        """Watch everything until the screen has ended; its exit code."""
        control_open = True
        while True:
            poll = select.poll()
            poll.register(wake_r, select.POLLIN)
            if control_open:
                poll.register(self.control.fileno(), select.POLLIN)
            if self.sampler is not None and self.sampler.stderr_fd >= 0:
                poll.register(self.sampler.stderr_fd, select.POLLIN)
            if self.attaching.fd >= 0:
                poll.register(self.attaching.fd, select.POLLIN)
            poll.poll(self._timeout_ms())
            with suppress(BlockingIOError):
                self._signals += os.read(wake_r, 4096)
            self._pass_signals_on()
            code = self._screen_ended()
            if code is not None:
                return code
            if control_open:
                control_open = self._serve_screen()
            self.attaching.look(self.control)
            if self.sampler is not None:
                self.sampler.listen()
                if self.sampler.poll() is not None and self.ending is None:
                    self._sampler_ended(self.sampler)
            now = time.monotonic()
            if self.restart_at is not None and now >= self.restart_at and self.ending is None:
                self._restart()
            if self.ending is not None and now >= self.ending:
                os.kill(self.screen_pid, signal.SIGKILL)
                self.ending = now + 1.0

    def _timeout_ms(self) -> int | None:
        wanted = (self.restart_at if self.ending is None else None, self.ending, self.attaching.deadline)
        times = [t for t in wanted if t is not None]
        return max(0, round((min(times) - time.monotonic()) * 1000) + 1) if times else None

    def _pass_signals_on(self) -> None:
        wanted, self._signals = {*self._signals} & {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}, []
        if self.ending is None and wanted:
            self.told = min(wanted)
            self.ending = time.monotonic() + _END_S
            os.kill(self.screen_pid, signal.SIGTERM)
            os.kill(self.screen_pid, signal.SIGCONT)
            if self.sampler is not None:
                self.sampler.control.close()

    def _screen_ended(self) -> int | None:
        while True:
            pid, status = os.waitpid(self.screen_pid, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return None
            if not os.WIFSTOPPED(status):
                return children.exit_code(status)
            if (
                os.WSTOPSIG(status) != signal.SIGSTOP
            ):  # Ctrl-Z: the shell waits for this process, so it stops, too
                os.kill(os.getpid(), signal.SIGTSTP)
                os.kill(self.screen_pid, signal.SIGCONT)

    # ---------------------------------------------------------------------------------------------- requests

    def _serve_screen(self) -> bool:
        """Answer what the screen has asked. False when its end of the control socket is closed."""
        for _ in range(_PACKETS_PER_TURN):
            try:
                packet = control.receive(self.control)
            except EOFError:
                return False
            if packet is None:
                break
            packet.close()
            if packet.op == "save":
                self._save()
            elif packet.op == "discard":
                self._discard()
            elif packet.op == "reconnect":
                self._reconnect()
            elif packet.op in ("attach", "check"):
                self.attaching.begin(self.control, packet.fields.get("pid", ""), packet.op)
        return True

    def _reconnect(self) -> None:
        if self.restart_at is not None:
            self.reconnect_wanted = True
            return
        connection: socket.socket | None = None
        if self.sampler is not None:
            try:
                connection = self.sampler.new_client()
            except GpuprofError:
                self.reconnect_wanted = True  # it has ended, and its end will be noticed in a moment
                return
        else:
            try:
                connection = running_service(self.options)
            except GpuprofError as error:  # of a socket that was named: no other sampler will do
                self._refuse("reconnect", error.message, error.hint)
                return
        if connection is None:
            if self.given_up:
                self._refuse(
                    "reconnect", f"the sampler ended, {self.given_up}", "gpuprof-tui doctor says more"
                )
                return
            connection, theirs = socket.socketpair()
            self._start_sampler(theirs)
        control.send(self.control, "connection", connection.fileno())
        connection.close()

    def _save(self) -> None:
        """Give a screen that runs as nobody a file to write to; its name and folder are chosen here."""
        if not self.as_nobody:
            self._refuse("save", "the screen can write files itself", "")
            return
        self.saves += 1
        stem = f"gpuprof-{_file_part(socket.gethostname())}-{time.strftime('%Y%m%d-%H%M%S')}"
        name = stem + (f"-{self.saves}" if self.saves > 1 else "") + ".gpuprof"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            if self.saves > _MAX_SAVES:
                raise OSError(0, f"{_MAX_SAVES} snapshots were saved already")
            fd = os.open(name, flags, 0o600, dir_fd=self.folder)
        except OSError as error:
            self._refuse(
                "save", f"{name} cannot be created: {error.strerror}", "start gpuprof-tui in another folder"
            )
            return
        found = os.fstat(fd)
        self.saved = name, found.st_dev, found.st_ino
        path = os.path.join(os.readlink(f"/proc/self/fd/{self.folder}"), name)
        control.send(self.control, "saved", fd, path=path)
        os.close(fd)

    def _discard(self) -> None:
        """Remove the last file that was made for the screen, if that is still what its name stands for."""
        if self.saved is None:
            return
        name, *wanted = self.saved
        self.saved = None
        with suppress(OSError):
            found = os.stat(name, dir_fd=self.folder, follow_symlinks=False)
            if [found.st_dev, found.st_ino] == wanted:
                os.unlink(name, dir_fd=self.folder)

    def _refuse(self, request: str, message: str, hint: str) -> None:
        control.send(self.control, "refused", request=request, message=message, hint=hint)


def files_of_the_screen() -> list[str]:
    """What the screen's process must be able to read: interpreter, standard library, this program, its
    libraries."""
    import importlib.util

    paths = [
        sys.executable,
        os.path.realpath(sys.executable),
        os.__file__,
        os.path.dirname(os.path.abspath(__file__)),
    ]
    for name in ("gpuprof.snapshots.errors", *_READ_BY_THE_SCREEN):
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin:
                paths += [spec.origin, os.path.dirname(spec.origin)]
    return paths


def _file_part(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:64].strip("._-") or "node"
