"""Frames of a stream or file taken into a history: ids of the other side mapped to ours, and nothing
believed unchecked.

For each generation of the other side there is one mapping array per table. A definition must continue where
the last one ended and refer only to what was defined before; anything else is a FrameError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.snapshots.columns import Array, GrowingColumn
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import (
    NO_THREAD,
    PROTOCOL_VERSION,
    Clock,
    Frame,
    FrameDefs,
    FrameKind,
    FunctionDefs,
    Gpus,
    GpuWork,
    Hello,
    ProcessDef,
    ProcessDefs,
    Readings,
    Samples,
    SeriesDefs,
    SourceCounts,
    StackDefs,
    Status,
    StringDefs,
    ThreadDefs,
    WaitKind,
    Waits,
)
from gpuprof.snapshots.names import MAX_FULL_NAME, clean
from gpuprof.snapshots.tables import Tables
from gpuprof.snapshots.work_frames import Ranges

if TYPE_CHECKING:
    from gpuprof.snapshots.history import History

MAX_DEFINITIONS = 1 << 20  # of one table in one generation of the other side
MAX_TIME_NS = 1 << 62
MAX_U32 = 0xFFFF_FFFF
_MAX_GENERATIONS = 4  # kept at once: a stream moves on to a new one and does not come back
_KINDS = {int(kind) for kind in FrameKind}
_MAX_WAIT_KIND = max(int(kind) for kind in WaitKind)


class _Foreign:
    """One generation of the other side: our tables, and for each of its tables the ids that ours gave."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.strings = GrowingColumn("<u4", (0,))
        self.functions = GrowingColumn("<u4")
        self.frames = GrowingColumn("<u4")
        self.stacks = GrowingColumn("<u4", (0,))
        self.processes = GrowingColumn("<u4")
        self.threads = GrowingColumn("<u4")


@dataclass(slots=True)
class _Generations:
    """The generations of the other side that may still be referred to."""

    kept: dict[int, _Foreign]

    def of(self, number: int, history: History, *, create: bool) -> _Foreign:
        found = self.kept.get(number)
        if found is None:
            if not create:
                raise FrameError(f"rows refer to generation {number}, which was not defined")
            if history.tables.full:
                history.roll_generation()
            found = self.kept[number] = _Foreign(history.tables)
            while len(self.kept) > _MAX_GENERATIONS:
                del self.kept[next(iter(self.kept))]
        return found


class Ingest:
    """Takes the frames of one stream after another into `history`; the history's lock is held around
    `take`.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._generations = _Generations({})
        self._series: dict[int, int] = {}
        self._series_lookup: tuple[Array, Array] | None = None
        self._takers: dict[type[Frame], Callable[[Any], None]] = {
            Hello: self._hello,
            Clock: self._clock,
            Gpus: history.set_gpus,
            Status: history.set_status,
            SourceCounts: history.losses.add_counts,
            SeriesDefs: self._series_defs,
            Readings: self._readings,
            ProcessDefs: self._process_defs,
            ThreadDefs: self._thread_defs,
            StringDefs: self._string_defs,
            FunctionDefs: self._function_defs,
            FrameDefs: self._frame_defs,
            StackDefs: self._stack_defs,
            Samples: self._samples,
            GpuWork: self._gpu_work,
            Waits: self._waits,
            Ranges: self._ranges,
        }

    def take(self, frame: Frame) -> None:
        """Take one frame; requests and answers are left alone. FrameError for what cannot be true."""
        taker = self._takers.get(type(frame))
        if taker is None:
            return
        try:
            taker(frame)
        except (IndexError, OverflowError, ValueError) as error:
            raise FrameError(f"a {frame.KIND} frame cannot be true: {error}") from error

    # -------------------------------------------------------------------------------------------------- facts

    def _hello(self, frame: Hello) -> None:
        check_version(frame)
        self._generations.kept.clear()
        self._series.clear()
        self._series_lookup = None
        history = self._history
        if not any(map(len, history.logs)):
            history.hello = frame

    def _clock(self, frame: Clock) -> None:
        pairs = {(clock.mono_ns, clock.wall_ns) for clock in self._history.clocks}
        if (frame.mono_ns, frame.wall_ns) not in pairs:  # every chunk of a file repeats them
            self._history.set_clock(frame)

    def _series_defs(self, frame: SeriesDefs) -> None:
        for series in frame.series:
            if not 0 <= series.id <= MAX_U32:
                raise FrameError("a series has an impossible id")
            self._series[series.id] = self._history.series(
                clean(series.metric, 64), gpu=series.gpu, pid=series.pid, core=series.core
            )
        if len(self._series) > MAX_DEFINITIONS:
            raise FrameError("too many series")
        self._series_lookup = None

    def _readings(self, frame: Readings) -> None:
        if not len(frame.series):
            return
        if self._series_lookup is None:
            known = sorted(self._series)
            ours = np.array([self._series[number] for number in known], np.uint32)
            self._series_lookup = np.array(known, np.uint32), ours
        known_ids, ours = self._series_lookup
        at = np.searchsorted(known_ids, frame.series)
        if not len(known_ids) or (known_ids[np.minimum(at, len(known_ids) - 1)] != frame.series).any():
            raise FrameError("readings refer to a series that was not defined")
        _check_times(frame.end_ns)
        self._history.add_readings(ours[at], frame.start_ns, frame.end_ns, frame.value)

    # -------------------------------------------------------------------------------------------- definitions

    def _foreign(self, number: int) -> _Foreign:
        return self._generations.of(number, self._history, create=True)

    def _process_defs(self, frame: ProcessDefs) -> None:
        foreign = self._foreign(frame.generation)
        ids = [foreign.tables.process(_checked_process(process)) for process in frame.processes]
        _put(foreign.processes, frame.first, ids)

    def _thread_defs(self, frame: ThreadDefs) -> None:
        foreign = self._foreign(frame.generation)
        ids = []
        for thread in frame.threads:
            if not 0 <= thread.process < len(foreign.processes) or not 0 <= thread.tid <= MAX_U32:
                raise FrameError("a thread refers to a process that was not defined")
            ids.append(foreign.tables.thread(foreign.processes[thread.process], thread.tid, thread.name))
        _put(foreign.threads, frame.first, ids)

    def _string_defs(self, frame: StringDefs) -> None:
        foreign = self._foreign(frame.generation)
        _append(
            foreign.strings,
            frame.first,
            [foreign.tables.string(clean(text, MAX_FULL_NAME)) for text in frame.strings],
        )

    def _function_defs(self, frame: FunctionDefs) -> None:
        foreign = self._foreign(frame.generation)
        known = foreign.strings.view()
        columns = [
            known[_in_range(column, len(known))].tolist() for column in (frame.name, frame.file, frame.binary)
        ]
        kinds = [kind if kind in _KINDS else int(FrameKind.UNKNOWN) for kind in frame.kind.tolist()]
        intern = foreign.tables.function_of_ids
        _append(foreign.functions, frame.first, [intern(*key) for key in zip(*columns, kinds, strict=True)])

    def _frame_defs(self, frame: FrameDefs) -> None:
        foreign = self._foreign(frame.generation)
        known = foreign.functions.view()
        functions = known[_in_range(frame.function, len(known))].tolist()
        intern = foreign.tables.frame
        ids = [intern(function, line) for function, line in zip(functions, frame.line.tolist(), strict=True)]
        _append(foreign.frames, frame.first, ids)

    def _stack_defs(self, frame: StackDefs) -> None:
        foreign = self._foreign(frame.generation)
        known = foreign.frames.view()
        frames = known[_in_range(frame.frame, len(known))].tolist()
        first = len(foreign.stacks)
        _in_range(frame.parent, first + len(frames))
        ours = foreign.stacks.view()[
            np.minimum(frame.parent, first - 1)
        ].tolist()  # of parents defined earlier
        ids: list[int] = []
        child = foreign.tables.stacks.child
        for parent, earlier, own_frame in zip(frame.parent.tolist(), ours, frames, strict=True):
            # IndexError where a parent is not smaller than its child
            ids.append(child(earlier if parent < first else ids[parent - first], own_frame))
        _append(foreign.stacks, frame.first, ids)

    # --------------------------------------------------------------------------------------------------- rows

    def _samples(self, frame: Samples) -> None:
        if not len(frame.time_ns):
            return
        foreign = self._generations.of(frame.generation, self._history, create=False)
        threads, stacks = foreign.threads.view(), foreign.stacks.view()
        _check_times(frame.time_ns)
        self._history.add_samples(
            frame.time_ns,
            frame.cpu,
            threads[_in_range(frame.thread, len(threads))],
            stacks[_in_range(frame.stack, len(stacks))],
            tables=foreign.tables,
        )

    def _gpu_work(self, frame: GpuWork) -> None:
        if not len(frame.start_ns):
            return
        foreign = self._generations.of(frame.generation, self._history, create=False)
        strings, threads, stacks = foreign.strings.view(), foreign.threads.view(), foreign.stacks.view()
        _check_times(frame.end_ns)
        self._history.add_gpu_work(
            start_ns=frame.start_ns,
            end_ns=frame.end_ns,
            gpu=strings[_in_range(frame.gpu, len(strings))],
            stream=frame.stream,
            thread=threads[_in_range(frame.thread, len(threads))],
            stack=stacks[_in_range(frame.stack, len(stacks))],
            weight=frame.weight,
            nvtx=stacks[_in_range(frame.nvtx, len(stacks))],
            again=frame.again,
            bytes=frame.bytes,
            tables=foreign.tables,
        )

    def _waits(self, frame: Waits) -> None:
        if not len(frame.start_ns):
            return
        foreign = self._generations.of(frame.generation, self._history, create=False)
        threads, stacks = foreign.threads.view(), foreign.stacks.view()
        _check_times(frame.end_ns)
        known = frame.waker != NO_THREAD
        waker = np.full(len(known), NO_THREAD, np.uint32)
        waker[known] = threads[_in_range(frame.waker[known], len(threads))]
        self._history.add_waits(
            frame.start_ns,
            frame.end_ns,
            threads[_in_range(frame.thread, len(threads))],
            stacks[_in_range(frame.stack, len(stacks))],
            waker,
            frame.weight,
            np.where(frame.kind > _MAX_WAIT_KIND, int(WaitKind.BLOCKED), frame.kind),  # of a later version
            tables=foreign.tables,
        )

    def _ranges(self, frame: Ranges) -> None:
        if not len(frame.start_ns):
            return
        foreign = self._generations.of(frame.generation, self._history, create=False)
        threads, stacks = foreign.threads.view(), foreign.stacks.view()
        _check_times(frame.end_ns)
        self._history.add_ranges(
            frame.start_ns,
            frame.end_ns,
            threads[_in_range(frame.thread, len(threads))],
            stacks[_in_range(frame.stack, len(stacks))],
            frame.weight,
            tables=foreign.tables,
        )


def check_version(hello: Hello) -> None:
    """Raise FrameError when the other side speaks a newer protocol than this one."""
    if hello.version > PROTOCOL_VERSION:
        raise FrameError(
            f"this comes from a newer gpuprof ({clean(hello.sampler_version, 32)})",
            "Update gpuprof-tui here to read it.",
        )


def _in_range(column: Array, length: int) -> Array:
    if len(column) and int(column.max()) >= length:
        raise FrameError("a definition or row refers to what was not defined")
    return column


def _check_times(column: Array) -> None:
    if int(column.max()) >= MAX_TIME_NS:
        raise FrameError("a row lies further in the future than a clock can")


def _append(mapping: GrowingColumn, first: int, ids: list[int]) -> None:
    if first != len(mapping):
        raise FrameError(f"definitions go on at {first} where {len(mapping)} was next")
    if len(mapping) + len(ids) > MAX_DEFINITIONS:
        raise FrameError("too many definitions in one generation")
    mapping.extend(ids)


def _put(mapping: GrowingColumn, first: int, ids: list[int]) -> None:
    """Like _append, but what was defined before may be defined again (a process changed its name)."""
    if not 0 <= first <= len(mapping):
        raise FrameError(f"definitions go on at {first} where {len(mapping)} was next")
    known = len(mapping) - first
    mapping.view()[first : first + len(ids)] = ids[:known]
    _append(mapping, len(mapping), ids[known:])


def _checked_process(process: ProcessDef) -> ProcessDef:
    if not (0 <= process.pid <= MAX_U32 and 0 <= process.start_ns < MAX_TIME_NS):
        raise FrameError("a process has an impossible pid or start time")
    return replace(
        process,
        name=clean(process.name),
        cmdline=clean(process.cmdline) if process.cmdline else "",
        user=clean(process.user, 64),
    )
