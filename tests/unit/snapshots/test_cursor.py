"""Clients of a history: each gets everything once, definitions first, and those that fall behind are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import cursor as cursor_module
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import (
    Clock,
    Frame,
    Gpus,
    Hello,
    Query,
    Readings,
    Samples,
    Status,
)
from gpuprof.snapshots.history import History

ALL = Query(1, "cpu", 0, 1 << 60, min_fraction=0.0, max_nodes=1 << 30, by_thread=True)


def drained(history: History, cursor: Any, max_bytes: int = 1 << 20) -> list[Frame]:
    frames: list[Frame] = []
    while some := history.since(cursor, max_bytes):
        frames += some
    return frames


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_a_client_gets_everything_once_and_definitions_first(
    streams: Any, max_bytes: int, planted: Any, random_rows: Any, path_weights: Any
) -> None:
    history = planted.history
    cursor = history.cursor("rows", 0)
    rows = random_rows(3, 1200)
    frames: list[Frame] = [history.hello]
    for at in range(0, len(rows), 100):
        planted.add(*rows[at : at + 100])
        streams.fill_readings(history, 3)
        if at % 400 == 300:
            history.roll_generation()
        frames += history.since(cursor, max_bytes)
    frames += drained(history, cursor, max_bytes)
    copy = streams.ingested(frames, history.hello)  # FrameError should a row come before its definitions
    assert path_weights(copy.query(ALL)) == planted.brute(ALL)
    assert streams.readings_of(copy) == streams.readings_of(history)
    assert (cursor.dropped_samples, cursor.dropped_readings) == (0, 0)


def test_a_status_tells_of_the_rows_that_are_skipped_with_it(planted: Any, row: Any) -> None:
    """It may be the last one that a recording gets."""
    history = planted.history
    planted.add(row(0, "a"))
    cursor = history.cursor("rows")
    drained(history, cursor)
    for second in (1, 2, 60):
        planted.add(row(second * 10**9, "a"))
    history.set_status(Status(60 * 10**9, [], 0, 0, 0, 0))
    frames = history.since(cursor)
    (status,) = [frame for frame in frames if isinstance(frame, Status)]
    assert (status.dropped_samples, cursor.dropped_samples) == (2, 2)
    assert sum(len(frame.time_ns) for frame in frames if isinstance(frame, Samples)) == 1


def test_a_client_at_now_gets_what_comes_and_the_processes_there_are(
    streams: Any, planted: Any, row: Any
) -> None:
    history = planted.history
    planted.add(row(1, "a"))
    streams.fill_readings(history, 1)
    metrics, rows = history.cursor("metrics"), history.cursor("rows")
    assert {frame.KIND for frame in history.since(metrics)} == {"series", "processes"}
    history.since(rows)
    planted.add(row(2, "b", pid=8))
    assert [frame.KIND for frame in history.since(metrics)] == ["processes"]
    assert [frame.KIND for frame in history.since(rows)].count("samples") == 1
    assert history.since(metrics) == history.since(rows) == []


def test_facts_come_when_they_change(planted: Any) -> None:
    history = planted.history
    history.set_gpus(Gpus("580", None, []))
    cursor = history.cursor("metrics")
    assert [frame.KIND for frame in history.since(cursor)] == ["gpus"]
    history.set_status(Status(1, [], 2, 3, 4, 5))
    history.set_clock(Clock(1, 2))
    assert [frame.KIND for frame in history.since(cursor)] == ["clock", "status"]
    assert history.since(cursor) == []


def test_a_slow_client_loses_rows_and_is_told_how_many(hello: Hello, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(hello, max_bytes=2 << 20, max_age_ns=None)
    series = history.series("temp_c", gpu="G")
    cursor = history.cursor("metrics", max_lag_ns=None)
    for number in range(200):
        times = np.arange(1000) + number * 1000
        history.add_readings(np.full(1000, series), times, times, np.zeros(1000))
    got = sum(len(frame.value) for frame in drained(history, cursor) if isinstance(frame, Readings))
    assert got + cursor.dropped_readings == 200_000
    assert cursor.dropped_readings > 100_000
    history.set_status(Status(1, [], 2, 3, 4, 5))
    (status,) = history.since(cursor)
    assert isinstance(status, Status)
    assert status.dropped_readings == cursor.dropped_readings


def test_a_live_client_that_lags_jumps_forward_but_the_past_it_asked_for_is_kept(hello: Hello) -> None:
    history = History(hello, max_age_ns=None)
    series = history.series("temp_c", gpu="G")

    def add(second: int) -> None:
        history.add_readings([series], [second * 10**9], [second * 10**9], [float(second)])

    for second in range(100):
        add(second)
    cursor = history.cursor("metrics", 0, max_lag_ns=30 * 10**9)
    first = [v for f in history.since(cursor) if isinstance(f, Readings) for v in f.value.tolist()]
    assert first == [float(second) for second in range(100)]
    for second in range(100, 200):
        add(second)
    late = [v for f in history.since(cursor) if isinstance(f, Readings) for v in f.value.tolist()]
    assert late == [float(second) for second in range(169, 200)]
    assert cursor.dropped_readings == 69
    assert cursor_module.MAX_LAG_NS == 30 * 10**9


def test_an_unknown_level_is_refused(planted: Any) -> None:
    with pytest.raises(GpuprofError):
        planted.history.cursor("everything")
