"""The whole screen by Pilot over a node that does not exist: select, filter, search, save; and what is
said when things are missing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pilot_screen import answered, complete, screen_of, shows, tells, text_of, until

from gpuprof.snapshots.frames import NO_THREAD, FrameKind, Hello, SourceStatus, Status
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.screens.main import MainScreen
from gpuprof.tui.transports import CommandTransport, HistoryTransport, SocketTransport
from gpuprof.tui.widgets.prompt import SEARCH, Prompt
from gpuprof.tui.widgets.styled import Lines


@pytest.fixture
def live(node_socket: tuple[Any, str]) -> GpuprofApp:
    return GpuprofApp(SocketTransport(path=node_socket[1]))


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


async def test_other_trees_are_said_not_to_be_there(live: GpuprofApp) -> None:
    async with live.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "[1 CPU]  [2 GPU time]")
        await pilot.press("2")
        await shows(pilot, "no process is set up to record GPU work")
        await shows(pilot, "  gpuprof-tui run -- python train.py")
        await pilot.press("3")
        await shows(pilot, "no process is set up to record GPU work")
        await pilot.press("4")
        await shows(pilot, "No off-CPU time")
        await shows(pilot, "Waits are recorded")
        await pilot.press("1")
        await shows(pilot, "main (train.py:88)")


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
def bare_node(fake_node: ModuleType, listening: Callable[..., Any]) -> Iterator[str]:
    """A node with no NVML and no CPU stacks."""
    node = fake_node.FakeNode(0, nvml=False, cpu=False)
    with listening(node) as path:
        yield path


async def test_nothing_works_and_the_screen_says_why(bare_node: str) -> None:
    app = GpuprofApp(SocketTransport(path=bare_node))
    async with app.run_test(notifications=True, size=(220, 40)) as pilot:
        await shows(pilot, "libnvidia-ml.so.1 was not found")
        await shows(pilot, "gpuprof-tui demo")
        await shows(pilot, "sudo /opt/gpuprof/bin/gpuprof-tui")
        await shows(pilot, "needs root or CAP_BPF")


async def test_nothing_works_in_eighty_columns(bare_node: str) -> None:
    app = GpuprofApp(SocketTransport(path=bare_node))
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await shows(pilot, "sudo /opt/gpuprof/bin/gpuprof-tui")
        await shows(pilot, "libnvidia-ml")
        await until(pilot, lambda: "libnvidia-ml.so.1 was not found" in " ".join(text_of(app).split()))
        lines = text_of(app).splitlines()
        text = " ".join(" ".join(lines).split())
        assert "demo" in text
        assert text.count("sudo /opt") == 1
        notice = next(place for place, line in enumerate(lines) if "libnvidia-ml" in line)
        charts = screen_of(app).charts.region.y
        assert charts - notice <= 2


async def test_a_hint_in_a_recording_names_the_machine_that_it_is_for(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(2, cpu=False)
    now = node.hello.mono_ns
    node.fill(now - 5 * 10**9, now)
    node.history.set_gpus(replace(node.history.gpus, lost=[node.gpus[1].uuid]))
    app = GpuprofApp(HistoryTransport(node.history, "run.gpuprof"))
    async with app.run_test(notifications=True, size=(160, 40)) as pilot:
        await shows(pilot, "on node17: Start it with sudo.")
        await shows(pilot, "lost: the driver did not answer for it any more")
        await pilot.press("m")
        await shows(pilot, "→ on node17: Start it with sudo.")


async def test_no_sampler_is_said_and_retried(tmp_path: Path) -> None:
    app = GpuprofApp(SocketTransport(path=str(tmp_path / "none")))
    async with app.run_test(notifications=True, size=(120, 30)) as pilot:
        await shows(pilot, "Cannot connect to")
        await shows(pilot, "Trying again")


async def test_ssh_that_fails_is_explained() -> None:
    command = ["/bin/sh", "-c", "echo 'ssh: connect to host node17: Connection refused' >&2; exit 255"]
    app = GpuprofApp(CommandTransport(command, "node17"))
    async with app.run_test(notifications=True, size=(140, 30)) as pilot:
        await shows(pilot, "Connection refused")


async def test_save_the_pinned_range(
    live: GpuprofApp, node_socket: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuprof.snapshots.file import read_snapshot
    from gpuprof.snapshots.frames import Query

    monkeypatch.chdir(tmp_path)
    async with live.run_test(notifications=True, size=(160, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("v", *["left"] * 9, "enter")
        await shows(pilot, "Esc lets go")
        pinned = live.session.feed.pinned
        assert pinned is not None
        history, thread = node_socket[0].history, node_socket[0]._threads[0]
        one = np.ones(1, np.uint32)
        with history.lock:  # a wait beyond both ends; of it only what lies between is saved
            tables = history.tables
            stack = tables.stack([tables.frame(tables.function("futex", "", "", FrameKind.WAIT), 1)])
            first, last = pinned[0] - 5 * 10**9, pinned[1] + 5 * 10**9
            history.add_waits([first], [last], one * thread, one * stack, one * NO_THREAD, 1.0, one * 0)
        node_socket[0].rest()
        await pilot.press("w")
        await tells(pilot, "Saved")
    (path,) = tmp_path.glob("gpuprof-node17-*.gpuprof")
    opened = read_snapshot(str(path))
    assert opened.damage is None
    whole = Query(1, "cpu", 0, 2**62)
    there = node_socket[0].history.query(Query(1, "cpu", *pinned))
    assert opened.history.query(whole).total_weight[0] == there.total_weight[0] > 0
    assert opened.history.span == pinned
    assert opened.history.query(Query(1, "offcpu", 0, 2**62)).total_weight[0] == pinned[1] - pinned[0]


async def test_save_where_nothing_can_be_written(live: GpuprofApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("gpuprof.tui.app.create_here", refuse)
    async with live.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("w")
        await tells(pilot, "cannot be written: Permission denied")


async def test_full_disk(live: GpuprofApp, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    monkeypatch.setattr("gpuprof.tui.app.create_here", lambda name: (os.open("/dev/full", os.O_WRONLY), name))
    async with live.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("w")
        await tells(pilot, "cannot write")


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


async def test_losses_and_cost_are_on_the_screen(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(1)
    node.fill(10**12, 10**12 + 3 * 10**9)
    app = GpuprofApp(HistoryTransport(node.history, "x.gpuprof"))
    async with app.run_test(notifications=True, size=(180, 40)) as pilot:
        await shows(pilot, "lost 0")
        model = app.session.model
        model.live = True
        for at in (1, 2):
            source = SourceStatus("cpu", "ok", lost=12345, invalid=3)
            model.apply(
                Status(
                    10**12 + at * 10**10,
                    [source],
                    at * 10**8,
                    61_000_000,
                    0,
                    0,
                    dropped_samples=5,
                    dropped_gpu_work=2,
                )
            )
        screen_of(app).update_all(model.take_changes())
        await shows(pilot, "lost 12,345")
        await shows(pilot, "invalid 3")
        await shows(pilot, "dropped 7")
        await shows(pilot, "sampler 1.0 % 61 MB")


async def test_key_2_without_a_gpu_says_so(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(0)
    node.fill(10**12, 10**12 + 3 * 10**9)
    app = GpuprofApp(HistoryTransport(node.history, "x.gpuprof"))
    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        model = app.session.model
        model.live = True
        sources = [SourceStatus("nvml", "off", "libnvidia-ml.so.1 was not found"), SourceStatus("gpu", "off")]
        model.apply(Status(10**12 + 10**10, sources, 0, 61_000_000, 0, 0))
        screen_of(app).update_all(model.take_changes())
        await pilot.press("2")
        await shows(pilot, "no NVIDIA GPU here")
        await shows(pilot, "  gpuprof-tui run -- python train.py")
        app.tell("said")
        await pilot.pause()
        assert [toast.timeout for toast in app._notifications] == [5]


async def test_before_any_data_there_is_no_time(tmp_path: Path) -> None:
    app = GpuprofApp(SocketTransport(path=str(tmp_path / "none")))
    async with app.run_test(notifications=True, size=(120, 30)) as pilot:
        await shows(pilot, "not connected, trying again")
        charts = screen_of(app).charts
        await pilot.press("v")
        await tells(pilot, "nothing to select yet")
        charts.focus()
        await pilot.press("v", "left", "enter")
        await pilot.mouse_down(charts, offset=(50, 3))
        await pilot.hover(charts, offset=(60, 3))
        await pilot.mouse_up(charts, offset=(60, 3))
        assert charts.selected_range is None
        assert app.session.feed.pinned is None
        text = text_of(app)
        assert "live" not in text
        assert not re.search(r"\d\d:\d\d:\d\d", text)


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
