"""When each device was idle, and which threads feed it.

A device is idle where it was observed (metrics.py, gpu_observed) and no work ran on it: kernels, copies and
communication are work. The threads that feed it are those that launched work of it in the range, or, where
nobody did, in the minutes before its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.snapshots import fold, gaps
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.gaps import Spans
from gpuprof.snapshots.gpu_tree import Gauge, observed_spans
from gpuprof.snapshots.people import People
from gpuprof.snapshots.table_view import TaggedRows

LOOK_BACK_NS = 300 * 10**9


@dataclass(frozen=True, slots=True)
class DeviceIdle:
    """One device: its idle time in the range, and what was learnt from the minutes before its end.

    `feeders`: numbers (People) of the threads that feed it; `recent`: its idle spans of the last
    LOOK_BACK_NS; `known_ns`: how much of those was recorded at all; `kernels`, `kernel_ns`: work that touches
    the range, and its summed time; `alone_ns`: time in the range in which communication was all that ran;
    `unobserved_ns`: how much of the range was neither observed nor busy.
    """

    uuid: str
    idle: Spans
    feeders: list[int]
    recent: Spans
    known_ns: int
    kernels: int
    kernel_ns: int
    alone_ns: int = 0
    unobserved_ns: int = 0


def device_idle(
    work: Sequence[TaggedRows],
    observed: Mapping[str, Gauge],
    people: People,
    *,
    asked: Sequence[str],
    low_ns: int,
    high_ns: int,
    first_ns: int,
) -> list[DeviceIdle]:
    """Return the devices (of `asked`, where given) that were observed, in no order.

    `work`: rows of [first_ns, high_ns); [low_ns, high_ns) is the range.
    """
    found = _work_by_device(work, people, low_ns)
    devices = []
    for uuid, gauge in observed.items():
        if asked and uuid not in asked:
            continue
        mine = found.get(uuid, _Work([], [], set(), set(), 0, 0, []))
        busy = gaps.EMPTY
        if mine.start:
            busy = gaps.union(*(np.concatenate(parts) for parts in (mine.start, mine.end)))
        seen = observed_spans(gauge)
        recent = seen.clipped(first_ns, high_ns).minus(busy)
        feeders = sorted(mine.in_range or mine.before)
        devices.append(
            DeviceIdle(
                uuid, recent.clipped(low_ns, high_ns), _known(feeders, people), recent, high_ns - first_ns,
                mine.kernels, mine.kernel_ns, _alone(mine, low_ns, high_ns),
                gaps.shares(low_ns, high_ns, busy, seen).unobserved_ns,
            )
        )  # fmt: skip
    return devices


@dataclass(slots=True)
class _Work:
    start: list[Array]
    end: list[Array]
    in_range: set[int]
    before: set[int]
    kernels: int
    kernel_ns: int
    talks: list[Array]  # masks: which rows are communication


def _alone(work: _Work, low_ns: int, high_ns: int) -> int:
    """Return for how long communication ran and nothing else: the device then waits for others."""
    if not any(mask.any() for mask in work.talks):
        return 0
    start, end, talks = (np.concatenate(parts) for parts in (work.start, work.end, work.talks))
    alone = gaps.union(start[talks], end[talks]).minus(gaps.union(start[~talks], end[~talks]))
    return alone.clipped(low_ns, high_ns).total_ns


def _work_by_device(work: Sequence[TaggedRows], people: People, low_ns: int) -> dict[str, _Work]:
    found: dict[str, _Work] = {}
    for view, blocks in fold.by_tables(work):
        gpu, start, end, thread, stack = (
            np.concatenate([rows.columns[name] for rows in blocks])
            for name in ("gpu", "start_ns", "end_ns", "thread", "stack")
        )
        talks = view.kind[view.frame_function[view.frame[stack]]] == FrameKind.GPU_COMM
        person = people.of(view, thread)
        start, end = start.astype(np.int64), end.astype(np.int64)
        numbers, of_row = fold.compact(gpu, int(gpu.max()) + 1)
        for place, number in enumerate(numbers.tolist()):
            part = found.setdefault(view.strings[number], _Work([], [], set(), set(), 0, 0, []))
            rows = slice(None) if len(numbers) == 1 else np.flatnonzero(of_row == place)
            starts, ends, people_here = start[rows], end[rows], person[rows]
            inside = ends > low_ns
            part.start.append(starts)
            part.end.append(ends)
            part.talks.append(talks[rows])
            part.in_range |= set(np.flatnonzero(np.bincount(people_here[inside])).tolist())
            part.before |= set(np.flatnonzero(np.bincount(people_here)).tolist())
            part.kernels += int(np.count_nonzero(inside))
            part.kernel_ns += int((ends[inside] - starts[inside]).sum())
    return found


def _known(feeders: Sequence[int], people: People) -> list[int]:
    """Leave out the stand-ins (tid 0) for threads that are not known, where others of their process are."""
    named = {people.process_key(number) for number in feeders if people.tids[number]}
    return [n for n in feeders if people.tids[n] or people.process_key(n) not in named]
