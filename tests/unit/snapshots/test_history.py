"""The history: its bounds, ranges of it as streams, and questions beside a writer."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import series_ids as series_module
from gpuprof.snapshots.frames import (
    Clock,
    Gpus,
    Hello,
    ProcessDef,
    ProcessDefs,
    Query,
    Samples,
    Status,
    StringDefs,
)
from gpuprof.snapshots.history import History

ALL = Query(1, "cpu", 0, 1 << 60, min_fraction=0.0, max_nodes=1 << 30, by_thread=True)


# ------------------------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize("seed", range(3))
def test_a_range_streamed_into_another_history_gives_the_same_answers(
    streams: Any, seed: int, planted: Any, random_rows: Any, path_weights: Any
) -> None:
    rows = random_rows(seed, 2000)
    for at in range(0, len(rows), 500):
        planted.add(*rows[at : at + 500])
        if seed:
            planted.history.roll_generation()
    streams.fill_readings(planted.history, 50)
    low, high = 10**12 + 300_000, 10**12 + 1_500_000
    copy = streams.ingested(list(planted.history.frames_between(low, high)), planted.history.hello)
    assert path_weights(copy.query(ALL)) == planted.brute(replace(ALL, start_ns=low, end_ns=high))
    assert streams.readings_of(copy) == []
    copy = streams.ingested(list(planted.history.frames_between(0, 1 << 60)), planted.history.hello)
    assert streams.readings_of(copy) == streams.readings_of(planted.history)
    assert len(streams.readings_of(copy)) == 150


def test_a_range_carries_only_what_its_rows_need(planted: Any, row: Any) -> None:
    planted.add(row(1, "main a", pid=1), row(2, "main b", pid=2))
    frames = list(planted.history.frames_between(2, 3))
    assert isinstance(frames[0], Hello)
    strings = [text for frame in frames if isinstance(frame, StringDefs) for text in frame.strings]
    assert "b" in strings
    assert "a" not in strings
    assert [p.pid for frame in frames if isinstance(frame, ProcessDefs) for p in frame.processes] == [2]
    metrics = list(planted.history.frames_between(0, 9, level="metrics"))
    assert not any(isinstance(frame, Samples) for frame in metrics)


def test_processes_of_readings_travel_without_samples(streams: Any, planted: Any) -> None:
    history = planted.history
    history.tables.process(planted.process(3))
    history.tables.process(planted.process(4))
    streams.fill_readings(history, 1)
    frames = list(history.frames_between(0, 1 << 60, level="metrics"))
    assert [p.pid for frame in frames if isinstance(frame, ProcessDefs) for p in frame.processes] == [3]


def test_neighbouring_ranges_by_end_share_no_reading(streams: Any, planted: Any) -> None:
    streams.fill_readings(planted.history, 40)
    start, end = planted.history.span
    edges = [start, start + 10_000, start + 10_001, start + 33_333, end]
    copy = History(planted.history.hello)
    for low, high in itertools.pairwise(edges):
        for frame in planted.history.frames_between(low, high, by_end=True):
            copy.ingest(frame)
    assert streams.readings_of(copy) == streams.readings_of(planted.history)


def test_facts_travel(streams: Any, planted: Any) -> None:
    history = planted.history
    history.set_gpus(Gpus("580", "13", [], ["G9"]))
    history.set_clock(Clock(10**12 + 5, 99))
    history.set_status(Status(1, [], 2, 3, 4, 5))
    copy = streams.ingested(list(history.frames_between(0, 1)), history.hello)
    assert copy.gpus is not None
    assert copy.gpus.lost == ["G9"]
    assert [clock.wall_ns for clock in copy.clocks] == [99]
    assert copy.status is not None
    assert copy.wall_ns(10**12 + 6) == 100
    assert copy.wall_ns(10**12 + 4) == history.hello.wall_ns + 4
    assert copy.span == (10**12, 10**12)


# ----------------------------------------------------------------------------------------------------- bounds


def test_memory_is_bounded_and_the_oldest_rows_go_first(hello: Hello) -> None:
    history = History(hello, max_bytes=3 << 20, max_age_ns=None)
    process = history.tables.process(ProcessDef(1, 1, "p", "", "", 0, 0))
    thread = history.tables.thread(process, 1, "t")
    for batch in range(60):
        times = np.arange(10_000) + batch * 10_000
        zeros = np.zeros(10_000, int)
        history.add_samples(times, zeros, np.full(10_000, thread), zeros)
    assert history.bytes_used <= 3 << 20
    assert history.samples_start_ns is not None
    assert history.samples_start_ns > 300_000
    total = history.query(Query(1, "cpu", 0, 1 << 60)).total_weight[0]
    assert total == 600_000 - history.samples_start_ns


def test_age_is_bounded(hello: Hello) -> None:
    history = History(hello, max_age_ns=10**9)
    series = history.series("temp_c", gpu="G")
    for number in range(40):
        times = np.arange(10_000) * 10_000 + number * 10**8
        history.add_readings(np.full(10_000, series), times, times, np.zeros(10_000))
    start, end = history.span
    assert 10**9 <= end - start < 1.4 * 10**9


def test_a_generation_lives_as_long_as_its_rows(
    planted: Any, row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.add(row(1, "a"))
    old = planted.history.tables
    planted.history.roll_generation()
    planted.add(row(2, "b"))
    assert planted.history.samples.tags() == [old, planted.history.tables]
    planted.history.samples.drop_oldest()
    assert planted.history.samples.tags() == [planted.history.tables]


def test_series_are_interned_and_never_reused(hello: Hello, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_module, "MAX_SERIES", 50)
    history = History(hello)
    used = history.series("temp_c", gpu="G")
    history.add_readings([used], [1], [1], [5.0])
    ids = [history.series("proc_cpu_ns", pid=pid) for pid in range(500)]
    assert len(set(ids)) == 500
    assert history.series("temp_c", gpu="G") == used
    assert len(history.series_defs) <= 50


def test_what_contradicts_itself_is_refused(planted: Any) -> None:
    history = planted.history
    with pytest.raises(ValueError):
        history.add_samples([1], [0], [0], [0])
    with pytest.raises(ValueError):
        history.add_readings([0], [1], [1], [1.0])
    series = history.series("temp_c")
    with pytest.raises(ValueError):
        history.add_readings([series], [2], [1], [1.0])
    with pytest.raises(ValueError):
        history.add_readings([series, series], [2], [3], [1.0])
    history.add_samples([], [], [], [])


# ---------------------------------------------------------------------------------------------------- threads


def test_queries_beside_a_writer_see_whole_batches(planted: Any, random_rows: Any) -> None:
    """Each batch is 50 rows: a total that is not a multiple of 50 would be a torn read."""
    rows = random_rows(8, 6000)
    failures: list[object] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            try:
                tree = planted.history.query(ALL)
                if tree.total_weight[0] % 50:
                    failures.append(tree.total_weight[0])
                list(planted.history.frames_between(0, 1 << 60))
            except Exception as error:  # noqa: BLE001 - any failure at all is what is looked for
                failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for at in range(0, len(rows), 50):
        planted.add(*rows[at : at + 50])
        if at % 1500 == 0:
            planted.history.roll_generation()
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert planted.history.query(ALL).total_weight[0] == 6000
