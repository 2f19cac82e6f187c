"""The CPU stack source: a thread that drains the BPF ring, names the stacks and adds them to the history."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
import traceback
from collections import deque

import numpy as np

from gpuprof.bpf.programs import GraphCalls, StackPrograms
from gpuprof.bpf.records import FAMILY_LAUNCH, Batch
from gpuprof.sampler.bell import Bell
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.launch_stacks import Launches, LaunchQueue, LaunchStacks
from gpuprof.sampler.pending_records import PendingRecords
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.readable import readable
from gpuprof.sampler.settling import Settling
from gpuprof.sampler.stack_resolver import MergedStack, StackResolver
from gpuprof.sampler.symbol_store import SymbolStore
from gpuprof.sampler.thread_ids import ThreadIds
from gpuprof.sampler.unwind_tables import UnwindTables
from gpuprof.sampler.wait_reader import WaitReader
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import SourceStatus
from gpuprof.snapshots.history import History
from gpuprof.snapshots.tables import Tables

TICK_S = 0.2  # the ring holds more, and fewer ticks cost less
FIRST_TICK_S = 0.03  # until there is a stack to see
FIRST_PUBLISH_NS = (
    100_000_000  # for the busiest processes before sampling; the others follow when they are sampled
)
HURRY_S = 0.05  # while there are processes whose names may be gone after a tick
LOSSES = ("ring_full", "conflicts", "tail_call_failed")  # counters of samples that have no record
TIDY_NS = 10**9
COUNT_NS = 500_000_000  # the kernel's counters are asked at most this often
MAX_FRAME_IDS = 1 << 17  # more than a generation of the tables holds; then they begin anew
NICE = -10  # of the reader's thread, which takes a per cent or two of one core
WANTED_FILES = 8192  # each binary and each Python process holds a descriptor


class CpuStacks:
    """Samples of all processes into `history`. start() and stop() from any thread; nothing is raised out of
    the thread.
    """

    def __init__(self, history: History, programs: StackPrograms, hz: int = 99) -> None:
        self._history = history
        self._programs = programs
        self._hz = hz
        self._ids = FrameIds()
        self._symbols = SymbolStore()
        self._tables = UnwindTables(programs)
        self._follower = ProcessFollower(self._tables, self._ids, self._symbols)
        self._resolver = StackResolver(self._ids, self._follower)
        self._threads = ThreadIds(self._follower)
        self._launch_stacks = LaunchStacks(programs, self._follower, self._resolver)
        self._launches = LaunchQueue()
        # Idle until the source of waits has it begin.
        self.waits = WaitReader(history, programs.waits, self._follower, self._resolver, self._threads)
        self._kernel_lost_launches = 0
        self._to_follow: deque[int] = deque()
        self._bell: Bell | None = None  # ends the reader's wait
        self._settling = Settling()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._state, self._reason, self._hint = "starting", "", ""
        self._samples = self._truncated = self._failures = self._lost = 0
        self._programs_lock = threading.Lock()  # they are closed by the reader and asked by others
        self._next_tidy_ns = self._next_count_ns = 0
        self._pending = PendingRecords(programs)

    def start(self) -> None:
        """Begin sampling; the first stacks are in the history well within a second."""
        _raise_file_limit()
        self._bell = Bell()
        self._thread = threading.Thread(target=self._run, args=(self._bell,), name="cpu-stacks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling and give everything back to the kernel."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
            self._thread = None

    def status(self) -> SourceStatus:
        """State and losses so far."""
        now_ns = time.monotonic_ns()
        with self._programs_lock:
            if self._programs.maps and now_ns >= self._next_count_ns:
                self._next_count_ns = now_ns + COUNT_NS
                counters = self._programs.counters()
                self._lost = sum(counters.get(name, 0) for name in LOSSES)
        state, reason = self._state, self._reason
        if state == "ok":
            problems = [*self._follower.unsupported_pythons(), *_optional(self._tables.problem())]
            if late := self.overdue():
                problems.append(late)
            if problems:
                state, reason = "degraded", "; ".join(problems)
        return SourceStatus(
            name="cpu", state=state, reason=reason, hint=self._hint, lost=self._lost + self._pending.dropped,
            invalid=self._failures, truncated=self._truncated, samples=self._samples,
        )  # fmt: skip

    # ------------------------------------------------------------------- launches, for the source of GPU work

    def follow(self, pid: int) -> None:
        """Have the tables of a process ready before its next launch. From any thread."""
        self._to_follow.append(pid)
        if self._bell is not None:
            self._bell.ring()

    def follows(self, pid: int) -> bool:
        """Whether the tables of a process are there, with those of its injection library. From any thread."""
        if pid in self._to_follow:
            return False
        return any(process.injected for process in self._follower.all() if process.pid == pid)

    def injected_pids(self) -> set[int]:
        """Processes that map the injection library, or are to load it. From any thread."""
        return {
            process.pid
            for process in self._follower.all()
            if (process.injected or process.expects_library) and process.gone_ns is None
        }

    def open_launch_probe(self, pid: int, path: str, offset: int) -> int:
        """StackPrograms.open_launch_probe, from any thread."""
        with self._programs_lock:
            return self._programs.open_launch_probe(pid, path, offset)

    def open_graph_probe(self, pid: int, path: str, offset: int, program: str) -> int:
        """StackPrograms.open_graph_probe, from any thread."""
        with self._programs_lock:
            return self._programs.open_graph_probe(pid, path, offset, program)

    def graph_calls(self, pid: int) -> GraphCalls:
        """StackPrograms.graph_calls, from any thread."""
        with self._programs_lock:
            return self._programs.graph_calls(pid)

    def forget_graph_calls(self, pid: int) -> None:
        """StackPrograms.forget_graph_calls, from any thread."""
        with self._programs_lock:
            self._programs.forget_graph_calls(pid)

    def settle(self, seconds: float, least_wait_ns: int = 0) -> bool:
        """Have all that happened up to now in the history, with the waits that go on where so much of them is
        not there yet; False where it took longer than `seconds`, or nothing is read. From any thread.

        Where it took longer, the status says so until it is done.
        """
        if self._thread is None:
            return False
        settled = self._settling.ask(self._thread, seconds, least_wait_ns)
        self._next_count_ns = 0  # a loss of just now is told, too
        return settled

    @property
    def complete_ns(self) -> int:
        """What happened up to then is in the history, but for a last piece of waits that still go on."""
        return self._settling.complete_ns

    def overdue(self) -> str:
        """What is missing where settle() gave up and it is not there yet; empty where nothing is. From any
        thread.
        """
        return self._settling.overdue()

    def wait_for_launches(self, seconds: float) -> None:
        """Return when there are launches to be taken, at the latest after so long. From any thread."""
        self._launches.wait(seconds)

    def take_launches(self) -> list[Launches]:
        """What launches there were since the last call, oldest first. From any thread."""
        return self._launches.take()

    def launch_losses(self) -> tuple[int, int]:
        """(launches that were lost, launches whose stack is not complete or not known), so far."""
        with self._programs_lock:
            if self._programs.maps:
                counters = self._programs.counters()
                self._kernel_lost_launches = counters["launch_ring_full"] + counters["launch_conflicts"]
        lost = (
            self._kernel_lost_launches
            + self._pending.dropped_launches
            + self._launches.lost
            + self._launch_stacks.invalid
        )
        return lost, self._launch_stacks.truncated + self._launch_stacks.unknown

    def counters(self) -> dict[str, int]:
        """Losses and rare events of the kernel side so far; {} once it is closed."""
        with self._programs_lock:
            return self._programs.counters() if self._programs.maps else {}

    def run_ns(self) -> int | None:
        """Time inside the BPF programs so far, where the kernel counts it."""
        with self._programs_lock:
            return self._programs.run_ns() if self._programs.maps else None

    def _run(self, bell: Bell) -> None:
        _prefer_this_thread()
        try:
            self._follower.publish_running(FIRST_PUBLISH_NS)
            self._programs.start(self._hz)
            self._state = "ok"
            self._resolver.prepare()  # while the first samples come in
            while not self._stop.is_set():
                self._wait(bell)
                self._tick()
        except GpuprofError as error:
            self._state, self._reason, self._hint = "failed", error.message, error.hint
        except Exception as error:  # noqa: BLE001 - a fault here must not end the sampler, and must be seen
            traceback.print_exc(file=sys.stderr)
            self._state, self._reason = "failed", f"the stack reader failed: {error!r}"
        finally:
            bell.close()
            self._follower.close()
            with self._programs_lock:
                self._programs.close()
            if self._state == "ok":
                self._state = "off"

    def _wait(self, bell: Bell) -> None:
        """Up to a tick, but answer the kernel side at once: until then a new process has no stacks."""
        began = time.monotonic()
        deadline = began + (TICK_S if self._samples else FIRST_TICK_S)
        while not self._stop.is_set() and (left := deadline - time.monotonic()) > 0:
            ready = readable((self._programs.message_fd, bell.fileno()), left)
            if bell.fileno() in ready:
                bell.clear()
                return
            if ready:
                self._follower.handle(self._programs.messages(), self._pending.drain)
            if self._follower.hurry_ns > time.monotonic_ns():
                deadline = min(deadline, began + HURRY_S)

    def _tick(self) -> None:
        wanted = list(self._to_follow)
        for pid in wanted:
            self._follower.want(pid)
        questions = self._settling.take()
        if questions:
            self._pending.be_due()
        # Messages before the stacks that came with them: what they tell is needed to name these, and may come
        # only once. So they are read after the stacks, and what is drained meanwhile has to wait.
        self._pending.drain()
        least_wait_ns = min((question.least_wait_ns for question in questions), default=None)
        self.waits.take(time.monotonic_ns(), least_wait_ns)
        complete_ns = min(self._pending.drained_ns, self.waits.taken_ns)
        ready = len(self._pending)
        self._follower.handle(self._programs.messages(), self._pending.drain)
        for pid in wanted:  # only now: `follows` must not be true before it is so
            self._to_follow.remove(pid)
        for _ in range(ready):
            if self._pending and not self._stop.is_set():
                self._consume_safely(self._pending.pop())
                self._pending.drain()
        self._launches.announce()  # now, while they are no older than the records that are read for them
        self.waits.tick(time.monotonic_ns(), self._ids_with_room)
        self._settling.answer(questions, complete_ns)
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_tidy_ns:
            self._next_tidy_ns = now_ns + TIDY_NS
            self._follower.tidy(now_ns)
            self._resolver.tidy(now_ns)
            self._launch_stacks.tidy(now_ns)
            self._programs.follow_cpus()

    def _consume_safely(self, batch: Batch) -> None:
        try:
            self.consume(batch)
        except (ValueError, IndexError, KeyError, OverflowError):
            # One batch that cannot be understood is counted and left out; the next one may be fine.
            if not self._failures:
                traceback.print_exc(file=sys.stderr)
            self._failures += len(batch)

    def consume(self, batch: Batch) -> None:
        """Name the stacks of a batch and add them to the history; launches wait to be taken."""
        if not len(batch):
            return
        if batch.family[0] == FAMILY_LAUNCH:
            self._consume_launches(batch)
            return
        self._make_room()
        resolved = self._resolver.resolve(batch)
        with self._history.lock:
            tables = self._history.tables
            stacks = self._intern_stacks(tables, resolved.stacks)
            threads = self._threads.of_records(tables, batch, resolved.threads)
            self._history.add_samples(batch.time_ns, batch.cpu, threads, stacks)
        self._samples += len(batch)
        self._truncated += resolved.truncated

    def _consume_launches(self, batch: Batch) -> None:
        self._make_room()
        with self._history.lock:
            found = self._launch_stacks.consume(batch, self._history.tables, self._ids, self._threads)
        self._launches.put(found)

    def _ids_with_room(self) -> FrameIds:
        with self._history.lock:
            self._make_room()
            return self._ids

    def _make_room(self) -> None:
        """Begin a new generation when the tables are full, with new frame ids: the old ones may never come
        again.
        """
        with self._history.lock:
            full = self._history.tables.full
            if full:
                self._history.roll_generation()
        if full or len(self._ids) > MAX_FRAME_IDS:
            self._ids = FrameIds()
            self._follower.reset(self._ids)
            self._resolver.reset(self._ids)

    def _intern_stacks(self, tables: Tables, stacks: list[MergedStack]) -> list[int]:
        generation = tables.generation
        new = {stack: None for stack in stacks if stack.generation != generation}
        if new:
            packed = np.frombuffer(b"".join([stack.packed for stack in new]), np.uint32)
            ids = self._ids.to_tables(tables, packed).tobytes()
            at = 0
            for stack in new:
                end = at + len(stack.packed)
                stack.table_id = tables.stacks.packed(ids[at:end])
                stack.generation = generation
                at = end
        return [stack.table_id for stack in stacks]


def _optional(text: str | None) -> list[str]:
    return [text] if text else []


def _prefer_this_thread() -> None:
    """Where all cores are busy the reader would come too late, and lose what the ring cannot hold."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    except OSError:
        pass  # it needs CAP_SYS_NICE; without it the ring's loss is counted


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
