"""The source of GPU work: a thread that finds the processes with an injection library, reads their rings,
joins the records with the launches of the stack reader, and adds the rows to the history.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from gpuprof.sampler.gpu_budget import Costs
from gpuprof.sampler.gpu_coverage import Coverage
from gpuprof.sampler.gpu_discovery import FEW_OTHERS, OTHERS_AT_ONCE, Discovery, FoundRing
from gpuprof.sampler.gpu_join import WorkJoin
from gpuprof.sampler.gpu_newcomers import Newcomers
from gpuprof.sampler.gpu_probe import find_probe
from gpuprof.sampler.gpu_session import GpuSession, Work
from gpuprof.sampler.gpu_work_status import describe_state
from gpuprof.sampler.launch_source import LaunchSource
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import SourceStatus
from gpuprof.snapshots.gaps import Spans
from gpuprof.snapshots.history import History

TICK_S = 0.1
READ_S = 0.25  # the longest from one reading of the rings to the next: it goes by the stack reader's pace
SOON_S = 0.01
MEET_S = 0.03  # while a process waits to be listened to
LOOK_NS = 1_000_000_000  # how often processes are looked for, headers read, coverage written
READ_BUDGET_NS = 60_000_000  # of one round
READ_RECORDS = 1 << 18  # in one round about: their columns take 60 bytes a record until they are joined
MAX_SESSIONS = 64  # each ring may take 8 MB of memory
GRACE_NS = 1_500_000_000  # after a process's end: its last launches are still on their way
PROBE_RETRY_NS = 5 * 10**9
LATELY_NS = 10 * 10**9  # a loss is a reason to be degraded for so long; the counts stay
RECORDED_NS = 4 * 10**9  # so far back what was recorded is told
TABLES_NS = 10**9  # the longest wait for the unwind tables of a process before it is listened to


class GpuWork:
    """GPU work of all processes that record, from start() to stop(). Nothing is raised out of the thread.

    `gpu_pids`: by device UUID the processes that NVML lists there now; None without NVML. `launches`: the
    source of launch stacks; None as long as, or when, there is none. `stacks_start`: whether there will be
    one in a moment. `budget_ppm`: the share of a process's launching threads that recording may take, in
    millionths; 0: any.
    """

    def __init__(
        self,
        history: History,
        gpu_pids: Callable[[], Mapping[str, Collection[int]] | None],
        launches: Callable[[], LaunchSource | None],
        stacks_start: Callable[[], bool] = lambda: False,
        *,
        budget_ppm: int = 0,
    ) -> None:
        self._history = history
        self._gpu_pids = gpu_pids
        self._launch_source = launches
        self._stacks_start = stacks_start
        self._budget_ppm = budget_ppm
        self._discovery = Discovery()
        self._newcomers = Newcomers()
        self._join = WorkJoin(history)
        self._coverage = Coverage(history, time.monotonic_ns())
        self._costs = Costs(history, budget_ppm)
        self._sessions: list[GpuSession] = []
        self._listed: Mapping[str, Collection[int]] | None = None
        self._lost_before: dict[int, int] = {}
        self._next_look_ns = 0
        self._next_probe_ns: dict[int, int] = {}
        self._ended_lost = self._ended_invalid = 0
        self._failure = ""
        self._launch_losses = (0, 0)
        self._launches_lost, self._launches_lost_ns = 0, -LATELY_NS
        self._status = SourceStatus("gpu", "starting")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look for processes."""
        self._newcomers.knocks.open()
        self._thread = threading.Thread(target=self._run, name="gpu-work", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let go of all rings: the processes stop recording at their next launch."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
            self._thread = None

    def status(self) -> SourceStatus:
        """State and counts so far."""
        return self._status

    # -------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self.tick(time.monotonic_ns())
                self._rest(began)
        except Exception as error:  # noqa: BLE001 - a fault here must not end the sampler, and must be seen
            traceback.print_exc(file=sys.stderr)
            self._failure = f"the reader of GPU work failed: {error!r}"
        finally:
            self._newcomers.knocks.close()
            for session in self._sessions:
                session.close()
            self._sessions = []
            self._set_status()

    def _rest(self, began: float) -> None:
        """Until the next round. While something is recorded that is when launches come from the stack reader:
        few records then come before their launch, and a round costs about the same for few and for many.
        """
        if any(session.more for session in self._sessions):
            self._stop.wait(
                max(SOON_S, time.monotonic() - began)
            )  # a ring that is never empty gets half a core
            return
        if any(not session.locked and session.ended_ns is None for session in self._sessions):
            self._stop.wait(MEET_S)
            return
        self._stop.wait(SOON_S)
        self._newcomers.knocks.wait(TICK_S - (time.monotonic() - began))
        source = self._launch_source()
        if source is None or self._stop.is_set() or not any(session.locked for session in self._sessions):
            return
        self._meet(time.monotonic_ns(), source)
        source.wait_for_launches(max(0.0, READ_S - (time.monotonic() - began)))

    def _meet(self, now_ns: int, source: LaunchSource | None) -> None:
        """Find processes, and have those that are found record."""
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOOK_NS
            self._look(now_ns, source)
        else:
            self._look_at_new(now_ns, source)
        for session in [session for session in self._sessions if not session.locked]:
            self._listen(session, source, now_ns)
        for session in self._sessions:
            if source is not None and session.locked and session.ended_ns is None:
                session.watch_graphs(source, now_ns)

    def tick(self, now_ns: int) -> None:
        """One round: read all rings, then take the launches, join, write."""
        source = self._launch_source()
        self._meet(now_ns, source)
        # Records before launches, so that few records come before their launch.
        work = self._read(now_ns)
        launches = source.take_launches() if source is not None else []
        self._join.add_launches(launches)
        read_ns = time.monotonic_ns()
        for session, parts in work:
            self._add(session, parts, read_ns)
        self._coverage.write(now_ns, self._covered())
        for session in [s for s in self._sessions if s.ended_ns and now_ns - s.ended_ns > GRACE_NS]:
            self._end(session)
        self._set_status()

    def _read(self, now_ns: int) -> list[tuple[GpuSession, list[Work]]]:
        """Read the rings, each time beginning with another one; those for which nothing is left wait."""
        deadline_ns = time.monotonic_ns() + READ_BUDGET_NS
        work: list[tuple[GpuSession, list[Work]]] = []
        self._sessions = self._sessions[1:] + self._sessions[:1]
        records = 0
        for session in self._sessions:
            in_time = records < READ_RECORDS and time.monotonic_ns() < deadline_ns
            parts = session.read(now_ns) if session.locked and in_time else []
            records += sum(len(columns["correlation"]) for _, columns in parts)
            work.append((session, parts))
        return work

    def _add(self, session: GpuSession, parts: list[Work], now_ns: int) -> None:
        try:
            for gpu, start, end, kind in self._join.add_work(session, parts, now_ns):
                self._coverage.add(gpu, start, end, kind=kind)
        except (ValueError, IndexError, KeyError, OverflowError, GpuprofError):
            # What cannot be understood in spite of all checks is counted and left out; the others go on.
            if not self._ended_invalid:
                traceback.print_exc(file=sys.stderr)
            self._ended_invalid += sum(len(columns["correlation"]) for _, columns in parts)

    def _look(self, now_ns: int, source: LaunchSource | None) -> None:
        """What is done once a second."""
        self._listed = self._gpu_pids()
        for session in self._sessions:
            session.look(now_ns)
        candidates = set().union(*(self._listed or {}).values()) if self._listed else set()
        candidates |= self._newcomers.candidates(source)
        known = {session.identity for session in self._sessions}
        others = OTHERS_AT_ONCE if source is None else FEW_OTHERS
        for found in self._discovery.find(candidates, known, others=others):
            self._begin(found)
        for session in self._sessions:
            if session.locked:
                self._probe(session, source, now_ns)
            if session.recording and not session.mapped_cupti and source is not None:
                session.mapped_cupti = True  # else the stacks of its first launches are guessed across CUPTI
                source.follow(session.pid)
        if self._listed is not None:
            self._coverage.write_observed(now_ns, self._listed, self._well_recorded(now_ns))
        self._join.tidy(now_ns)
        self._costs.write(now_ns, self._sessions)
        if source is not None:
            with suppress(OSError):
                self._launch_losses = source.launch_losses()

    def _look_at_new(self, now_ns: int, source: LaunchSource | None) -> None:
        """What is done every time."""
        new = self._newcomers.take(source, now_ns, {session.pid for session in self._sessions})
        if new:
            known = {session.identity for session in self._sessions}
            for found in self._discovery.find(new, known, others=0):
                self._begin(found)

    def _begin(self, found: FoundRing) -> None:
        if len(self._sessions) >= MAX_SESSIONS:
            self._discovery.refused[found.process.pid] = f"more than {MAX_SESSIONS} processes record"
            found.close()
            return
        try:
            session = GpuSession(found, budget_ppm=self._budget_ppm)
        except GpuprofError as error:
            self._discovery.refused[found.process.pid] = error.message
            return
        if session.facts.pid != session.own_pid:  # a child that inherited the descriptor: not its ring
            session.close()
            return
        self._sessions.append(session)

    def _listen(self, session: GpuSession, source: LaunchSource | None, now_ns: int) -> None:
        """Let a process record, as soon as its launches can be seen from the first on."""
        if session.ended_ns is not None:
            return
        if source is None and self._stacks_start():
            return
        self._probe(session, source, now_ns)
        waits = session.probe_fd is not None and source is not None and not source.follows(session.pid)
        if waits and now_ns - session.probed_ns < TABLES_NS:
            return
        if not session.lock():
            self._discovery.refused[session.pid] = "another sampler listens to it"
            self._sessions.remove(session)
            session.close()

    def _probe(self, session: GpuSession, source: LaunchSource | None, now_ns: int) -> None:
        """Attach the launch probe, where that was not possible before."""
        if session.probe_fd is not None or session.ended_ns is not None:
            return
        if source is None:
            session.probe_problem = "CPU stacks are off, and with them launch stacks"
            return
        if now_ns < self._next_probe_ns.get(session.pid, 0):
            return
        self._next_probe_ns[session.pid] = now_ns + PROBE_RETRY_NS
        try:
            site = find_probe(session.pid)
            source.follow(session.pid)
            session.probe_fd = source.open_launch_probe(session.pid, site.path, site.offset)
            session.probe_problem, session.probed_ns = "", now_ns
        except GpuprofError as error:
            session.probe_problem = error.message

    def _end(self, session: GpuSession) -> None:
        """The process is gone, and all that it wrote is read."""
        self._join.end(session)
        self._sessions.remove(session)
        self._next_probe_ns.pop(session.pid, None)
        self._lost_before.pop(session.pid, None)
        self._ended_lost += session.lost
        self._ended_invalid += session.invalid
        session.close()

    # -------------------------------------------------------------------------------- what is known

    def _covered(self) -> set[str]:
        """Devices of which something is recorded."""
        gpus = set(self._join.active_gpus())
        recording = {session.pid for session in self._sessions if session.recording or session.paused}
        for gpu, pids in (self._listed or {}).items():
            if not recording.isdisjoint(pids):
                gpus.add(gpu)
        return gpus

    def _well_recorded(self, now_ns: int) -> dict[int, Spans]:
        """When each process recorded lately; without those that lost something since the last call."""
        well = {}
        for session in self._sessions:
            before, self._lost_before[session.pid] = self._lost_before.get(session.pid, 0), session.lost
            spans = session.recorded(now_ns - RECORDED_NS, now_ns)
            if session.lost == before and (session.paused or len(spans)):
                well[session.pid] = spans
        return well

    def _set_status(self) -> None:
        lost_launches, truncated = self._launch_losses
        now_ns = time.monotonic_ns()
        if lost_launches > self._launches_lost:
            self._launches_lost, self._launches_lost_ns = lost_launches, now_ns
        lately = lost_launches if now_ns - self._launches_lost_ns < LATELY_NS else 0
        counts = self._join.counts
        state, reason, hint = describe_state(
            self._sessions,
            self._discovery.refused,
            self._listed,
            lately,
            self._failure,
            recorded=counts.valid > 0,
            budget=self._costs.words(self._sessions),
        )
        self._status = SourceStatus(
            name="gpu", state=state, reason=reason, hint=hint,
            lost=self._ended_lost + sum(session.lost for session in self._sessions),
            invalid=counts.invalid + self._ended_invalid + sum(session.invalid for session in self._sessions),
            early=counts.early, unmatched=counts.unmatched, truncated=truncated, samples=counts.valid,
        )  # fmt: skip
