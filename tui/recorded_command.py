"""The command of a recording: started as the user who records, and ended with all that descends from it.

Its end, and the wishes to end the recording, come as signals to this process; both are taken here.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.tui import children
from gpuprof.tui import run as workload
from gpuprof.tui.descendants import Family
from gpuprof.tui.output_streams import say

EXIT_INTERRUPTED = 130
_END_SECONDS = 10.0
_PATIENCE_SECONDS = 1.0  # of those, before it is said what is waited for


def start_command(command: Sequence[str]) -> int:
    """Start the recorded command as the user that this process is, as `run` does; its pid.

    The one place where a workload is started.
    """
    try:
        environ = workload.environment(os.environ)
    except GpuprofError as error:  # all the rest is recorded
        say(f"no GPU time of the command: {error.message}")
        say(f"  {error.hint}")
        environ = dict(os.environ)
    return children.spawn([workload.find_program(command[0]), *command[1:]], environ)


class RecordedCommand:
    """A command, from its start to the end of its last descendant. `words`: empty for none.

    `interrupts` counts the wishes to end: one for Ctrl-C, which a running command may answer by itself, two
    for any other signal. `signals_fd` can be read when `take_signals` has something to do.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._pid: int | None = None
        self._code: int | None = None
        self._family: Family | None = None  # the command and its descendants, once they were asked to end
        self.signals_fd = -1
        self.interrupts = 0

    def heed_signals(self) -> None:
        """Have signals do nothing from now on but be counted by `take_signals`."""
        self.signals_fd = children.wake_on_signals()

    def start(self) -> None:
        """Start the command, where there is one. GpuprofError."""
        if self._words:
            self._pid = start_command(self._words)

    @property
    def is_over(self) -> bool:
        """Whether the recording is to end: the command has, or was asked for often enough."""
        if self.interrupts > (1 if self._is_running else 0):
            return True
        return self._code is not None

    @property
    def _is_running(self) -> bool:
        return self._pid is not None and self._code is None

    def take_signals(self) -> None:
        """Do what the signals that came ask for."""
        signals = b""
        with suppress(BlockingIOError):
            signals = os.read(self.signals_fd, 4096)
        for signum in signals:
            if signum == signal.SIGCHLD:
                self._reap()
            elif signum == signal.SIGINT:  # from a terminal the command has it, too, and may end in order
                self.interrupts += 1
            else:
                self.interrupts += 2
                self._ask_to_end()

    def end(self, trouble: GpuprofError | None, until: float | None = None) -> int:
        """End the command; its exit code, 0 without one. After trouble it may run to its own end, or to the
        time that the recording was to last to (`until`, monotonic seconds)."""
        if self._pid is None:
            return 0
        if self._code is None and trouble is not None:
            say(f"{trouble.message}; the command goes on")
            while self._code is None and self.interrupts < 2:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                select.select([self.signals_fd], [], [], left)
                self.take_signals()
        if self._code is None:
            say("ending the command" if trouble else "the recording is complete; ending the command")
            self._ask_to_end()
            self._see_family_end()
            return 0 if not self.interrupts else EXIT_INTERRUPTED
        self._see_family_end()
        if name := children.signal_of(self._code):  # which a shell says of its own children only
            say(f"the command was ended by {name}")
        return self._code

    def _reap(self) -> None:
        if self._pid is not None and self._code is None:
            self._code = children.wait_until(self._pid, 0.0)

    def _ask_to_end(self) -> None:
        if self._family is None and self._pid is not None and self._code is None:
            self._family = Family(self._pid)
            self._family.ask_to_end()

    def _see_family_end(self) -> None:
        """Wait for the command and its descendants, which were asked to end, and kill what then still lives;
        at once when this process is asked once more.
        """
        family, begun, interrupts, said = self._family, time.monotonic(), self.interrupts, False
        while family is not None and (left := family.living()):
            waited = time.monotonic() - begun
            if waited >= _END_SECONDS or self.interrupts > interrupts:
                family.kill(1.0)
                break
            if waited >= _PATIENCE_SECONDS and not said:
                who = f"the command ({self._pid})"
                if self._code is not None:
                    who = f"a process of the command ({left[0].pid})"
                rest = _END_SECONDS - waited
                say(f"{who} has not ended on SIGTERM; killed in {rest:.0f} s, or at once on Ctrl-C")
                said = True
            select.select([self.signals_fd], [], [], 0.05)
            self.take_signals()
        self._reap()
