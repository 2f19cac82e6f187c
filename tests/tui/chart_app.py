"""An app of nothing but the charts, over made-up readings, that keeps the messages which they post."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from textual.app import App, ComposeResult
from textual.pilot import Pilot

from gpuprof.tui.series import SeriesStore
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
