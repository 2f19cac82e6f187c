"""Waits that had begun when their process came to be watched: found in /proc, so that a thread that waits
all the time is not told as one that never did.

Such a wait is told from then on, with its kind and, once it has ended, its waker. What the thread did before
it went to wait is not known: of its stack there is the kernel's part only.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.records import FAMILY_WAIT
from gpuprof.bpf.wait_programs import WAIT_RECORD
from gpuprof.sampler.proc_stat import read_file
from gpuprof.sampler.processes import start_time_ns
from gpuprof.snapshots.names import clean

MAX_THREADS = 4000  # looked at for one process
MAX_KERNEL_FRAMES = 64
HEADER_WORDS = 9
IS_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
# States of proc_pid_stat(5) in which a thread waits, as the kernel's numbers (TASK_*, include/linux/sched.h).
WAITING = {"S": 1, "D": 2, "T": 4, "t": 8, "I": 0x402}
_FRAME = re.compile(
    rb"^\[<[0-9a-f]*>\] ([^\s+]{1,200})\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[([^\]\s]{1,60})\])?\s*$", re.M
)


@dataclass(frozen=True, slots=True)
class KernelStack:
    """Names and binaries of a thread's kernel functions, innermost first; empty where they are hidden."""

    names: tuple[str, ...] = ()
    binaries: tuple[str, ...] = ()

    @property
    def hash(self) -> int:
        """A number of 64 bits that is never 0."""
        text = "\0".join((*self.names, *self.binaries)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") | 1


@dataclass(frozen=True, slots=True)
class Sleep:
    """What /proc says of a thread at one moment: its state, and how often it was switched out so far."""

    state: int  # 0: it runs, or is ready to
    switches: int
    uid: int


def parse_status(text: bytes) -> Sleep | None:
    """The content of /proc/PID/task/TID/status (proc_pid_status(5)); None where it is not as it should be."""
    fields = dict(line.split(b":", 1) for line in text.split(b"\n") if b":" in line)
    try:
        state = fields[b"State"].split()[0].decode("ascii")
        switches = int(fields[b"voluntary_ctxt_switches"]) + int(fields[b"nonvoluntary_ctxt_switches"])
        return Sleep(WAITING.get(state, 0), switches, int(fields[b"Uid"].split()[0]))
    except (KeyError, IndexError, ValueError):
        return None


def parse_stack(text: bytes) -> KernelStack:
    """The content of /proc/PID/task/TID/stack: "[<0>] function+0x10/0x20 [module]", innermost first."""
    found = _FRAME.findall(text)[:MAX_KERNEL_FRAMES]
    names = tuple(clean(name, 200) for name, _ in found)
    return KernelStack(
        names, tuple(f"[{clean(module, 60)}]" if module else "[kernel]" for _, module in found)
    )


def parse_syscall(text: bytes) -> int:
    """The content of /proc/PID/task/TID/syscall: the number, -1 outside of one or where it is not known."""
    first = text.split(b" ", 1)[0].strip()
    return int(first) if first.isdigit() and len(first) < 6 else -1


def waits_of(
    pid: int,
    threshold_ns: int,
    add: Callable[[NDArray[np.void], KernelStack], bool],
    followed: Callable[[], Collection[int]],
    *,
    proc: str = "/proc",
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> list[int]:
    """Find the threads of a process that wait, which must be tracked already, and `add` the wait of each (one
    WAIT_RECORD without an end); the threads whose wait must be dropped again, since it has ended meanwhile.

    `add` gives False where no more can be added; `followed`: the threads whose wait has begun since.
    """
    over: list[int] = []
    start_ns = start_time_ns(pid)
    if start_ns is None or _is_kernel_thread(read_file(f"{proc}/{pid}/stat", 1024)):
        return over
    waiting: dict[int, tuple[Sleep, int]] = {}
    for tid in _threads(f"{proc}/{pid}/task"):
        sleep = parse_status(read_file(f"{proc}/{pid}/task/{tid}/status", 8192) or b"")
        if sleep is not None and sleep.state:
            waiting[tid] = sleep, now_ns()
    known = followed() if waiting else ()  # only now: of a wait that was seen, it is known whether it is one
    for tid, (before, since_ns) in waiting.items():
        if tid in known:
            continue
        place = f"{proc}/{pid}/task/{tid}"
        # What is read now is of this wait if it turns out that it has gone on all the time.
        stack = parse_stack(read_file(f"{place}/stack", 16384) or b"")
        wait = np.zeros(1, WAIT_RECORD)
        wait["pid"], wait["tid"], wait["start_ns"] = pid, tid, start_ns
        wait["family"], wait["header_words"] = FAMILY_WAIT, HEADER_WORDS
        wait["uid"], wait["comm"] = before.uid, (read_file(f"{place}/comm", 16) or b"").rstrip(b"\n")
        wait["extra"], wait["threshold_ns"], wait["weight"] = since_ns, threshold_ns, 1
        wait["stack"], wait["state"] = stack.hash, before.state
        wait["syscall"] = parse_syscall(read_file(f"{place}/syscall", 256) or b"")
        if not add(wait, stack):
            break
        after = parse_status(read_file(f"{place}/status", 8192) or b"")
        if after is None or not after.state or after.switches != before.switches:
            over.append(tid)
    return over


def _threads(folder: str) -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir(folder)[:MAX_THREADS] if name.isdigit()]
    except OSError:
        return []


def _is_kernel_thread(stat: bytes | None) -> bool:
    fields = (stat or b"").rpartition(b")")[2].split()
    return len(fields) > 6 and fields[6].isdigit() and bool(int(fields[6]) & IS_KERNEL_THREAD)
