"""What the sampler has said of its sources: when a recording may begin, and why it lacks something."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuprof.snapshots.errors import EXIT_NO_PERMISSION, EXIT_UNAVAILABLE
from gpuprof.tui.output_streams import say
from gpuprof.tui.sampler_process import own_command

if TYPE_CHECKING:
    from gpuprof.snapshots.frames import Hello, SourceStatus, Status

_WORKS = ("ok", "degraded")
_OF_ROWS = ("cpu", "offcpu", "gpu")


class Sources:
    """The sources by the last frame that told of them.

    `own_sampler`: whether the sampler was started for the recording; `has_command`: whether a command is;
    `other_way`: how a person without root may get CPU stacks, where there is one.
    """

    def __init__(self, *, own_sampler: bool, has_command: bool, other_way: str = "") -> None:
        self._own_sampler = own_sampler
        self._has_command = has_command
        self._other_way = other_way
        self._last: Status | None = None
        self._cpu: SourceStatus | None = None
        self._waits_start = False
        self._sudo_line: str | None = None
        self._privileged = True
        self._reads_gpus = False
        self._told_start = False
        self.records_gpu_work = False  # GPU work may be recorded, or might be once the command has begun

    def greeted(self, frame: Hello) -> None:
        """Take in how the sampler runs."""
        self._sudo_line = frame.sudo_line
        self._privileged = frame.privileged

    def take(self, frame: Status) -> None:
        """Take in what became of the sources."""
        self._last = frame
        self._cpu = next((source for source in frame.sources if source.name == "cpu"), self._cpu)
        states = {source.name: source.state for source in frame.sources}
        self._waits_start = states.get("offcpu") == "starting"
        self._reads_gpus = states.get("nvml") in _WORKS
        if self._own_sampler and "starting" in (states.get("cpu"), states.get("offcpu")):
            self._tell_start()
        if states.get("gpu") in _WORKS or (self._has_command and self._reads_gpus):
            self.records_gpu_work = True

    @property
    def are_ready(self) -> bool:
        """Whether CPU stacks and waits are recorded, or will not be."""
        return self._cpu is not None and self._cpu.state != "starting" and not self._waits_start

    def without_the_rest(self, reason: str) -> Status | None:
        """The last status with the reason why the end of a recording lacks rows; None without a status."""
        if self._last is None:
            return None
        sources = [
            _with_reason(source, reason) if source.name in _OF_ROWS and source.state in _WORKS else source
            for source in self._last.sources
        ]
        return replace(self._last, sources=sources)

    def say_what_lacks(self) -> None:
        """Say why CPU stacks are not as they should be, where they are known not to be."""
        if self._cpu is not None and self._cpu.state != "ok":
            self._say_why()
        if self._waits_start:
            say("waits are not recorded from the beginning: what follows them is not ready yet")

    def nothing_code(self) -> int:
        """The exit code of a recording that has no rows: 0 where its sources worked all the same."""
        if self._reads_gpus or (self._cpu is not None and self._cpu.state in _WORKS):
            return 0
        say(
            "neither CPU stacks nor anything of a GPU could be recorded: "
            "only the host's own readings are there"
        )
        self._say_why()
        return EXIT_UNAVAILABLE if self._privileged else EXIT_NO_PERMISSION

    def _tell_start(self) -> None:
        if not self._told_start:
            self._told_start = True
            say("getting ready: the BPF programs are compiled and loaded (a few seconds)")

    def _say_why(self) -> None:
        """Say why there are no CPU stacks, and what to do about it."""
        if self._cpu is not None:
            lacking = self._cpu.state in ("failed", "off")
            say(f"{'No CPU stacks' if lacking else 'CPU stacks'}: {self._cpu.reason or self._cpu.state}")
            hint = self._cpu.hint if self._sudo_line is None else shlex.join(_sudo_line())
            if hint:
                say(f"  {hint}")
            if self._other_way and not self._privileged:
                say(f"  {self._other_way}")


def _with_reason(source: SourceStatus, reason: str) -> SourceStatus:
    return replace(source, state="degraded", reason=f"{source.reason}; {reason}" if source.reason else reason)


def _sudo_line() -> list[str]:
    """This very command, with sudo and the absolute path that sudo's secure_path needs."""
    return ["sudo", own_command(), *sys.argv[1:]]
