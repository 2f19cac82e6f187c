"""Makes the README's pictures: opens a bundled recording in the real app, plays the mouse and the keys, saves
SVG.

usage: python tools/screenshots.py [FOLDER]          (make screenshots: into docs/)

overview.svg is the whole of the first recording; dip.svg the longest dip of its GPU's utilization, found in
the readings and selected by a drag of the mouse, with the tree open down to where most of the time went;
gpu.svg the tree of GPU time of the first recording that holds GPU work, where there is one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ |= {"TEXTUAL_COLOR_SYSTEM": "truecolor", "GPUPROF_GLYPHS": "braille", "TZ": "UTC"}
os.environ.pop("NO_COLOR", None)

import numpy as np
from textual.pilot import Pilot

from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.history import History
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.recordings import bundled_recording, open_file
from gpuprof.tui.screens.main import MainScreen
from gpuprof.tui.widgets.stack_painter import margins

SIZE = (170, 54)
DIP_BELOW = 0.5  # of what the GPU usually does when it works
TIMEOUT_S = 30.0


def longest_dip(history: History) -> tuple[int, int] | None:
    """[start_ns, end_ns) of the longest stretch of low GPU utilization between two of high, of any device."""
    definitions, columns = history.readings_between(*history.span)
    dips = []
    for number, series in definitions.items():
        if series.metric != "util_gpu_percent":
            continue
        mine = columns["series"] == number
        order = np.argsort(columns["end_ns"][mine], kind="stable")
        start, end, value = (columns[name][mine][order] for name in ("start_ns", "end_ns", "value"))
        busy = np.flatnonzero(value > DIP_BELOW * np.percentile(value, 90)) if len(value) else value
        for before, after in zip(busy[:-1].tolist(), busy[1:].tolist(), strict=True):
            dips.append((int(start[after]) - int(end[before]), int(end[before]), int(start[after])))
    if not dips:
        return None
    length, first, last = max(dips)
    return (first, last) if length > 0 else None


def with_gpu_work() -> Path | None:
    """The first bundled recording that holds GPU work."""
    first = bundled_recording()
    for path in sorted(first.parent.glob("*.gpuprof")) if first else []:
        if read_snapshot(str(path)).history.gpu_work.next:
            return path
    return None


async def until(pilot: Pilot[None], done: Callable[[], bool], what: str) -> None:
    """Wait until something holds, and until it is drawn."""
    for _ in range(int(TIMEOUT_S / 0.05)):
        if done():
            await pilot.pause(0.5)
            return
        await pilot.pause(0.05)
    sys.exit(f"this did not happen: {what}")


def parts(pilot: Pilot[None]) -> tuple[GpuprofApp, MainScreen]:
    app = pilot.app
    assert isinstance(app, GpuprofApp)
    assert isinstance(app.screen, MainScreen)
    return app, app.screen


async def tree_of(pilot: Pilot[None], kind: str, span: tuple[int, int] | None) -> None:
    """Wait for the tree of a kind and a range (None: any)."""
    app, screen = parts(pilot)

    def there() -> bool:
        tree, rows = app.session.tree, screen.flame.rows
        if tree is None or rows is None or rows.tree is not tree or tree.tree != kind:
            return False
        return span is None or (tree.start_ns, tree.end_ns) == span

    await until(pilot, there, f"a tree of {kind}")


async def drag(pilot: Pilot[None], start_ns: int, end_ns: int) -> tuple[int, int]:
    """Select a range by the mouse; what was selected, which is whole columns."""
    _, screen = parts(pilot)
    charts = screen.charts
    left, right = charts.view.scale.columns_of(start_ns, end_ns)
    gutter, _ = margins(charts.size.width)
    await pilot.mouse_down(charts, offset=(gutter + left, 4))
    for column in range(left, right):
        await pilot.hover(charts, offset=(gutter + column, 4))
    await pilot.mouse_up(charts, offset=(gutter + right - 1, 4))
    await until(pilot, lambda: charts.selected_range is not None, "a selected range")
    assert charts.selected_range is not None
    return charts.selected_range


async def open_hottest(pilot: Pilot[None]) -> None:
    """Shut the tree, then open it down to the row with most time of its own."""
    _, screen = parts(pilot)
    await pilot.press("c")
    rows = screen.flame.rows
    assert rows is not None
    screen.flame.go_to(int(rows.tree.self_weight.argmax()))
    await pilot.pause(0.5)


def save(pilot: Pilot[None], folder: Path, name: str) -> None:
    path = folder / name
    path.write_text(pilot.app.export_screenshot(title="gpuprof-tui"))
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


async def main(folder: Path) -> None:
    recording = bundled_recording()
    if recording is None:
        sys.exit("there is no bundled recording")
    folder.mkdir(exist_ok=True)
    dip = longest_dip(read_snapshot(str(recording)).history)
    async with GpuprofApp(open_file(str(recording))).run_test(size=SIZE) as pilot:
        await tree_of(pilot, "cpu", None)
        save(pilot, folder, "overview.svg")
        if dip is None:
            sys.exit(f"{recording.name} holds no dip")
        pinned = await drag(pilot, *dip)
        print(f"dip of {(dip[1] - dip[0]) / 1e9:.2f} s, selected {(pinned[1] - pinned[0]) / 1e9:.2f} s")
        await pilot.press("3")
        await tree_of(pilot, "idle", pinned)
        await open_hottest(pilot)
        save(pilot, folder, "dip.svg")
    recording = with_gpu_work()
    if recording is None:
        print("no recording holds GPU work: no gpu.svg")
        return
    async with GpuprofApp(open_file(str(recording))).run_test(size=SIZE) as pilot:
        await pilot.press("2")
        await tree_of(pilot, "gpu", None)
        save(pilot, folder, "gpu.svg")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs")))
