"""Work rates: how often a kernel, a launch under a function, or an NVTX range occurred, over a range of time.

Something has occurred when it ended. Time is cut into windows that begin and end with an occurrence: of each
grid cell of `window_ns` (counted from 0, so that the same windows come for any range) the last occurrence
ends a window. A rate is then exact however few occurrences there are: a step of 0.2 s gives 5.00 per second,
where cells of fixed length would give 4 and 6. While nothing ends, there is one window without an
occurrence, which has not come to its end; it is given once it is longer than the work usually takes.

Counts of kernels are exact, as every kernel is a row. Of launches, those with a stack are a random sample
where the overhead budget asks for it; a row of weight w stands for w, and the standard error of a count is
the root of the sum of w (w - 1). Where one of the processes that do the work was not recorded for a time,
that time and what occurred in it are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots import fold
from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.errors import EXIT_USAGE, GpuprofError
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.gaps import EMPTY, Spans, union
from gpuprof.snapshots.table_view import TablesView, TaggedRows
from gpuprof.snapshots.work_frames import (
    MAX_NAME,
    MAX_RATES,
    MAX_WINDOWS,
    Counted,
    RateQuery,
    Rates,
    Wanted,
    WorkKind,
)

if TYPE_CHECKING:
    from gpuprof.snapshots.history import History

LOOK_BACK_NS = (5 * 10**8, 5 * 10**9, 60 * 10**9)  # for where the first window begins, step by step
ENOUGH_BEFORE = 5  # occurrences before the range, so that the usual interval is known
QUIET_NS = (
    2 * 10**9
)  # without an occurrence for so long, and for QUIET_TIMES the usual interval: nothing is done
QUIET_TIMES = 4
LEAST_WINDOW_NS = 1_000_000
LEAST_ROUNDS = 5  # of a loop
ALIKE = 0.05  # loops whose irregularity differs by less are equally regular: the longer one counts

KERNEL_KINDS = (FrameKind.GPU_KERNEL, FrameKind.GPU_COMM)
WORK_KINDS = (*KERNEL_KINDS, FrameKind.GPU_COPY)
CODE_KINDS = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.JIT, FrameKind.KERNEL_SPACE)


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Instants (i64, ns, in order) in which something ended, how many each stands for, and by which
    processes (pids) it was done.
    """

    end_ns: Array
    weight: Array
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of one work rate, as columns; see work_frames.Rates."""

    start_ns: Array
    end_ns: Array
    recorded_ns: Array
    count: Array
    error: Array


def answer(history: History, query: RateQuery) -> Rates:
    """Return the answer to a question. GpuprofError for one that asks for too much or for no known kind."""
    if len(query.wanted) > MAX_RATES:
        raise GpuprofError("too many work rates in one question", f"Ask for {MAX_RATES} at most.", EXIT_USAGE)
    counted: list[Counted] = []
    found: list[Windows] = []
    rows = _Read(history)
    for wanted in query.wanted:
        _check(wanted)
        number, windows = _one(history, rows, wanted)
        counted.append(number)
        found.append(windows)
    of = np.repeat(np.arange(len(found), dtype=np.uint8), [len(part.count) for part in found])
    return Rates(
        query.id,
        counted,
        of,
        _column(found, "start_ns", np.uint64),
        _column(found, "end_ns", np.uint64),
        _column(found, "recorded_ns", np.uint64),
        _column(found, "count", np.float64),
        _column(found, "error", np.float64),
    )


def kind_of(frame: int) -> WorkKind | None:
    """Return what is counted of a row of a tree with this FrameKind; None: it has no work rate."""
    if frame in WORK_KINDS:
        return WorkKind.KERNEL
    if frame in CODE_KINDS:
        return WorkKind.LAUNCH
    if frame == FrameKind.NVTX:
        return WorkKind.RANGE
    return WorkKind.KERNELS if frame in {FrameKind.PROCESS, FrameKind.ROOT} else None


def windows(
    work: Occurrences,
    start_ns: int,
    end_ns: int,
    window_ns: int,
    *,
    asked_ns: int = 0,
    unrecorded: Spans = EMPTY,
) -> Windows:
    """Return the windows that end in [start_ns, end_ns), of about `window_ns` where the work is frequent.

    `work`: what ended before `end_ns`, from before the start on, as far as it is known; none of it in
    `unrecorded` time. `asked_ns`: until then nothing more will come, where that is later than `end_ns`.
    """
    end, total = work.end_ns, np.concatenate([[0.0], np.cumsum(work.weight)])
    noise = np.concatenate([[0.0], np.cumsum(work.weight * (work.weight - 1))])
    if not len(end):
        none = np.zeros(0)
        return Windows(none, none, none, none, none)
    last = np.flatnonzero(np.append(np.diff(end // window_ns) > 0, True))
    edge = end[last]
    if (edge[-1] // window_ns + 1) * window_ns > max(end_ns, asked_ns):  # more may come in its cell
        last, edge = last[:-1], edge[:-1]
    begin, until, number = edge[:-1], edge[1:], last
    count = total[number[1:] + 1] - total[number[:-1] + 1]
    error = np.sqrt(np.maximum(noise[number[1:] + 1] - noise[number[:-1] + 1], 0))
    inside = (until >= start_ns) & (until < end_ns)
    begin, until, count, error = begin[inside], until[inside], count[inside], error[inside]
    usual = float(np.median(np.diff(edge[-64:]))) if len(edge) > 1 else 0.0
    newest = int(end[-1])
    if end_ns - newest > max(QUIET_NS, QUIET_TIMES * usual):
        if len(edge) and newest != edge[-1] and newest >= start_ns:  # the cell is over all the same
            rest = total[-1] - total[last[-1] + 1]
            begin, until = np.append(begin, edge[-1]), np.append(until, newest)
            count, error = np.append(count, rest), np.append(error, np.sqrt(noise[-1] - noise[last[-1] + 1]))
        begin, until = np.append(begin, newest), np.append(until, end_ns)
        count, error = np.append(count, 0.0), np.append(error, 0.0)
    recorded = (until - begin) - unrecorded.overlap(begin, until)
    some = recorded > 0
    return Windows(begin[some], until[some], recorded[some], count[some], error[some])


# ----------------------------------------------------------------------------------------------- one question


class _Read:
    """Rows of a history, read once for questions about the same range."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._found: dict[tuple[str, int, int], list[TaggedRows]] = {}

    def of(self, log: str, start_ns: int, end_ns: int) -> list[TaggedRows]:
        key = (log, start_ns, end_ns)
        if key not in self._found:
            read = self._history.gpu_work_between if log == "gpu_work" else self._history.ranges_between
            self._found[key] = read(start_ns, end_ns)
        return self._found[key]


def _check(wanted: Wanted) -> None:
    kinds = [kind.value for kind in WorkKind]
    if wanted.kind not in kinds:
        raise GpuprofError(
            f"there is no work rate of “{wanted.kind[:32]}”",
            f"The kinds are: {', '.join(kinds)}.",
            EXIT_USAGE,
        )
    if len(wanted.name) > MAX_NAME or len(wanted.file) > 4 * MAX_NAME:
        raise GpuprofError("the name of the work is too long", exit_code=EXIT_USAGE)


def _one(history: History, rows: _Read, wanted: Wanted) -> tuple[Counted, Windows]:
    in_ranges = wanted.kind in {WorkKind.RANGE, WorkKind.LOOP}
    first_ns, last_ns = _held(history, in_ranges=in_ranges)
    # Nothing is known of what lies outside: it must not thin the rate.
    start_ns, end_ns = max(wanted.start_ns, first_ns, 0), min(wanted.end_ns, last_ns)
    nothing = windows(Occurrences(np.zeros(0, np.int64), np.zeros(0)), 0, 0, 1)
    if in_ranges and not history.ranges.next:
        return Counted(wanted.name, reason="no NVTX range was recorded here"), nothing
    if not in_ranges and not history.gpu_work.next:
        return Counted(wanted.name, reason="no GPU work was recorded here"), nothing
    if end_ns <= start_ns:
        return Counted(wanted.name), nothing
    if wanted.kind == WorkKind.LOOP:
        low_ns = max(start_ns - LOOK_BACK_NS[-1], 0)
        parts = fold.by_tables(rows.of("ranges", low_ns, end_ns))
        name = _loop([_ranges_by_name(view, blocks, low_ns, end_ns) for view, blocks in parts])
        if name is None:
            return Counted("", reason="no NVTX range came round regularly"), nothing
        wanted = replace(wanted, kind=WorkKind.RANGE.value, name=name)
    for look_back_ns in LOOK_BACK_NS:
        low_ns = max(start_ns - look_back_ns, 0)
        parts = fold.by_tables(rows.of("ranges" if in_ranges else "gpu_work", low_ns, end_ns))
        work = _joined([_occurrences(view, blocks, wanted, low_ns, end_ns) for view, blocks in parts])
        if np.count_nonzero(work.end_ns < start_ns) >= ENOUGH_BEFORE:
            break
    unrecorded = _unrecorded(history, work.pids, low_ns, end_ns)
    outside = unrecorded.holds(work.end_ns)
    if outside.any():
        work = replace(work, end_ns=work.end_ns[~outside], weight=work.weight[~outside])
    window_ns = max(wanted.window_ns, LEAST_WINDOW_NS, -(-(end_ns - start_ns) // (MAX_WINDOWS - 2)))
    inside = work.weight[work.end_ns >= start_ns]
    error = float(np.sqrt((inside * (inside - 1)).sum()))
    recorded_ns = end_ns - start_ns - unrecorded.clipped(start_ns, end_ns).total_ns
    counted = Counted(wanted.name, float(inside.sum()), error, recorded_ns)
    found = windows(work, start_ns, end_ns, window_ns, asked_ns=wanted.end_ns, unrecorded=unrecorded)
    return counted, found


def _held(history: History, *, in_ranges: bool) -> tuple[int, int]:
    """Return from when to when the history would have the rows, had there been any."""
    with history.lock:
        first_ns, last_ns = history.span
        log = history.ranges if in_ranges else history.gpu_work
        if log.first:  # the oldest were dropped for want of room
            ends = log.ends()
            first_ns = last_ns if ends is None else max(first_ns, ends[0])
        elif history.recorded is None:  # it may have begun before its first row
            first_ns = min(first_ns, history.hello.mono_ns)
    return first_ns, last_ns


def _occurrences(
    view: TablesView, blocks: Sequence[Rows], wanted: Wanted, low_ns: int, end_ns: int
) -> Occurrences:
    """Return the rows of one generation that are what is wanted and end in [low_ns, end_ns)."""
    in_ranges = wanted.kind == WorkKind.RANGE
    names = ["end_ns", "thread", "stack", "weight", *(() if in_ranges else ("gpu", "again"))]
    columns = {name: np.concatenate([rows.columns[name] for rows in blocks]) for name in names}
    end = columns["end_ns"].astype(np.int64)
    keep = (end >= low_ns) & (end < end_ns) & _right_stack(view, columns["stack"], wanted)
    if wanted.gpu is not None and not in_ranges:
        keep &= columns["gpu"] == _string_id(view, wanted.gpu)
    process = view.thread_process[columns["thread"]]
    pids = np.array([found.pid for found in list(view.processes)], np.int64)
    if wanted.pid is not None:
        keep &= pids[process] == wanted.pid
    if wanted.kind == WorkKind.LAUNCH:
        keep &= (columns["again"] == 0) & (columns["weight"] >= 1)
    weighs = in_ranges or wanted.kind == WorkKind.LAUNCH
    weight = columns["weight"][keep].astype(np.float64) if weighs else np.ones(np.count_nonzero(keep))
    return Occurrences(end[keep], weight, frozenset(pids[np.unique(process[keep])].tolist()))


def _joined(parts: Iterable[Occurrences]) -> Occurrences:
    parts = list(parts)
    if not parts:
        return Occurrences(np.zeros(0, np.int64), np.zeros(0))
    end = np.concatenate([part.end_ns for part in parts])
    weight = np.concatenate([part.weight for part in parts])
    order = np.argsort(end, kind="stable")
    return Occurrences(end[order], weight[order], frozenset().union(*(part.pids for part in parts)))


def _string_id(view: TablesView, text: str) -> int:
    """Return the id of a string, 0 (which no name has) where the tables do not have it."""
    try:
        return view.strings.index(text) if text else 0
    except ValueError:
        return 0


def _right_stack(view: TablesView, stack: Array, wanted: Wanted) -> Array:
    """Return a mask of the rows whose leaf, or one of whose callers, is what is wanted."""
    stacks, of_row = fold.compact(stack, len(view.parent))
    right = np.zeros(len(stacks), np.bool_)
    frames = _right_frames(view, wanted)
    if frames.any():
        current = stacks.copy()
        while True:
            right |= (current > 0) & frames[view.frame[current]]
            current = view.parent[current]
            if wanted.kind != WorkKind.LAUNCH or not current.any():
                break
    return right[of_row]


def _right_frames(view: TablesView, wanted: Wanted) -> Array:
    """Return a mask over all frames of those that are what is wanted."""
    kinds: Mapping[str, tuple[FrameKind, ...]] = {
        WorkKind.KERNELS: KERNEL_KINDS,
        WorkKind.KERNEL: WORK_KINDS,
        WorkKind.LAUNCH: CODE_KINDS,
        WorkKind.RANGE: (FrameKind.NVTX,),
    }
    right = np.isin(view.kind, np.array([int(kind) for kind in kinds[wanted.kind]], np.uint8))
    if wanted.kind != WorkKind.KERNELS:
        number = _string_id(view, wanted.name)
        right &= (view.name == number) & (number > 0)
        if wanted.file and wanted.kind == WorkKind.LAUNCH:
            right &= view.file == _string_id(view, wanted.file)
    mask: Array = right[view.frame_function]
    return mask


def _unrecorded(history: History, pids: frozenset[int], start_ns: int, end_ns: int) -> Spans:
    """Return when one of the processes was on a device and its work was not recorded."""
    missing = EMPTY
    with history.lock:
        defs = history.series_defs.values()
        ids = {series.id: series.pid for series in defs if series.metric == "proc_recording"}
        ids = {number: pid for number, pid in ids.items() if pid in pids}
        wanted = np.array(list(ids), np.uint32)
        between = history.readings.between(start_ns, end_ns) if ids else ()
        parts = [
            {name: column[mine] for name, column in rows.columns.items()}
            for rows in between
            if (mine := np.isin(rows.columns["series"], wanted)).any()
        ]
    for pid in set(ids.values()) if parts else ():
        numbers = np.array([number for number, of in ids.items() if of == pid], np.uint32)
        start, end, value = (
            np.concatenate([part[name][np.isin(part["series"], numbers)] for part in parts])
            for name in ("start_ns", "end_ns", "value")
        )
        yes = value >= 0.5
        missing = missing.joined(union(start[~yes], end[~yes]).minus(union(start[yes], end[yes])))
    return missing


# ------------------------------------------------------------------------------------------------------ loops


def _ranges_by_name(
    view: TablesView, blocks: Sequence[Rows], low_ns: int, end_ns: int
) -> dict[str, tuple[Array, float]]:
    """Return of the outermost ranges of one generation by name: their ends, and the time in them."""
    stack, start, end = (
        np.concatenate([rows.columns[name] for rows in blocks]) for name in ("stack", "start_ns", "end_ns")
    )
    inside = (view.parent[stack] == 0) & (stack > 0) & (end >= low_ns) & (end < end_ns)
    stack, start, end = stack[inside], start[inside].astype(np.int64), end[inside].astype(np.int64)
    found: dict[str, tuple[Array, float]] = {}
    for node in np.unique(stack).tolist():
        mine = stack == node
        name = view.strings[int(view.name[view.frame_function[view.frame[node]]])]
        found[name] = (end[mine], float((end[mine] - start[mine]).sum()))
    return found


def _loop(parts: Sequence[dict[str, tuple[Array, float]]]) -> str | None:
    """Return the name of the range that comes round most regularly; of equals, that with most time in it."""
    scores: dict[str, tuple[float, float]] = {}
    for name in {name for part in parts for name in part}:
        mine = [part[name] for part in parts if name in part]
        end = np.sort(np.concatenate([ends for ends, _ in mine]))
        interval = np.diff(end)
        usual = float(np.median(interval)) if len(interval) >= LEAST_ROUNDS else 0.0
        if usual > 0:
            irregular = float(np.median(np.abs(interval - usual))) / usual
            scores[name] = (irregular, sum(time for _, time in mine))
    if not scores:
        return None
    best = min(irregular for irregular, _ in scores.values()) + ALIKE
    return max((name for name in scores if scores[name][0] <= best), key=lambda name: (scores[name][1], name))


def _column(parts: Sequence[Windows], name: str, dtype: type) -> Array:
    columns = [getattr(part, name).astype(dtype) for part in parts]
    return np.concatenate(columns) if columns else np.zeros(0, dtype)
