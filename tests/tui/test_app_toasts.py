"""Where toasts stand, and how much of the screen they take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pilot_screen import screen_of, shows, tells, until
from textual.widgets._toast import Toast

from gpuprof.tui import app as app_module
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.recordings import bundled_recording, open_file
from gpuprof.tui.saving import path_from_here


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 60)])
async def test_a_toast_hides_neither_details_nor_legend_nor_keys(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a save, which is one, and names the file as one types it there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app_module, "SAVING_IS_SAID_S", 600)
    app = GpuprofApp(open_file(str(bundled_recording())))
    async with app.run_test(notifications=True, size=size) as pilot:
        await shows(pilot, "whole recording")
        await pilot.press("w")
        await until(pilot, lambda: any(toast.region.height for toast in app.screen.query(Toast)))
        (toast,) = app.screen.query(Toast)
        screen = screen_of(app)
        for name in ("#details", "#legend", "#footer", "#tree-title", "#charts"):
            assert not screen.query_one(name).region.overlaps(toast.region), name
        assert toast.region.height <= 3
        assert toast.region.width <= 72
        await tells(pilot, "gpuprof-tui open gpuprof-")


async def test_a_save_that_takes_its_time_is_said_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app_module, "SAVING_IS_SAID_S", 0.001)
    app = GpuprofApp(open_file(str(bundled_recording())))
    async with app.run_test(notifications=True, size=(120, 36)) as pilot:
        await shows(pilot, "whole recording")
        await pilot.press("w")
        await tells(pilot, "Saving the whole history")
        await tells(pilot, "Saved ")


def test_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert path_from_here(str(gone / "a.gpuprof")) == "a.gpuprof"
    assert path_from_here("/elsewhere/a.gpuprof") == "/elsewhere/a.gpuprof"
    os.rmdir(gone)
    assert path_from_here(str(gone / "a.gpuprof")) == str(gone / "a.gpuprof")
