"""Which of the processes that something is kept for are gone, so that it can be let go of."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuprof.sampler.kernel_told import to_tick
from gpuprof.sampler.processes import start_time_ns

LATE_NS = 10 * 10**9  # what was recorded of a process comes in long before it has been gone for so long
LOOKED_AT_ONCE = 1000  # in /proc, some 10 us each
_INIT = 1

Process = tuple[int, int]  # pid, start in ns


class GoneProcesses:
    """Asked now and then, when there is much to let go of. Not thread-safe."""

    def __init__(self, start_of: Callable[[int], int | None] = start_time_ns) -> None:
        self._start_of = start_of
        self._seen: set[Process] = set()  # they were gone then
        self._due_ns = 0
        self._turn = 0

    @property
    def due_ns(self) -> int | None:
        """When `take` will say which; None: nobody has looked."""
        return self._due_ns if self._seen else None

    def look(self, processes: Iterable[Process], now_ns: int) -> None:
        """Look at some of the processes, each time at others; pid 0, the idle one, is always there."""
        all_of_them = list(processes)
        if len(all_of_them) > LOOKED_AT_ONCE:
            first = self._turn = (self._turn + LOOKED_AT_ONCE) % len(all_of_them)
            all_of_them = (all_of_them[first:] + all_of_them[:first])[:LOOKED_AT_ONCE]
        if self._start_of(_INIT) is None:
            return  # a /proc that hides processes (hidepid) does not tell
        self._seen = {(pid, start) for pid, start in all_of_them if pid and self._is_gone(pid, start)}
        self._due_ns = now_ns + LATE_NS

    def take(self) -> set[Process]:
        """Those that were gone at the last look, and are forgotten here."""
        seen, self._seen = self._seen, set()
        return seen

    def _is_gone(self, pid: int, start_ns: int) -> bool:
        return self._start_of(pid) != to_tick(start_ns)
