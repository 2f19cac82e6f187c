"""Makes the README's pictures: opens the bundled recording in the real app, plays the mouse, saves SVG.

usage: python tools/screenshots.py [FOLDER]          (make screenshots: into docs/)
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from textual.pilot import Pilot

from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.recordings import bundled_recording, open_file

SIZE = (180, 56)
# A dip of the recording, as columns of the charts at this size: from where to where the mouse drags.
DRAG = ((60, 8), (75, 8))


async def settle(pilot: Pilot[None], seconds: float = 1.0) -> None:
    await pilot.pause(seconds)
    await pilot.app.workers.wait_for_complete()


async def drag(pilot: Pilot[None]) -> None:
    await pilot.mouse_down(offset=DRAG[0])
    for x in range(DRAG[0][0], DRAG[1][0] + 1, 3):
        await pilot.hover(offset=(x, DRAG[0][1]))
    await pilot.mouse_up(offset=DRAG[1])


async def main(folder: Path) -> None:
    recording = bundled_recording()
    if recording is None:
        sys.exit("there is no bundled recording")
    folder.mkdir(exist_ok=True)
    app = GpuprofApp(open_file(str(recording)))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot, 3)
        (folder / "overview.svg").write_text(app.export_screenshot(title="gpuprof-tui"))
        await drag(pilot)
        await settle(pilot, 2)
        (folder / "dip.svg").write_text(app.export_screenshot(title="gpuprof-tui"))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs")))
