"""What has its place on any screen, by Pilot: the whole main answer, the four tabs, the keys that matter,
notices that make way, and what a window is told that is too small for any of it."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from pilot_screen import screen_of, shows, text_of, until
from textual.pilot import Pilot

from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import Query, SourceStatus
from gpuprof.snapshots.report import text_report
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.palette import DARK
from gpuprof.tui.recordings import bundled_recording, open_file
from gpuprof.tui.screens.help import HELP, HelpScreen
from gpuprof.tui.screens.notes import NotesScreen
from gpuprof.tui.screens.page import PageText
from gpuprof.tui.screens.placing import LEAST_COLUMNS, LEAST_ROWS
from gpuprof.tui.transports import HistoryTransport, SocketTransport
from gpuprof.tui.tree_feed import TreeFeed
from gpuprof.tui.widgets import header, summary
from gpuprof.tui.widgets.styled import Line

SIZES = [(80, 24), (100, 30), (120, 40), (200, 60)]
START, SECOND = 10**12, 10**9


@pytest.fixture
def demo() -> GpuprofApp:
    path = bundled_recording()
    assert path is not None
    return GpuprofApp(open_file(str(path)))


async def idle_tree(pilot: Pilot[Any], app: GpuprofApp) -> None:
    await shows(pilot, "main (train_slow_loader.py")
    await pilot.press("3")
    await until(pilot, lambda: app.session.tree is not None and app.session.tree.tree == "idle")
    await shows(pilot, "GPU 0 idle")


def page_lines(app: GpuprofApp) -> list[Line]:
    """The text of the page in front, once it has been laid out."""
    return [line for page in app.screen.query(PageText) for line in page._lines]


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("size", SIZES)
async def test_the_main_answer_is_whole_and_leaves_the_tree_its_rows(
    demo: GpuprofApp, size: tuple[int, int]
) -> None:
    """Of the range 13..66 s, which it takes three lines of 80 columns to tell of; as the report tells it."""
    async with demo.run_test(notifications=True, size=size) as pilot:
        await idle_tree(pilot, demo)
        assert demo.session.file_span is not None
        first, last = demo.session.file_span
        demo.session.feed.pin(first + 13 * SECOND, last)
        await shows(pilot, "GPU 0 idle 7.9 of 53.0 s")
        tree = demo.session.tree
        assert tree is not None
        assert len(tree.summary) > 200
        await until(pilot, lambda: words(tree.summary) in words(text_of(demo)))
        history = read_snapshot(str(bundled_recording())).history
        asked = Query(0, "idle", history.span[0] + 13 * SECOND, history.span[1])
        assert words(f"summary {tree.summary}") in words(text_report(history, asked, columns=100))
        screen = screen_of(demo)

        def has_its_place() -> bool:
            names = ("#charts", "#summary", "#lower", "#footer")
            places = [screen.query_one(name).region for name in names]
            close = [place.bottom for place in places[:-1]] == [place.y for place in places[1:]]
            return close and screen.flame.size.height >= 6 and screen.charts.size.height >= 8

        await until(pilot, has_its_place)
        await pilot.pause(0.2)
        assert has_its_place()
        assert words(tree.summary) in words(text_of(demo))


@pytest.mark.parametrize("size", SIZES)
async def test_the_tabs_stay_beside_a_search_a_filter_and_a_range(
    demo: GpuprofApp, size: tuple[int, int]
) -> None:
    async with demo.run_test(notifications=True, size=size) as pilot:
        await shows(pilot, "main (train_slow_loader.py")
        await pilot.press("slash", *"main", "enter")
        await shows(pilot, "/main: ")
        await pilot.press("v", "right", "right", "right", "enter")
        await until(pilot, lambda: demo.session.feed.pinned is not None)
        await pilot.press("f", *"pid", "space", *"815", "enter")
        await until(pilot, lambda: bool(demo.session.feed.filter))

        def title() -> str:
            return screen_of(demo).texts["tree-title"]._lines[0].text

        await until(pilot, lambda: "filter: pid 815" in title())
        await pilot.pause(0.2)
        assert all(f"[{number}" in title() for number in "1234"), title()
        assert "filter: pid 815" in title()


@pytest.mark.parametrize("size", SIZES)
async def test_the_keys_that_matter_are_in_sight(demo: GpuprofApp, size: tuple[int, int]) -> None:
    async with demo.run_test(notifications=True, size=size) as pilot:
        await shows(pilot, "main (train_slow_loader.py")
        keys = screen_of(demo).texts["footer"]._lines[0].text
        for hint in ("q quit", "? help", "1-4 trees", "v select", "w save", "/ search", "Tab focus"):
            assert hint in keys


async def test_what_does_not_fit_is_a_key_away(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(8, gpu_work=True)
    node.fill(START, START + 20 * SECOND)
    app = GpuprofApp(HistoryTransport(node.history, "run.gpuprof"))
    said = node.history.query(Query(1, "gpu", *node.history.span)).summary
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await shows(pilot, "main (train.py")
        await pilot.press("2")
        await shows(pilot, "GPU 0: busy")
        await until(
            pilot, lambda: ("m: all of it" in text_of(app)) == (words(said) not in words(text_of(app)))
        )
        await pilot.press("m")
        await until(pilot, lambda: isinstance(app.screen, NotesScreen) and bool(page_lines(app)))
        shown = words(" ".join(line.text for line in page_lines(app)))
        for part in said.split(" · "):
            assert words(part) in shown
        await pilot.press("m")
        await until(pilot, lambda: not isinstance(app.screen, NotesScreen))


@pytest.mark.parametrize("rows", range(1, 8))
def test_a_summary_in_few_rows_says_how_to_see_the_rest(rows: int) -> None:
    session: Any = type("Session", (), {})()
    text = " ".join(f"word{number}" for number in range(60))
    session.tree = type("Tree", (), {"summary": text})()
    session.feed = TreeFeed()
    lines = summary.summary_lines(session, DARK, 80, rows)
    said = words(" ".join(line.text for line in lines))
    assert all(line.cells <= 80 for line in lines)
    if said != text:
        assert len(lines) == rows
        assert said.endswith(summary.MORE.strip())
        kept = said.removesuffix(summary.MORE.strip()).rstrip(" …")
        assert text.startswith(kept)
        assert len(said) > rows * 66


def test_rows_for_the_summary() -> None:
    assert [summary.rows_for_summary(height) for height in (5, 16, 20, 24, 30, 60)] == [1, 1, 2, 3, 3, 6]


async def test_notices_make_way_and_a_key_brings_them_back(
    fake_node: ModuleType, listening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = fake_node.FakeNode(0)
    node.nvml = False
    waits = SourceStatus("offcpu", "off", "no process was picked", "sudo gpuprof-tui --offcpu-pid PID")
    set_status = node.history.set_status
    node.history.set_status = lambda status: set_status(replace(status, sources=[*status.sources, waits]))
    with listening(node) as path:
        app = GpuprofApp(SocketTransport(path=path))
        async with app.run_test(notifications=True, size=(80, 24)) as pilot:
            await shows(pilot, "sudo gpuprof-tui --offcpu-pid PID")
            rows_before = screen_of(app).header.size.height
            monkeypatch.setattr(header, "NOTICE_S", 0.0)
            await shows(pilot, "NVML failed, off-CPU off: m says why, and what to do")
            await until(pilot, lambda: screen_of(app).header.size.height < rows_before)
            assert "--offcpu-pid" not in text_of(app)
            await pilot.press("m")
            await shows(pilot, "sudo gpuprof-tui --offcpu-pid PID")
            await shows(pilot, "libnvidia-ml.so.1 was not found")


@pytest.mark.parametrize("size", [(39, 24), (20, 5), (10, 3), (80, 9), (16, 2), (5, 1), (1, 1)])
async def test_a_window_too_small_says_so_in_its_middle(demo: GpuprofApp, size: tuple[int, int]) -> None:
    async with demo.run_test(notifications=True, size=(80, 24)) as pilot:
        await shows(pilot, "main (train_slow_loader.py")
        await pilot.resize_terminal(*size)
        needs = f"{LEAST_COLUMNS}x{LEAST_ROWS}"[: size[0]]

        def is_said() -> bool:
            rows = text_of(demo).split("\n")
            return len(rows) == size[1] and any("small" in row or needs in row for row in rows)

        await until(pilot, lambda: "main (" not in text_of(demo) and is_said())
        await pilot.pause(0.2)
        rows = text_of(demo).split("\n")
        told = [place for place, row in enumerate(rows) if row.strip()]
        assert any("small" in row or needs in row for row in rows)
        assert abs((told[0] + told[-1]) - (size[1] - 1)) <= 1
        for place in told:
            left = len(rows[place]) - len(rows[place].lstrip())
            right = len(rows[place]) - len(rows[place].rstrip())
            assert abs(left - right) <= 1
        await pilot.press("slash", "x", "escape", "v", "3", "m", "escape", "question_mark", "escape")
        await pilot.resize_terminal(80, 24)
        await shows(pilot, "[1 CPU]")


@pytest.mark.parametrize("columns", [40, 60, 80, 81, 120, 200])
async def test_the_help_is_whole_whatever_the_width(demo: GpuprofApp, columns: int) -> None:
    """Every word of it, with a blank between a key and what it does; the scroll bar covers none."""
    async with demo.run_test(size=(columns, 24)) as pilot:
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(demo.screen, HelpScreen) and bool(page_lines(demo)))
        page = demo.screen.query_one(PageText)
        await until(
            pilot, lambda: all(line.cells <= page.scrollable_content_region.width for line in page._lines)
        )
        plain = words if columns >= 60 else lambda text: "".join(text.split())  # the longest word is broken
        shown = plain(" ".join(line.text for line in page._lines))
        assert all(line.cells <= page.scrollable_content_region.width for line in page._lines)
        for title, entries in HELP:
            assert plain(title) in shown
            for key, meaning in entries:
                assert plain(f"{key} {meaning}") in shown


@pytest.mark.parametrize("key", ["1", "3", "t", "i", "x", "slash", "f"])
async def test_a_key_about_the_tree_brings_it_back_from_behind_the_processes(
    demo: GpuprofApp, key: str
) -> None:
    async with demo.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "main (train_slow_loader.py")
        await pilot.press("p", "p")
        await until(pilot, lambda: not screen_of(demo).flame.region.area)
        await pilot.press(key)
        await until(pilot, lambda: bool(screen_of(demo).flame_view.region.area))
        assert not screen_of(demo).table.has_focus
        await shows(pilot, "[3 GPU idle]")
