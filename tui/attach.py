"""`gpuprof-tui attach PID`: has a process that is already running load the library that records its GPU work.

The work is done by gpuprof_attach (bpf/attach), a program of its own: it borrows one waiting thread of the
process for about a millisecond, and answers with one line. Here it is found, started, and its answer read.
"""

from __future__ import annotations

import importlib.resources
import os
import re
import select
import struct
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuprof.snapshots.errors import EXIT_FAILED, EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, GpuprofError
from gpuprof.tui import children
from gpuprof.tui.run import find_library
from gpuprof.tui.sampler_process import own_command

HELPER = "gpuprof_attach"
HELPER_OPTIONS: tuple[str, ...] = ()  # tests attach to programs without CUDA
FUNCTION = "gpuprof_start"
RING_LINK = "/memfd:gpuprof-ring"
ANSWER_S = 25.0  # the helper gives up by itself after 14
STATE_S = 3.0  # a sampler that listens has found the process by then
MAX_ANSWER = 4096
_MAX_FDS = 4096
_PERMISSION = frozenset({"user", "scope", "permission"})
_NOT_THE_ONE = frozenset({"gone", "zombie", "kernel-thread"})  # none that could be attached to, now or later
_FIND_IT = "find the pid: nvidia-smi, or pgrep -af python; in a container it has another one inside"
_STATE = struct.Struct("<8s6I")  # magic, version, header, slot, slots, pid, epoch; then the state
_MAGIC = b"GPRFING1"
_MESSAGE = (608, 256)  # bpf/inject/ring.h
_RECORDING = frozenset({1, 5})  # 5: paused, to stay within its budget
_REFUSED = 3


@dataclass(frozen=True, slots=True)
class Attached:
    """A process that has loaded the library. `stopped_us`: for how long the thread `tid` was stopped (0, 0:
    it was only looked at); `from_memory`: the process could not see the library's file, and got a copy."""

    pid: int
    tid: int
    stopped_us: int
    from_memory: bool

    def __str__(self) -> str:
        milliseconds = self.stopped_us / 1000
        return (
            f"pid {self.pid} is ready to record GPU time (one thread was stopped for {milliseconds:.1f} ms)"
        )


class AttachError(GpuprofError):
    """A process could not be attached to. `code`: the reason, for programs; `loaded` is none to worry
    about."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        exits = {"no-answer": EXIT_FAILED, **dict.fromkeys(_PERMISSION, EXIT_NO_PERMISSION)}
        super().__init__(message, hint, exits.get(code, EXIT_UNAVAILABLE))
        self.code = code


class Attachment:
    """The helper at work on one process."""

    def __init__(self, pid: int, *, check: bool = False) -> None:
        """Start it. `check`: only look whether something speaks against it, and touch nothing. GpuprofError
        where the library or the helper was not built."""
        options = (*HELPER_OPTIONS, "--check") if check else HELPER_OPTIONS
        argv = [str(find_helper()), *options, str(pid), str(find_library()), FUNCTION]
        self.pid = pid
        self.fd, writer = os.pipe()
        try:
            environ = {"PATH": "/usr/bin:/bin", "LANG": "C"}
            self._child = children.spawn(argv, environ, stdout=writer)
        except BaseException:
            os.close(self.fd)
            raise
        finally:
            os.close(writer)
        os.set_blocking(self.fd, False)
        self.deadline = time.monotonic() + ANSWER_S
        self._answer = b""

    def poll(self) -> Attached | None:
        """How it went; None while it is at work. AttachError with the reason, when it could not be done."""
        with suppress(BlockingIOError):
            while piece := os.read(self.fd, MAX_ANSWER):
                self._answer = (self._answer + piece)[:MAX_ANSWER]
            self.close()
            return parse_answer(self.pid, self._answer.decode("ascii", "replace"))
        if time.monotonic() < self.deadline:
            return None
        self.close()
        raise AttachError("slow", f"pid {self.pid}: there was no answer in {ANSWER_S:.0f} s", "try again")

    def close(self) -> None:
        """Let go of the helper. It is never killed, as it may be about to put a thread back: it ends by
        itself."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            children.wait_until(self._child, time.monotonic() + 0.2)


def attach(pid: int) -> Attached:
    """Have process `pid` load the library, and wait until it has. AttachError, GpuprofError."""
    attachment = Attachment(pid)
    try:
        while (attached := attachment.poll()) is None:
            select.select([attachment.fd], [], [], 0.5)
    finally:
        attachment.close()
    return attached


def attach_all(pids: Sequence[int]) -> tuple[int, int]:
    """Attach to each of them, whatever became of those before it, and say on standard output how that went.
    Returns how many do not record (yet), and the exit code: that of the first that could not be attached to.
    GpuprofError when none could be."""
    failures: list[AttachError] = []
    waiting = 0
    for pid in pids:
        try:
            said = str(attach(pid))
        except AttachError as error:
            if error.code != "loaded":
                failures.append(about(pid, error))
                if len(pids) > 1:
                    print(failures[-1].message, *failures[-1].hint.splitlines(), sep="\n  ")
                continue
            said = f"pid {pid} has the library already"
        recording, why = wait_for_recording(pid)
        waiting += not recording and not why
        news = "its GPU time is being recorded" if recording else f"not recorded now: {why}" if why else ""
        print(f"{said}; {news}" if news else said)
    if len(failures) == len(pids) == 1:
        raise failures[0]
    if len(failures) == len(pids):
        raise GpuprofError(
            f"none of the {len(pids)} processes could be attached to", exit_code=failures[0].exit_code
        )
    return waiting, failures[0].exit_code if failures else 0


def about(pid: int, error: AttachError) -> AttachError:
    """The error of one process, in words that name its pid once and say what to do."""
    named = re.search(rf"\b{pid}\b", error.message) is not None
    message = error.message if named else f"pid {pid}: {error.message}"
    hint = error.hint or (_FIND_IT if error.code in _NOT_THE_ONE else "")
    return AttachError(error.code, message, hint)


def parse_answer(pid: int, answer: str) -> Attached:
    """The helper's line (bpf/attach/main.c) as a result. AttachError."""
    words = answer.rstrip("\n").split("\t")
    if words[0] == "loaded" and len(words) == 4 and words[1].isdigit() and words[2].isdigit():
        return Attached(pid, int(words[1]), int(words[2]), words[3] == "memory")
    if words == ["possible"]:
        return Attached(pid, 0, 0, False)
    if words[0] == "refused" and len(words) == 4:
        hint = words[3]
        if hint == "sudo":
            hint = sudo_line(pid)
        raise AttachError(words[1], words[2], hint)
    said = f"pid {pid}: the program that attaches ended without an answer"
    raise AttachError("no-answer", said, "is the process still there?")


def sudo_line(pid: int) -> str:
    """What a person types to attach as root."""
    return f"sudo {own_command()} attach {pid}"


def wait_for_recording(pid: int, seconds: float = STATE_S) -> tuple[bool, str]:
    """Whether a sampler records the process within some seconds, and why not, where the library says so."""
    deadline = time.monotonic() + seconds
    while True:
        state, message = ring_state(pid)
        if state in _RECORDING or state == _REFUSED or time.monotonic() > deadline:
            return state in _RECORDING, message if state == _REFUSED else ""
        time.sleep(0.05)


def ring_state(pid: int) -> tuple[int | None, str]:
    """State and message in the header of a process's ring (bpf/inject/ring.h); None where there is none to
    be read. What it says is the process's word."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for number, entry in enumerate(entries):
            if number == _MAX_FDS:
                break
            with suppress(OSError):
                if not os.readlink(entry.path).startswith(RING_LINK):
                    continue
                fd = os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    head, text = os.pread(fd, _STATE.size + 4, 0), os.pread(fd, _MESSAGE[1], _MESSAGE[0])
                finally:
                    os.close(fd)
                if len(head) == _STATE.size + 4 and head.startswith(_MAGIC):
                    words = text.split(b"\0")[0].decode("utf-8", "replace")
                    readable = "".join(char if char.isprintable() else "?" for char in words)
                    return int.from_bytes(head[_STATE.size :], "little"), readable
    return None, ""


def find_helper() -> Path:
    """The program gpuprof_attach as it was built at installation. GpuprofError when it was not."""
    for path in _helper_paths():
        if path.is_file():
            return path
    raise GpuprofError(
        f"{HELPER}, which attaches to processes, was not built: there was no C compiler at installation",
        "install one (apt install gcc libc6-dev), then install gpuprof-tui again",
        EXIT_UNAVAILABLE,
    )


def _helper_paths() -> Iterator[Path]:
    """Beside the package that it belongs to; for an editable install, in site-packages."""
    yield Path(str(importlib.resources.files("gpuprof.bpf"))) / HELPER
    yield Path(sysconfig.get_paths()["platlib"]) / "gpuprof" / "bpf" / HELPER
