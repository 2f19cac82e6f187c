"""Which processes are looked at for a ring in every round: one that just started should not have to wait."""

from __future__ import annotations

from collections.abc import Collection

from gpuprof.sampler.gpu_knocks import Knocks
from gpuprof.sampler.launch_source import LaunchSource

NEW_NS = 30 * 10**9  # for so long a process that is to load the library is looked at every time
MAX_AT_ONCE = 16


class Newcomers:
    """Those that the stack reader has just seen with the library, and those that knock. Not thread-safe."""

    def __init__(self) -> None:
        self.knocks = Knocks()
        self._first_seen_ns: dict[int, int] = {}
        self._turn = 0

    def take(self, source: LaunchSource | None, now_ns: int, taken: Collection[int]) -> set[int]:
        """Return the pids to look at now; without those `taken`, but for one that knocks."""
        pids = source.injected_pids() if source is not None else set()
        self._first_seen_ns = {pid: self._first_seen_ns.get(pid, now_ns) for pid in pids}
        new = {pid for pid, seen_ns in self._first_seen_ns.items() if now_ns - seen_ns < NEW_NS}
        return self._some_of(new.difference(taken)) | self.knocks.take()

    def candidates(self, source: LaunchSource | None) -> set[int]:
        """Return the pids to look at once a second, however long they are there."""
        pids = self._some_of(source.injected_pids()) if source is not None else set()
        return pids | self.knocks.take()

    def _some_of(self, pids: set[int]) -> set[int]:
        """A few of them, others each time: workers that inherited the library's mapping may be many."""
        if len(pids) <= MAX_AT_ONCE:
            return pids
        self._turn += MAX_AT_ONCE
        ordered = sorted(pids)
        at = self._turn % len(ordered)
        return set((ordered + ordered)[at : at + MAX_AT_ONCE])
