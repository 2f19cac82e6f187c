"""The columnar history: everything that was measured, bounded in memory and time, asked for any range.

The sampler fills one; a snapshot file and a remote stream are read back into one. Rows refer to a generation
of intern tables, which is kept for as long as rows of it are. Queries take references under the lock and
compute outside it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from gpuprof.snapshots import compact, cursor, queries, rows, wait_slices, work_rate
from gpuprof.snapshots.columns import Array, RowLog, Rows
from gpuprof.snapshots.cursor import MAX_LAG_NS, Cursor
from gpuprof.snapshots.frames import (
    Clock,
    Frame,
    Gpus,
    GpuWork,
    Hello,
    Query,
    Samples,
    SeriesDef,
    Status,
    Tree,
    Waits,
)
from gpuprof.snapshots.gaps import MAX_NS
from gpuprof.snapshots.ingest import Ingest
from gpuprof.snapshots.losses import LossLog
from gpuprof.snapshots.recorded_span import span_of
from gpuprof.snapshots.rows import (
    GPU_WORK_COLUMNS,
    RANGE_COLUMNS,
    READING_COLUMNS,
    SAMPLE_COLUMNS,
    WAIT_COLUMNS,
)
from gpuprof.snapshots.table_view import TaggedRows
from gpuprof.snapshots.tables import Tables
from gpuprof.snapshots.work_frames import Ranges, RateQuery, Rates

DEFAULT_MAX_BYTES = 64 << 20
DEFAULT_MAX_AGE_NS = 3600 * 10**9
MAX_SERIES = 1 << 14
MAX_CLOCKS = 64
_KEPT_SHARE = 4  # a kind of rows that takes less than this part of the bound is not dropped for the others


class History:
    """Readings, samples, GPU work, waits and what they refer to. Every method may be called from any thread.

    `max_bytes` bounds rows and tables together, `max_age_ns` the age of rows against the newest one (None:
    no bound); the oldest blocks of rows are dropped first, but those of a kind that takes much room before
    those of one that takes little. To intern and add rows, hold `lock` from the first id that is taken of
    `tables` to `add_samples`, `add_gpu_work` or `add_waits`, so that no generation begins in between.
    """

    def __init__(
        self, hello: Hello, *, max_bytes: int = DEFAULT_MAX_BYTES, max_age_ns: int | None = DEFAULT_MAX_AGE_NS
    ) -> None:
        self.lock = threading.RLock()
        self.hello = hello
        self.tables = Tables(0)
        self.clocks: list[Clock] = []
        self.gpus: Gpus | None = None
        self.status: Status | None = None
        self.losses = LossLog()
        self.facts_version = 0  # grows with each clock, gpus and status that is set
        self.samples = RowLog(SAMPLE_COLUMNS, start="time_ns", end="time_ns")
        self.gpu_work = RowLog(GPU_WORK_COLUMNS, start="start_ns", end="end_ns")
        self.waits = RowLog(WAIT_COLUMNS, start="start_ns", end="end_ns")
        self.ranges = RowLog(RANGE_COLUMNS, start="start_ns", end="end_ns")
        self.readings = RowLog(READING_COLUMNS, start="start_ns", end="end_ns")
        self.series_defs: dict[int, SeriesDef] = {}
        self.newest_ns = 0
        self.recorded: tuple[int, int] | None = None  # from when to when, as the recorder says, in ns
        self.is_recording = False  # read from a file, so mostly elsewhere and later than it was recorded
        self.damage: str | None = None  # what of a file could not be read, in words
        self.growing: str | None = None  # that its file is still being written, in words
        self._versions = {"clock": 0, "gpus": 0, "status": 0}
        self._series_ids: dict[tuple[str, str | None, int | None, int | None], int] = {}
        self._next_series = 0
        self._max_bytes = max_bytes
        self._max_age_ns = max_age_ns
        self._frozen_bytes = 0  # of the generations before the current one that rows still refer to
        self._ingest = Ingest(self)

    # ------------------------------------------------------------------------------------------------ writing

    def roll_generation(self) -> Tables:
        """Begin a new generation of tables and return it; every id of the old one is then void for new
        rows.
        """
        with self.lock:
            self.tables.freeze()
            self.tables = Tables(self.tables.generation + 1)
            self._count_frozen()
            return self.tables

    def add_samples(
        self,
        time_ns: ArrayLike,
        cpu: ArrayLike,
        thread: ArrayLike,
        stack: ArrayLike,
        *,
        tables: Tables | None = None,
    ) -> None:
        """Add CPU stack samples, as equal-length columns with ids of the current generation (or of `tables`).

        ValueError for ids that are not defined and for columns of different lengths.
        """
        columns = rows.columns_of(SAMPLE_COLUMNS, (time_ns, cpu, thread, stack))
        if not len(columns["time_ns"]):
            return
        with self.lock:
            tables = tables or self.tables
            rows.check_samples(columns, tables)
            self.samples.add(columns, tables)
            self._bound(int(columns["time_ns"].max()))

    def add_gpu_work(
        self,
        *,
        start_ns: ArrayLike,
        end_ns: ArrayLike,
        gpu: ArrayLike,
        stream: ArrayLike,
        thread: ArrayLike,
        stack: ArrayLike,
        weight: ArrayLike = 1.0,
        nvtx: ArrayLike = 0,
        again: ArrayLike = 0,
        bytes: ArrayLike = 0,
        tables: Tables | None = None,
    ) -> None:
        """Add GPU work (frames.GpuWork), as equal-length columns with ids of the current generation (or of
        `tables`); `weight`, `nvtx`, `again` and `bytes` may be one for all.

        ValueError for ids that are not defined, work that ends before it starts or lies further in the future
        than a clock can, and columns of different lengths.
        """
        count = len(np.asarray(start_ns))
        weight = rows.weights(weight, count)
        values = (start_ns, end_ns, gpu, stream, thread, stack, weight, nvtx, again, bytes)
        columns = rows.columns_of(GPU_WORK_COLUMNS, values, count)
        if not len(columns["start_ns"]):
            return
        with self.lock:
            tables = tables or self.tables
            rows.check_gpu_work(columns, tables)
            self.gpu_work.add(columns, tables)
            self._bound(int(columns["end_ns"].max()))

    def add_waits(  # noqa: PLR0917
        self,
        start_ns: ArrayLike,
        end_ns: ArrayLike,
        thread: ArrayLike,
        stack: ArrayLike,
        waker: ArrayLike,
        weight: ArrayLike,
        kind: ArrayLike,
        *,
        tables: Tables | None = None,
    ) -> None:
        """Add waits of threads (frames.Waits), as equal-length columns with ids of the current generation (or
        of `tables`); `weight` may be one for all.

        ValueError as for GPU work, and for a kind that is not a WaitKind.
        """
        weight = rows.weights(weight, len(np.asarray(start_ns)))
        columns = rows.columns_of(WAIT_COLUMNS, (start_ns, end_ns, thread, stack, waker, weight, kind))
        if not len(columns["start_ns"]):
            return
        with self.lock:
            tables = tables or self.tables
            rows.check_waits(columns, tables)
            self.waits.add(columns, tables)
            self._bound(int(columns["end_ns"].max()))

    def add_ranges(
        self,
        start_ns: ArrayLike,
        end_ns: ArrayLike,
        thread: ArrayLike,
        stack: ArrayLike,
        weight: ArrayLike = 1.0,
        *,
        tables: Tables | None = None,
    ) -> None:
        """Add NVTX ranges (work_frames.Ranges), as equal-length columns with ids of the current generation
        (or of `tables`); `weight` may be one for all. ValueError as for GPU work.
        """
        weight = rows.weights(weight, len(np.asarray(start_ns)))
        columns = rows.columns_of(RANGE_COLUMNS, (start_ns, end_ns, thread, stack, weight))
        if not len(columns["start_ns"]):
            return
        with self.lock:
            tables = tables or self.tables
            rows.check_ranges(columns, tables)
            self.ranges.add(columns, tables)
            self._bound(int(columns["end_ns"].max()))

    def series(
        self, metric: str, *, gpu: str | None = None, pid: int | None = None, core: int | None = None
    ) -> int:
        """Return the id of the series of `metric` for one subject. Ids are stable and never used twice."""
        key = (metric, gpu, pid, core)
        with self.lock:
            found = self._series_ids.get(key)
            if found is None:
                if len(self.series_defs) >= MAX_SERIES:
                    self._forget_series()
                found = self._next_series
                self._next_series += 1
                self._series_ids[key] = found
                self.series_defs[found] = SeriesDef(found, metric, gpu, pid, core)
            return found

    def add_readings(
        self, series: ArrayLike, start_ns: ArrayLike, end_ns: ArrayLike, value: ArrayLike
    ) -> None:
        """Add raw readings: equal-length columns of series ids, windows in ns (start == end: an instant) and
        values.

        ValueError for an unknown series, a window that ends before it starts, and columns of different
        lengths.
        """
        columns = rows.columns_of(READING_COLUMNS, (series, start_ns, end_ns, value))
        if not len(columns["series"]):
            return
        if (columns["end_ns"] < columns["start_ns"]).any():
            raise ValueError("a reading ends before it starts")
        with self.lock:
            if columns["series"].max() >= self._next_series:
                raise ValueError("a reading refers to a series that is not defined")
            self.readings.add(columns)
            self._bound(int(columns["end_ns"].max()))

    def set_gpus(self, gpus: Gpus) -> None:
        """Replace the list of devices."""
        with self.lock:
            self.gpus = gpus
            self._note("gpus")

    def set_clock(self, clock: Clock) -> None:
        """Add a new pair of monotonic and wall-clock time (the wall clock was stepped)."""
        with self.lock:
            self.clocks = [*self.clocks[-(MAX_CLOCKS - 1) :], clock]
            self._note("clock")

    def set_status(self, status: Status) -> None:
        """Replace the status of the sampler and its sources."""
        with self.lock:
            self.status = status
            self.losses.add(status)
            self._note("status")

    def ingest(self, frame: Frame) -> None:
        """Add what a frame of a stream or file holds, re-interned. FrameError when it contradicts the frames
        before it.

        Frames of one stream must come in their order; a Hello begins a new stream.
        """
        with self.lock:
            self._ingest.take(frame)

    def clear_rows(self) -> None:
        """Drop all samples, GPU work, waits, ranges and readings; tables and series stay."""
        with self.lock:
            for log in self._logs:
                while len(log):
                    log.drop_oldest()
            self._count_frozen()

    # ------------------------------------------------------------------------------------------------ reading

    @property
    def span(self) -> tuple[int, int]:
        """The range [start, end) in ns that holds every row and, of a recording, the time that its recorder
        says, as far as it can be believed (recorded_span.py); empty at the hello's instant when there is
        neither.
        """
        with self.lock:
            spans = [span for log in self._logs if (span := log.span()) is not None]
            recorded = self.recorded
        held = (min(start for start, _ in spans), max(end for _, end in spans) + 1) if spans else None
        return span_of(held, recorded) or (self.hello.mono_ns, self.hello.mono_ns)

    @property
    def samples_start_ns(self) -> int | None:
        """Oldest instant that a query can still reach, None when there are no samples."""
        with self.lock:
            span = self.samples.span()
        return None if span is None else span[0]

    @property
    def bytes_used(self) -> int:
        """About how much memory rows and tables take."""
        with self.lock:
            return sum(log.nbytes for log in self._logs) + self.tables.nbytes + self._frozen_bytes

    def wall_ns(self, mono_ns: int) -> int:
        """Return the wall-clock time (ns since 1970) of a monotonic instant, by the last pair taken before
        it.
        """
        with self.lock:
            pair: Hello | Clock = self.hello
            for clock in self.clocks:
                if clock.mono_ns <= mono_ns:
                    pair = clock
        return pair.wall_ns + mono_ns - pair.mono_ns

    def query(self, query: Query) -> Tree:
        """Return the folded tree of a range. GpuprofError for a tree that is not known or not recorded
        here, and for a filter that the tree does not have.
        """
        return queries.answer(self, query)

    def rates(self, query: RateQuery) -> Rates:
        """Return how often what was asked for occurred. GpuprofError where too much is asked for."""
        return work_rate.answer(self, query)

    def samples_between(self, start_ns: int, end_ns: int) -> list[TaggedRows]:
        """Return the samples in [start_ns, end_ns), block by block, each with the tables that it refers
        to.
        """
        with self.lock:
            return rows.tagged(self.samples, start_ns, end_ns)

    def gpu_work_between(self, start_ns: int, end_ns: int) -> list[TaggedRows]:
        """Return the GPU work that touches [start_ns, end_ns), block by block, each with its tables."""
        with self.lock:
            return rows.tagged(self.gpu_work, start_ns, end_ns)

    def waits_between(self, start_ns: int, end_ns: int) -> list[TaggedRows]:
        """Return the waits that touch [start_ns, end_ns), block by block, each with its tables."""
        with self.lock:
            return rows.tagged(self.waits, start_ns, end_ns)

    def ranges_between(self, start_ns: int, end_ns: int) -> list[TaggedRows]:
        """Return the NVTX ranges that touch [start_ns, end_ns), block by block, each with its tables."""
        with self.lock:
            return rows.tagged(self.ranges, start_ns, end_ns)

    def readings_between(self, start_ns: int, end_ns: int) -> tuple[dict[int, SeriesDef], dict[str, Array]]:
        """Return the readings that touch [start_ns, end_ns), as columns, and the definitions of all series
        by id.
        """
        with self.lock:
            parts = list(self.readings.between(start_ns, end_ns))
            defs = dict(self.series_defs)
        columns: dict[str, Array] = {
            name: np.concatenate([part.columns[name] for part in parts]) if parts else np.empty(0, dtype)
            for name, dtype in READING_COLUMNS.items()
        }
        return defs, columns

    def frames_between(
        self, start_ns: int, end_ns: int, *, level: str = "rows", by_end: bool = False
    ) -> Iterator[Frame]:
        """Return the frames of [start_ns, end_ns): Hello first, self-contained, definitions before what
        needs them.

        `level`: "rows", or "metrics" for readings only. With `by_end` a row that covers a window belongs to
        the range that it ends in, so that neighbouring ranges share none. The history is read at
        the call, not while iterating.
        """
        first_ns = start_ns - 1 if by_end else start_ns
        with self.lock:
            hello, clocks, gpus, status = self.hello, list(self.clocks), self.gpus, self.status
            defs, readings = self.readings_between(first_ns, end_ns)
            samples = self.samples_between(start_ns, end_ns) if level == "rows" else []
            windows = self.gpu_work_between(first_ns, end_ns) if level == "rows" else []
            waits = self.waits_between(first_ns, end_ns) if level == "rows" else []
            behind: list[TaggedRows] = []  # where neighbouring ranges follow, they have the wakers
            if not by_end:
                behind = wait_slices.later(waits, end_ns, lambda: self.waits_between(end_ns, MAX_NS))
            ranges = self.ranges_between(first_ns, end_ns) if level == "rows" else []
            current, counts = self.tables.view(), self.losses.frame(start_ns, end_ns)
        waits = wait_slices.told(waits, behind, end_ns)
        if by_end:
            readings = rows.ending(readings, start_ns, end_ns)
            windows, waits, ranges = (
                [
                    (view, Rows(part.first, part.tag, rows.ending(part.columns, start_ns, end_ns)))
                    for view, part in log
                ]
                for log in (windows, waits, ranges)
            )
        facts: list[Frame] = [hello, *clocks, *(fact for fact in (gpus, status, counts) if fact is not None)]
        tagged = {Samples: samples, GpuWork: windows, Waits: waits, Ranges: ranges}
        return compact.frames(facts, (defs, readings), tagged, current=current)

    # ------------------------------------------------------------------------------------------------ cursors

    def cursor(
        self,
        level: str = "metrics",
        since_ns: int | None = None,
        *,
        max_lag_ns: int | None = MAX_LAG_NS,
    ) -> Cursor:
        """Return a cursor for one client: `level` "metrics" or "rows"; with `since_ns` it begins in the
        past.
        """
        with self.lock:
            return cursor.begin(self, level, since_ns, max_lag_ns)

    def since(self, position: Cursor, max_bytes: int = 1 << 20) -> list[Frame]:
        """Return what came after the cursor, about `max_bytes` at most, and move it on; [] when it is at the
        end.

        Definitions come before the rows that refer to them. Rows that a slow client can no longer get are
        counted in the cursor's `dropped_samples`, `dropped_gpu_work`, `dropped_waits` and `dropped_readings`.
        """
        with self.lock:
            return cursor.advance(self, position, max_bytes)

    def fact_versions(self) -> dict[str, int]:
        """Return for clock, gpus and status the version at which each was last set (0: never)."""
        return self._versions

    # ----------------------------------------------------------------------------------------------- internal

    @property
    def _logs(self) -> tuple[RowLog, ...]:
        return self.samples, self.gpu_work, self.waits, self.ranges, self.readings

    def _note(self, fact: str) -> None:
        self.facts_version += 1
        self._versions[fact] = self.facts_version

    def _bound(self, newest_ns: int) -> None:
        """Drop the oldest blocks until age and memory are within their bounds; the newest block of each kind
        stays.
        """
        self.newest_ns = max(self.newest_ns, newest_ns)
        dropped = False
        if self._max_age_ns is not None:
            limit = self.newest_ns - self._max_age_ns
            for log in self._logs:
                while log.block_count > 1 and (log.oldest_ns() or 0) < limit:
                    log.drop_oldest()
                    dropped = True
        while self.bytes_used > self._max_bytes:
            logs = [log for log in self._logs if log.block_count > 1]
            if not logs:
                break
            large = [log for log in logs if log.nbytes > self._max_bytes // _KEPT_SHARE]
            min(large or logs, key=lambda log: log.oldest_ns() or 0).drop_oldest()
            dropped = True
            self._count_frozen()
        if dropped:
            self._count_frozen()

    def _count_frozen(self) -> None:
        logs = (self.samples, self.gpu_work, self.waits, self.ranges)
        tables = {id(tag): tag for log in logs for tag in log.tags()}
        self._frozen_bytes = sum(tag.nbytes for tag in tables.values() if tag is not self.tables)

    def _forget_series(self) -> None:
        """Forget the series without readings; should all have some, the older half."""
        parts = [part.columns["series"] for part in self.readings.between(0, 1 << 63)]
        live = set(np.unique(np.concatenate(parts)).tolist()) if parts else set()
        keep = {number: series for number, series in self.series_defs.items() if number in live}
        if len(keep) >= MAX_SERIES // 2:
            keep = dict(list(keep.items())[-MAX_SERIES // 2 :])
        self.series_defs = keep
        self._series_ids = {(s.metric, s.gpu, s.pid, s.core): number for number, s in keep.items()}
