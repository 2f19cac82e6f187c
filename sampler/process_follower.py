"""Follows processes for the stack reader: who they are, what they map, and their tables in the kernel.

Driven by messages of the kernel side and by the samples themselves; a process that nobody samples costs
nothing. A process that is new is told by the kernel, with the mappings that its samples met, and is
complete and named from its first sample on; its tables are published when it has lived for a moment, which
makes further samples cheaper.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from gpuprof.bpf.messages import CodeMessage, MappingMessage, Message, WhoMessage
from gpuprof.bpf.records import MessageReason
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.kernel_told import FileNames, process_of, to_tick, with_mapping
from gpuprof.sampler.known_processes import KnownProcesses
from gpuprof.sampler.maps import Mapping, read_maps
from gpuprof.sampler.process_stacks import INJECTION_LIBRARY, ProcessStacks
from gpuprof.sampler.processes import cpu_ticks, describe, start_time_ns, user_name
from gpuprof.sampler.python_runtime import PythonLayout, UnsupportedPython, find_python
from gpuprof.sampler.python_threads import ThreadStateFinder, has_many_threads
from gpuprof.sampler.symbol_store import SymbolStore
from gpuprof.sampler.unwind_tables import UnwindTables
from gpuprof.snapshots.frames import ProcessDef
from gpuprof.snapshots.names import clean

IDLE_CHECK_NS = 30 * 10**9  # a process without samples for this long is looked at whether it is still there
EXPIRE_NS = 60 * 10**9
MIN_SCAN_PAUSE_NS = 100_000_000
MAX_SCAN_PAUSE_NS = 10 * 10**9
PUBLISH_AFTER_NS = 200_000_000  # most processes are gone by then
NEW_BINARY_PAUSE_NS = 50_000_000  # on average between programs that are read before they were sampled
MAX_NEW_BINARIES = 50  # at once
MAX_ENVIRON_BYTES = 256 << 10
FIRST_SCAN_NS = 300_000_000  # spent before sampling begins on the busiest processes


class ProcessFollower:
    """The known processes. Not thread-safe: used by the stack reader's thread."""

    def __init__(self, tables: UnwindTables, ids: FrameIds, symbols: SymbolStore) -> None:
        self._tables = tables
        self._symbols = symbols
        self._ids = ids
        self._known = KnownProcesses()
        self._files = FileNames()
        self._thread_states = ThreadStateFinder()
        self._due: dict[int, int] = {}  # pid: when to look at it
        self._new_binaries_ns = 0  # a clock that each new program puts forward
        self.hurry_ns = 0  # until then samples are to be named at once: what they are of may be gone soon
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

    def handle(self, messages: Iterable[Message], between: Callable[[], None] = lambda: None) -> None:
        """Do what the kernel side asks for. Several messages of one process are one piece of work.

        `between` is called after each piece that may have taken long.
        """
        now_ns = time.monotonic_ns()
        for message in messages:
            pid = message.pid
            if isinstance(message, WhoMessage):
                self._meet(message)
            elif isinstance(message, MappingMessage):
                self._add_mapping(message)
            elif isinstance(message, CodeMessage):
                found = self._known.at(pid, to_tick(message.start_ns), now_ns)
                if found is not None:  # also of one that has ended in the meantime
                    found.remember(message.parts)
            elif message.reason == MessageReason.EXIT:
                self._exit(pid)
            elif message.reason == MessageReason.EXEC:
                self._exit(pid)
                self._known.note_exec(pid, message.address)
            elif message.reason == MessageReason.FORK:
                self._known.fork(pid, message.address)
                self._tables.fork(pid)
            elif message.reason == MessageReason.NEW_BINARY:
                self._plan_new_binary(pid, now_ns)
            elif message.reason == MessageReason.THREAD_STATES:
                if self._find_threads(pid):
                    between()
            elif (process := self._known.living.get(pid)) is None:
                self._plan(pid, now_ns)
            elif message.reason == MessageReason.NEW_PROCESS:
                self._due.setdefault(pid, now_ns + (0 if process.published_ns else PUBLISH_AFTER_NS))
            else:  # code was mapped or unmapped: dlopen, dlclose, a JIT
                self._plan(pid, process.next_scan_ns)
        for pid, due_ns in list(self._due.items()):
            if now_ns >= due_ns:
                del self._due[pid]
                self._publish(pid)
                between()

    def _find_threads(self, pid: int) -> bool:
        """Tell the kernel side where the Python threads of a process are, which it could not find."""
        process = self._known.living.get(pid)
        if process is None or process.python is None:
            return False
        states = self._thread_states.find(pid, process.start_ns, process.python)
        if states:
            self._tables.put_thread_states(pid, states)
        return bool(states)

    def want(self, pid: int) -> None:
        """Have a process published, or looked at again, soon."""
        self._plan(pid, time.monotonic_ns())

    def _plan(self, pid: int, due_ns: int) -> None:
        """Have a process looked at, at that time or earlier."""
        self._due[pid] = min(self._due.get(pid, due_ns), due_ns)

    def get(self, pid: int, start_ns: int, time_ns: int, *, uid: int, comm: bytes) -> ProcessStacks:
        """The process that a sample names; made up from the sample when it is gone already.

        Of what a process was before and after an exec, the one that it was at the time of the sample.
        """
        start_ns = to_tick(start_ns)
        process = self._known.living.get(pid)
        known = process is not None and process.start_ns == start_ns
        began_ns = self._known.began_ns(pid)
        if process is not None and known and time_ns >= max(process.since_ns, began_ns):
            return process
        found = self._known.at(pid, start_ns, time_ns)
        return found or self._make(pid, start_ns, began_ns if began_ns <= time_ns else 0, uid, comm)

    def _make(self, pid: int, start_ns: int, since_ns: int, uid: int, comm: bytes) -> ProcessStacks:
        """A process of which there are samples, but no message came."""
        definition = describe(pid)
        over = definition is None or definition.start_ns != start_ns or since_ns < self._known.began_ns(pid)
        if definition is None or definition.start_ns != start_ns:
            definition = _from_sample(pid, start_ns, uid, comm)
        found = self._new(definition)
        found.since_ns = since_ns
        parent = self._known.forked_from(pid, since_ns)
        if parent is not None:
            found.inherit(parent)
        if over:
            self._known.add_gone(found)
            return found
        self._known.add(found)
        if parent is None:
            self._publish(pid)
        return found

    def tidy(self, now_ns: int) -> None:
        """Let go of processes that are gone, and of what may be out of date; call it about once a second."""
        self._known.purge(now_ns)
        for pid, process in list(self._known.living.items()):
            process.refresh_generated()
            if now_ns - process.last_seen_ns > IDLE_CHECK_NS:
                process.last_seen_ns = now_ns
                if start_time_ns(pid) != process.start_ns:
                    self._exit(pid)
        if now_ns >= self._next_expiry_ns:
            self._next_expiry_ns = now_ns + EXPIRE_NS
            for process in self._known.living.values():
                process.expire()
                if process.published_ns:  # what changed without a trace is found now
                    self._plan(process.pid, now_ns)
                definition = describe(process.pid)
                if definition is not None and definition.start_ns == process.start_ns:
                    process.definition = definition
        self._known.forget_old(now_ns - EXPIRE_NS)
        self._symbols.trim()
        self._tables.housekeeping()

    def reset(self, ids: FrameIds) -> None:
        """A new set of frame ids begins."""
        self._ids = ids
        for process in self._known.with_parents():
            process.reset(ids)

    def all(self) -> Iterable[ProcessStacks]:
        """The processes that are known, with those that exited a moment ago."""
        return self._known.all()

    def unsupported_pythons(self) -> list[str]:
        """What the status says of living processes whose Python frames are not read."""
        living = list(self._known.living.values())
        found = {process.unsupported_python: process.pid for process in living if process.unsupported_python}
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

    def _meet(self, message: WhoMessage) -> None:
        """A process that nobody knows yet was sampled."""
        pid, start_ns = message.pid, to_tick(message.start_ns)
        process = self._known.living.get(pid)
        if process is not None and process.start_ns == start_ns:
            return
        self._enter(process_of(message))

    def _enter(self, definition: ProcessDef) -> ProcessStacks:
        """A process, or what it became by an exec, which gives it its name."""
        process = self._new(definition)
        process.since_ns = self._known.began_ns(definition.pid)
        self._known.add(process)
        self._known.name_before(process)
        return process

    def _add_mapping(self, message: MappingMessage) -> None:
        """A sample met a mapping that is in no published table."""
        process = self._known.at(message.pid, to_tick(message.start_ns), message.time_ns)
        if process is None:
            return
        mapping = self._files.mapping(message)
        self._symbols.hold(process.pid, mapping)
        if not any(
            (m.start, m.end, m.key) == (mapping.start, mapping.end, mapping.key) for m in process.mappings
        ):
            mappings = with_mapping(process.mappings, mapping)
            if mapping.key is not None and len(mappings) <= len(process.mappings):
                process = self._change(process, message.time_ns)
            python = process.python or self._find_python(process, mappings)
            process.set_mappings(mappings, python)
            if python is not None:  # its code objects can be read only while it lives
                self.hurry_ns = time.monotonic_ns() + PUBLISH_AFTER_NS
        if not message.known:
            self._plan(process.pid, process.next_scan_ns)

    def _change(self, process: ProcessStacks, time_ns: int) -> ProcessStacks:
        """The process from a time on at which a file was mapped in the place of another; samples from
        before are named by what was there.
        """
        after = self._new(process.definition)
        after.inherit(process)
        after.since_ns, after.published_ns = time_ns, process.published_ns
        after.next_scan_ns, after.scan_pause_ns = process.next_scan_ns, process.scan_pause_ns
        self._known.add_after(process, after)
        return after

    def _plan_new_binary(self, pid: int, now_ns: int) -> None:
        """Have the tables of a new program built, unless there is one after the other (a test suite, a
        compiler's output): a program that runs once is not worth it.
        """
        self._new_binaries_ns = max(self._new_binaries_ns, now_ns - MAX_NEW_BINARIES * NEW_BINARY_PAUSE_NS)
        if self._new_binaries_ns <= now_ns:
            self._new_binaries_ns += NEW_BINARY_PAUSE_NS
            self._plan(pid, now_ns)

    def _publish(self, pid: int) -> None:
        """Read a process's mappings and hand them to the kernel."""
        definition = describe(pid)
        if definition is None:
            return
        mappings = read_maps(pid)
        if not mappings:  # a kernel thread, or gone
            return
        process = self._known.living.get(pid)
        if process is None or process.start_ns != definition.start_ns:
            process = self._enter(definition)
        process.definition = definition
        if process.expects_library is None:
            process.expects_library = expects_library(pid)
        python = self._find_python(process, mappings)
        if start_time_ns(pid) != definition.start_ns:
            return  # another process has the pid by now
        now_ns = time.monotonic_ns()
        # Generated code comes and goes; looking for it all the time would cost more than it tells.
        files = [mapping for mapping in mappings if mapping.key is not None]
        if not process.published_ns or files != [m for m in process.mappings if m.key is not None]:
            process.scan_pause_ns = 0
        else:
            process.scan_pause_ns = min(max(2 * process.scan_pause_ns, MIN_SCAN_PAUSE_NS), MAX_SCAN_PAUSE_NS)
        process.next_scan_ns = now_ns + process.scan_pause_ns
        if any(m.key is not None and not fits(m, mappings) for m in process.mappings):
            process = self._change(process, now_ns)
        process.published_ns = now_ns
        self._tables.publish(pid, mappings, python)
        process.set_mappings(mappings, python)
        self._files.learn(mappings)
        for mapping in mappings:
            self._symbols.hold(pid, mapping)
        if python is not None and has_many_threads(
            pid
        ):  # before a long wait is taken of one that is not known
            self._find_threads(pid)

    def _find_python(self, process: ProcessStacks, mappings: Sequence[Mapping]) -> PythonLayout | None:
        try:
            return find_python(process.pid, mappings)
        except UnsupportedPython as error:
            process.unsupported_python = str(error)
            return None

    def _exit(self, pid: int) -> None:
        self._due.pop(pid, None)
        self._tables.forget(pid)
        self._thread_states.forget(pid)
        self._known.leave(pid)


def fits(mapping: Mapping, others: Sequence[Mapping]) -> bool:
    """Whether no other file lies where a mapping is."""
    overlap = [m for m in others if m.start < mapping.end and mapping.start < m.end]
    return all(m.key == mapping.key for m in overlap)


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
