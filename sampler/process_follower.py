"""Follows processes for the stack reader: who they are, what they map, and their tables in the kernel.

Driven by control messages and by the samples themselves; a process that nobody samples costs nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from gpuprof.bpf.records import ControlMessage, MessageReason
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.maps import Mapping, read_maps
from gpuprof.sampler.process_stacks import INJECTION_LIBRARY, ProcessStacks
from gpuprof.sampler.processes import NS_PER_TICK, cpu_ticks, describe, start_time_ns, user_name
from gpuprof.sampler.python_runtime import PythonLayout, UnsupportedPython, find_python, has_python
from gpuprof.sampler.symbol_store import SymbolStore
from gpuprof.sampler.unwind_tables import UnwindTables
from gpuprof.snapshots.frames import ProcessDef
from gpuprof.snapshots.names import clean

PURGE_AFTER_EXIT_NS = 2 * 10**9  # samples of a process are read at most a tick after its exit
IDLE_CHECK_NS = 30 * 10**9  # a process without samples for this long is looked at whether it is still there
EXPIRE_NS = 60 * 10**9
MIN_SCAN_PAUSE_NS = 100_000_000
MAX_SCAN_PAUSE_NS = 10 * 10**9
PYTHON_RETRY_NS = (50_000_000, 200_000_000, 1_000_000_000, 5_000_000_000)
MAX_ENVIRON_BYTES = 256 << 10
FIRST_SCAN_NS = 300_000_000  # spent before sampling begins on the busiest processes


class ProcessFollower:
    """The known processes. Not thread-safe: used by the stack reader's thread."""

    def __init__(self, tables: UnwindTables, ids: FrameIds, symbols: SymbolStore) -> None:
        self._tables = tables
        self._symbols = symbols
        self._ids = ids
        self._processes: dict[int, ProcessStacks] = {}
        self._exited: list[ProcessStacks] = []
        self._due: dict[int, int] = {}  # pid: when to look at it
        self._next_expiry_ns = time.monotonic_ns() + EXPIRE_NS

    def publish_running(self, budget_ns: int = FIRST_SCAN_NS) -> None:
        """Publish the processes that used most CPU time so far, for as long as the budget lasts."""
        deadline = time.monotonic_ns() + budget_ns
        busy = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                ticks = cpu_ticks(int(name))
                if ticks:
                    busy.append((ticks, int(name)))
        for _, pid in sorted(busy, reverse=True):
            if time.monotonic_ns() >= deadline:
                return
            self._publish(pid)

    def handle(self, messages: Iterable[ControlMessage], between: Callable[[], None] = lambda: None) -> None:
        """Do what the kernel side asks for. Several messages of one process are one piece of work.

        `between` is called after each piece that may have taken long.
        """
        now_ns = time.monotonic_ns()
        for message in messages:
            pid, reason = message.pid, message.reason
            if reason in {MessageReason.EXIT, MessageReason.EXEC}:
                self._due.pop(pid, None)
                self._tables.forget(pid)
                if reason == MessageReason.EXEC and pid in self._processes:
                    self._processes[pid].replaced = True
                self._leave(pid)
            elif reason == MessageReason.FORK:
                self._fork(pid, message.address)
            elif reason == MessageReason.NEW_PROCESS:
                self._due[pid] = now_ns
            elif (process := self._processes.get(pid)) is not None:
                # Code outside of all mappings (dlopen, or a JIT), or a thread that no known interpreter has.
                python = reason == MessageReason.NO_PYTHON_THREAD
                self._plan(pid, process.next_python_scan_ns if python else process.next_scan_ns)
        for pid, due_ns in list(self._due.items()):
            if now_ns >= due_ns:
                del self._due[pid]
                self._publish(pid)
                between()

    def want(self, pid: int) -> None:
        """Have a process published, or looked at again, soon."""
        self._plan(pid, time.monotonic_ns())

    def _plan(self, pid: int, due_ns: int) -> None:
        """Have a process looked at, at that time or earlier."""
        self._due[pid] = min(self._due.get(pid, due_ns), due_ns)

    def get(
        self, pid: int, start_ns: int, time_ns: int, *, known: bool, uid: int, comm: bytes
    ) -> ProcessStacks:
        """The process that a sample names; made up from the sample when it is gone already.

        `known`: the sample was walked with the process's tables. After an exec that tells samples of the new
        program, which has none yet, from those of the old one.
        """
        start_ns -= start_ns % NS_PER_TICK
        process = self._processes.get(pid)
        if (
            process is not None
            and process.start_ns == start_ns
            and (not known or time_ns >= process.since_ns)
        ):
            return process
        exited = [
            exited
            for exited in self._exited
            if exited.pid == pid and exited.start_ns == start_ns and (known or not exited.replaced)
        ]
        if exited:  # of what the process was before and after an exec, the one whose tables were there
            return max(exited, key=lambda one: one.since_ns if one.since_ns <= time_ns else -1)
        if process is not None and process.start_ns == start_ns:
            return process
        definition = describe(pid)
        if definition is None or definition.start_ns != start_ns:
            process = self._new(_from_sample(pid, start_ns, uid, comm))
            process.gone_ns = time.monotonic_ns()
            self._exited.append(process)
            return process
        self._leave(pid)
        process = self._processes[pid] = self._new(definition)
        self._publish(pid)
        return self._processes.get(pid, process)

    def tidy(self, now_ns: int) -> None:
        """Let go of processes that are gone, and of what may be out of date; call it about once a second."""
        keep = []
        for process in self._exited:
            if process.gone_ns is not None and now_ns - process.gone_ns > PURGE_AFTER_EXIT_NS:
                process.close()
            else:
                keep.append(process)
        self._exited = keep
        for pid, process in list(self._processes.items()):
            if now_ns - process.last_seen_ns > IDLE_CHECK_NS:
                process.last_seen_ns = now_ns
                if start_time_ns(pid) != process.start_ns:
                    self._exit(pid)
        if now_ns >= self._next_expiry_ns:
            self._next_expiry_ns = now_ns + EXPIRE_NS
            for process in self._processes.values():
                process.expire()
                definition = describe(process.pid)
                if definition is not None and definition.start_ns == process.start_ns:
                    process.definition = definition
        self._symbols.trim()
        self._tables.housekeeping()

    def reset(self, ids: FrameIds) -> None:
        """A new set of frame ids begins."""
        self._ids = ids
        for process in [*self._processes.values(), *self._exited]:
            process.reset(ids)

    def all(self) -> Iterable[ProcessStacks]:
        """The processes that are known, with those that exited a moment ago."""
        return [*self._processes.values(), *self._exited]

    def unsupported_pythons(self) -> list[str]:
        """What the status says of living processes whose Python frames are not read."""
        found = {p.unsupported_python: p.pid for p in list(self._processes.values()) if p.unsupported_python}
        return [f"{words} in pid {pid}" for words, pid in sorted(found.items())]

    def close(self) -> None:
        """Give back all descriptors."""
        for process in self.all():
            process.close()
        self._symbols.close()

    def _new(self, definition: ProcessDef) -> ProcessStacks:
        process = ProcessStacks(definition, self._ids, self._symbols)
        process.last_seen_ns = time.monotonic_ns()
        return process

    def _publish(self, pid: int) -> None:
        """Read a process's mappings and hand them to the kernel."""
        definition = describe(pid)
        if definition is None:
            return
        mappings = read_maps(pid)
        if not mappings:  # a kernel thread, or gone
            return
        process = self._processes.get(pid)
        if process is None or process.start_ns != definition.start_ns:
            self._leave(pid)
            process = self._processes[pid] = self._new(definition)
        process.definition = definition
        if process.expects_library is None:
            process.expects_library = expects_library(pid)
        now_ns = time.monotonic_ns()
        python, mapped = process.python, list(mappings) != list(process.mappings)
        if python is None or mapped or now_ns >= process.next_python_scan_ns:
            python = self._find_python(process, mappings)
            process.next_python_scan_ns = now_ns + MAX_SCAN_PAUSE_NS
        if start_time_ns(pid) != definition.start_ns:
            return  # another process has the pid by now
        if not process.mappings:
            process.since_ns = now_ns
        if mapped or python != process.python:
            process.scan_pause_ns = 0
        else:
            process.scan_pause_ns = min(max(2 * process.scan_pause_ns, MIN_SCAN_PAUSE_NS), MAX_SCAN_PAUSE_NS)
        process.next_scan_ns = now_ns + process.scan_pause_ns
        self._tables.publish(pid, mappings, python)
        process.set_mappings(mappings, python)
        for mapping in mappings:
            self._symbols.hold(pid, mapping)

    def _find_python(self, process: ProcessStacks, mappings: Sequence[Mapping]) -> PythonLayout | None:
        try:
            python = find_python(process.pid, mappings)
        except UnsupportedPython as error:
            process.unsupported_python = str(error)
            return None
        attempts = process.python_attempts
        if python is None and has_python(process.pid, mappings) and attempts < len(PYTHON_RETRY_NS):
            # It has not started up yet: it is mapped before it is initialized.
            process.python_attempts = attempts + 1
            self._plan(process.pid, time.monotonic_ns() + PYTHON_RETRY_NS[attempts])
        return python

    def _fork(self, pid: int, parent_pid: int) -> None:
        definition = describe(pid)
        parent = self._processes.get(parent_pid)
        if definition is None or parent is None or not self._tables.fork(pid):
            return
        self._leave(pid)
        process = self._processes[pid] = self._new(definition)
        process.inherit(parent)

    def _exit(self, pid: int) -> None:
        self._tables.forget(pid)
        self._leave(pid)

    def _leave(self, pid: int) -> None:
        """The process is gone or became another program; samples of what it was may still come."""
        process = self._processes.pop(pid, None)
        if process is not None:
            process.gone_ns = time.monotonic_ns()
            self._exited.append(process)


def expects_library(pid: int) -> bool:
    """Whether a process was started so that the CUDA driver loads the injection library into it."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            environ = file.read(MAX_ENVIRON_BYTES) or b""
    except OSError:
        return False
    return any(
        entry.startswith(b"CUDA_INJECTION64_PATH=") and entry.endswith(INJECTION_LIBRARY.encode())
        for entry in environ.split(b"\0")
    )


def _from_sample(pid: int, start_ns: int, uid: int, comm: bytes) -> ProcessDef:
    name = clean(comm, 64)
    return ProcessDef(pid=pid, start_ns=start_ns, name=name, cmdline="", user=user_name(uid), uid=uid, ppid=0)
