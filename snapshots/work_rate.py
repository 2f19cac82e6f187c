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

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots import fold
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.errors import EXIT_USAGE, GpuprofError
from gpuprof.snapshots.gaps import EMPTY, Spans, union
from gpuprof.snapshots.occurrences import occurrences
from gpuprof.snapshots.range_loops import most_regular, ranges_by_name
from gpuprof.snapshots.rate_windows import Occurrences, Windows, joined, windows
from gpuprof.snapshots.table_view import TaggedRows
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
LEAST_WINDOW_NS = 1_000_000


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
        name = most_regular([ranges_by_name(view, blocks, low_ns, end_ns) for view, blocks in parts])
        if name is None:
            return Counted("", reason="no NVTX range came round regularly"), nothing
        wanted = replace(wanted, kind=WorkKind.RANGE.value, name=name)
    for look_back_ns in LOOK_BACK_NS:
        low_ns = max(start_ns - look_back_ns, 0)
        parts = fold.by_tables(rows.of("ranges" if in_ranges else "gpu_work", low_ns, end_ns))
        work = joined([occurrences(view, blocks, wanted, low_ns, end_ns) for view, blocks in parts])
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


def _column(parts: Sequence[Windows], name: str, dtype: type) -> Array:
    columns = [getattr(part, name).astype(dtype) for part in parts]
    return np.concatenate(columns) if columns else np.zeros(0, dtype)
