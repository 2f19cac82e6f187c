"""The definitions that rows refer to by number: processes, threads, strings, functions, frames, stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuprof.snapshots.frame_types import U8, U32, Frame


@dataclass(frozen=True, slots=True)
class ProcessDef:
    """One process (pid and start time); `gone_ns` is not known while it lives."""

    pid: int
    start_ns: int  # CLOCK_BOOTTIME start time of the process, as /proc/PID/stat gives it
    name: str  # comm
    cmdline: str
    user: str
    uid: int
    ppid: int
    container_pid: int | None = None  # pid in its own namespace, where it differs


@dataclass(frozen=True, slots=True)
class ThreadDef:
    process: int  # process id in this generation
    tid: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class ProcessDefs(Frame):
    KIND: ClassVar[str] = "processes"
    generation: int
    first: int
    processes: list[ProcessDef]


@dataclass(frozen=True, slots=True, eq=False)
class ThreadDefs(Frame):
    KIND: ClassVar[str] = "threads"
    generation: int
    first: int
    threads: list[ThreadDef]


@dataclass(frozen=True, slots=True, eq=False)
class StringDefs(Frame):
    """Strings that functions refer to; id 0 is the empty string and is always defined."""

    KIND: ClassVar[str] = "strings"
    generation: int
    first: int
    strings: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class FunctionDefs(Frame):
    """Functions: string ids of name, source file and binary, and a FrameKind. The file of a GPU kernel is its
    full name, where its name is short for it.
    """

    KIND: ClassVar[str] = "functions"
    generation: int
    first: int
    name: U32
    file: U32
    binary: U32
    kind: U8


@dataclass(frozen=True, slots=True, eq=False)
class FrameDefs(Frame):
    """Frames: a function and a line in it (0: no line)."""

    KIND: ClassVar[str] = "frames"
    generation: int
    first: int
    function: U32
    line: U32


@dataclass(frozen=True, slots=True, eq=False)
class StackDefs(Frame):
    """Stacks as a prefix tree: stack id = node; its parent is the stack of its caller (parent < id; 0 is the
    empty stack).
    """

    KIND: ClassVar[str] = "stacks"
    generation: int
    first: int
    parent: U32
    frame: U32
