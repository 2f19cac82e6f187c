"""A sampler that says nothing: what was read last is not shown as what holds now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_charts import ChartApp, lines

from gpuprof.snapshots.frames import Readings, SeriesDef, SourceStatus, Status
from gpuprof.tui.model import Model
from gpuprof.tui.palette import DARK
from gpuprof.tui.screens.notes import notes_of
from gpuprof.tui.tree_feed import TreeFeed
from gpuprof.tui.widgets import header

SECOND = 10**9


@pytest.mark.parametrize(("silent_s", "told"), [(0, True), (1, True), (30, False)])
async def test_the_load_of_the_cores_goes_out_of_the_legend(silent_s: int, told: bool) -> None:
    app = ChartApp()
    async with app.run_test(size=(200, 60)):
        app.stack.now_ns = app.node.now_ns + silent_s * SECOND
        text = "\n".join(lines(app.stack))
        assert "CPU cores" in text
        assert ("all cores" in text) == told


@pytest.mark.parametrize(("silent_s", "told"), [(0, True), (4, True), (6, False), (60, False)])
def test_the_load_of_the_host_goes_out_of_the_header(silent_s: int, told: bool) -> None:
    model = Model(monotonic_ns=lambda: now[0])
    now = [100 * SECOND]
    model.store.define([SeriesDef(1, "core_busy_ns", None, None, 0)])
    ends = np.array([99 * SECOND, 100 * SECOND], np.uint64)
    one = np.ones(2, np.uint32)
    model.apply(Readings(one, ends, ends, np.array([0.0, SECOND / 2])))
    now[0] += silent_s * SECOND
    line = header.host_gauge(model, DARK)
    assert ("50 % of 1 cores" in line.text if line is not None else False) == told
    model.live = False  # in a file the last reading counts however long it is ago
    line = header.host_gauge(model, DARK)
    assert line is not None
    assert "50 %" in line.text


def test_a_source_without_a_reason_is_noted_without_one() -> None:
    sources = [SourceStatus("cpu", "starting"), SourceStatus("gpu", "off", "no process", "start one")]
    model = Model()
    model.apply(Status(1, sources, 1, 2, 3, 4))
    session: Any = SimpleNamespace(model=model, feed=TreeFeed(), tree=None)
    (found,) = [rows for title, rows in notes_of(session) if title == "Sources"]
    assert found == [("CPU stacks", "starting"), ("GPU time", "off: no process"), ("", "→ start one")]
