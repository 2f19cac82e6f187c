"""Launch records of the BPF programs as columns of ids: whose launch, from which stack.

A stack's frames come with its first launch and then again every few seconds; every other launch carries only
the hash of its stack (bpf/records.py), so that a launch costs a few array operations here.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.programs import StackPrograms
from gpuprof.bpf.records import Batch
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.gone_processes import GoneProcesses
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.process_stacks import INJECTION_NAMES, ProcessStacks
from gpuprof.sampler.processes import NS_PER_TICK
from gpuprof.sampler.record_threads import find_threads
from gpuprof.sampler.stack_memo import StackMemo
from gpuprof.sampler.stack_resolver import StackResolver
from gpuprof.sampler.thread_ids import ThreadIds
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.recent import Recent
from gpuprof.snapshots.tables import Tables

MAX_STACKS = 1 << 14  # what the kernel side remembers; kept twice: those that came last, and those before
MAX_STACK_BYTES = 8 << 20
MAX_CUT = 1 << 12  # kept twice, too
MAX_CUT_BYTES = 1 << 20
LOOK_NS = 30 * 10**9  # how often it is looked for processes that are gone
MAX_NEW_STACKS = 500  # named in one batch; the frames of the others are asked for again
MAX_WAITING = 1 << 18  # launches in a LaunchQueue; the oldest are dropped
MAX_EPOCHS = 8  # of one process in one batch; a process that attaches more often lies
_STACK_BYTES = 500  # of a LaunchStack without its frames, with its key and its place
_CUT_BYTES = 150  # of a key, without its frames, and its place
UNKNOWN_STACK = "[stack not kept]"  # the record with its frames was lost; it comes again

Key = tuple[int, int, int]  # pid, start of the process, hash


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """Launches of one process in one attach epoch, as columns of equal length; ids are of `tables`."""

    tables: Tables
    pid: int
    start_ns: int  # of the process, to the tick
    epoch: int
    correlation: NDArray[np.uint32]
    enter_ns: NDArray[np.uint64]
    thread: NDArray[np.uint32]
    stack: NDArray[np.uint32]
    weight: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.correlation)


class LaunchQueue:
    """Launches on their way from the stack reader to the join, each with a thread of its own."""

    def __init__(self) -> None:
        self.lost = 0  # because nobody took them in time
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._waiting: deque[Launches] = deque()
        self._count = 0

    def put(self, launches: Sequence[Launches]) -> None:
        """Append; the oldest go when there are too many. Nobody is woken before `announce`."""
        if not launches:
            return
        with self._lock:
            self._waiting.extend(launches)
            self._count += sum(map(len, launches))
            while self._count > MAX_WAITING:
                dropped = len(self._waiting.popleft())
                self._count -= dropped
                self.lost += dropped

    def take(self) -> list[Launches]:
        """All that wait, oldest first."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
            self._some.clear()
            self._count = 0
        return taken

    def announce(self) -> None:
        """Wake who waits for launches, should there be any: all of a round have been put."""
        with self._lock:
            if self._waiting:
                self._some.set()

    def wait(self, seconds: float) -> None:
        """Return when launches are announced, at the latest after so long."""
        self._some.wait(seconds)


@dataclass(slots=True, eq=False)
class LaunchStack:
    """Frames of `ids`, root first, up to the API call that launched; and their id in the tables of one
    generation.
    """

    frames: array[int]
    ids: FrameIds
    generation: int = -1
    table_id: int = 0


class LaunchStacks:
    """Turns batches of launch records into Launches. Used by the thread of the follower and the resolver."""

    def __init__(self, programs: StackPrograms, follower: ProcessFollower, resolver: StackResolver) -> None:
        self.truncated = 0  # launches whose stack does not reach the root of its thread
        self.unknown = 0  # launches whose stack was not kept
        self.invalid = 0  # launches that no injection library of ours reports
        self._programs = programs
        self._follower = follower
        self._resolver = resolver
        self._by_hash: Recent[Key, tuple[LaunchStack, bool]] = Recent(
            MAX_STACKS, MAX_STACK_BYTES, lambda _, known: _STACK_BYTES + 4 * len(known[0].frames)
        )
        self._cut: Recent[bytes, LaunchStack] = Recent(
            MAX_CUT, MAX_CUT_BYTES, lambda frames, _: _CUT_BYTES + len(frames)
        )
        self._gone = GoneProcesses()
        self._next_look_ns = 0
        self._frame_ids: FrameIds | None = None
        self._memo = StackMemo()  # of these frame ids and tables
        self._tables: Tables | None = None

    def consume(self, batch: Batch, tables: Tables, ids: FrameIds, threads: ThreadIds) -> list[Launches]:
        """The launches of a batch. To be called under the history's lock with its tables."""
        if not len(batch):
            return []
        tail = batch.first
        if any(column.any() for column in (batch.n_user, batch.n_kernel, batch.n_python)):
            words_before = batch.n_user.astype(np.int64) + 2 * batch.n_python.astype(np.int64)
            tail = tail + batch.n_kernel + words_before
        hashes, weights = batch.words.take(tail), batch.words.take(tail + 1)
        if self._frame_ids is not ids:
            self._begin_anew(ids)
        if self._tables is not tables:
            self._tables = tables
            self._memo.clear()
        self._take_frames(batch, hashes, ids)
        thread, stack = self._ids_of(batch, hashes, tables, ids, threads)
        found = _by_process(batch, tables, thread, stack, weights.astype(np.float32))
        self.invalid += len(batch) - sum(map(len, found))
        return found

    def _begin_anew(self, ids: FrameIds) -> None:
        """A new set of frame ids begins: stacks that were not used during the last one would keep older ones
        alive.
        """
        last = self._frame_ids
        self._by_hash.keep(lambda _, known: known[0].ids is last)
        self._cut.clear()
        self._frame_ids = ids
        self._memo.clear()

    def tidy(self, now_ns: int) -> None:
        """Let go of the stacks of processes that are gone; call it now and then, also without launches."""
        due_ns = self._gone.due_ns
        if due_ns is not None:
            if now_ns >= due_ns and (gone := self._gone.take()):
                self._by_hash.keep(lambda key, _: key[:2] not in gone)
                self._cut.clear()
        elif now_ns >= self._next_look_ns and len(self._by_hash):
            self._next_look_ns = now_ns + LOOK_NS
            self._gone.look(dict.fromkeys((pid, start) for pid, start, _ in self._by_hash), now_ns)

    def _take_frames(self, batch: Batch, hashes: NDArray[np.uint64], ids: FrameIds) -> None:
        """Name the stacks whose frames are in this batch."""
        at = np.flatnonzero(batch.n_user > 0)[:MAX_NEW_STACKS]
        if not len(at):
            return
        resolved = self._resolver.resolve(_part(batch, at))
        for process, stack, hashed in zip(
            resolved.processes, resolved.stacks, hashes[at].tolist(), strict=True
        ):
            whole = array("I", stack.frames).tobytes()
            found = self._cut.get(whole)
            if found is None:
                found = LaunchStack(array("I", cut_at_probe(stack.frames, ids)), ids)
                self._cut.put(whole, found)
            self._by_hash.put((process.pid, process.start_ns, hashed), (found, stack.complete))
            self._memo.forget(process, hashed)

    def _ids_of(
        self, batch: Batch, hashes: NDArray[np.uint64], tables: Tables, ids: FrameIds, threads: ThreadIds
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Thread and stack id of each record: each distinct thread is looked up once, and each stack that was
        not seen lately.
        """
        found = find_threads(batch, self._follower)
        thread_of, processes = found.of_record, found.processes
        tids, comms = batch.tid[found.first].tolist(), batch.comm[found.first].tolist()
        thread_ids = np.array(
            [threads.get(tables, *whose) for whose in zip(processes, tids, comms, strict=True)], np.uint32
        )
        keys = self._memo.keys(hashes, processes, thread_of)
        stack, truncated, new = self._memo.find(keys)
        self.truncated += int(np.count_nonzero(truncated))
        if len(new):
            pairs, first, pair_of = np.unique(keys[new], return_index=True, return_inverse=True)
            counts = np.bincount(pair_of, minlength=len(pairs)).tolist()
            named = [
                self._stack_id(processes[int(thread_of[at])], int(hashes[at]), count, tables, ids)
                for at, count in zip(new[first].tolist(), counts, strict=True)
            ]
            stack_ids = np.array([stack_id for stack_id, _ in named], np.uint32)
            stack[new] = stack_ids[pair_of]
            whole = np.array([complete is True for _, complete in named], np.bool_)
            kept = np.array([complete is not None for _, complete in named], np.bool_)
            self._memo.put(pairs[kept], stack_ids[kept], ~whole[kept])
        return thread_ids[thread_of], stack

    def _stack_id(
        self, process: ProcessStacks, hashed: int, count: int, tables: Tables, ids: FrameIds
    ) -> tuple[int, bool | None]:
        """The id of the stack of `count` records, and whether it is complete; None: it was not kept."""
        known = self._by_hash.get((process.pid, process.start_ns, hashed))
        if known is None:
            self.unknown += count
            self._programs.resend_stack(process.pid, hashed)
            function = tables.function(UNKNOWN_STACK, "", "", FrameKind.UNKNOWN)
            return tables.stack([tables.frame(function)]), None
        stack, complete = known
        self.truncated += 0 if complete else count
        if stack.ids is not ids:  # a new set of frame ids began: name the same frames in it
            described = [stack.ids.describe(frame) for frame in stack.frames]
            frames = [
                ids.get(name, file, binary, kind, line=line) for name, file, binary, kind, line in described
            ]
            stack.frames = array("I", frames)
            stack.ids, stack.generation = ids, -1
        if stack.generation != tables.generation:
            stack.table_id = tables.stacks.packed(ids.to_tables(tables, stack.frames).tobytes())
            stack.generation = tables.generation
        return stack.table_id, complete


def cut_at_probe(frames: tuple[int, ...], ids: FrameIds) -> tuple[int, ...]:
    """A launch's frames, root first, without what lies between the API call and the probe: CUPTI's and this
    project's callbacks, and the driver's functions without a name that call them.
    """
    end = len(frames)
    while end and _is_callback(ids.describe(frames[end - 1])[2]):
        end -= 1
    at = end
    while at and _is_driver(ids.describe(frames[at - 1])[2]):
        if ids.describe(frames[at - 1])[0].startswith("cu"):
            return frames[:at]
        at -= 1
    return frames[:end]


def _is_callback(binary: str) -> bool:
    return binary in INJECTION_NAMES or binary.startswith("libcupti")


def _is_driver(binary: str) -> bool:
    return binary.startswith("libcuda.so")


def _part(batch: Batch, at: NDArray[np.int64]) -> Batch:
    """The records at these indices; the words stay where they are."""
    columns: dict[str, Any] = {
        name: getattr(batch, name)[at] for name in Batch.__dataclass_fields__ if name != "words"
    }
    return replace(batch, **columns)


def _by_process(
    batch: Batch,
    tables: Tables,
    thread: NDArray[np.uint32],
    stack: NDArray[np.uint32],
    weight: NDArray[np.float32],
) -> list[Launches]:
    """Split by process and attach epoch, in the order of the records; no processes of too many epochs."""
    extra = batch.extra.view(np.uint32)  # the halves of each: correlation id, epoch
    correlation, epoch, start = extra[::2].copy(), extra[1::2], batch.start_ns
    if (batch.pid == batch.pid[0]).all() and (epoch == epoch[0]).all():
        return [
            Launches(
                tables, int(batch.pid[0]), to_tick(int(start[0])), int(epoch[0]), correlation, batch.time_ns,
                thread, stack, weight,
            )
        ]  # fmt: skip
    keys, whose = np.unique((batch.pid.astype(np.uint64) << np.uint64(32)) | epoch, return_inverse=True)
    _, pid_of, epochs = np.unique(keys >> np.uint64(32), return_inverse=True, return_counts=True)
    order = np.argsort(whose, kind="stable")
    order = order[(epochs <= MAX_EPOCHS)[pid_of][whose[order]]]
    edges = np.flatnonzero(np.diff(whose[order])) + 1
    found = []
    for at in np.split(order, edges) if len(order) else []:
        first = int(at[0])
        found.append(
            Launches(
                tables, int(batch.pid[first]), to_tick(int(start[first])), int(epoch[first]),
                correlation[at], batch.time_ns[at],
                thread[at], stack[at], weight[at],
            )
        )  # fmt: skip
    return found


def to_tick(start_ns: int) -> int:
    """A process's start as /proc shows it."""
    return start_ns - start_ns % NS_PER_TICK
