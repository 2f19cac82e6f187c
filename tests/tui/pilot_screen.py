"""What a Pilot test sees of the app: its main screen, the text on it, and waiting for either."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot

from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.screens.main import MainScreen

PATIENCE_S = 60.0  # far more than anything takes; a slow machine is no failure


def screen_of(app: GpuprofApp) -> MainScreen:
    """The main screen, also while another one is in front of it."""
    screen = app.screen_stack[0]
    assert isinstance(screen, MainScreen)
    return screen


def text_of(app: Any) -> str:
    """Everything that is on the screen, as text."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def answered(app: GpuprofApp) -> bool:
    """Whether what was asked for last has been answered: no question is due, and none under way."""
    feed = app.session.feed
    return feed._answered and not feed._stale


async def complete(pilot: Pilot[Any], app: GpuprofApp, node: Any) -> None:
    """End the growing of a fake node, and have the tree of a held range asked for again: an answer of
    before may lack what came in of the range's last moment."""
    node.rest()
    early = app.session.tree
    app.session.feed.restart()
    await until(pilot, lambda: answered(app) and app.session.tree is not early)


def drawn(app: GpuprofApp, kind: str) -> bool:
    """Whether the tree of this kind has come and is the one that is drawn."""
    tree, rows = app.session.tree, screen_of(app).flame.rows
    return tree is not None and tree.tree == kind and rows is not None and rows.tree is tree


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Let the app go on until something is so; what is on the screen is said when it does not happen."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"did not happen; the screen is:\n{text_of(pilot.app)}"
        await pilot.pause(0.05)


def said(app: Any) -> str:
    """All that toasts have said so far (conftest.py keeps it), whether they are still there or not."""
    return " ".join(" ".join(getattr(app, "all_said", [])).split())


async def tells(pilot: Pilot[Any], text: str) -> None:
    """Let the app go on until a toast has said something; it may have gone again."""
    await until(pilot, lambda: text in said(pilot.app))


async def shows(pilot: Pilot[Any], text: str) -> None:
    """Let the app go on until a text is on the screen."""
    await until(pilot, lambda: text in text_of(pilot.app))
