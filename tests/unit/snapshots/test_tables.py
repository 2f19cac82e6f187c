"""Intern tables: equal things get equal ids, and a reader at any place gets the rest."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import numpy as np
import pytest

from gpuprof.snapshots import process_table, stack_tree
from gpuprof.snapshots import tables as tables_module
from gpuprof.snapshots.frames import Frame, FrameKind, ProcessDef, ProcessDefs, StackDefs, StringDefs
from gpuprof.snapshots.tables import Tables

ADA = ProcessDef(7, 70, "python3", "python3 x", "ada", 1000, 1)


def frames_of(tables: Tables, count: int) -> list[int]:
    return [
        tables.frame(tables.function(f"f{n}", "a.py", "python3", FrameKind.PYTHON), n) for n in range(count)
    ]


def test_equal_things_get_equal_ids() -> None:
    tables = Tables(0)
    assert tables.string("") == 0
    assert tables.string("a") == tables.string("a") == 1
    python = tables.function("f", "a.py", "python3", FrameKind.PYTHON)
    assert tables.function("f", "a.py", "python3", FrameKind.PYTHON) == python
    assert tables.function("f", "a.py", "python3", FrameKind.NATIVE) != python
    assert tables.frame(python, 3) == tables.frame(python, 3) != tables.frame(python, 4)
    a, b = frames_of(tables, 2)
    assert tables.stack([a, b]) == tables.stack((a, b)) != tables.stack([b, a])
    assert tables.stack([]) == 0


def test_stacks_share_their_outer_frames() -> None:
    tables = Tables(0)
    a, b, c = frames_of(tables, 3)
    left, right = tables.stack([a, b, c]), tables.stack([a, b, a])
    view = tables.view()
    assert view.parent[left] == view.parent[right] == tables.stack([a, b])
    assert view.depth[left] == 3
    assert (view.parent[1:] < range(1, len(view.parent))).all()
    assert tables.node_count == 5


def test_ids_that_are_not_defined_are_refused() -> None:
    tables = Tables(0)
    with pytest.raises(IndexError):
        tables.frame(0)
    with pytest.raises(IndexError):
        tables.stack([0])
    with pytest.raises(IndexError):
        tables.thread(0, 1, "x")


def test_a_process_is_pid_and_start_time_and_its_name_may_change() -> None:
    tables = Tables(0)
    first = tables.process(ADA)
    cursor = tables.cursor()
    tables.since(cursor)
    assert tables.process(replace(ADA, start_ns=71)) != first
    assert tables.process(replace(ADA, name="worker")) == first
    sent = [
        (frame.first, [p.name for p in frame.processes])
        for frame in tables.since(cursor)
        if isinstance(frame, ProcessDefs)
    ]
    assert sent == [(0, ["worker"]), (1, ["python3"])]
    assert tables.since(cursor) == []
    tables.process(replace(ADA, name="worker"))
    assert tables.since(cursor) == []


def test_numpy_integers_are_as_good_as_any() -> None:
    tables = Tables(0)
    ids = frames_of(tables, 4)
    assert tables.stack(np.array(ids, np.uint32).tolist()) == tables.stack(list(np.array(ids, np.uint32)))
    assert tables.node_count == 5


def test_a_very_deep_stack_is_cut_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_tree, "MAX_DEPTH", 10)
    tables = Tables(0)
    (frame,) = frames_of(tables, 1)
    stack = tables.stack([frame] * 50)
    assert tables.view().depth[stack] == 10


def test_a_reader_that_stops_anywhere_gets_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "_DEFS_PER_FRAME", 3)
    monkeypatch.setattr(tables_module, "_STRINGS_PER_FRAME", 2)
    monkeypatch.setattr(process_table, "_DEFS_PER_FRAME", 2)
    rng = random.Random(1)
    tables = Tables(0)
    cursor = tables.cursor()
    names: dict[int, str] = {}
    strings: list[str] = [""]
    parents = 1
    for step in range(300):
        process = tables.process(replace(ADA, pid=rng.randrange(30), name=rng.choice("xyz")))
        tables.thread(process, rng.randrange(9), "t")
        ids = frames_of(tables, rng.randrange(1, 20))
        tables.stack(rng.sample(ids, len(ids)))
        frames: list[Frame] = []
        for frame, _ in tables.definitions(cursor):
            frames.append(frame)
            if step < 299 and rng.random() < 0.4:
                break
        for frame in frames:
            if isinstance(frame, ProcessDefs):
                assert frame.first <= len(names)
                names.update(enumerate((p.name for p in frame.processes), frame.first))
            elif isinstance(frame, StringDefs):
                assert frame.first == len(strings)
                strings += frame.strings
            elif isinstance(frame, StackDefs):
                assert frame.first == parents
                parents += len(frame.parent)
    view = tables.view()
    assert names == dict(enumerate(process.name for process in view.processes))
    assert strings == view.strings
    assert parents == len(view.parent)


def test_full_and_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "MAX_NODES", 5)
    tables = Tables(0)
    ids = frames_of(tables, 5)
    assert not tables.full
    stack = tables.stack(ids)
    assert tables.full
    before = tables.nbytes
    tables.freeze()
    assert tables.nbytes < before
    assert tables.view().depth[stack] == 5


def test_a_reader_that_comes_after_freezing_gets_the_same() -> None:
    tables = Tables(0)
    cursor = tables.cursor()
    for pid in (7, 8, 9):
        tables.thread(tables.process(replace(ADA, pid=pid)), pid, "main")
    tables.since(cursor)
    tables.process(replace(ADA, pid=8, name="renamed"))
    tables.thread(0, 7, "worker")
    tables.process(replace(ADA, pid=10))
    late, new = copy.deepcopy(cursor), tables.cursor()
    wanted = tables.since(cursor), tables.since(tables.cursor())
    tables.freeze()
    assert (repr(tables.since(late)), repr(tables.since(new))) == tuple(map(repr, wanted))
    assert [process.name for process in tables.view().processes] == [
        "python3",
        "renamed",
        "python3",
        "python3",
    ]


def test_equal_texts_of_processes_are_kept_once() -> None:
    tables = Tables(0)
    first, second = (tables.process(replace(ADA, pid=pid, cmdline="".join("ab"))) for pid in (1, 2))
    processes = tables.view().processes
    assert processes[first].cmdline is processes[second].cmdline
