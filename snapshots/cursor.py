"""A client's position in a history, and what comes after it: no queue per client, however slow it is.

Definitions are never dropped: they are sent before the rows that refer to them. Rows are dropped, and
counted, when the history no longer holds them or when a live client has fallen too far behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuprof.snapshots.columns import RowLog
from gpuprof.snapshots.errors import EXIT_USAGE, GpuprofError
from gpuprof.snapshots.frames import Frame, GpuWork, Readings, Samples, SeriesDefs, Waits
from gpuprof.snapshots.table_view import TableCursor
from gpuprof.snapshots.tables import Tables
from gpuprof.snapshots.work_frames import Ranges

if TYPE_CHECKING:
    from gpuprof.snapshots.history import History

LEVELS = ("metrics", "rows")
MAX_LAG_NS = 30 * 10**9
_Rows = type[Samples | GpuWork | Waits | Ranges]
_ROW_BYTES: dict[_Rows, int] = {Samples: 18, GpuWork: 36, Waits: 33, Ranges: 28}
_READING_BYTES = 28
_SERIES_PER_FRAME = 1 << 12


@dataclass(slots=True)
class LogPosition:
    """A place in a log of rows: the next row to send, and where live rows began when the client came."""

    next: int
    live_from: int
    dropped: int = 0


@dataclass(slots=True)
class Cursor:
    """How far one client has got. `dropped_*`: rows that it asked for and will never get."""

    level: str
    max_lag_ns: int | None
    readings: LogPosition
    samples: LogPosition
    gpu_work: LogPosition
    waits: LogPosition
    ranges: LogPosition
    table: TableCursor
    facts_version: int = 0
    next_series: int = 0

    @property
    def dropped_readings(self) -> int:
        return self.readings.dropped

    @property
    def dropped_samples(self) -> int:
        return self.samples.dropped

    @property
    def dropped_gpu_work(self) -> int:
        return self.gpu_work.dropped + self.ranges.dropped

    @property
    def dropped_waits(self) -> int:
        return self.waits.dropped


def begin(history: History, level: str, since_ns: int | None, max_lag_ns: int | None) -> Cursor:
    """Return a cursor at `since_ns` (None: now). GpuprofError for an unknown level. The history's lock is
    held.
    """
    if level not in LEVELS:
        raise GpuprofError(
            f"there is no level named “{level[:32]}”", f"Levels: {', '.join(LEVELS)}.", EXIT_USAGE
        )

    def position(log: RowLog) -> LogPosition:
        return LogPosition(log.next if since_ns is None else log.first_at(since_ns), log.next)

    return Cursor(
        level,
        max_lag_ns,
        readings=position(history.readings),
        samples=position(history.samples),
        gpu_work=position(history.gpu_work),
        waits=position(history.waits),
        ranges=position(history.ranges),
        table=TableCursor(-1),
    )


def advance(history: History, cursor: Cursor, max_bytes: int) -> list[Frame]:
    """Return the frames after `cursor`, about `max_bytes` at most, and move it. The history's lock is
    held.
    """
    _skip_all_late(history, cursor)  # first: the status tells of it, too, and may be the last one
    frames = _facts(history, cursor)
    left = max_bytes
    for frame, size in _rows(history, cursor, max_bytes):
        frames.append(frame)
        left -= size
        if left <= 0:
            break
    return frames


def _facts(history: History, cursor: Cursor) -> list[Frame]:
    frames: list[Frame] = []
    if cursor.facts_version != history.facts_version:
        versions = history.fact_versions()
        seen = cursor.facts_version
        cursor.facts_version = history.facts_version
        if versions["clock"] > seen:
            frames += history.clocks[-1:] if seen else history.clocks
        if versions["gpus"] > seen and history.gpus is not None:
            frames.append(history.gpus)
        if versions["status"] > seen and history.status is not None:
            frames.append(
                replace(
                    history.status,
                    dropped_readings=cursor.dropped_readings,
                    dropped_samples=cursor.dropped_samples,
                    dropped_gpu_work=cursor.dropped_gpu_work,
                    dropped_waits=cursor.dropped_waits,
                )
            )
    defs = history.series_defs
    fresh = []
    for number in reversed(defs):
        if number < cursor.next_series:
            break
        fresh.append(defs[number])
    if fresh:
        fresh.reverse()
        cursor.next_series = fresh[-1].id + 1
        frames += [
            SeriesDefs(fresh[at : at + _SERIES_PER_FRAME]) for at in range(0, len(fresh), _SERIES_PER_FRAME)
        ]
    return frames


def _rows(history: History, cursor: Cursor, max_bytes: int) -> Iterator[tuple[Frame, int]]:
    """Yield frames with their sizes, the cursor moved past each before it is yielded."""
    if cursor.level == "metrics":
        yield from _definitions(history.tables, cursor, processes_only=True)
    logs = _logs(history, cursor)
    while (
        rows := history.readings.since(cursor.readings.next, max(max_bytes // _READING_BYTES, 1))
    ) is not None:
        cursor.readings.next = rows.first + len(rows)
        yield Readings(**rows.columns), len(rows) * _READING_BYTES
    if cursor.level == "metrics":
        return
    while True:
        waiting = [
            (kind, rows, place)
            for kind, log, place in logs
            if (rows := log.since(place.next, max(max_bytes // _ROW_BYTES[kind], 1))) is not None
        ]
        if not waiting:
            break
        # the older generation first: its definitions are begun once, and cannot be gone back to
        kind, rows, place = min(waiting, key=lambda item: int(item[1].tag.generation))
        yield from _definitions(rows.tag, cursor)
        place.next = rows.first + len(rows)
        yield kind(rows.tag.generation, **rows.columns), len(rows) * _ROW_BYTES[kind]
    yield from _definitions(history.tables, cursor)


def _logs(history: History, cursor: Cursor) -> list[tuple[_Rows, RowLog, LogPosition]]:
    return [
        (Samples, history.samples, cursor.samples),
        (GpuWork, history.gpu_work, cursor.gpu_work),
        (Waits, history.waits, cursor.waits),
        (Ranges, history.ranges, cursor.ranges),
    ]


def _definitions(
    tables: Tables, cursor: Cursor, *, processes_only: bool = False
) -> Iterator[tuple[Frame, int]]:
    if cursor.table.generation != tables.generation:
        cursor.table = tables.cursor()
    yield from tables.definitions(cursor.table, processes_only=processes_only)


def _skip_all_late(history: History, cursor: Cursor) -> None:
    _skip_late(history.readings, cursor.readings, cursor.max_lag_ns)
    if cursor.level == "rows":  # who did not ask for rows of samples has not missed them
        for _, log, place in _logs(history, cursor):
            _skip_late(log, place, cursor.max_lag_ns)


def _skip_late(log: RowLog, position: LogPosition, max_lag_ns: int | None) -> None:
    """Move a position past what is no longer held and, for a live client, past what is too old to be worth
    sending.
    """
    target = max(position.next, log.first)
    if max_lag_ns is not None and position.live_from <= target < log.next:
        target = max(target, log.first_at(log.newest_ns() - max_lag_ns))
    position.dropped += target - position.next
    position.next = target
