"""`gpuprof-tui record`: writes a snapshot without a screen: for a time, for a command, or until Ctrl-C.

The sampler is a child (or the running service); this process only copies frames from its stream into the
file. Under sudo it becomes the calling user before it reads the first frame, and the command is started as
that user. Every way to end it ends with a whole file.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, EXIT_USAGE, GpuprofError
from gpuprof.snapshots.new_file import create
from gpuprof.tui import children, privileges
from gpuprof.tui import run as workload
from gpuprof.tui.descendants import Family
from gpuprof.tui.sampler_process import SamplerOptions, SamplerProcess, own_command, running_service

if TYPE_CHECKING:
    from gpuprof.snapshots.file import SnapshotWriter
    from gpuprof.snapshots.frames import Frame, SourceStatus

_PIECE = 256 << 10
_READY_SECONDS = 15.0  # the longest wait for CPU stacks before the command is started
_LAST_FRAMES_SECONDS = 2.0  # after the end, the longest wait for what the sampler still holds
_WATCH_SECONDS = 13.0  # the longest wait for a service to watch what the command will do
_WATCH, _SETTLE = 1, 2  # numbers of requests
_LAST_GPU_WORK_SECONDS = 1.6  # the same of GPU work, whose readings come about a second late
_COMMAND_END_SECONDS = 10.0
_PATIENCE_SECONDS = 1.0  # of those, before it is said what is waited for
_NEVER_NS = 1 << 63
_EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class RecordOptions:
    """What to record. `seconds`: None for no limit; `command`: empty for none."""

    path: str
    seconds: float | None = None
    command: tuple[str, ...] = ()
    overwrite: bool = False


def run(options: RecordOptions, sampler_options: SamplerOptions) -> int:
    """Record; the exit code is that of the command, or 0.

    GpuprofError when nothing, or not everything, was recorded.
    """
    if options.path == "-":
        raise GpuprofError(
            "a recording cannot be written to standard output: its beginning is written once more at its end",
            "name a file, such as -o run.gpuprof; one that is called - is ./-",
            EXIT_USAGE,
        )
    if options.command:
        workload.find_program(options.command[0])  # before anything is started
    caller = privileges.sudo_caller(os.environ) if os.geteuid() == 0 else None
    connection = running_service(sampler_options)
    sampler: SamplerProcess | None = None
    if connection is None:
        connection, theirs = socket.socketpair()
        if options.command:  # its waits are followed even where it uses no GPU
            of_command = ("--offcpu-children-of", str(os.getpid()))
            sampler_options = replace(sampler_options, offcpu=(*sampler_options.offcpu, *of_command))
        sampler = SamplerProcess(sampler_options, os.environ, caller, theirs)
    if caller is not None:
        _import_all()
        # For good, and before any byte of the stream is parsed. The sampler ends with its control socket.
        privileges.become(caller, no_new_privs=False)
        os.environ.update({"HOME": caller.home, "USER": caller.name, "LOGNAME": caller.name})
    try:
        return _Recording(options, connection, sampler).run()
    finally:
        connection.close()
        if sampler is not None:
            sampler.close()


def _import_all() -> None:
    """Import what the recording will need, since the caller may not be able to read the program's files."""
    import shutil

    import numpy.ma  # numpy.unique imports it at its first call

    from gpuprof.snapshots import file, row_cut, wire

    with suppress(GpuprofError):  # said when the command is started
        workload.find_library()
    assert shutil
    assert numpy.ma
    assert file
    assert row_cut
    assert wire


def start_command(command: Sequence[str]) -> int:
    """Start the recorded command as the user that this process is, as `run` does; its pid.

    The one place where a workload is started.
    """
    try:
        environ = workload.environment(os.environ)
    except GpuprofError as error:  # all the rest is recorded
        _say(f"no GPU time of the command: {error.message}")
        _say(f"  {error.hint}")
        environ = dict(os.environ)
    return children.spawn([workload.find_program(command[0]), *command[1:]], environ)


class _Recording:
    """One recording, from the creation of the file to its last chunk."""

    def __init__(
        self, options: RecordOptions, connection: socket.socket, sampler: SamplerProcess | None
    ) -> None:
        from gpuprof.snapshots.wire import Decoder

        self._options = options
        self._connection = connection
        self._sampler = sampler
        self._decoder = Decoder()
        self._writer: SnapshotWriter | None = None
        self._fd = -1
        self._begun = False
        self._first_ns = 0
        self._end_ns: int | None = None
        self._answered: set[int] = set()
        self._last_ns = 0
        self._cpu: SourceStatus | None = None
        self._records_gpu_work = False
        self._waits_start = False
        self._sudo_line: str | None = None
        self._privileged = True
        self._reads_gpus = False
        self._said: set[str] = set()
        self._command: int | None = None
        self._command_code: int | None = None
        self._family: Family | None = None  # the command and its descendants, once they were asked to end
        self._wake_r = -1
        self._interrupts = 0
        self._trouble: GpuprofError | None = None

    def run(self) -> int:
        """Record until the end; see the module's `run`."""
        self._wake_r = children.wake_on_signals()
        self._fd = create(self._options.path, overwrite=self._options.overwrite, instead="--force")
        self._subscribe()
        self._copy(time.monotonic() + _READY_SECONDS, self._is_ready)
        if self._sampler is None and self._options.command:
            self._watch_command()
        if self._interrupts:
            self._leave_nothing()
            return _EXIT_INTERRUPTED
        self._begun = True
        self._first_ns, begin = time.monotonic_ns(), time.monotonic()
        if not self._is_over():
            self._announce()
            self._start_command()
            limit = self._options.seconds
            self._copy(None if limit is None else begin + limit, self._is_over)
        self._take_the_rest()
        self._finish()
        code = self._end_command()
        if self._trouble is not None:
            raise self._trouble
        return code or self._nothing_code()

    def _leave_nothing(self) -> None:
        """End before the recording has begun."""
        if self._writer is not None:
            with suppress(GpuprofError):
                self._writer.close()
        os.close(self._fd)
        with suppress(OSError):
            os.unlink(self._options.path)
        _say("ended before the recording began: nothing was recorded, and no file is left")

    # -------------------------------------------------------------------------------------------- the stream

    def _start_command(self) -> None:
        if self._options.command:
            try:
                self._command = start_command(self._options.command)
            except GpuprofError as error:
                self._trouble = error

    def _subscribe(self) -> None:
        from gpuprof.snapshots.frames import MAGIC, Subscribe
        from gpuprof.snapshots.wire import pack

        try:
            self._connection.sendall(MAGIC + pack(Subscribe("rows")))
        except OSError:
            pass  # it is gone; reading says so
        self._connection.setblocking(False)

    def _watch_command(self) -> None:
        """Have the service follow the waits of what will be started: those of its first instants, too."""
        from gpuprof.snapshots.frames import Watch

        self._ask(Watch(_WATCH, itself=False))
        self._copy(time.monotonic() + _WATCH_SECONDS, lambda: _WATCH in self._answered or self._is_over())

    def _take_the_rest(self) -> None:
        """What happened up to now and is not here yet. Whoever asks once more to end does not want it."""
        from gpuprof.snapshots.frames import Settle

        self._end_ns = time.monotonic_ns()
        if self._options.seconds is not None:  # whoever asked for 3 s gets 3 s, however late this comes
            self._end_ns = min(self._end_ns, self._first_ns + round(self._options.seconds * 1e9))
        begun, interrupts = time.monotonic(), self._interrupts
        self._ask(Settle(_SETTLE))

        def is_all() -> bool:
            late = self._records_gpu_work and time.monotonic() < begun + _LAST_GPU_WORK_SECONDS
            return self._interrupts > interrupts or (_SETTLE in self._answered and not late)

        if self._records_gpu_work:
            self._copy(begun + _LAST_GPU_WORK_SECONDS, is_all)
        self._copy(begun + _LAST_FRAMES_SECONDS, is_all)

    def _ask(self, request: Frame) -> None:
        from gpuprof.snapshots.wire import pack

        with suppress(OSError):  # it is gone; reading says so
            self._connection.sendall(pack(request))

    def _copy(self, until: float | None, done: Callable[[], bool]) -> None:
        """Copy frames from the stream into the file until `done`, a time, or trouble."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(self._wake_r, select.POLLIN)
        if self._sampler is not None and self._sampler.stderr_fd >= 0:
            poll.register(self._sampler.stderr_fd, select.POLLIN)
        while self._trouble is None and not done():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            ready = dict(poll.poll(None if left is None else left * 1000 + 1))
            self._take_signals()
            if self._sampler is not None and self._sampler.stderr_fd in ready:
                poll.unregister(self._sampler.stderr_fd)
                self._sampler.listen()
                if self._sampler.stderr_fd >= 0:
                    poll.register(self._sampler.stderr_fd, select.POLLIN)
            if self._connection.fileno() in ready:
                try:
                    self._receive()
                except GpuprofError as error:
                    self._trouble = error

    def _receive(self) -> None:
        from gpuprof.snapshots.frames import Done, Failure
        from gpuprof.snapshots.row_cut import cut

        try:
            data = self._connection.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if self._sampler is not None:
                self._sampler.listen()
            reason = self._sampler.said if self._sampler is not None else ""
            message = "the sampler ended before the recording did" + (f": {reason}" if reason else "")
            raise GpuprofError(message, "what came before is in the file", EXIT_UNAVAILABLE)
        frames = self._decoder.feed(data)
        for frame in frames:
            self._look_at(frame)
        if self._writer is not None:
            # Until the sources are ready only definitions and facts are kept: the recording begins then.
            edges = (self._first_ns, self._end_ns) if self._begun else (_NEVER_NS, None)
            inside = [cut(frame, *edges) for frame in frames if not isinstance(frame, Done | Failure)]
            if self._begun:
                self._writer.recorded(*edges)
            self._writer.write([frame for frame in inside if frame is not None])

    def _look_at(self, frame: Frame) -> None:
        from gpuprof.snapshots.file import SnapshotWriter
        from gpuprof.snapshots.frames import Done, Failure, Hello, Status

        if isinstance(frame, Hello) and self._writer is None:
            self._sudo_line = frame.sudo_line
            self._privileged = frame.privileged
            self._writer = SnapshotWriter(self._fd, frame, name=self._options.path)
        elif isinstance(frame, Status):
            self._cpu = next((source for source in frame.sources if source.name == "cpu"), self._cpu)
            states = {source.name: source.state for source in frame.sources}
            self._waits_start = states.get("offcpu") == "starting"
            self._reads_gpus = states.get("nvml") in ("ok", "degraded")
            if self._sampler is not None and "starting" in (states.get("cpu"), states.get("offcpu")):
                self._say_once("getting ready: the BPF programs are compiled and loaded (a few seconds)")
            if states.get("gpu") in ("ok", "degraded") or (
                self._options.command and states.get("nvml") in ("ok", "degraded")
            ):
                self._records_gpu_work = True
            self._last_ns = max(self._last_ns, frame.time_ns)
        elif isinstance(frame, Done):
            self._answered.add(frame.id)
        elif isinstance(frame, Failure) and frame.id:
            self._answered.add(frame.id)
            if frame.id == _WATCH:
                _say(f"waits of the command are not recorded: {frame.message}")
        elif isinstance(frame, Failure):
            raise GpuprofError(frame.message, frame.hint, EXIT_UNAVAILABLE)

    # ------------------------------------------------------------------------------------------ when it ends

    def _is_ready(self) -> bool:
        cpu_is_there = self._cpu is not None and self._cpu.state != "starting"
        return self._is_over() or (cpu_is_there and not self._waits_start)

    def _is_over(self) -> bool:
        if self._interrupts > (1 if self._command is not None and self._command_code is None else 0):
            return True
        return self._command_code is not None

    def _take_signals(self) -> None:
        signals = b""
        with suppress(BlockingIOError):
            signals = os.read(self._wake_r, 4096)
        for signum in signals:
            if signum == signal.SIGCHLD:
                self._reap_command()
            elif signum == signal.SIGINT:  # from a terminal the command has it, too, and may end in order
                self._interrupts += 1
            else:
                self._interrupts += 2
                self._ask_command_to_end()

    def _reap_command(self) -> None:
        if self._command is not None and self._command_code is None:
            self._command_code = children.wait_until(self._command, 0.0)

    def _ask_command_to_end(self) -> None:
        if self._family is None and self._command is not None and self._command_code is None:
            self._family = Family(self._command)
            self._family.ask_to_end()

    def _end_command(self) -> int:
        """The command's exit code, 0 without one. After trouble it may run to its own end."""
        if self._command is None:
            return 0
        if self._command_code is None and self._trouble is not None:
            _say(f"{self._trouble.message}; the command goes on")
            while self._command_code is None and self._interrupts < 2:
                select.select([self._wake_r], [], [])
                self._take_signals()
        if self._command_code is None:
            _say("the recording is complete; ending the command")
            self._ask_command_to_end()
            self._see_family_end()
            return 0 if not self._interrupts else 130
        self._see_family_end()
        if name := children.signal_of(self._command_code):  # which a shell says of its own children only
            _say(f"the command was ended by {name}")
        return self._command_code

    def _see_family_end(self) -> None:
        """Wait for the command and its descendants, which were asked to end, and kill what then still lives;
        at once when this process is asked once more.
        """
        family, begun, interrupts, said = self._family, time.monotonic(), self._interrupts, False
        while family is not None and (left := family.living()):
            waited = time.monotonic() - begun
            if waited >= _COMMAND_END_SECONDS or self._interrupts > interrupts:
                family.kill(1.0)
                break
            if waited >= _PATIENCE_SECONDS and not said:
                who = f"the command ({self._command})"
                if self._command_code is not None:
                    who = f"a process of the command ({left[0].pid})"
                rest = _COMMAND_END_SECONDS - waited
                _say(f"{who} has not ended on SIGTERM; killed in {rest:.0f} s, or at once on Ctrl-C")
                said = True
            select.select([self._wake_r], [], [], 0.05)
            self._take_signals()
        self._reap_command()

    def _finish(self) -> None:
        """Write the last chunk and say what came of it."""
        if self._writer is None:
            os.close(self._fd)
            with suppress(OSError):
                os.unlink(self._options.path)
            self._trouble = self._trouble or GpuprofError("nothing was recorded", exit_code=EXIT_UNAVAILABLE)
            return
        self._writer.recorded(self._first_ns, self._end_ns)
        try:
            self._writer.close()
        except GpuprofError as error:
            self._trouble = self._trouble or error
        os.close(self._fd)
        samples, size = self._writer.rows_written[0], self._writer.bytes_written
        if self._trouble is not None and not any(self._writer.rows_written):
            with suppress(OSError):
                os.unlink(self._options.path)  # nothing in it could be read
            self._trouble.hint = "nothing was recorded, and no file is left"
            return
        seconds = self._writer.span_ns / 1e9  # as a report says it
        _say(f"wrote {self._options.path}: {seconds:.1f} s, {samples:,} CPU samples, {size / 1e6:.2f} MB")

    def _nothing_code(self) -> int:
        """0, or what a script can tell by that nothing of what a recording is for was recorded."""
        writer, cpu = self._writer, self._cpu
        if writer is None or self._reads_gpus or (cpu is not None and cpu.state in ("ok", "degraded")):
            return 0
        if writer.rows_written[0] or writer.gpu_rows_written or writer.wait_rows_written:
            return 0
        _say(
            "neither CPU stacks nor anything of a GPU could be recorded: "
            "only the host's own readings are there"
        )
        self._say_why()
        return EXIT_UNAVAILABLE if self._privileged else EXIT_NO_PERMISSION

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _say(text)

    def _say_why(self) -> None:
        """Say why there are no CPU stacks, and what to do about it."""
        if self._cpu is not None:
            lacking = self._cpu.state in ("failed", "off")
            _say(f"{'No CPU stacks' if lacking else 'CPU stacks'}: {self._cpu.reason or self._cpu.state}")
            hint = self._cpu.hint if self._sudo_line is None else shlex.join(_sudo_line())
            if hint:
                _say(f"  {hint}")

    def _announce(self) -> None:
        ends = [
            *([f"after {self._options.seconds:g} s"] if self._options.seconds is not None else []),
            *(["with the command"] if self._options.command else []),
            "on Ctrl-C",
        ]
        _say(f"recording to {self._options.path}; ends {' or '.join(ends)}")
        if self._cpu is not None and self._cpu.state != "ok":
            self._say_why()


def _sudo_line() -> list[str]:
    """This very command, with sudo and the absolute path that sudo's secure_path needs."""
    return ["sudo", own_command(), *sys.argv[1:]]


def _say(text: str) -> None:
    with suppress(OSError):
        shown = "".join(char if char.isprintable() else "?" for char in text)
        print(f"gpuprof-tui: {shown}", file=sys.stderr, flush=True)
