"""The stack of charts in a running app: any size, selection by mouse and keys, and hostile input."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.pilot import Pilot

from gpuprof.snapshots.frames import GpuFacts, Readings, SeriesDef
from gpuprof.snapshots.metrics import METRICS
from gpuprof.tui.series import SeriesStore
from gpuprof.tui.widgets.braille import ASCII
from gpuprof.tui.widgets.chart_stack import ChartStack

SECOND = 10**9


def _demo() -> ModuleType:
    name = "gpuprof_tests_chart_demo"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "chart_demo.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class ChartApp(App[None]):
    """The stack on made-up readings of `seconds`, with the messages that it posts."""

    def __init__(self, gpus: int = 1, cores: int = 8, seconds: int = 70, **options: Any) -> None:
        super().__init__()
        self.node = _demo().Synthetic(gpus, cores)
        self.store = SeriesStore()
        self.options = options
        self.posted: list[Any] = []
        self.more(seconds)

    def more(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.node.step()
        self.node.flush(self.store)

    def compose(self) -> ComposeResult:
        yield ChartStack(**self.options)

    def on_mount(self) -> None:
        self.stack = self.query_one(ChartStack)
        self.stack.set_gpus(self.node.gpus)
        self.stack.set_processes(self.node.names)
        self.stack.set_store(self.store)
        self.stack.set_clock(self.node.now_ns, 1_800_000_000 * SECOND)
        self.stack.focus()

    def on_chart_stack_range_selected(self, event: ChartStack.RangeSelected) -> None:
        self.posted.append(("selected", event.start_ns, event.end_ns))

    def on_chart_stack_range_cleared(self, _event: ChartStack.RangeCleared) -> None:
        self.posted.append("cleared")

    def on_chart_stack_cursor_moved(self, event: ChartStack.CursorMoved) -> None:
        self.posted.append(("cursor", event.start_ns, event.end_ns))

    def on_chart_stack_gpu_chosen(self, event: ChartStack.GpuChosen) -> None:
        self.posted.append(("gpu", event.uuid))


def lines(stack: ChartStack) -> list[str]:
    return [stack.render_line(y).text for y in range(stack.size.height)]


def gutter(stack: ChartStack) -> int:
    surface = stack._painter.surface
    assert surface is not None
    return surface.gutter


async def drag(pilot: Pilot[None], start: tuple[int, int], *stops: tuple[int, int]) -> None:
    """Press at a column and row of the plot, move over the stops, let go at the last."""
    left = gutter(pilot.app.query_one(ChartStack))
    await pilot.mouse_down(ChartStack, offset=(start[0] + left, start[1]))
    for column, row in stops:
        await pilot.hover(ChartStack, offset=(column + left, row))
    await pilot.mouse_up(ChartStack, offset=(stops[-1][0] + left, stops[-1][1]))


class TestSizes:
    @pytest.mark.parametrize(
        "size", [(200, 60), (80, 24), (40, 10), (140, 33), (20, 5), (9, 3), (3, 1), (300, 100)]
    )
    @pytest.mark.parametrize("gpus", [0, 1, 8])
    async def test_every_line_is_exactly_as_wide_as_the_widget(
        self, size: tuple[int, int], gpus: int
    ) -> None:
        app = ChartApp(gpus, cores=16, seconds=20)
        async with app.run_test(size=size):
            assert len(app.stack._lines) == size[1]
            for y, line in enumerate(app.stack._lines):
                assert sum(cell_len(segment.text) for segment in line) == size[0], (y, line)

    async def test_all_eight_charts_and_more_at_200_by_60(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)):
            text = "\n".join(lines(app.stack))
            for title in ("GPU util", "memory", "power", "temp", "PCIe", "activity", "CPU cores", "clocks"):
                assert title in text
            assert "python3 4242" in text
            assert "limit" in text
            assert "slowdown" in text
            assert "live · 1 min" in text

    async def test_80_by_24_has_every_chart(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(80, 24)):
            text = "\n".join(lines(app.stack))
            for title in ("GPU", "mem", "power", "temp", "PCIe", "act", "cores", "clock"):
                assert title in text

    @pytest.mark.parametrize(
        ("environment", "theme"),
        [
            ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "textual-dark"),
            ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "textual-light"),
            ({"TERM": "xterm-256color", "COLORTERM": ""}, "textual-dark"),
            ({"TERM": "xterm", "COLORTERM": ""}, "textual-dark"),
            ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}, "textual-dark"),
            ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "textual-ansi"),
        ],
    )
    async def test_any_colours(
        self, environment: dict[str, str], theme: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        app = ChartApp()
        app.theme = theme if theme in app.available_themes else app.theme
        async with app.run_test(size=(120, 40)) as pilot:
            await drag(pilot, (10, 3), (30, 3))
            strips = app.stack.render_lines(Region(0, 0, 120, 40))
            assert [strip.cell_length for strip in strips] == [120] * 40
            grounds = {segment.style.bgcolor for strip in strips for segment in strip if segment.style}
            assert len(grounds) >= (1 if "NO_COLOR" in environment else 2)
            cropped = app.stack.render_lines(Region(5, 2, 50, 3))
            assert [strip.cell_length for strip in cropped] == [50] * 3

    async def test_more_charts_than_rows_can_be_scrolled_to(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(80, 5)) as pilot:
            assert lines(app.stack)[0].startswith(" GPU")
            await pilot.press("down", "down")
            assert lines(app.stack)[0].startswith(" power")
            await pilot.press(*["down"] * 20)
            assert lines(app.stack)[3].startswith(" CPU")
            await pilot.press(*["up"] * 30)
            assert lines(app.stack)[0].startswith(" GPU")

    async def test_resizing(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(80, 24)) as pilot:
            await drag(pilot, (5, 3), (20, 3))
            for size in ((200, 60), (40, 10), (10, 2), (1, 1), (80, 24)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
                assert len(app.stack._lines) == size[1]
            assert app.stack.selected_range is not None

    async def test_no_readings_yet(self) -> None:
        app = ChartApp(gpus=0, seconds=0)
        async with app.run_test(size=(80, 24)) as pilot:
            assert "waiting for readings" in lines(app.stack)[0]
            await pilot.press(
                "v", "left", "left", "enter", "plus", "minus", "F", "home", "end", "g", "escape"
            )
            await drag(pilot, (5, 3), (20, 3))

    async def test_without_a_gpu_the_host_is_shown(self) -> None:
        app = ChartApp(gpus=0)
        async with app.run_test(size=(120, 30)):
            text = "\n".join(lines(app.stack))
            assert "CPU cores" in text
            assert "process CPU" in text
            assert "host memory" in text
            assert "GPU" not in text.replace("GPUs", "")

    async def test_plain_ascii(self) -> None:
        app = ChartApp(glyphs=ASCII)
        async with app.run_test(size=(100, 30)):
            left = gutter(app.stack)
            for line in lines(app.stack)[:28]:
                assert line[left : left + 50].isascii()


class TestMouse:
    async def test_a_drag_pins_whole_columns(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)) as pilot:
            scale = app.stack.view.scale
            await drag(pilot, (40, 5), (41, 5), (60, 30), (70, 50))  # across charts
            await pilot.pause()
            assert app.posted == [("selected", scale.time(40), scale.time(71))]
            assert app.stack.selected_range == (scale.time(40), scale.time(71))
            below = lines(app.stack)[-1]
            assert re.search(r"├─+┤ selected \d\d:\d\d:\d\d\.\d … \d\d:\d\d:\d\d\.\d \(12\.\d s\)", below)
            assert below.index("├") == 40 + gutter(app.stack)
            assert below.index("┤") == 70 + gutter(app.stack)

    async def test_a_drag_to_the_left_and_out_of_the_plot(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)) as pilot:
            scale = app.stack.view.scale
            await drag(pilot, (40, 5), (20, 5), (-12, 5))
            await pilot.pause()
            assert app.posted == [("selected", scale.time(0), scale.time(41))]

    async def test_the_charts_go_on_behind_a_pinned_range(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)) as pilot:
            await drag(pilot, (40, 5), (60, 5))
            before, pinned = lines(app.stack)[-1].index("├"), app.stack.selected_range
            app.more(4)
            app.stack.now_ns = None
            assert app.stack.selected_range == pinned
            moved = before - lines(app.stack)[-1].index("├")
            assert moved == pytest.approx(4 * SECOND / app.stack.view.scale.cell_ns, abs=1)
            app.more(60)
            app.stack.now_ns = None
            assert "◂ selected" in lines(app.stack)[-1]

    async def test_the_edge_of_a_pinned_range_can_be_moved(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)) as pilot:
            scale = app.stack.view.scale
            await drag(pilot, (40, 5), (60, 5))
            await drag(pilot, (60, 9), (80, 9))
            assert app.stack.selected_range == (scale.time(40), scale.time(81))
            await drag(pilot, (41, 9), (30, 9))
            assert app.stack.selected_range == (scale.time(30), scale.time(81))

    async def test_a_click_shows_the_values_of_its_instant(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)) as pilot:
            left = gutter(app.stack)
            scale = app.stack.view.scale
            await pilot.click(ChartStack, offset=(left + 50, 7))
            await pilot.pause()
            assert app.posted == [("cursor", scale.time(50), scale.time(51))]
            instant = scale.time(50) + scale.cell_ns // 2
            view = app.store.get("util_gpu_percent", "GPU-0")
            held = (view.start_ns <= instant) & (instant < view.end_ns)
            assert lines(app.stack)[0].rstrip().endswith(f"{view.value[held][0]:.0f} %")
            assert "▲" in lines(app.stack)[-1]
            await pilot.click(ChartStack, offset=(left + 50, 7))
            await pilot.pause()
            assert app.posted[-1] == ("cursor", None, None)

    async def test_wheel_and_keys_zoom(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)) as pilot:
            await pilot.press("plus")
            assert app.stack.window_ns == 30 * SECOND
            await pilot.press("minus", "minus")
            assert app.stack.window_ns == 120 * SECOND
            assert app.stack.live

    async def test_beside_the_plot_nothing_is_selected(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)) as pilot:
            await pilot.mouse_down(ChartStack, offset=(3, 5))
            await pilot.hover(ChartStack, offset=(60, 5))
            await pilot.mouse_up(ChartStack, offset=(60, 5))
            assert app.posted == []


class TestKeys:
    async def test_a_range_by_keys(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)) as pilot:
            columns = app.stack.view.columns
            scale = app.stack.view.scale
            await pilot.press("v", "right", "right", "shift+right")
            assert app.stack.view.selecting
            assert "selecting" in lines(app.stack)[-1]
            app.more(3)
            app.stack.now_ns = None
            await pilot.press("enter")
            middle = columns // 2
            assert ("selected", scale.time(middle), scale.time(middle + 13)) in app.posted
            assert app.stack.live

    async def test_escape_goes_back_one_thing_at_a_time(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)) as pilot:
            await drag(pilot, (40, 5), (60, 5))
            pinned = app.stack.selected_range
            await pilot.press("v", "left", "escape")
            assert app.stack.selected_range == pinned
            await pilot.press("escape")
            await pilot.pause()
            assert app.stack.selected_range is None
            assert app.posted[-1] == "cleared"

    async def test_the_other_end(self) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)) as pilot:
            scale = app.stack.view.scale
            await drag(pilot, (40, 5), (60, 5))
            await pilot.press("o", "right", "o", "left", "enter")
            assert app.stack.selected_range == (scale.time(39), scale.time(62))

    async def test_panning_and_back_to_live(self) -> None:
        app = ChartApp(seconds=200)
        async with app.run_test(size=(200, 60)) as pilot:
            await pilot.press("left", "left")
            assert not app.stack.live
            assert "stopped" in lines(app.stack)[-2]
            await pilot.press("home")
            assert app.stack.view.scale.start_ns <= app.store.span[0]
            await pilot.press("end")
            assert app.stack.live
            await pilot.press("F")
            assert app.stack.window_ns == pytest.approx(200 * SECOND, rel=0.01)

    async def test_one_gpu_or_all(self) -> None:
        app = ChartApp(gpus=3)
        async with app.run_test(size=(200, 60)) as pilot:
            assert "GPU 2" in "\n".join(lines(app.stack))
            await pilot.press("g")
            assert app.stack.selected_gpu == "GPU-0"
            text = "\n".join(lines(app.stack))
            assert "GPU 2" not in text
            assert "python3 4242" in lines(app.stack)[1]
            await pilot.press("g", "g", "g", "G")
            await pilot.pause()
            assert app.stack.selected_gpu == "GPU-2"
            assert app.posted[-1] == ("gpu", "GPU-2")
            app.stack.set_gpus(app.node.gpus[:1])
            assert app.stack.selected_gpu is None

    async def test_from_the_program(self) -> None:
        app = ChartApp(seconds=300)
        async with app.run_test(size=(200, 60)) as pilot:
            start = app.store.span[0] + 20 * SECOND
            app.stack.select_range(start, start + 5 * SECOND, show=True)
            await pilot.pause()
            assert app.posted == [("selected", start, start + 5 * SECOND)]
            assert "├" in lines(app.stack)[-1]
            app.stack.clear_range()
            app.stack.live = False
            app.stack.show_all()
            assert app.stack.view.scale.start_ns <= app.store.span[0] + 2 * SECOND
            await pilot.pause()
            assert app.posted[-1] == "cleared"


class TestRepainting:
    async def test_only_lines_that_changed_are_painted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        app = ChartApp()
        async with app.run_test(size=(200, 60)):
            painted: list[Region] = []
            monkeypatch.setattr(app.stack, "refresh", lambda *regions, **_: painted.extend(regions))
            app.stack.now_ns = None
            assert painted == []
            store = app.store
            series = next(number for key, number in app.node.ids.items() if key[0] == "temp_c")
            one = np.array([app.node.now_ns + 1], np.uint64)
            store.add(Readings(np.array([series], np.uint32), one, one, np.array([85.0])))
            app.stack.now_ns = None
            rows = {y for region in painted for y in range(region.y, region.bottom)}
            placed = {item.chart.id: item for item in app.stack._painter.placed}["temp"]
            assert rows
            assert rows <= set(range(placed.top, placed.top + placed.height))

    async def test_drawings_are_paced(self) -> None:
        app = ChartApp(refresh_hz=2.0)
        async with app.run_test(size=(80, 24)) as pilot:
            app.stack.refresh_data()
            drawn = app.stack._drawn_at
            for _ in range(20):
                app.more(0.1)
                app.stack.refresh_data()
                await pilot.pause()
            assert app.stack._drawn_at - drawn < 2


class TestHostile:
    async def test_names_of_processes(self, hostile_names: list[str]) -> None:
        app = ChartApp(gpus=1, seconds=5)
        app.node.names = dict.fromkeys((4242, 4243, 4250), "x")
        async with app.run_test(size=(120, 40)):
            for first in range(0, len(hostile_names), 3):
                names = (hostile_names * 2)[first : first + 3]
                app.stack.set_processes(dict(zip((4242, 4243, 4250), names, strict=True)))
                for line in app.stack._lines:
                    text = "".join(segment.text for segment in line)
                    assert cell_len(text) == 120
                    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
                assert "4242" in "\n".join(lines(app.stack))

    @pytest.mark.parametrize("seed", range(8))
    async def test_series_of_anything(self, seed: int) -> None:
        rng = random.Random(seed)
        metrics = list(METRICS)
        odd = [
            0.0,
            -1.0,
            1e300,
            -1e300,
            5e-324,
            1.7e308,
            float("nan"),
            float("inf"),
            float("-inf"),
            1e18,
            50.0,
        ]
        times = [0, 1, 10**9, 10**12, 2**62 - 1, 2**63, 2**64 - 1]

        class Empty(ChartApp):
            def more(self, seconds: float) -> None:
                return

        app = Empty(gpus=1)
        gpus = [
            GpuFacts("g", 0, "odd", memory_total_bytes=rng.choice([None, 0, 1, 2**70]), temp_slowdown_c=-5.0)
        ]
        async with app.run_test(size=(100, 30)) as pilot:
            app.stack.set_gpus(gpus)
            for number, metric in enumerate(metrics):
                process, core = metric.startswith("proc"), metric.startswith("core")
                app.store.define(
                    SeriesDef(
                        number, metric, None if core else "g", 5 if process else None, 0 if core else None
                    )
                )
            for _ in range(12):
                count = rng.randrange(1, 200)
                base = rng.choice(times)
                start = np.array([(base + rng.randrange(10**10)) % 2**64 for _ in range(count)], np.uint64)
                length = np.array([rng.choice([0, 10**8, 10**12]) for _ in range(count)], np.uint64)
                values = np.array([rng.choice([*odd, rng.random() * 100]) for _ in range(count)])
                ids = np.array([rng.randrange(len(metrics)) for _ in range(count)], np.uint32)
                app.store.add(Readings(ids, start, start + length, values))
                app.stack.now_ns = None
                await pilot.press(
                    rng.choice(["plus", "minus", "left", "v", "right", "enter", "F", "home", "end"])
                )
                for line in app.stack._lines:
                    assert sum(cell_len(segment.text) for segment in line) == 100
