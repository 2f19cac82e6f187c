"""The stack of charts in a running app: any size, what is repainted, and hostile input."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from chart_app import ChartApp, drag, gutter, lines
from rich.cells import cell_len
from textual.geometry import Region

from gpuprof.snapshots.frames import GpuFacts, Readings, SeriesDef
from gpuprof.snapshots.metrics import METRICS
from gpuprof.tui.widgets.braille import ASCII

SECOND = 10**9


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
