"""Selecting a range of the charts, and moving through time, by mouse and by keys."""

from __future__ import annotations

import re

import pytest
from chart_app import ChartApp, drag, gutter, lines

from gpuprof.tui.widgets.chart_stack import ChartStack

SECOND = 10**9


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
