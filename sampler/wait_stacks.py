"""Stacks of waits: what a thread did when it was switched out, what it waited for, and what its waker did.

Frames come once every few seconds for each stack; waits carry hashes (bpf/wait_programs.py). The stack of a
row is the host stack, a frame that names the wait, and, where the waker is known, a frame that names it and
its own frames.
"""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.records import Batch
from gpuprof.bpf.wait_programs import NOT_IN_SYSCALL, ON_INTERRUPT_STACK, TIME_WAS_UP, WaitPrograms
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.gone_processes import GoneProcesses
from gpuprof.sampler.stack_resolver import StackResolver
from gpuprof.sampler.wait_kinds import A_TIMER, cause_of_wake, is_tracing, kind_of_wait
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.tables import Tables

MAX_STACKS = 1 << 14  # kept twice: those in use, and those of before
MAX_NEW_STACKS = 2000  # named in one batch; the frames of the others are asked for again
MAX_WITH_WAKER = 1 << 14  # rows' stacks of one generation that go on into the waker's frames
MAX_ROW_STACKS = 1 << 15
RENAMED_AT_ONCE = 500
LOOK_EVERY = 2048  # new stacks: then those of processes that are gone are let go of
MAX_KERNEL_PARTS = 1 << 12  # different ones, which stacks share
BEGAN_BEFORE = "[stack not taken: the wait began before it was watched]"
NOT_KEPT = "[stack not kept]"  # the record with its frames was lost; it comes again
NOT_TAKEN = "[stack not taken: too many switches at that moment]"
_NUMBERED = re.compile(r"[-_/:#]\w?\d.*$|\d{3,}$")

Key = tuple[int, int, int]  # pid, start of the process, hash
Texts = tuple[str, ...]


@dataclass(slots=True, eq=False)
class KnownStack:
    """Frame ids of `ids`, root first, without what belongs to the taking of the stack; the last `n_kernel`
    are of the kernel, whose names and binaries are kept innermost first.
    """

    frames: array[int]
    n_kernel: int
    names: tuple[str, ...]
    binaries: tuple[str, ...]
    complete: bool
    ids: FrameIds

    def in_ids(self, ids: FrameIds) -> array[int]:
        """The same frames in a new set of ids, which replaces the old one."""
        if self.ids is not ids:
            described = [self.ids.describe(frame) for frame in self.frames]
            found = [
                ids.get(name, file, binary, kind, line=line) for name, file, binary, kind, line in described
            ]
            self.frames = array("I", found)
            self.ids = ids
        return self.frames


@dataclass(slots=True, eq=False)
class _RowStack:
    """The stack of a row in the tables of one generation."""

    host: KnownStack | None
    waker: KnownStack | None
    generation: int
    table_id: int
    by_process: bool  # the thread that ran at the wake is the one that woke


class WaitStacks:
    """Stacks by hash, and the stacks of rows. Not thread-safe."""

    def __init__(self, programs: WaitPrograms, resolver: StackResolver) -> None:
        self.truncated = self.not_kept = 0  # waits
        self._programs = programs
        self._resolver = resolver
        self._stacks: dict[Key, KnownStack] = {}
        self._before: dict[Key, KnownStack] = {}
        self._row_stacks: dict[bytes, _RowStack] = {}
        self._ids: FrameIds | None = None
        self._old: list[KnownStack] = []  # of an old set of ids
        self._with_waker, self._generation = 0, -1
        self._gone = GoneProcesses()
        self._new = 0  # stacks since the last look
        self._kernel_parts: dict[tuple[Texts, Texts], tuple[Texts, Texts]] = {}

    def take(self, batch: Batch, ids: FrameIds) -> None:
        """Name the stacks of a batch."""
        part = _first(batch, MAX_NEW_STACKS)
        resolved = self._resolver.resolve(part)
        keys = zip(part.pid.tolist(), part.start_ns.tolist(), part.extra.tolist(), strict=True)
        for key, stack in zip(keys, resolved.stacks, strict=True):
            found = _cut(stack.frames, stack.complete, ids)
            known = self.find(key)
            if known is None or known.in_ids(ids) != found.frames:
                self._share(found)
                self._put(key, found)

    def put_earlier(self, key: Key, names: Sequence[str], binaries: Sequence[str], ids: FrameIds) -> None:
        """The stack of a wait that had begun before: kernel functions and their binaries, innermost first."""
        kernel = [
            ids.get(name, "", binary, FrameKind.KERNEL_SPACE)
            for name, binary in zip(names, binaries, strict=True)
        ]
        frames = (ids.get(BEGAN_BEFORE, "", "", FrameKind.UNKNOWN), *reversed(kernel))
        self._put(key, _cut(frames, False, ids))

    def tidy(self, ids: FrameIds) -> None:
        """Let go of an old set of frame ids, a few stacks at a time, and of processes that are gone; call it
        now and then.
        """
        if self._ids is not ids:
            self._ids = ids
            self._old = [*self._stacks.values(), *self._before.values()]
            self._row_stacks.clear()
        for stack in self._old[-RENAMED_AT_ONCE:]:
            stack.in_ids(ids)
        del self._old[-RENAMED_AT_ONCE:]
        now_ns = time.monotonic_ns()
        due_ns = self._gone.due_ns
        if due_ns is not None and now_ns >= due_ns:
            self._forget(self._gone.take())
        elif due_ns is None and self._new >= LOOK_EVERY:
            self._new = 0
            self._gone.look(dict.fromkeys((pid, start) for pid, start, _ in self._keys()), now_ns)

    def _keys(self) -> Iterator[Key]:
        return chain(self._before, self._stacks)

    def _forget(self, gone: Collection[tuple[int, int]]) -> None:
        """Let go of the stacks of these processes, and of rows that they are part of."""
        self._stacks = {key: stack for key, stack in self._stacks.items() if key[:2] not in gone}
        self._before = {key: stack for key, stack in self._before.items() if key[:2] not in gone}
        keys = list(self._row_stacks)
        if not keys:
            return  # some versions of numpy refuse an empty buffer
        rows = np.frombuffer(b"".join(keys), _ROW_KEY)
        columns = ("pid", "start_ns", "waker_pid", "waker_start_ns")
        of_rows = zip(keys, *(rows[name].tolist() for name in columns), strict=True)
        for key, pid, start_ns, waker_pid, waker_start_ns in of_rows:
            if (pid, start_ns) in gone or (waker_pid, waker_start_ns) in gone:
                del self._row_stacks[key]

    def _share(self, stack: KnownStack) -> None:
        """Have stacks with the same kernel functions hold them once."""
        if len(self._kernel_parts) >= MAX_KERNEL_PARTS:
            self._kernel_parts.clear()
        part = stack.names, stack.binaries
        stack.names, stack.binaries = self._kernel_parts.setdefault(part, part)

    def find(self, key: Key) -> KnownStack | None:
        """The stack of a process with a hash, None when its frames have not come."""
        found = self._stacks.get(key)
        if found is None and (found := self._before.get(key)) is not None:
            self._put(key, found)
        return found

    def _put(self, key: Key, stack: KnownStack) -> None:
        if len(self._stacks) >= MAX_STACKS:
            self._before, self._stacks = self._stacks, {}
        self._stacks[key] = stack
        self._new += 1

    def ids_of(
        self, waits: NDArray[np.void], runnable: NDArray[np.bool_], tables: Tables, ids: FrameIds
    ) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """(the stack of each row, whether its waker is a thread): `waits` are the records that the rows
        belong to, `runnable` whether a row is of the time that the thread was ready. To be called under the
        history's lock with its tables.
        """
        if tables.generation != self._generation:
            self._generation, self._with_waker = tables.generation, 0
        keys = np.zeros(len(waits), _ROW_KEY)
        for name in _FROM_RECORD:
            keys[name] = waits[name]
        keys["woken"] = waits["waker_comm"] != b""
        keys["runnable"] = runnable
        _, first, inverse, counts = np.unique(
            keys.view(f"V{_ROW_KEY.itemsize}"), return_index=True, return_inverse=True, return_counts=True
        )
        found = [
            self._row_stack(keys[index], count, tables, ids)
            for index, count in zip(first.tolist(), counts.tolist(), strict=True)
        ]
        of_row = inverse.reshape(-1)
        stacks = np.array([stack.table_id for stack in found], np.uint32)
        return stacks[of_row], np.array([stack.by_process for stack in found], bool)[of_row]

    def _row_stack(self, row: np.void, count: int, tables: Tables, ids: FrameIds) -> _RowStack:
        pid, hashed = int(row["pid"]), int(row["stack"])
        host = self.find((pid, int(row["start_ns"]), hashed))
        waker = None
        if row["waker_stack"]:
            waker_pid = int(row["waker_pid"])
            waker = self.find((waker_pid, int(row["waker_start_ns"]), int(row["waker_stack"])))
            if waker is None:
                self._programs.resend_stack(waker_pid, int(row["waker_stack"]))
        if host is None:
            self.not_kept += count
            if hashed:
                self._programs.resend_stack(pid, hashed)
        elif not host.complete:
            self.truncated += count
        key = row.tobytes()
        known = self._row_stacks.get(key)
        if (
            known is not None
            and known.generation == tables.generation
            and known.host is host
            and known.waker is waker
        ):
            return known
        shown = waker
        if waker is not None and self._with_waker >= MAX_WITH_WAKER:
            shown = KnownStack(array("I"), 0, waker.names, waker.binaries, True, ids)
        frames, by_process = frames_of_row(row, host, shown, ids)
        self._with_waker += waker is not None
        if len(self._row_stacks) >= MAX_ROW_STACKS:
            self._row_stacks.clear()
        table_id = tables.stack(ids.to_tables(tables, frames).tolist())
        found = _RowStack(host, waker, tables.generation, table_id, by_process)
        self._row_stacks[key] = found
        return found


_ROW_KEY = np.dtype(
    [
        ("pid", "<u4"),
        ("syscall", "<i4"),
        ("start_ns", "<u8"),
        ("stack", "<u8"),
        ("waker_stack", "<u8"),
        ("waker_start_ns", "<u8"),
        ("waker_pid", "<u4"),
        ("waker_comm", "S16"),
        ("waker_flags", "<u4"),
        ("woken", "<u4"),
        ("runnable", "<u4"),
    ]
)
_FROM_RECORD = [name for name in _ROW_KEY.names or () if name not in {"woken", "runnable"}]


def frames_of_row(
    row: np.void, host: KnownStack | None, waker: KnownStack | None, ids: FrameIds
) -> tuple[list[int], bool]:
    """(the frame ids of a row's stack, root first, whether its waker is a thread). `row`: _ROW_KEY."""
    names, binaries = (host.names, host.binaries) if host is not None else ((), ())
    runnable = bool(row["runnable"])
    kind = kind_of_wait(names, int(row["syscall"]), runnable=runnable, binaries=binaries)
    unknown = [ids.get(NOT_KEPT if row["stack"] else NOT_TAKEN, "", "", FrameKind.UNKNOWN)]
    frames = unknown if host is None else list(host.in_ids(ids))
    frames.append(ids.get(kind, "", "", FrameKind.WAIT))
    flags = int(row["waker_flags"])
    if not runnable and flags & TIME_WAS_UP:
        frames.append(ids.get(f"woken by {A_TIMER}", "", "", FrameKind.WAIT))
    if runnable or not row["woken"]:
        return frames, False
    cause = cause_of_wake(
        waker.names if waker is not None else (),
        idle=not row["waker_pid"],
        on_interrupt_stack=bool(flags & ON_INTERRUPT_STACK),
        in_syscall=not flags & NOT_IN_SYSCALL,
    )
    name = cause or stable_name(bytes(row["waker_comm"]))
    frames.append(ids.get(f"woken by {name}", "", "", FrameKind.WAIT))
    if cause is None and waker is not None:
        found = waker.in_ids(ids)
        # How a process's system call wakes is no news; a kernel thread has nothing else.
        user = found[: len(found) - waker.n_kernel]
        frames += user or found
    return frames, cause is None


def stable_name(comm: bytes) -> str:
    """A thread's name without the number that tells it from others of its kind, so that they are one row."""
    name = clean(comm, 64)
    return _NUMBERED.sub("", name) or name


def _cut(frames: tuple[int, ...], complete: bool, ids: FrameIds) -> KnownStack:
    """Without the innermost frames that belong to how the stack was taken."""
    names: list[str] = []
    binaries: list[str] = []
    end = at = len(frames)
    while at:
        name, _, binary, kind, _ = ids.describe(frames[at - 1])
        if kind != FrameKind.KERNEL_SPACE:
            break
        at -= 1
        if not names and is_tracing(name):
            end = at
        else:
            names.append(name)
            binaries.append(binary)
    return KnownStack(array("I", frames[:end]), end - at, tuple(names), tuple(binaries), complete, ids)


def _first(batch: Batch, count: int) -> Batch:
    if len(batch) <= count:
        return batch
    columns: dict[str, Any] = {
        name: getattr(batch, name)[:count] for name in Batch.__dataclass_fields__ if name != "words"
    }
    return replace(batch, **columns)
