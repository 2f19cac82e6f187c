"""GPU time on the screen, by Pilot over a made-up node: the tree of key 2, the strip, who records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pilot_screen import complete, drawn, screen_of, shows, tells, text_of, until

from gpuprof.snapshots.frames import Query
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.screens.main import MainScreen
from gpuprof.tui.transports import HistoryTransport, SocketTransport

START = 10**12
SECOND = 10**9


def node_name(app: GpuprofApp) -> str:
    flame = screen_of(app).flame
    assert flame.rows is not None
    assert flame.node is not None
    return flame.rows.tree.strings[flame.rows.tree.name[flame.node]]


@pytest.fixture
def recorded(fake_node: ModuleType) -> Any:
    """A node with GPU work, 40 s of it, that is over."""
    node = fake_node.FakeNode(2, gpu_work=True)
    node.fill(START, START + 40 * SECOND)
    return node


@pytest.fixture
def recording(recorded: Any) -> GpuprofApp:
    return GpuprofApp(HistoryTransport(recorded.history, "run.gpuprof"))


@pytest.fixture
def live_node(fake_node: ModuleType, listening: Callable[..., Any]) -> Iterator[tuple[Any, GpuprofApp]]:
    node = fake_node.FakeNode(2, gpu_work=True)
    with listening(node) as path:
        yield node, GpuprofApp(SocketTransport(path=path))


async def test_key_2_is_the_tree_of_gpu_time(recording: GpuprofApp, recorded: Any) -> None:
    async with recording.run_test(notifications=True, size=(180, 60)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("2")
        await shows(pilot, "sm90_xmma_gemm_bf16<128, 256>")
        tree = recording.session.tree
        expected = recorded.history.query(Query(1, "gpu", *recorded.history.span))
        assert tree is not None
        assert (tree.tree, tree.unit) == ("gpu", "ns")
        assert tree.total_weight[0] == expected.total_weight[0] > 0
        for words in (
            " GPU 0: busy ", " GPU 1: busy ", "not observed", "of GPU time", "GPU kernels 88 %",
            "copies 12 %", "by libcuda.so.580.159.04 88 %",
        ):  # fmt: skip
            await shows(pilot, words)
        summary = screen_of(recording).query_one("#summary")
        charts, pane = screen_of(recording).charts, screen_of(recording).query_one("#lower")
        await until(pilot, lambda: charts.region.bottom == summary.region.y)
        await until(pilot, lambda: summary.region.bottom == pane.region.y)
        text = text_of(recording)
        row = next(line for line in text.splitlines() if "sm90_xmma" in line)
        assert row.split()[2].replace(".", "").isdigit()
        await pilot.press("1")
        await until(pilot, lambda: drawn(recording, "cpu") and "sm90_xmma" not in text_of(recording))
        await shows(pilot, " samples")


async def test_key_u_lists_kernels_and_who_launched_them(recording: GpuprofApp, recorded: Any) -> None:
    async with recording.run_test(notifications=True, size=(180, 60)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("3", "u")
        await tells(pilot, "CPU samples and GPU time can be read bottom up")
        await pilot.press("2", "u")
        await shows(pilot, "bottom up (u)")
        await until(pilot, lambda: drawn(recording, "gpu") and recording.session.tree.bottom_up)  # type: ignore[union-attr]
        tree, rows = recording.session.tree, screen_of(recording).flame.rows
        assert tree is not None
        assert rows is not None
        first = [node for node in range(1, len(tree.parent)) if tree.parent[node] == 0]
        assert [tree.strings[tree.name[node]] for node in first] == [
            "sm90_xmma_gemm_bf16<128, 256>",
            "memcpy HtoD",
        ]
        assert not rows.expanded[first].any()
        expected = recorded.history.query(Query(1, "gpu", *recorded.history.span))
        assert sum(tree.total_weight[first]) == expected.total_weight[0] == tree.total_weight[0]
        await pilot.press("down")
        await until(pilot, lambda: " self " not in text_of(recording))
        await pilot.press("right")
        await shows(pilot, "main (train.py:88)")
        await pilot.press("1")
        await until(pilot, lambda: drawn(recording, "cpu") and recording.session.tree.bottom_up)  # type: ignore[union-attr]
        await pilot.press("4")
        await until(pilot, lambda: "bottom up (u)" not in text_of(recording))
        await pilot.press("1", "u")
        await until(pilot, lambda: drawn(recording, "cpu") and not recording.session.tree.bottom_up)  # type: ignore[union-attr]


async def test_live_and_pinned(live_node: tuple[Any, GpuprofApp]) -> None:
    node, app = live_node
    async with app.run_test(notifications=True, size=(160, 50)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("2")
        await shows(pilot, "last 30 s, live")
        await shows(pilot, "sm90_xmma_gemm")
        await pilot.press("v", *["left"] * 30, "enter")
        await shows(pilot, "Esc lets go")
        pinned = app.session.feed.pinned
        assert pinned is not None

        def answered() -> bool:
            tree = app.session.tree
            return tree is not None and (tree.start_ns, tree.end_ns) == pinned

        await until(pilot, answered)
        await complete(pilot, app, node)
        expected = node.history.query(Query(1, "gpu", *pinned))
        assert app.session.tree is not None
        assert app.session.tree.total_weight[0] == expected.total_weight[0] > 0
        await pilot.press("1")
        await until(pilot, answered)
        assert app.session.tree.unit == "samples"


async def test_cursor_expansion_and_zoom_are_kept_per_tree(recording: GpuprofApp) -> None:
    async with recording.run_test(notifications=True, size=(160, 50)) as pilot:
        await shows(pilot, "main (train.py:88)")
        flame = screen_of(recording).flame
        await pilot.press(*["down"] * 4, "enter")
        name, cursor = node_name(recording), flame.cursor
        await pilot.press("2")
        await shows(pilot, "sm90_xmma")
        assert flame.cursor == 0
        await pilot.press("end")
        assert node_name(recording) == "memcpy HtoD"
        await pilot.press("left", "left")
        await until(pilot, lambda: "memcpy HtoD" not in text_of(recording))
        in_gpu = node_name(recording)
        await pilot.press("1")
        await until(pilot, lambda: drawn(recording, "cpu"))
        assert (node_name(recording), flame.cursor) == (name, cursor)
        assert flame.rows is not None
        assert flame.rows.root
        await pilot.press("2")
        await until(pilot, lambda: drawn(recording, "gpu"))
        await shows(pilot, "sm90_xmma")
        assert node_name(recording) == in_gpu
        assert "memcpy HtoD" not in text_of(recording)
        assert flame.rows.root == 0


async def test_g_keeps_to_a_device_and_a_core_filter_is_said_not_to_apply(
    recording: GpuprofApp, recorded: Any
) -> None:
    async with recording.run_test(notifications=True, size=(180, 50)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("2")
        await shows(pilot, "sm90_xmma")
        screen = screen_of(recording)
        screen.charts.focus()
        await pilot.press("g", "g")
        await shows(pilot, "GPU 1 only (g)")
        query = Query(1, "gpu", *recorded.history.span, gpus=[recorded.gpus[1].uuid])
        expected = recorded.history.query(query).total_weight[0]
        await until(
            pilot,
            lambda: recording.session.tree is not None and recording.session.tree.total_weight[0] == expected,
        )
        await pilot.press("f", *"pid 4711 cpu 0", "enter")
        await shows(pilot, "cores do not apply to GPU time")
        await shows(pilot, "sm90_xmma")
        await pilot.press("f", *["backspace"] * 20, *"pid 4790", "enter")
        await shows(pilot, "No GPU work in this recording that match the filter pid 4790")
        await shows(pilot, "on GPU 1 (g shows all)")


async def test_the_strip_tells_busy_idle_and_not_observed(recording: GpuprofApp) -> None:
    async with recording.run_test(notifications=True, size=(180, 60)) as pilot:
        await shows(pilot, "GPU work")

        def strips() -> list[str]:
            lines = text_of(recording).splitlines()
            first = next(place for place, line in enumerate(lines) if line.startswith(" GPU work"))
            return lines[first : first + 2]

        await until(pilot, lambda: "╌" in strips()[1] and "·" in strips()[0] and "▆" in "\n".join(strips()))
        await until(pilot, lambda: "╌" not in strips()[0])
        await until(pilot, lambda: "idle" in strips()[0] and "unseen" in strips()[1])
        await pilot.press("tab")
        screen_of(recording).charts.focus()
        await pilot.press("g")
        await shows(pilot, "kernel")


async def test_the_process_table_says_who_records(recording: GpuprofApp) -> None:
    async with recording.run_test(notifications=True, size=(180, 50)) as pilot:
        await shows(pilot, "REC")

        def rows() -> list[str]:
            return [line for line in text_of(recording).splitlines() if " 4711 " in line and "GiB" in line]

        await until(pilot, lambda: bool(rows()) and "●" in rows()[0])


async def test_a_recording_without_gpu_work_says_so(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(1)
    node.fill(START, START + 5 * SECOND)
    app = GpuprofApp(HistoryTransport(node.history, "cpu.gpuprof"))
    async with app.run_test(notifications=True, size=(80, 24)) as pilot:
        await shows(pilot, "main (train.py")
        await pilot.press("2")
        await shows(pilot, "This recording holds no work of a GPU.")
        await shows(pilot, "gpuprof-tui record -o run.gpuprof -- python train.py")
        await shows(pilot, "gpuprof-tui run -- python train.py")
        await pilot.press("x", "x", "t", "e", "c", "t", "i", "i", "1")
        await shows(pilot, "main (train.py")


async def test_a_failed_source_says_why(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(1)
    node.fill(START, START + 5 * SECOND)
    app = GpuprofApp(HistoryTransport(node.history, "x.gpuprof"))
    async with app.run_test(notifications=True, size=(140, 40)) as pilot:
        await shows(pilot, "main (train.py")
        model = app.session.model
        model.live = True
        assert model.status is not None
        failed = replace(
            fake_node.GPU_OFF, state="failed", reason="the ring \x1b[31mlies", hint="report [bold]it"
        )
        model.status = replace(model.status, sources=[failed])
        await pilot.press("2")
        await shows(pilot, "report [bold]it")
        assert "\x1b" not in text_of(app)


async def test_a_snapshot_counts_the_gpu_work(
    recording: GpuprofApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuprof.snapshots.file import read_snapshot

    monkeypatch.chdir(tmp_path)
    async with recording.run_test(notifications=True, size=(160, 40)) as pilot:
        await shows(pilot, "main (train.py:88)")
        said: list[str] = []
        monkeypatch.setattr(recording, "tell", lambda message, *_: said.append(message))
        await pilot.press("w")
        await until(pilot, lambda: any(message.startswith("Saved ") for message in said))
    (path,) = tmp_path.glob("*.gpuprof")
    blocks = read_snapshot(str(path)).history.gpu_work_between(0, 1 << 60)
    count = sum(len(rows.columns["start_ns"]) for _, rows in blocks)
    assert f" {count:,} pieces of GPU work, " in said[-1]
    assert count > 0


async def test_every_size_of_the_gpu_tree_is_drawn_whole(recording: GpuprofApp) -> None:
    async with recording.run_test(notifications=True, size=(80, 24)) as pilot:
        await pilot.press("2")
        await shows(pilot, "train.py")
        for size in ((80, 24), (100, 30), (300, 90), (60, 16), (40, 10), (20, 5)):
            await pilot.resize_terminal(*size)
            screen = screen_of(recording)

            def is_drawn_whole(screen: MainScreen = screen, size: tuple[int, int] = size) -> bool:
                lines = screen._compositor.render_strips()
                widths = {line.cell_length for line in lines}
                roomy = screen.flame.size.height >= 3
                return len(lines) == size[1] and widths == {size[0]} and (roomy or size[1] < 16)

            await until(pilot, is_drawn_whole)
            await pilot.pause(0.2)
            assert is_drawn_whole()
