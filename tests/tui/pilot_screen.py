"""What a Pilot test sees of the app: its main screen, the text on it, and waiting for either."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot

from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.screens.main import MainScreen

PATIENCE_S = 20.0  # far more than anything takes; a slow machine is no failure


def screen_of(app: GpuprofApp) -> MainScreen:
    """The main screen, also while another one is in front of it."""
    screen = app.screen_stack[0]
    assert isinstance(screen, MainScreen)
    return screen


def text_of(app: Any) -> str:
    """Everything that is on the screen, as text."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Let the app go on until something is so; what is on the screen is said when it does not happen."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"did not happen; the screen is:\n{text_of(pilot.app)}"
        await pilot.pause(0.05)


async def shows(pilot: Pilot[Any], text: str) -> None:
    """Let the app go on until a text is on the screen."""
    await until(pilot, lambda: text in text_of(pilot.app))
