"""`gpuprof-tui record`: writes a snapshot without a screen: for a time, for a command, or until Ctrl-C.

The sampler is a child (or the running service); this process only copies frames from its stream into the
file. Under sudo it becomes the calling user before it reads the first frame, and the command is started as
that user. Every way to end it ends with a whole file.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, EXIT_USAGE, GpuprofError
from gpuprof.snapshots.new_file import create
from gpuprof.tui import privileges
from gpuprof.tui import run as workload
from gpuprof.tui.output_streams import say
from gpuprof.tui.record_sources import Sources
from gpuprof.tui.recorded_command import EXIT_INTERRUPTED, RecordedCommand
from gpuprof.tui.sampler_process import (
    SamplerOptions,
    SamplerProcess,
    closed_service,
    running_service,
)

if TYPE_CHECKING:
    from gpuprof.snapshots.file import SnapshotWriter
    from gpuprof.snapshots.frames import Frame

_PIECE = 256 << 10
_READY_SECONDS = 15.0  # the longest wait for CPU stacks before the command is started
_LAST_FRAMES_SECONDS = 13.0  # after the end, the longest wait for what the sampler still holds
_PATIENCE_SECONDS = 2.0  # of those, before it is said what is waited for
_WATCH_SECONDS = 13.0  # the longest wait for a service to watch what the command will do
_WATCH, _SETTLE = 1, 2  # numbers of requests
_LAST_GPU_WORK_SECONDS = 1.6  # the same of GPU work, whose readings come about a second late
_NEVER_NS = 1 << 63
_IS_IN_FILE = "what came before is in the file"


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
        other_way = closed_service(sampler_options) if sampler is not None else ""
        return _Recording(options, connection, sampler, other_way).run()
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


class _Recording:
    """One recording, from the creation of the file to its last chunk."""

    def __init__(
        self,
        options: RecordOptions,
        connection: socket.socket,
        sampler: SamplerProcess | None,
        other_way: str = "",
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
        self._refusal: str | None = None  # why the sampler did not tell all up to the end
        self._complete_ns: int | None = None  # where the sampler could not tell all up to the end: up to when
        self._sources = Sources(
            own_sampler=sampler is not None, has_command=bool(options.command), other_way=other_way
        )
        self._command = RecordedCommand(options.command)
        self._trouble: GpuprofError | None = None

    def run(self) -> int:
        """Record until the end; see the module's `run`."""
        self._command.heed_signals()
        self._fd = create(self._options.path, overwrite=self._options.overwrite, instead="--force")
        self._subscribe()
        self._copy(time.monotonic() + _READY_SECONDS, self._is_ready)
        if self._sampler is None and self._options.command:
            self._watch_command()
        if self._command.interrupts:
            self._leave_nothing()
            return EXIT_INTERRUPTED
        self._begun = True
        self._first_ns, limit = time.monotonic_ns(), self._options.seconds
        until = None if limit is None else time.monotonic() + limit
        if not self._command.is_over:
            self._announce()
            self._start_command()
            self._copy(until, lambda: self._command.is_over)
        self._take_the_rest()
        self._finish()
        code = self._command.end(self._trouble, until)
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
        say("ended before the recording began: nothing was recorded, and no file is left")

    # -------------------------------------------------------------------------------------------- the stream

    def _start_command(self) -> None:
        try:
            self._command.start()
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
        self._copy(
            time.monotonic() + _WATCH_SECONDS, lambda: _WATCH in self._answered or self._command.is_over
        )
        if _WATCH not in self._answered and self._trouble is None:
            say("waits of the command may not be recorded: the service has not answered in time")

    def _take_the_rest(self) -> None:
        """What happened up to now and is not here yet. Whoever asks once more to end does not want it."""
        from gpuprof.snapshots.frames import Settle

        self._end_ns = time.monotonic_ns()
        if self._options.seconds is not None:  # whoever asked for 3 s gets 3 s, however late this comes
            self._end_ns = min(self._end_ns, self._first_ns + round(self._options.seconds * 1e9))
        begun, interrupts = time.monotonic(), self._command.interrupts
        self._ask(Settle(_SETTLE))

        def is_all() -> bool:
            late = self._sources.records_gpu_work and time.monotonic() < begun + _LAST_GPU_WORK_SECONDS
            return self._command.interrupts > interrupts or (_SETTLE in self._answered and not late)

        if self._sources.records_gpu_work:
            self._copy(begun + _LAST_GPU_WORK_SECONDS, is_all)
        self._copy(begun + _PATIENCE_SECONDS, is_all)
        if self._trouble is None and not is_all():
            say("waiting for what was recorded last; the machine is busy (Ctrl-C: without it)")
            self._copy(begun + _LAST_FRAMES_SECONDS, is_all)
        self._tell_what_is_missing(gave_up=self._command.interrupts > interrupts)

    def _tell_what_is_missing(self, *, gave_up: bool) -> None:
        """Where not all came that happened up to the end, say so, here and in the file."""
        if _SETTLE in self._answered and self._refusal is None:
            end_ns, complete_ns = self._end_ns, self._complete_ns
            if end_ns is not None and complete_ns is not None and complete_ns < end_ns:
                # A busy sampler may not have come to the beginning yet.
                missing_s = max((end_ns - max(complete_ns, self._first_ns)) / 1e9, 0.1)
                say(f"the last {missing_s:.1f} s are not complete, as the machine is too busy")
            return  # the sampler's own last status says it in the file
        if self._trouble is not None:
            reason = "the sampler ended early: what it had not sent is missing"
        elif self._refusal is not None:
            reason = f"what the sampler had not sent at the end is missing: {self._refusal}"
        elif gave_up:
            reason = "what had not been sent at the end was not waited for, and is missing"
        else:
            reason = "the sampler did not answer in time: what it had not sent is missing"
        if self._trouble is None:
            say(reason)
        if self._writer is not None and (status := self._sources.without_the_rest(reason)) is not None:
            with suppress(GpuprofError):  # said when it is closed
                self._writer.write([status])

    def _ask(self, request: Frame) -> None:
        from gpuprof.snapshots.wire import pack

        with suppress(OSError):  # it is gone; reading says so
            self._connection.sendall(pack(request))

    def _copy(self, until: float | None, done: Callable[[], bool]) -> None:
        """Copy frames from the stream into the file until `done`, a time, or trouble."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(self._command.signals_fd, select.POLLIN)
        if self._sampler is not None and self._sampler.stderr_fd >= 0:
            poll.register(self._sampler.stderr_fd, select.POLLIN)
        while self._trouble is None and not done():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            ready = dict(poll.poll(None if left is None else left * 1000 + 1))
            self._command.take_signals()
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
            raise GpuprofError(message, _IS_IN_FILE, EXIT_UNAVAILABLE)
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
            self._sources.greeted(frame)
            self._writer = SnapshotWriter(self._fd, frame, name=self._options.path)
        elif isinstance(frame, Status):
            self._sources.take(frame)
        elif isinstance(frame, Done):
            self._answered.add(frame.id)
            self._complete_ns = frame.until_ns if frame.id == _SETTLE else self._complete_ns
        elif isinstance(frame, Failure) and frame.id:
            self._answered.add(frame.id)
            if frame.id == _SETTLE:
                self._refusal = frame.message
            if frame.id == _WATCH:
                say(f"waits of the command may not be recorded from the beginning: {frame.message}")
        elif isinstance(frame, Failure):
            raise GpuprofError(frame.message, frame.hint, EXIT_UNAVAILABLE)

    # ------------------------------------------------------------------------------------------ when it ends

    def _is_ready(self) -> bool:
        return self._command.is_over or self._sources.are_ready

    def _finish(self) -> None:
        """Write the last chunk and say what came of it."""
        if self._writer is None:
            os.close(self._fd)
            with suppress(OSError):
                os.unlink(self._options.path)
            if self._trouble is None:
                self._trouble = GpuprofError("nothing was recorded", exit_code=EXIT_UNAVAILABLE)
            else:
                self._say_nothing_is_left(self._trouble)
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
            self._say_nothing_is_left(self._trouble)
            return
        seconds = self._writer.span_ns / 1e9  # as a report says it
        say(f"wrote {self._options.path}: {seconds:.1f} s, {samples:,} CPU samples, {size / 1e6:.2f} MB")

    @staticmethod
    def _say_nothing_is_left(trouble: GpuprofError) -> None:
        """Have the reason say so, beside its own next step where it has one."""
        step = "" if trouble.hint in ("", _IS_IN_FILE) else f"{trouble.hint}\n"
        trouble.hint = step + "nothing was recorded, and no file is left"

    def _nothing_code(self) -> int:
        """0, or what a script can tell by that nothing of what a recording is for was recorded."""
        writer = self._writer
        if writer is None or writer.rows_written[0] or writer.gpu_rows_written or writer.wait_rows_written:
            return 0
        return self._sources.nothing_code()

    def _announce(self) -> None:
        ends = [
            *([f"after {self._options.seconds:g} s"] if self._options.seconds is not None else []),
            *(["with the command"] if self._options.command else []),
            "on Ctrl-C",
        ]
        say(f"recording to {self._options.path}; ends {' or '.join(ends)}")
        self._sources.say_what_lacks()
