"""A range that stays while the sampler is started anew: what of it the new sampler cannot know is said."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pilot_screen import answered, shows, tells, text_of, until

from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.transports import SocketTransport
from gpuprof.tui.tree_feed import TreeFeed

SECOND = 10**9
Restart = Callable[[], Any]


@pytest.fixture
def restart(node_socket: tuple[Any, str], fake_node: ModuleType) -> Iterator[Restart]:
    """End the sampler, and start one at the same path whose history begins now; it is returned."""
    old, path = node_socket
    started: list[Any] = []

    def again() -> Any:
        os.rename(path, path + ".away")
        old.stop()
        node = fake_node.FakeNode(2)
        now = time.monotonic_ns()
        node.fill(now - SECOND // 2, now)
        started.append((node, node.listener(path)))
        threading.Thread(target=node.run, daemon=True).start()
        return node

    yield again
    for node, server in started:
        node.stop()
        server.close()


async def test_a_pinned_range_of_before_is_said_not_to_be_there(
    node_socket: tuple[Any, str], restart: Restart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = GpuprofApp(SocketTransport(path=node_socket[1]))
    async with app.run_test(notifications=True, size=(160, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        now = app.session.model.now_ns
        app.session.feed.pin(now - 20 * SECOND, now - 10 * SECOND)
        await shows(pilot, "Esc lets go")
        await until(pilot, lambda: answered(app))
        assert "sampler's history" not in text_of(app)  # all of it is there
        node = restart()
        await shows(pilot, "Nothing of this range is in the sampler's history, which begins at")
        await shows(pilot, "Esc lets go of it")
        await shows(pilot, "No CPU samples in this range.")
        began = node.history.samples_start_ns
        assert began is not None
        app.session.feed.pin(began - 4 * SECOND, began + SECOND // 4)
        await shows(pilot, "The first 4 s of this range are not in the sampler's history, which begins at")
        await pilot.press("w")
        await tells(pilot, "Saved")
        await tells(pilot, "The first 4 s of this range are not in the sampler's history")
        app.session.feed.pin(began, began + SECOND // 4)
        await until(pilot, lambda: "sampler's history" not in text_of(app))


async def test_a_paused_tree_does_not_go_over_to_another_time(
    node_socket: tuple[Any, str], restart: Restart
) -> None:
    app = GpuprofApp(SocketTransport(path=node_socket[1]))
    async with app.run_test(notifications=True, size=(160, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("space")
        await until(pilot, lambda: answered(app))
        held = app.session.feed.held
        assert held is not None
        restart()
        await shows(pilot, "of this range")
        await shows(pilot, "the sampler's history, which begins at")
        assert app.session.feed.held == held
        await pilot.press("space")
        await until(pilot, lambda: "sampler's history" not in text_of(app))


def test_what_is_held() -> None:
    feed = TreeFeed()
    assert feed.due(0, 100 * SECOND, None) is not None
    assert feed.held is None
    feed.paused = True
    assert feed.held == (70 * SECOND, 100 * SECOND)
    feed.pin(5, 10)
    assert feed.held == (5, 10)
