"""Key x, with a sampler that takes internal rows out, and with one of an earlier version, by Pilot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pilot_screen import answered, complete, shows, until

from gpuprof.snapshots import queries
from gpuprof.snapshots.frames import Query
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.transports import SocketTransport


@pytest.fixture(params=["today's", "an earlier"])
def sampler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which version of it answers."""
    if request.param == "an earlier":
        answer = queries.answer
        monkeypatch.setattr(queries, "answer", lambda history, query: answer(history, _of_then(query)))
    return str(request.param)


def _of_then(query: Query) -> Query:
    return replace(query, internals=True)


async def test_x_shows_and_hides_in_the_time_that_is_shown(
    node_socket: tuple[Any, str], sampler: str
) -> None:
    node, path = node_socket
    app = GpuprofApp(SocketTransport(path=path))
    session = app.session
    async with app.run_test(notifications=True, size=(250, 50)) as pilot:
        await shows(pilot, "internal frames hidden, x shows them")
        session.feed.paused = True
        await until(pilot, lambda: answered(app))
        await complete(pilot, app, node)
        first = session.tree
        assert first is not None
        assert (first.hidden is None) == (sampler == "an earlier")
        await pilot.press("x")
        await shows(pilot, "internal frames shown (x)")
        await until(pilot, lambda: session.tree is not None and session.tree is not first)
        await until(pilot, lambda: answered(app))
        shown = session.tree
        assert shown is not None
        assert shown.hidden is None
        assert len(shown.parent) > len(first.parent)
        assert (shown.start_ns, shown.end_ns) == (first.start_ns, first.end_ns)
        await pilot.press("x")
        await shows(pilot, "internal frames hidden, x shows them")
        await until(pilot, lambda: answered(app))
        again = session.tree
        assert again is not None
        assert again.hidden == first.hidden
        assert np.array_equal(again.total_weight, first.total_weight)
        if sampler == "today's":
            asked = Query(0, "cpu", again.start_ns, again.end_ns, internals=False)
            there = node.history.query(asked)
            assert np.array_equal(there.total_weight, again.total_weight)
            assert session.hidden_rows == there.hidden > 0
