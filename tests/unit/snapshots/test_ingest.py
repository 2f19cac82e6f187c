"""Streams into a history: what contradicts itself is refused, and nothing else happens."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import tables as tables_module
from gpuprof.snapshots import wire
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import (
    MAGIC,
    Frame,
    FrameDefs,
    FunctionDefs,
    Hello,
    ProcessDef,
    ProcessDefs,
    Query,
    Readings,
    Samples,
    SeriesDef,
    SeriesDefs,
    StackDefs,
    StringDefs,
    ThreadDef,
    ThreadDefs,
)
from gpuprof.snapshots.history import History

ALL = Query(1, "cpu", 0, 1 << 60, min_fraction=0.0, max_nodes=1 << 30, by_thread=True)


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


def test_the_good_stream_is_taken(streams: Any, hello: Hello) -> None:
    assert streams.ingested(good_stream(hello), hello).query(ALL).total_weight[0] == 1


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
    streams: Any, hello: Hello, kind: str, change: dict[str, Any]
) -> None:
    frames = [replace(frame, **change) if kind == frame.KIND else frame for frame in good_stream(hello)]
    with pytest.raises(FrameError):
        streams.ingested(frames, hello)


def test_unknown_kinds_of_functions_are_shown_as_unknown(streams: Any, hello: Hello) -> None:
    frames = [
        replace(frame, kind=np.array([200], np.uint8)) if isinstance(frame, FunctionDefs) else frame
        for frame in good_stream(hello)
    ]
    assert 11 in streams.ingested(frames, hello).query(ALL).kind


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


def test_a_full_generation_is_rolled_between_streams(  # noqa: PLR0917
    streams: Any,
    hello: Hello,
    planted: Any,
    random_rows: Any,
    path_weights: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted.add(*random_rows(6, 500))
    frames = list(planted.history.frames_between(0, 1 << 60))
    monkeypatch.setattr(tables_module, "MAX_NODES", 10)
    history = streams.ingested(frames * 2, hello)
    assert history.tables.generation == 1
    doubled = {path: (2 * own, 2 * total) for path, (own, total) in planted.brute(ALL).items()}
    assert path_weights(history.query(ALL)) == doubled


def test_random_streams_never_raise_anything_but_frame_errors(
    streams: Any, planted: Any, random_rows: Any
) -> None:
    planted.add(*random_rows(4, 200))
    streams.fill_readings(planted.history, 5)
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
