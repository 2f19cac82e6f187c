"""Keys 3 and 4: what the host did while a GPU was idle, and what threads waited for, by Pilot."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pilot_screen import shows

from gpuprof.snapshots.frames import NO_THREAD, FrameKind, Query
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.screens.main import MainScreen
from gpuprof.tui.transports import HistoryTransport

START = 10**12
SECOND = 10**9


def add_waits(node: Any, start_ns: int, end_ns: int) -> None:
    """Every second the first thread waits 400 ms for a worker."""
    history = node.history
    with history.lock:
        tables = history.tables
        words = [("main", "train.py", FrameKind.PYTHON), ("get", "queue.py", FrameKind.PYTHON)]
        words += [("futex", "", FrameKind.WAIT), ("woken by pt_data_worker", "", FrameKind.WAIT)]
        stack = tables.stack(
            [tables.frame(tables.function(name, file, "", kind)) for name, file, kind in words]
        )
        begin = np.arange(start_ns, end_ns, SECOND, np.uint64)
        same = np.ones(len(begin), np.uint32)
        history.add_waits(
            begin, begin + np.uint64(400_000_000), same * node._threads[0], same * stack,
            same * NO_THREAD, 1.0, same * 0,
        )  # fmt: skip


@pytest.fixture
def recorded(fake_node: ModuleType) -> Any:
    node = fake_node.FakeNode(2, gpu_work=True)
    node.fill(START, START + 40 * SECOND)
    add_waits(node, START, START + 40 * SECOND)
    return node


async def test_key_4_is_the_tree_of_off_cpu_time(recorded: Any) -> None:
    app = GpuprofApp(HistoryTransport(recorded.history, "run.gpuprof"))
    async with app.run_test(notifications=True, size=(180, 60)) as pilot:
        await shows(pilot, "[1 CPU]  [2 GPU time]  [3 GPU idle]  [4 off-CPU]")
        await pilot.press("4")
        await shows(pilot, "woken by pt_data_worker")
        await shows(pilot, "waited 16.0 s of thread time: 100 % futex (woken by pt_data_worker)")
        await shows(pilot, "16 s of waiting")
        tree = app.session.tree
        assert tree is not None
        assert (tree.tree, float(tree.total_weight[0])) == ("offcpu", 16e9)


async def test_key_3_is_the_tree_of_idle_time(recorded: Any) -> None:
    app = GpuprofApp(HistoryTransport(recorded.history, "run.gpuprof"))
    async with app.run_test(notifications=True, size=(180, 60)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("3")
        expected = recorded.history.query(Query(1, "idle", *recorded.history.span))
        first = expected.summary.split(" · ")[0]
        assert first.startswith("GPU 0 idle ")
        await shows(pilot, first[:100])
        await shows(pilot, "of idle GPU time")
        await shows(pilot, "~")
        tree = app.session.tree
        assert tree is not None
        assert tree.tree == "idle"
        # a row that is estimated says how far off it may be
        screen = app.screen_stack[0]
        assert isinstance(screen, MainScreen)
        rows = screen.flame.rows
        assert rows is not None
        node = int(np.flatnonzero(rows.tree.estimated)[0])
        screen.flame.go_to(node)
        await shows(pilot, "total ~")
        await shows(pilot, " ± ")


async def test_a_recording_without_waits_says_what_switches_them_on(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(1, gpu_work=True)
    node.fill(START, START + 5 * SECOND)
    app = GpuprofApp(HistoryTransport(node.history, "run.gpuprof"))
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("4")
        await shows(pilot, "This recording holds no waits of threads.")
        await shows(pilot, "Waits are recorded")
        await pilot.press("1")
        await shows(pilot, "main (train.py:88)")


async def test_small_terminals_keep_the_tabs_in_sight(recorded: Any) -> None:
    app = GpuprofApp(HistoryTransport(recorded.history, "run.gpuprof"))
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await shows(pilot, "[1 CPU]")
        await pilot.press("3")
        await shows(pilot, "[3 GPU idle]")
        await shows(pilot, "GPU 0 idle")
