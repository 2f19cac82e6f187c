"""The whole screen by Pilot over a node that does not exist: select, filter, search, and come back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pilot_screen import answered, complete, screen_of, shows, text_of, until

from gpuprof.snapshots.frames import Hello
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.screens.main import MainScreen
from gpuprof.tui.transports import HistoryTransport
from gpuprof.tui.widgets.prompt import SEARCH, Prompt
from gpuprof.tui.widgets.styled import Lines


async def test_live_tree_at_once_then_a_dragged_range(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(180, 60)) as pilot:
        await shows(pilot, "last 30 s, live")
        await shows(pilot, "main (train.py:88)")
        charts = screen_of(live).charts
        await pilot.mouse_down(charts, offset=(80, 5))
        await pilot.hover(charts, offset=(90, 5))
        await pilot.hover(charts, offset=(100, 5))
        await pilot.mouse_up(charts, offset=(100, 5))
        await shows(pilot, "Esc lets go")
        pinned = live.session.feed.pinned
        assert pinned is not None
        await until(
            pilot,
            lambda: (
                live.session.tree is not None
                and (live.session.tree.start_ns, live.session.tree.end_ns) == pinned
            ),
        )
        await pilot.press("escape")
        await shows(pilot, "last 30 s, live")
        assert charts.selected_range is None


async def test_range_by_keys_then_core_zero(live: GpuprofApp, node_socket: tuple[Any, str]) -> None:
    from gpuprof.snapshots.frames import Query

    async with live.run_test(notifications=True, size=(160, 50)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("v", *["left"] * 8, "enter")
        await shows(pilot, "Esc lets go")
        await pilot.press("f", *"cpu 0", "enter")
        await shows(pilot, "filter: cpu 0")
        pinned = live.session.feed.pinned
        assert pinned is not None
        await complete(pilot, live, node_socket[0])
        expected = node_socket[0].history.query(Query(1, "cpu", *pinned, cpus=[0]))
        tree = live.session.tree
        assert tree is not None
        assert tree.total_weight[0] == expected.total_weight[0] > 0
        await pilot.press("escape", "escape")
        assert live.session.feed.pinned is None
        assert not live.session.feed.filter


async def test_process_table_filters(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(180, 50)) as pilot:
        await shows(pilot, "GPU MEM")
        await shows(pilot, "pt_data_worker")
        table = screen_of(live).table
        table.focus()
        await pilot.press("G", "enter")
        assert live.session.feed.filter.pids == (77,)
        await shows(pilot, "filter: pid 77")
        await shows(pilot, "kthread")


async def test_search_and_bad_filter(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("slash", *"decode", "enter")
        await shows(pilot, "/decode:")
        screen_of(live).on_prompt_typed(Prompt.Typed(SEARCH, "dec"))  # it was under way when enter came
        assert screen_of(live).flame.needle == "decode"
        await pilot.press("f", *"no-such-thing", "enter")
        await shows(pilot, "no process is called")
        text = text_of(live).splitlines()
        assert any("no-such-thing" in line and "no process is called" in line for line in text[-3:])
        await pilot.pause()
        assert not live._notifications
        assert screen_of(live).prompt.display
        await pilot.press("escape")
        assert not screen_of(live).prompt.display


async def test_every_size_is_usable(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(80, 24)) as pilot:
        await shows(pilot, "main (train.py")
        for size in ((80, 24), (100, 30), (200, 60), (60, 16), (300, 90), (40, 10), (20, 5)):
            await pilot.resize_terminal(*size)
            screen = screen_of(live)

            def is_drawn_whole(screen: MainScreen = screen, size: tuple[int, int] = size) -> bool:
                lines = screen._compositor.render_strips()
                widths = {line.cell_length for line in lines}
                roomy = min(screen.flame.size.height, screen.charts.size.height) >= 3
                return len(lines) == size[1] and widths == {size[0]} and (roomy or size[1] < 16)

            await until(pilot, is_drawn_whole)
            await pilot.pause(0.3)
            assert is_drawn_whole()


async def test_p_and_brackets_rearrange(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(90, 30)) as pilot:
        await shows(pilot, "main (train.py")
        screen = screen_of(live)
        assert not screen.table.display
        await pilot.press("p")
        assert screen.table.display
        assert not screen.query_one("#tree-pane").display
        await pilot.press("p")
        assert not screen.table.display
        before = screen.charts.size.height
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: screen.charts.size.height > before)


async def test_a_narrow_screen_belongs_to_the_tree(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(180, 40)) as pilot:
        await shows(pilot, "main (train.py")
        screen = screen_of(live)
        pane = screen.query_one("#tree-pane")
        screen.placing.table = "beside"
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: not screen.table.display)
        assert pane.display
        await pilot.press("p")
        assert (screen.table.display, pane.display) == (True, False)
        await pilot.press("p")
        assert (screen.table.display, pane.display) == (False, True)
        await pilot.press("p")
        await pilot.resize_terminal(40, 10)
        await until(pilot, lambda: not screen.table.display and screen.flame.size.height >= 2)
        await shows(pilot, "all")


async def test_help_opens_and_closes(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(100, 90)) as pilot:
        await pilot.press("question_mark")
        await shows(pilot, "What the numbers mean")
        await pilot.press("q")
        await until(pilot, lambda: isinstance(live.screen, MainScreen))


async def test_f_filters_and_capital_f_shows_the_whole_time(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await shows(pilot, "drag or v: select a range")
        screen = screen_of(live)
        screen.charts.focus()
        await pilot.press("f")
        assert screen.prompt.display
        await pilot.press("escape")
        screen.charts.focus()
        assert screen.charts.window_ns == 60 * 10**9
        await pilot.press("F")
        assert not screen.prompt.display
        first, last = live.session.model.store.span
        assert screen.charts.window_ns == pytest.approx(last - first, rel=0.2)  # 40 s, and what passed since
        await shows(pilot, "drag or v: select a range")


async def test_internal_frames_are_hidden_until_x(live: GpuprofApp, node_socket: tuple[Any, str]) -> None:
    async with live.run_test(notifications=True, size=(250, 50)) as pilot:
        await shows(pilot, "internal frames hidden, x shows them")
        assert "__libc_start_main" not in text_of(live)
        assert "Py_BytesMain" not in text_of(live)
        session = live.session
        session.feed.paused = True
        await until(pilot, lambda: answered(live))
        await complete(pilot, live, node_socket[0])
        assert session.tree is not None
        total, rows = float(session.tree.total_weight[0]), len(session.tree.parent)
        await pilot.press("x")
        await shows(pilot, "Py_BytesMain")
        await shows(pilot, "__libc_start_main")
        await shows(pilot, "internal frames shown (x)")
        await until(pilot, lambda: answered(live))
        assert session.tree.total_weight[0] == total
        assert len(session.tree.parent) > rows
        await pilot.press("x")
        await shows(pilot, "internal frames hidden, x shows them")
        await until(pilot, lambda: answered(live))
        assert len(session.tree.parent) == rows


@pytest.fixture
def bundled(fake_node: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node's recording of 10 s is the bundled one."""
    node = fake_node.FakeNode(1, host="recorded-node")
    node.fill(10**12, 10**12 + 10 * 10**9)
    monkeypatch.setattr("gpuprof.tui.app.bundled_recording", lambda: Path("/x/demo.gpuprof"))
    monkeypatch.setattr(
        "gpuprof.tui.app.open_file", lambda path: HistoryTransport(node.history, "demo.gpuprof")
    )


@pytest.mark.usefixtures("bundled")
async def test_a_recording_over_a_live_node_and_back(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(160, 40)) as pilot:
        await shows(pilot, "last 30 s, live")
        await pilot.press("D")
        await shows(pilot, "recording demo.gpuprof")
        await shows(pilot, "whole recording")
        await shows(pilot, "recorded-node")
        await pilot.press("D")
        await shows(pilot, "last 30 s, live")
        await shows(pilot, "node17")


@pytest.mark.usefixtures("bundled")
async def test_each_source_keeps_its_range_on_the_charts_too(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(160, 40)) as pilot:
        await shows(pilot, "last 30 s, live")
        await shows(pilot, "main (train.py:88)")
        await pilot.press("v", *["left"] * 8, "enter")
        await until(pilot, lambda: live.session.feed.pinned is not None)
        pinned, first = live.session.feed.pinned, live.session
        await pilot.press("D")
        await shows(pilot, "recording demo.gpuprof")
        await shows(pilot, "whole recording")
        assert screen_of(live).charts.selected_range is None
        await pilot.press("v", *["left"] * 4, "enter")
        await until(pilot, lambda: live.session.feed.pinned is not None)
        await pilot.press("D")
        await shows(pilot, "node17")
        assert live.session is first
        await pilot.pause(0.2)
        assert first.feed.pinned == pinned == screen_of(live).charts.selected_range


async def test_reconnect_keeps_the_charts(live: GpuprofApp, node_socket: tuple[Any, str]) -> None:
    node, _ = node_socket
    async with live.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        start = live.session.model.store.span[0]
        link, states = live.session.link, []
        tell = link._on_state
        link._on_state = lambda state: (states.append(state.state), tell(state))[1]
        node.hang_up()
        await until(
            pilot, lambda: "gone" in states and states[-1] == "open"
        )  # the first lasts no longer than a moment
        newest = live.session.model.store.newest_ns
        await until(pilot, lambda: live.session.model.store.newest_ns > newest)
        assert live.session.model.store.span[0] == start


async def test_hostile_hello(fake_node: ModuleType, hostile_names: list[str]) -> None:
    for name in hostile_names:
        node = fake_node.FakeNode(0, host=name)
        assert isinstance(node.hello, Hello)
        node.fill(10**12, 10**12 + 10**9)
        app = GpuprofApp(HistoryTransport(node.history, name))
        async with app.run_test(notifications=True, size=(120, 24)) as pilot:
            await until(pilot, lambda app=app: app.session.tree is not None)  # type: ignore[misc]
            await pilot.pause()
            text = text_of(app).replace("\n", "")
            assert text.isprintable(), name
    await asyncio.sleep(0)


def test_lines_redraw_only_what_changed() -> None:
    assert Lines.ALLOW_SELECT is False
