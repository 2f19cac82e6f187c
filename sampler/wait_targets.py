"""Whose waits are followed: processes on a GPU, those with the injection library, those that the user picks,
and all that descend from them.

The kernel side adds the children that a tracked process has from then on, and drops processes that end; what
is found here are the processes that were there before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping

from gpuprof.bpf.wait_programs import TRACK_CHILDREN, TRACK_SELF
from gpuprof.sampler.processes import parent_and_start


def descendants(
    roots: Collection[int], parents: Mapping[int, int], without: Collection[int] = ()
) -> set[int]:
    """The processes below `roots`, by the parent of each process; neither those of `without` nor what is
    below them. Bounded where parents go in a circle.
    """
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [pid for pid in roots if pid not in without]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found and child not in without:
                found.add(child)
                waiting.append(child)
    return found - set(roots)


def read_parents() -> dict[int, int]:
    """The parent of every process of the machine."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (known := parent_and_start(int(name))) is not None:
            found[int(name)] = known[0]
    return found


class Targets:
    """Keeps the kernel side's set of tracked processes to what is wanted. Not thread-safe.

    `track`: has a process tracked (WaitPrograms.track); `own_pid` and what descends from it never is.
    """

    def __init__(
        self,
        track: Callable[[int, int], bool],
        own_pid: int,
        *,
        start_of: Callable[[int], tuple[int, int] | None] = parent_and_start,
        parents: Callable[[], Mapping[int, int]] = read_parents,
    ) -> None:
        self._track = track
        self._own_pid = own_pid
        self._start_of = start_of
        self._parents = parents
        self._roots: dict[tuple[int, int], int] = {}  # (pid, start): how

    def __len__(self) -> int:
        return len(self._roots)

    def want(self, pids: Iterable[int], parents_of: Iterable[int] = ()) -> set[int]:
        """Track these processes with their descendants, and of `parents_of` the descendants only; the
        processes that are new. One that was tracked once stays so until it ends.
        """
        wanted = dict.fromkeys(parents_of, TRACK_CHILDREN) | {
            pid: TRACK_SELF | TRACK_CHILDREN for pid in pids if pid != self._own_pid
        }
        new: dict[tuple[int, int], int] = {}
        for pid, how in wanted.items():
            known = self._start_of(pid)
            if known is not None and self._roots.get((pid, known[1]), 0) & how != how:
                new[pid, known[1]] = how
        self._forget_gone()
        if not new:
            return set()
        added = set()
        for (pid, start), how in new.items():
            # Before its descendants are looked for, so that none is missed.
            if self._track(pid, how):
                self._roots[pid, start] = how
                added.add(pid)
        below = descendants({pid for pid, _ in new}, self._parents(), without={self._own_pid})
        for pid in below:
            if self._track(pid, TRACK_SELF | TRACK_CHILDREN):
                added.add(pid)
        return added

    def _forget_gone(self) -> None:
        for pid, start in list(self._roots):
            known = self._start_of(pid)
            if known is None or known[1] != start:
                del self._roots[pid, start]
