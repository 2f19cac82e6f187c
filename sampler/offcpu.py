"""The source of waits: decides whose waits are followed and has the kernel side do it. The rows are made by
the stack reader (wait_reader.py).
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gpuprof.bpf.wait_programs import TRACK_CHILDREN, TRACK_SELF
from gpuprof.sampler.processes import parent_and_start
from gpuprof.sampler.stack_reader import StackReader
from gpuprof.sampler.wait_reader import WaitReader
from gpuprof.sampler.wait_targets import Targets, read_parents
from gpuprof.snapshots.errors import EXIT_UNAVAILABLE, GpuprofError
from gpuprof.snapshots.frames import SourceStatus

LOOK_S = 1.0
FIRST_LOOKS_S = 0.1  # until the stack reader runs
DEFAULT_THRESHOLD_NS = 1_000_000
LOSSES = ("wait_ring_full", "wait_conflicts", "wait_threads_full", "tracked_full")
NOTHING = "no process uses a GPU, and none was picked"
HINT = "start the workload with: gpuprof-tui run -- CMD, or gpuprof-tui with --offcpu-pid PID or --offcpu-all"
MAX_WATCHED = 1024  # processes that clients asked for


@dataclass(frozen=True, slots=True)
class Picks:
    """What the user asked for. `parents`: processes whose descendants are meant, but not themselves."""

    pids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    everything: bool = False
    threshold_ns: int = DEFAULT_THRESHOLD_NS


def thinning(asked_ns: int, others_ns: int, of: Mapping[int, int]) -> str:
    """Which waits are sampled that were not meant to be; empty where none are. `asked_ns`: the threshold that
    was asked for; `others_ns`: the highest that there was; `of`: of processes that had one of their own.
    """

    def least(threshold_ns: int) -> str:
        return f"{float(f'{threshold_ns / 1e6:.2g}'):g} ms"

    raised = {pid: threshold_ns for pid, threshold_ns in of.items() if threshold_ns > asked_ns}
    if others_ns > asked_ns:
        most_ns = max(others_ns, *raised.values()) if raised else others_ns
        up_to = "" if most_ns == others_ns else f", of some processes those under up to {least(most_ns)}"
        return f"so many that those under {least(others_ns)} are sampled{up_to}"
    if len(raised) == 1:
        ((pid, threshold_ns),) = raised.items()
        return f"so many of process {pid} that its waits under {least(threshold_ns)} are sampled"
    if raised:
        most = least(max(raised.values()))
        return f"so many of {len(raised)} processes that their waits under up to {most} are sampled"
    return ""


class OffCpu:
    """Waits of the processes that matter. Nothing is raised out of its thread.

    `stacks`: the stack reader, None as long as, or when, there is none; `stacks_start`: whether there will be
    one in a moment; `gpu_pids`: the processes on a GPU now.
    """

    def __init__(
        self,
        stacks: Callable[[], StackReader | None],
        stacks_start: Callable[[], bool],
        gpu_pids: Callable[[], Collection[int]],
        picks: Picks,
    ) -> None:
        self._stacks = stacks
        self._stacks_start = stacks_start
        self._gpu_pids = gpu_pids
        self._picks = picks
        self._targets: Targets | None = None
        self._tracks: WaitReader | None = None
        self._counters: dict[str, int] = {}
        self._new: set[int] = set()  # processes that are followed since the last look
        self._asked = threading.Condition()  # guards the next four
        self._watched: dict[int, int] = {}  # pid: TRACK_*, as clients asked for
        self._requests = self._answered = 0
        self._ended = False
        self._state, self._reason, self._hint = "starting", "", ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look for processes."""
        self._thread = threading.Thread(target=self._run, name="offcpu", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Follow no more waits."""
        self._stop.set()
        with self._asked:
            self._asked.notify_all()
        if self._thread is not None:
            self._thread.join(5)
            self._thread = None

    def watch(self, pid: int, how: int, seconds: float) -> None:
        """Follow a process (TRACK_*) until it ends; it is followed when this returns. From any thread.

        GpuprofError where there is no such process, it cannot be followed, or `seconds` were not enough.
        """
        if parent_and_start(pid) is None:
            raise GpuprofError(f"there is no process {pid}", exit_code=EXIT_UNAVAILABLE)
        deadline = time.monotonic() + seconds
        with self._asked:
            if len(self._watched) >= MAX_WATCHED and pid not in self._watched:
                raise GpuprofError("too many processes are watched", exit_code=EXIT_UNAVAILABLE)
            self._watched[pid] = self._watched.get(pid, 0) | how
            self._requests += 1
            number = self._requests
            self._asked.notify_all()
            while (self._answered < number or self._state == "starting") and not self._ended:
                left = deadline - time.monotonic()
                if self._stop.is_set() or left <= 0:
                    raise GpuprofError("waits are not followed yet", "try again", EXIT_UNAVAILABLE)
                self._asked.wait(left)
        if self._state not in {"ok", "degraded"}:
            raise GpuprofError(self._reason or "waits are not followed", self._hint, EXIT_UNAVAILABLE)

    def status(self) -> SourceStatus:
        """State and counts so far; what is said of waits that were thinned out holds for all there is."""
        reader, stacks = self._tracks, self._stacks()
        state, reason, hint = self._state, self._reason, self._hint
        thinned = thinning(self._picks.threshold_ns, *reader.raised()) if reader is not None else ""
        late = stacks.overdue() if stacks is not None and state in {"ok", "degraded"} else ""
        problems = "; ".join(words for words in (late, thinned) if words)
        if problems and state in {"ok", "degraded", "off"}:
            known = f"{reason}; " if reason and state != "off" else ""
            state, reason, hint = "degraded", known + problems, ""
        if stacks is not None and reader is not None:
            self._counters = stacks.counters() or self._counters  # a loss of just now is told, too
        return SourceStatus(
            name="offcpu", state=state, reason=reason, hint=hint,
            lost=sum(self._counters.get(name, 0) for name in LOSSES),
            invalid=reader.invalid if reader is not None else 0,
            truncated=reader.truncated if reader is not None else 0,
            samples=reader.rows if reader is not None else 0,
        )  # fmt: skip

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                number = self._requests
                self.look()
                with self._asked:
                    self._answered = number
                    self._asked.notify_all()
                    if self._requests == number and not self._stop.is_set():
                        self._asked.wait(FIRST_LOOKS_S if self._state == "starting" else LOOK_S)
            self._state = "off"
        except Exception as error:  # noqa: BLE001 - a fault here must not end the sampler, and must be seen
            traceback.print_exc(file=sys.stderr)
            self._state, self._reason, self._hint = "failed", f"{error!r}", "please report it"
        finally:
            with self._asked:  # nobody answers who waits now
                self._ended = True
                self._asked.notify_all()
            if self._tracks is not None:
                self._tracks.programs.stop()

    def look(self) -> None:
        """Find out whom to follow, and have it done; once a second, and when a client asks."""
        stacks = self._stacks()
        if stacks is None:
            if self._state != "failed" and not self._stacks_start():
                self._state, self._reason = "off", "CPU stacks are off, and with them the stacks of waits"
                self._hint = ""
            return
        if self._tracks is not stacks.waits:
            self._tracks = stacks.waits
            self._targets = Targets(self._track, os.getpid())
        if self._state == "failed":
            return
        assert self._targets is not None
        wanted = set(self._picks.pids) | set(self._gpu_pids()) | stacks.injected_pids()
        watched = self._still_watched()
        wanted |= {pid for pid, how in watched.items() if how & TRACK_SELF}
        parents = {*self._picks.parents, *(pid for pid, how in watched.items() if how & TRACK_CHILDREN)}
        if wanted or parents or self._picks.everything:
            try:
                begins = self._begin(stacks)
            except GpuprofError as error:
                self._state, self._reason, self._hint = "failed", error.message, error.hint
                return
            self._new.clear()
            for pid in self._targets.want(wanted, parents):
                stacks.follow(pid)
            everybody = begins and self._picks.everything
            for pid in read_parents().keys() - {os.getpid()} if everybody else self._new:
                stacks.waits.follow_earlier(pid)
        elif stacks.waits.programs.running and not stacks.waits.programs.tracked():
            stacks.waits.programs.stop()  # all have ended: switches cost nothing more
        self._counters = stacks.counters()
        self._describe(len(self._targets))

    def _track(self, pid: int, how: int) -> bool:
        """Have the kernel side follow a process, and note it where it did not yet."""
        assert self._tracks is not None
        programs = self._tracks.programs
        known = programs.how_tracked(pid)
        done = programs.track(pid, how | known)
        if done and how & TRACK_SELF and not known & TRACK_SELF:
            self._new.add(pid)
        return done

    def _still_watched(self) -> dict[int, int]:
        """What clients asked for, without the processes that have ended."""
        with self._asked:
            for pid in list(self._watched):
                if not os.path.exists(f"/proc/{pid}"):
                    del self._watched[pid]
            return dict(self._watched)

    def _begin(self, stacks: StackReader) -> bool:
        """Have waits followed; whether they were not until now."""
        programs = stacks.waits.programs
        if programs.running:
            return False
        programs.start(self._picks.threshold_ns, track_all=self._picks.everything, own_pid=os.getpid())
        return True

    def _describe(self, roots: int) -> None:
        assert self._tracks is not None
        gone = [pid for pid in self._picks.pids if not os.path.exists(f"/proc/{pid}")]
        self._hint = ""
        if self._picks.everything:
            self._state, self._reason = "ok", "all processes"
        elif not roots and not self._tracks.programs.tracked():
            self._state, self._reason, self._hint = "off", NOTHING, HINT
            if gone:
                self._reason = f"there is no process {', '.join(map(str, gone))}, and no other uses a GPU"
        else:
            self._state, self._reason = "ok", ""
            full = self._counters.get("wait_threads_full", 0) + self._counters.get("tracked_full", 0)
            if full:
                self._state, self._reason = "degraded", "more processes or threads than can be followed"
