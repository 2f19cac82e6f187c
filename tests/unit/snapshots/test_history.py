"""The history: its bounds, streams out of it and into another one, and clients that fall behind."""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import cursor as cursor_module
from gpuprof.snapshots import series_ids as series_module
from gpuprof.snapshots import tables as tables_module
from gpuprof.snapshots import wire
from gpuprof.snapshots.errors import FrameError, GpuprofError
from gpuprof.snapshots.frames import (
    MAGIC,
    Clock,
    Frame,
    FrameDefs,
    FunctionDefs,
    Gpus,
    Hello,
    ProcessDef,
    ProcessDefs,
    Query,
    Readings,
    Samples,
    SeriesDef,
    SeriesDefs,
    StackDefs,
    Status,
    StringDefs,
    ThreadDef,
    ThreadDefs,
)
from gpuprof.snapshots.history import History

ALL = Query(1, "cpu", 0, 1 << 60, min_fraction=0.0, max_nodes=1 << 30, by_thread=True)


def over_the_wire(frames: list[Frame]) -> list[Frame]:
    return wire.Decoder().feed(MAGIC + b"".join(map(wire.pack, frames)))


def ingested(frames: list[Frame], hello: Hello) -> History:
    history = History(hello, max_bytes=1 << 30, max_age_ns=None)
    for frame in over_the_wire(frames):
        history.ingest(frame)
    return history


def readings_of(history: History) -> list[tuple[str, str | None, int, int, float]]:
    defs, columns = history.readings_between(0, 1 << 60)
    rows = zip(*(columns[name].tolist() for name in ("series", "start_ns", "end_ns", "value")), strict=True)
    return sorted((defs[s].metric, defs[s].gpu, start, end, value) for s, start, end, value in rows)


def fill_readings(history: History, count: int) -> None:
    ids = [
        history.series("power_w", gpu="G0"),
        history.series("proc_cpu_ns", pid=3),
        history.series("temp_c", gpu="G1"),
    ]
    for number in range(count):
        at = 10**12 + number * 1000
        history.add_readings(ids, [at, at + 5, at], [at + 1000, at + 5, at], [number, number * 2.0, 50.5])


# ------------------------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize("seed", range(3))
def test_a_range_streamed_into_another_history_gives_the_same_answers(
    seed: int, planted: Any, random_rows: Any, path_weights: Any
) -> None:
    rows = random_rows(seed, 2000)
    for at in range(0, len(rows), 500):
        planted.add(*rows[at : at + 500])
        if seed:
            planted.history.roll_generation()
    fill_readings(planted.history, 50)
    low, high = 10**12 + 300_000, 10**12 + 1_500_000
    copy = ingested(list(planted.history.frames_between(low, high)), planted.history.hello)
    assert path_weights(copy.query(ALL)) == planted.brute(replace(ALL, start_ns=low, end_ns=high))
    assert readings_of(copy) == []
    copy = ingested(list(planted.history.frames_between(0, 1 << 60)), planted.history.hello)
    assert readings_of(copy) == readings_of(planted.history)
    assert len(readings_of(copy)) == 150


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


def test_processes_of_readings_travel_without_samples(planted: Any) -> None:
    history = planted.history
    history.tables.process(planted.process(3))
    history.tables.process(planted.process(4))
    fill_readings(history, 1)
    frames = list(history.frames_between(0, 1 << 60, level="metrics"))
    assert [p.pid for frame in frames if isinstance(frame, ProcessDefs) for p in frame.processes] == [3]


def test_neighbouring_ranges_by_end_share_no_reading(planted: Any) -> None:
    fill_readings(planted.history, 40)
    start, end = planted.history.span
    edges = [start, start + 10_000, start + 10_001, start + 33_333, end]
    copy = History(planted.history.hello)
    for low, high in itertools.pairwise(edges):
        for frame in planted.history.frames_between(low, high, by_end=True):
            copy.ingest(frame)
    assert readings_of(copy) == readings_of(planted.history)


def test_facts_travel(planted: Any) -> None:
    history = planted.history
    history.set_gpus(Gpus("580", "13", [], ["G9"]))
    history.set_clock(Clock(10**12 + 5, 99))
    history.set_status(Status(1, [], 2, 3, 4, 5))
    copy = ingested(list(history.frames_between(0, 1)), history.hello)
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


# ---------------------------------------------------------------------------------------------------- cursors


def drained(history: History, cursor: Any, max_bytes: int = 1 << 20) -> list[Frame]:
    frames: list[Frame] = []
    while some := history.since(cursor, max_bytes):
        frames += some
    return frames


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_a_client_gets_everything_once_and_definitions_first(
    max_bytes: int, planted: Any, random_rows: Any, path_weights: Any
) -> None:
    history = planted.history
    cursor = history.cursor("rows", 0)
    rows = random_rows(3, 1200)
    frames: list[Frame] = [history.hello]
    for at in range(0, len(rows), 100):
        planted.add(*rows[at : at + 100])
        fill_readings(history, 3)
        if at % 400 == 300:
            history.roll_generation()
        frames += history.since(cursor, max_bytes)
    frames += drained(history, cursor, max_bytes)
    copy = ingested(frames, history.hello)  # FrameError should a row come before its definitions
    assert path_weights(copy.query(ALL)) == planted.brute(ALL)
    assert readings_of(copy) == readings_of(history)
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


def test_a_client_at_now_gets_what_comes_and_the_processes_there_are(planted: Any, row: Any) -> None:
    history = planted.history
    planted.add(row(1, "a"))
    fill_readings(history, 1)
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


# -------------------------------------------------------------------------------------------- hostile streams


def u32(*numbers: int) -> Any:
    return np.array(numbers, np.uint32)


def good_stream(hello: Hello) -> list[Frame]:
    process = ProcessDef(7, 1, "p", "p", "u", 0, 1)
    return [
        hello,
        SeriesDefs([SeriesDef(4, "temp_c", "G")]),
        Readings(u32(4), u32(1).astype("u8"), u32(2).astype("u8"), np.array([1.0])),
        ProcessDefs(0, 0, [process]),
        ThreadDefs(0, 0, [ThreadDef(0, 7, "t")]),
        StringDefs(0, 1, ["f"]),
        FunctionDefs(0, 0, u32(1), u32(0), u32(0), np.array([3], np.uint8)),
        FrameDefs(0, 0, u32(0), u32(5)),
        StackDefs(0, 1, u32(0, 1), u32(0, 0)),
        Samples(0, np.array([5], np.uint64), np.array([1], np.uint16), u32(0), u32(2)),
    ]


def test_the_good_stream_is_taken(hello: Hello) -> None:
    assert ingested(good_stream(hello), hello).query(ALL).total_weight[0] == 1


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("hello", {"version": 2}),
        ("series", {"series": [SeriesDef(-1, "temp_c")]}),
        ("series", {"series": [SeriesDef(5, "temp_c")]}),
        ("readings", {"start_ns": np.array([3], np.uint64)}),
        ("readings", {"end_ns": np.array([1 << 63], np.uint64)}),
        ("processes", {"first": 1}),
        ("processes", {"first": -1}),
        ("processes", {"processes": [ProcessDef(-1, 1, "p", "p", "u", 0, 1)]}),
        ("processes", {"processes": []}),
        ("threads", {"threads": [ThreadDef(1, 7, "t")]}),
        ("threads", {"threads": [ThreadDef(-1, 7, "t")]}),
        ("threads", {"threads": [ThreadDef(0, 1 << 40, "t")]}),
        ("threads", {"generation": 3}),
        ("strings", {"first": 0}),
        ("strings", {"first": 1 << 62}),
        ("functions", {"name": u32(2)}),
        ("functions", {"binary": u32(0xFFFF_FFFF)}),
        ("functions", {"first": 1}),
        ("frames", {"function": u32(1)}),
        ("stacks", {"parent": u32(0, 2)}),
        ("stacks", {"parent": u32(1, 0)}),
        ("stacks", {"frame": u32(0, 1)}),
        ("stacks", {"first": 2}),
        ("samples", {"stack": u32(3)}),
        ("samples", {"thread": u32(1)}),
        ("samples", {"generation": 1}),
        ("samples", {"time_ns": np.array([(1 << 64) - 1], np.uint64)}),
    ],
)
def test_a_stream_that_contradicts_itself_is_a_frame_error(
    hello: Hello, kind: str, change: dict[str, Any]
) -> None:
    frames = [replace(frame, **change) if kind == frame.KIND else frame for frame in good_stream(hello)]
    with pytest.raises(FrameError):
        ingested(frames, hello)


def test_unknown_kinds_of_functions_are_shown_as_unknown(hello: Hello) -> None:
    frames = [
        replace(frame, kind=np.array([200], np.uint8)) if isinstance(frame, FunctionDefs) else frame
        for frame in good_stream(hello)
    ]
    assert 11 in ingested(frames, hello).query(ALL).kind


def test_endless_definitions_are_refused(hello: Hello, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprof.snapshots.ingest.MAX_DEFINITIONS", 100)
    history = History(hello)
    for number in range(99):
        history.ingest(StringDefs(0, 1 + number, [f"s{number}"]))
    with pytest.raises(FrameError):
        history.ingest(StringDefs(0, 100, ["one more"]))


def test_two_streams_one_after_the_other(hello: Hello) -> None:
    history = History(hello)
    for frame in good_stream(hello) * 3:
        history.ingest(frame)
    assert history.query(ALL).total_weight[0] == 3
    assert history.tables.node_count == 3


def test_a_full_generation_is_rolled_between_streams(
    hello: Hello, planted: Any, random_rows: Any, path_weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.add(*random_rows(6, 500))
    frames = list(planted.history.frames_between(0, 1 << 60))
    monkeypatch.setattr(tables_module, "MAX_NODES", 10)
    history = ingested(frames * 2, hello)
    assert history.tables.generation == 1
    doubled = {path: (2 * own, 2 * total) for path, (own, total) in planted.brute(ALL).items()}
    assert path_weights(history.query(ALL)) == doubled


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


def test_random_streams_never_raise_anything_but_frame_errors(planted: Any, random_rows: Any) -> None:
    planted.add(*random_rows(4, 200))
    fill_readings(planted.history, 5)
    stream = MAGIC + b"".join(map(wire.pack, planted.history.frames_between(0, 1 << 60)))
    rng = random.Random(17)
    for _ in range(400):
        damaged = bytearray(stream)
        for _ in range(rng.randrange(1, 5)):
            damaged[rng.randrange(len(MAGIC), len(damaged))] = rng.choice([0, 1, 255, rng.randrange(256)])
        history = History(planted.history.hello)
        try:
            for frame in wire.Decoder().feed(damaged):
                history.ingest(frame)
        except FrameError:
            pass
        history.query(ALL)
