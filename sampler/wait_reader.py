"""Reads the waits of tracked threads from the kernel side, joins them with their stacks and adds the rows to
the history. Driven by the stack reader's thread, whose names of frames it shares.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.records import Batch
from gpuprof.bpf.wait_programs import UNWALKED_NS, WaitPrograms
from gpuprof.sampler.earlier_waits import KernelStack, waits_of
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.record_threads import by_latest
from gpuprof.sampler.stack_resolver import StackResolver
from gpuprof.sampler.thread_ids import ThreadIds
from gpuprof.sampler.wait_budget import OTHERS, WaitBudget
from gpuprof.sampler.wait_peaks import Peaks
from gpuprof.sampler.wait_rows import LastingWaits, WaitRows, rows_of
from gpuprof.sampler.wait_stacks import Key, WaitStacks
from gpuprof.snapshots.frames import NO_THREAD, WaitKind
from gpuprof.snapshots.history import History
from gpuprof.snapshots.tables import Tables

LASTING_NS = 10**9  # how often waits that last are looked at
GONE_NS = 60 * 10**9  # a wait that lasts longer is looked at whether its thread is still there
LOOKED_AT_ONCE = 50
TOGETHER_NS = 400_000_000  # few waits are taken together: each time costs as much as fifty of them
FEW = 1000
CUT_BEHIND_NS = 1_000_000  # a piece ends so long ago that a wake just before is known


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """What the kernel side had: new stacks, waits that ended, and, where they were due, those that last, up
    to `until_ns`.
    """

    batch: Batch
    waits: NDArray[np.void]
    lasting: tuple[NDArray[np.void], NDArray[np.uint64]] | None
    until_ns: int
    least_ns: int | None


class WaitReader:
    """Rows of waits into `history`. take() and tick() by one thread; the counts from any."""

    def __init__(
        self,
        history: History,
        programs: WaitPrograms,
        follower: ProcessFollower,
        resolver: StackResolver,
        threads: ThreadIds,
    ) -> None:
        self.programs = programs
        self.rows = self.invalid = 0
        self._history = history
        self._follower = follower
        self._threads = threads
        self._stacks = WaitStacks(programs, resolver)
        self._lasting = LastingWaits()
        self._budget: WaitBudget | None = None
        self._peaks = Peaks()
        self._spent_s = 0.0  # CPU time for waits that ended, since the budget was last asked
        self._earlier: deque[tuple[Key, KernelStack]] = (
            deque()
        )  # stacks of earlier waits that are to be named
        self._next_lasting_ns = self._next_take_ns = self._turn = 0
        self.taken_ns = 0  # what ended up to then was taken
        self._taken: _Taken | None = None

    @property
    def truncated(self) -> int:
        """Rows whose stack is not complete or not known."""
        return self._stacks.truncated + self._stacks.not_kept

    def raised(self) -> tuple[int, dict[int, int]]:
        """(the highest threshold, in ns, that processes in general had, 0 where it was the one that was asked
        for; that of each process with a higher one of its own), of the time that the history holds. Where the
        kernel side could not take all stacks, the shortest wait that it sends nevertheless. From any thread.
        """
        found = self._peaks.since(self._history.span[0])
        return found.pop(OTHERS, 0), found

    def follow_earlier(self, pid: int) -> None:
        """Follow the waits that the threads of a process, which is tracked already, had begun before. From
        any thread.
        """

        def add(wait: NDArray[np.void], stack: KernelStack) -> bool:
            key = int(wait["pid"][0]), int(wait["start_ns"][0]), int(wait["stack"][0])
            self._earlier.append((key, stack))  # before the wait can come
            return self.programs.add_earlier(wait)

        def followed() -> set[int]:
            return set(self.programs.running_waits()[0]["tid"].tolist())

        self.programs.drop_earlier(waits_of(pid, self._threshold_of(pid), add, followed))

    def _threshold_of(self, pid: int) -> int:
        return self.programs.thresholds.get(pid, self.programs.threshold_ns)

    def take(self, now_ns: int, least_ns: int | None = None) -> None:
        """Take what is ready from the kernel side, for the next tick(); `least_ns`: add the waits that last,
        too, if there is so much of them to add.

        The messages of the kernel side are to be handled between the two: what is mapped where in a process
        is told before the first stack that needs it, and only once.
        """
        if not self.programs.begun:
            self.taken_ns = now_ns
            return
        # What a process is made of is read while it lives, so waits of a young one do not lie about.
        hurry = least_ns is not None or self._follower.hurry_ns > now_ns
        if now_ns < self._next_take_ns and not hurry:
            return
        lasting = self.programs.running and (least_ns is not None or now_ns >= self._next_lasting_ns)
        # What lasts is looked at first: a wait that ends after that comes with the next records. A wake
        # before `until_ns` is in what is looked at.
        until_ns = time.monotonic_ns() - CUT_BEHIND_NS
        running = self.programs.running_waits() if lasting else None
        began_s = time.thread_time()
        batch, waits = self.programs.read()
        self._spent_s += time.thread_time() - began_s
        self.taken_ns = now_ns
        self._next_take_ns = now_ns + (TOGETHER_NS if len(waits) <= FEW else 0)
        self._taken = _Taken(batch, waits, running, until_ns, least_ns)

    def tick(self, now_ns: int, ids: Callable[[], FrameIds]) -> None:
        """Add what was taken. `ids`: the frame ids of now, in a new generation of tables where the old one
        was full.
        """
        taken, self._taken = self._taken, None
        if taken is None:
            return
        batch, waits = taken.batch, taken.waits
        try:
            self._stacks.tidy(ids())
            while self._earlier:
                key, stack = self._earlier.popleft()
                self._stacks.put_earlier(key, stack.names, stack.binaries, ids())
            began_s = time.thread_time()
            try:
                if len(batch):
                    self._stacks.take(batch, ids())
                if len(waits):
                    ends = waits["time_ns"].copy()
                    self._add(waits, rows_of(waits, ends, self._lasting.end(waits)), ids)
            finally:
                self._spent_s += time.thread_time() - began_s
                self._steer(waits, now_ns)
            if taken.lasting is not None:
                running, tasks = taken.lasting
                self._next_lasting_ns = now_ns + LASTING_NS
                self._forget_gone(running, tasks, now_ns)
                self._add_lasting(running, waits, taken.until_ns, taken.least_ns, ids)
        except (ValueError, IndexError, KeyError, OverflowError):
            # What cannot be understood is counted and left out; what comes next may be fine.
            if not self.invalid:
                traceback.print_exc(file=sys.stderr)
            self.invalid += len(waits)

    def _steer(self, waits: NDArray[np.void], now_ns: int) -> None:
        """Keep what waits cost within bounds; those that last are few, and are left out of it."""
        programs = self.programs
        spent_s, self._spent_s = self._spent_s, 0.0
        if not programs.running:
            self._budget = None
            return
        if self._budget is None:
            self._budget = WaitBudget(programs.threshold_ns)
        thresholds = self._budget.next(waits, spent_s, now_ns)
        for pid in np.unique(waits["pid"][waits["weight"] != 1]).tolist():
            self._peaks.note(pid, UNWALKED_NS, now_ns)
        for pid, threshold_ns in ((OTHERS, thresholds.others), *thresholds.of.items()):
            if threshold_ns > self._budget.base_ns:
                self._peaks.note(pid, threshold_ns, now_ns)
        programs.set_thresholds(thresholds.others, thresholds.of)

    def _add_lasting(
        self,
        running: NDArray[np.void],
        ended: NDArray[np.void],
        until_ns: int,
        least_ns: int | None,
        ids: Callable[[], FrameIds],
    ) -> None:
        over = set(zip(ended["tid"].tolist(), ended["extra"].tolist(), strict=True))
        last = np.array(
            [key not in over for key in zip(running["tid"].tolist(), running["extra"].tolist(), strict=True)],
            bool,
        )
        waits, starts = self._lasting.due(running[last], until_ns, least_ns)
        # A wake after that may have been noted in part only, and belongs to the piece that follows.
        later = waits["woken_ns"] > until_ns
        for name in ("waker_stack", "waker_start_ns", "waker_tid", "waker_pid", "waker_comm", "waker_flags"):
            waits[name][later] = np.zeros((), waits.dtype[name])
        ends = np.full(len(waits), until_ns, np.uint64)
        self._add(waits, rows_of(waits, ends, starts), ids)

    def _forget_gone(self, running: NDArray[np.void], tasks: NDArray[np.uint64], now_ns: int) -> None:
        """A thread that ended while nothing was followed has left its wait; a few are looked at each time."""
        old = np.flatnonzero(running["extra"] + np.uint64(GONE_NS) < now_ns)
        if len(old):
            self._turn = (self._turn + LOOKED_AT_ONCE) % len(old)
        for index in np.roll(old, -self._turn)[:LOOKED_AT_ONCE].tolist():
            if not os.path.exists(f"/proc/{running['pid'][index]}/task/{running['tid'][index]}"):
                self.programs.drop_earlier([int(running["tid"][index])])
                self.programs.forget_task(int(tasks[index]))

    def _add(self, waits: NDArray[np.void], rows: WaitRows, ids: Callable[[], FrameIds]) -> None:
        self.invalid += rows.invalid
        if not len(rows):
            return
        with self._history.lock:
            frame_ids = ids()
            tables = self._history.tables
            records = waits[rows.of]
            stack, by_thread = self._stacks.ids_of(records, rows.kind == WaitKind.RUNNABLE, tables, frame_ids)
            thread = self._threads_of(
                tables, records["pid"], records["tid"], records["start_ns"], records["comm"], records["uid"],
                rows.end_ns, records["extra"],
            )  # fmt: skip
            waker = np.full(len(records), NO_THREAD, np.uint32)
            woken = records[by_thread]
            waker[by_thread] = self._threads_of(
                tables, woken["waker_pid"], woken["waker_tid"], woken["waker_start_ns"], woken["waker_comm"],
                woken["uid"], rows.end_ns[by_thread], woken["woken_ns"],
            )  # fmt: skip
            self._history.add_waits(
                rows.start_ns, rows.end_ns, thread, stack, waker, rows.weight, rows.kind, tables=tables
            )
        self.rows += len(rows)

    def _threads_of(  # noqa: PLR0917
        self,
        tables: Tables,
        pid: NDArray[np.uint32],
        tid: NDArray[np.uint32],
        start_ns: NDArray[np.uint64],
        comm: NDArray[np.bytes_],
        uid: NDArray[np.uint32],
        time_ns: NDArray[np.uint64],
        named_ns: NDArray[np.uint64],
    ) -> NDArray[np.uint32]:
        """The id of each thread, which had its name at `named_ns`; distinct ones are looked up once."""
        keys = np.zeros(len(pid), [("pid", "<u4"), ("tid", "<u4"), ("start_ns", "<u8"), ("comm", "S16")])
        keys["pid"], keys["tid"], keys["start_ns"], keys["comm"] = pid, tid, start_ns, comm
        _, first, inverse = np.unique(keys.view(f"V{keys.itemsize}"), return_index=True, return_inverse=True)
        inverse = inverse.reshape(-1)
        found = np.zeros(len(first), np.uint32)
        last_ns = np.zeros(len(first), np.uint64)
        np.maximum.at(last_ns, inverse, named_ns)
        for n in by_latest(inverse, named_ns, len(first)).tolist():
            index = int(first[n])
            name = bytes(comm[index])
            process = self._follower.get(
                int(pid[index]), int(start_ns[index]), int(time_ns[index]),
                uid=int(uid[index]), comm=name,
            )  # fmt: skip
            process.last_seen_ns = max(process.last_seen_ns, int(time_ns[index]))
            found[n] = self._threads.get(tables, process, int(tid[index]), name, int(last_ns[n]))
        return found[inverse]
