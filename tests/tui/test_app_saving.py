"""Saving from the screen: the range that is pinned, and a place or a disk that takes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pilot_screen import shows, tells

from gpuprof.snapshots.frames import NO_THREAD, FrameKind
from gpuprof.tui.app import GpuprofApp


async def test_save_the_pinned_range(
    live: GpuprofApp, node_socket: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuprof.snapshots.file import read_snapshot
    from gpuprof.snapshots.frames import Query

    monkeypatch.chdir(tmp_path)
    async with live.run_test(notifications=True, size=(160, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("v", *["left"] * 9, "enter")
        await shows(pilot, "Esc lets go")
        pinned = live.session.feed.pinned
        assert pinned is not None
        history, thread = node_socket[0].history, node_socket[0]._threads[0]
        one = np.ones(1, np.uint32)
        with history.lock:  # a wait beyond both ends; of it only what lies between is saved
            tables = history.tables
            stack = tables.stack([tables.frame(tables.function("futex", "", "", FrameKind.WAIT), 1)])
            first, last = pinned[0] - 5 * 10**9, pinned[1] + 5 * 10**9
            history.add_waits([first], [last], one * thread, one * stack, one * NO_THREAD, 1.0, one * 0)
        node_socket[0].rest()
        await pilot.press("w")
        await tells(pilot, "Saved")
    (path,) = tmp_path.glob("gpuprof-node17-*.gpuprof")
    opened = read_snapshot(str(path))
    assert opened.damage is None
    whole = Query(1, "cpu", 0, 2**62)
    there = node_socket[0].history.query(Query(1, "cpu", *pinned))
    assert opened.history.query(whole).total_weight[0] == there.total_weight[0] > 0
    assert opened.history.span == pinned
    assert opened.history.query(Query(1, "offcpu", 0, 2**62)).total_weight[0] == pinned[1] - pinned[0]


async def test_save_where_nothing_can_be_written(live: GpuprofApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("gpuprof.tui.app.create_here", refuse)
    async with live.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("w")
        await tells(pilot, "cannot be written: Permission denied")


async def test_full_disk(live: GpuprofApp, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    monkeypatch.setattr("gpuprof.tui.app.create_here", lambda name: (os.open("/dev/full", os.O_WRONLY), name))
    async with live.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("w")
        await tells(pilot, "cannot write")
