"""What each pid was at what time: processes that live, those that ended a moment ago, and what forks and
execs made of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from gpuprof.sampler.process_stacks import ProcessStacks

PURGE_AFTER_EXIT_NS = 2 * 10**9  # samples of a process are read at most a tick after its exit
MAX_FORKS = 16384
MAX_EXECS = 16384


class KnownProcesses:
    """Not thread-safe: used by the stack reader's thread."""

    def __init__(self) -> None:
        self.living: dict[int, ProcessStacks] = {}  # by pid
        self._gone: list[ProcessStacks] = []
        self._forked: dict[int, tuple[ProcessStacks, int]] = {}  # pid: what it was forked from, and when
        self._began: dict[int, int] = {}  # pid: when it became what it is by an exec

    def all(self) -> Iterable[ProcessStacks]:
        """The processes that are known, with those that ended a moment ago."""
        return [*self.living.values(), *self._gone]

    def with_parents(self) -> Iterable[ProcessStacks]:
        """The same, and those that others were forked from, of which some are gone otherwise; each once."""
        parents = [parent for parent, _ in self._forked.values()]
        return {id(one): one for one in (*self.all(), *parents)}.values()

    def at(self, pid: int, start_ns: int, time_ns: int) -> ProcessStacks | None:
        """What a process was at a time, as far as is known."""
        found = [one for one in self._gone if one.pid == pid and one.start_ns == start_ns]
        process = self.living.get(pid)
        if process is not None and process.start_ns == start_ns:
            found.append(process)
        began_ns = self.began_ns(pid)
        found = [one for one in found if one.since_ns <= time_ns and not one.since_ns < began_ns <= time_ns]
        return max(found, key=lambda one: one.since_ns) if found else None

    def began_ns(self, pid: int) -> int:
        """When a process became what it is by an exec; 0 where none is known."""
        return self._began.get(pid, 0)

    def forked_from(self, pid: int, since_ns: int) -> ProcessStacks | None:
        """What a process was forked from, unless it has become what it is since (`since_ns`)."""
        parent, fork_ns = self._forked.get(pid, (None, 0))
        return parent if since_ns < fork_ns else None

    def add(self, process: ProcessStacks) -> None:
        """Its pid is this process from now on."""
        self.leave(process.pid)
        self.living[process.pid] = process

    def add_gone(self, process: ProcessStacks) -> None:
        """It has ended, but samples of it may still come."""
        process.gone_ns = time.monotonic_ns()
        self._gone.append(process)

    def add_after(self, before: ProcessStacks, after: ProcessStacks) -> None:
        """What one of the known processes was from a time on, which lives if that did."""
        if self.living.get(before.pid) is before:
            self.add(after)
        else:
            self.add_gone(after)

    def name_before(self, process: ProcessStacks) -> None:
        """What it was before an exec has its name, too."""
        for before in self._gone:
            if (before.pid, before.start_ns) == (process.pid, process.start_ns):
                before.definition = process.definition

    def leave(self, pid: int) -> None:
        """The process is gone or became another program; samples of what it was may still come."""
        process = self.living.pop(pid, None)
        if process is not None:
            self.add_gone(process)

    def note_exec(self, pid: int, time_ns: int) -> None:
        """Remember when a process became what it is; of too many the oldest are forgotten."""
        self._began.pop(pid, None)
        if len(self._began) >= MAX_EXECS:
            del self._began[next(iter(self._began))]
        self._began[pid] = time_ns

    def fork(self, pid: int, parent_pid: int) -> None:
        """A process was forked. It is looked at when it is sampled; most exec at once, and are never seen."""
        parent = self.living.get(parent_pid)
        known, _ = self._forked.get(parent_pid, (None, 0))
        self.leave(pid)
        self._began.pop(pid, None)
        self._forked.pop(pid, None)
        parent = parent or known
        if parent is not None and len(self._forked) < MAX_FORKS:
            self._forked[pid] = (parent, time.monotonic_ns())

    def purge(self, now_ns: int) -> None:
        """Let go of those that ended more than a moment ago."""
        keep = []
        for process in self._gone:
            if process.gone_ns is not None and now_ns - process.gone_ns > PURGE_AFTER_EXIT_NS:
                process.close()
            else:
                keep.append(process)
        self._gone = keep

    def forget_old(self, before_ns: int) -> None:
        """Forget the forks and execs before that time."""
        for pid in [pid for pid, (_, at_ns) in self._forked.items() if at_ns < before_ns]:
            del self._forked[pid]
        for pid in [pid for pid, at_ns in self._began.items() if at_ns < before_ns]:
            del self._began[pid]
