"""Which charts there are for which series, where they stand, and the mapping of time to columns and back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from rich.color import Color, ColorSystem

from gpuprof.snapshots.frames import GpuFacts, Readings, SeriesDef
from gpuprof.tui.charts_layout import Chart, Style, nice_rows, place, plan_charts
from gpuprof.tui.palette import ANSI16, DARK, LIGHT, binary_color, choose
from gpuprof.tui.series import Key, SeriesStore
from gpuprof.tui.timescale import TimeScale, duration_text, wall_text, zoomed
from gpuprof.tui.units import nice_ceiling, number, prefixed, with_unit
from gpuprof.tui.widgets.viewport import Viewport

SECOND = 10**9
A = GpuFacts("GPU-a", 0, "NVIDIA H200", memory_total_bytes=141 << 30, temp_slowdown_c=89.0)
B = GpuFacts("GPU-b", 1, "NVIDIA H200", memory_total_bytes=141 << 30, temp_slowdown_c=89.0)


def store_of(series: dict[Key, float]) -> SeriesStore:
    store = SeriesStore()
    for series_id, (key, value) in enumerate(series.items()):
        store.define(SeriesDef(series_id, *key))
        store.add(
            Readings(
                np.full(20, series_id, np.uint32),
                np.arange(20, dtype=np.uint64) * SECOND,
                np.arange(20, dtype=np.uint64) * SECOND,
                np.full(20, value),
            )
        )
    return store


def gpu(metric: str, uuid: str = "GPU-a") -> Key:
    return (metric, uuid, None, None)


def charts(store: SeriesStore, gpus: list[GpuFacts], **options: object) -> dict[str, Chart]:
    planned = plan_charts(store, gpus, **{"selected": None, "names": {}, **options})  # type: ignore[arg-type]
    return {chart.id: chart for chart in planned}


class TestWhichCharts:
    def test_no_series_no_charts(self) -> None:
        assert charts(SeriesStore(), [A]) == {}

    def test_an_unsupported_metric_has_no_chart(self) -> None:
        store = store_of({gpu("util_gpu_percent"): 5.0, gpu("temp_c"): 40.0})
        assert list(charts(store, [A])) == ["util", "temp"]

    def test_work_of_a_device_is_a_strip_where_some_was_recorded(self) -> None:
        store = store_of({gpu("gpu_observed"): 1.0, gpu("gpu_kernel_busy_percent", "GPU-b"): 50.0})
        (chart,) = charts(store, [A, B]).values()
        assert (chart.id, chart.style) == ("work", Style.WORK)
        assert {line.key[1] for line in chart.lines} == {"GPU-b"}
        assert [placed.height for placed in place([chart], 12)] == [2]
        assert charts(store_of({gpu("gpu_observed"): 1.0}), [A]) == {}

    def test_one_gpu_has_its_processes(self) -> None:
        store = store_of(
            {
                gpu("util_gpu_percent"): 90.0,
                ("proc_sm_percent", "GPU-a", 7, None): 10.0,
                ("proc_sm_percent", "GPU-a", 8, None): 70.0,
            }
        )
        lines = charts(store, [A], names={8: "train"})["util"].lines
        assert [(line.label, line.pid) for line in lines] == [("GPU 0", None), ("train", 8), ("pid", 7)]
        assert len({line.color for line in lines}) == 3

    def test_colors_of_processes_stay_when_the_ranking_changes(self) -> None:
        keys = {("proc_sm_percent", "GPU-a", pid, None): float(pid) for pid in (1, 2, 3)}
        turned = {key: 100.0 - value for key, value in keys.items()}
        first, second = (
            {line.pid: line.color for line in charts(store_of(series), [A])["util"].lines}
            for series in (keys, turned)
        )
        assert first == second

    def test_several_gpus_are_lines_of_one_chart_until_one_is_chosen(self) -> None:
        store = store_of(
            {gpu("power_w", "GPU-a"): 1.0, gpu("power_w", "GPU-b"): 2.0, gpu("power_limit_w", "GPU-a"): 700.0}
        )
        both = charts(store, [A, B])["power"]
        assert [line.label for line in both.lines] == ["GPU 0", "GPU 1"]
        assert [line.key[1] for line in charts(store, [A, B], selected="GPU-b")["power"].lines] == ["GPU-b"]

    def test_limits_are_those_of_the_device(self) -> None:
        store = store_of(
            {gpu("power_w"): 300.0, gpu("power_limit_w"): 650.0, gpu("temp_c"): 60.0, gpu("temp_c", "x"): 1.0}
        )
        planned = charts(store, [A])
        assert [limit.key for limit in planned["power"].limits] == [gpu("power_limit_w")]
        assert [limit.value for limit in planned["temp"].limits] == [89.0]
        assert charts(store, [GpuFacts("GPU-a", 0, "old")])["temp"].limits == ()

    def test_pcie_received_points_down(self) -> None:
        store = store_of({gpu("pcie_tx_bytes_per_s"): 1e6, gpu("pcie_rx_bytes_per_s"): 2e6})
        chart = charts(store, [A])["pcie"]
        assert chart.style is Style.SIGNED
        assert [line.sign for line in chart.lines] == [1, -1]

    def test_without_a_gpu_the_host_is_shown(self) -> None:
        store = store_of(
            {
                ("core_busy_ns", None, None, 1): 0.0,
                ("core_busy_ns", None, None, 0): 0.0,
                ("proc_cpu_ns", None, 12, None): 0.0,
                ("mem_available_bytes", None, None, None): 8e9,
            }
        )
        planned = charts(store, [])
        assert list(planned) == ["cores", "proc_cpu", "host_memory"]
        assert [line.key[3] for line in planned["cores"].lines] == [0, 1]

    def test_processes_that_are_long_gone_have_no_line(self) -> None:
        store = store_of({("proc_cpu_ns", None, 12, None): 5.0})
        assert charts(store, [], since_ns=100 * SECOND) == {}


class TestPlaces:
    @pytest.mark.parametrize("height", range(60))
    @pytest.mark.parametrize("cores", [1, 8, 128])
    def test_charts_fill_the_height_and_do_not_overlap(self, height: int, cores: int) -> None:
        keys = [("core_busy_ns", None, None, core) for core in range(cores)]
        store = store_of(
            {gpu("util_gpu_percent"): 1.0, gpu("power_w"): 1.0, gpu("temp_c"): 30.0}
            | dict.fromkeys(keys, 0.0)
        )
        planned = list(charts(store, [A]).values())
        placed = place(planned, height)
        assert sum(item.height for item in placed) == (height if height > 1 else min(height, len(planned)))
        assert len(placed) == min(height, len(planned))
        row = 0
        for item in placed:
            assert item.top == row
            assert item.height >= 1
            row += item.height
            if item.chart.style is Style.STRIP:
                assert item.height <= cores

    def test_scrolled(self) -> None:
        planned = [Chart(str(n), "t", "t", "%") for n in range(9)]
        assert [item.chart.id for item in place(planned, 4, 3)] == ["3", "4", "5", "6"]

    def test_rows_of_a_strip_stand_for_equally_many_cores(self) -> None:
        assert nice_rows(8, 7, 20) == 8
        assert nice_rows(128, 9, 20) == 8
        assert nice_rows(4, 1, 20) == 1
        assert nice_rows(13, 5, 20) == 5


class TestTimeScale:
    @pytest.mark.parametrize("window_s", [0.001, 1, 7, 60, 3600])
    @pytest.mark.parametrize("columns", [1, 17, 148])
    def test_columns_and_times_are_inverse(self, window_s: float, columns: int) -> None:
        scale = TimeScale.ending_at(123_456_789_012_345, int(window_s * SECOND), columns)
        for column in range(columns):
            start = scale.time(column)
            assert scale.column(start) == scale.column(start + scale.cell_ns - 1) == column
        assert 0 <= scale.column(123_456_789_012_344) < columns

    def test_scrolling_moves_whole_columns(self) -> None:
        now, window, columns = 5_000 * SECOND, 60 * SECOND, 100
        before = TimeScale.ending_at(now, window, columns)
        for later in range(0, 10 * SECOND, SECOND // 7):
            after = TimeScale.ending_at(now + later, window, columns)
            instant = now - 3 * SECOND
            assert before.column(instant) - after.column(instant) == after.first - before.first

    def test_columns_of_a_range(self) -> None:
        scale = TimeScale(100, 10, 20)
        assert scale.columns_of(1000, 1010) == (0, 1)
        assert scale.columns_of(1009, 1011) == (0, 2)
        assert scale.columns_of(0, 1000) == (0, 0)
        assert scale.columns_of(1200, 1300) == (20, 20)
        assert scale.columns_of(0, 9999) == (0, 20)

    def test_ticks_are_round_and_apart(self) -> None:
        for window_s in (1, 10, 60, 600, 7200):
            scale = TimeScale.ending_at(777_777 * SECOND, window_s * SECOND, 148)
            ticks = scale.ticks(0)
            assert 2 <= len(ticks) <= 11
            assert all(later - tick >= 13 for (tick, _), (later, _) in pairwise(ticks))

    def test_texts(self) -> None:
        assert duration_text(3_700_000_000) == "3.7 s"
        assert duration_text(2 * SECOND) == "2 s"
        assert duration_text(250_000_000) == "250 ms"
        assert duration_text(125 * SECOND) == "2 min 5 s"
        assert duration_text(3780 * SECOND) == "1 h 3 min"
        assert wall_text(11 * SECOND + 250_000_000, 10**8).endswith(":11.2")
        assert wall_text(2**63) != ""

    def test_zoom_steps_and_ends(self) -> None:
        assert zoomed(60 * SECOND, 1) == 120 * SECOND
        assert zoomed(60 * SECOND, -1) == 30 * SECOND
        assert zoomed(61 * SECOND, -1) == 60 * SECOND
        assert zoomed(86400 * SECOND, 1) == 86400 * SECOND


class TestViewport:
    def view(self) -> Viewport:
        view = Viewport()
        view.columns, view.oldest_ns, view.newest_ns = 120, 1000 * SECOND, 2000 * SECOND
        return view

    @pytest.mark.parametrize("column", [0, 30, 119])
    def test_zoom_keeps_the_instant_under_the_pointer(self, column: int) -> None:
        view = self.view()
        view.stand(1500 * SECOND)
        scale = view.scale
        instant = scale.time(column) + scale.cell_ns // 2
        view.zoom(-1, column)
        assert view.scale.column(instant) == column
        for steps in (
            -1,
            1,
            -1,
        ):  # the pointer means the middle of its column, so that half a column may be lost
            view.zoom(steps, column)
            assert abs(view.scale.column(instant) - column) <= 1

    def test_a_range_is_where_it_was_after_zooming(self) -> None:
        view = self.view()
        view.begin(20, 40)
        pinned = view.pin()
        assert pinned is not None
        for steps in (2, -4, 1):
            view.zoom(steps, 30)
        assert view.range == pinned
        assert view.scale.cell_ns * 21 != pinned[1] - pinned[0]

    def test_a_range_may_be_dragged_to_the_left(self) -> None:
        view = self.view()
        scale = view.scale
        view.begin(50, 10)
        assert view.range == (scale.time(10), scale.time(51))

    def test_the_window_stands_while_selecting_and_follows_afterwards(self) -> None:
        view = self.view()
        view.begin(50)
        before = view.scale
        view.newest_ns += 5 * SECOND
        assert view.scale == before
        view.pin()
        assert view.scale.end_ns >= view.newest_ns
        assert view.live

    def test_panning_left_stops_and_right_resumes(self) -> None:
        view = self.view()
        view.pan(-10)
        assert not view.live
        view.pan(5)
        assert not view.live
        view.pan(20)
        assert view.live

    def test_the_cursor_drags_the_window_along(self) -> None:
        view = self.view()
        view.begin(2)
        view.put_cursor(2)
        view.move_cursor(-10)
        assert view.cursor_column == 0
        assert view.range is not None
        assert view.range[1] - view.range[0] == 11 * view.scale.cell_ns

    def test_nothing_is_known_yet(self) -> None:
        view = Viewport()
        view.fit()
        view.pan(-5)
        view.zoom(-3, 0)
        view.move_cursor(-7)
        view.begin(0)
        view.pin()
        assert view.scale.columns == 1


class TestNumbers:
    def test_values(self) -> None:
        assert with_unit(71.7, "%") == "72 %"
        assert with_unit(0.42, "%") == "0.4 %"
        assert with_unit(None, "W") == "–"
        assert with_unit(1.24e9, "B/s") == "1.24 GB/s"
        assert with_unit(38.24, "GiB") == "38.2 GiB"
        assert prefixed(999_999) == "1M"
        assert number(0.0) == "0"
        for value in (1e300, -1e300, 1e-300, float("inf"), float("nan"), 123456789.0):
            for unit in ("%", "B/s", "GiB", ""):
                assert len(with_unit(value, unit)) <= 14

    def test_nice_ceilings(self) -> None:
        assert nice_ceiling(714) == 800
        assert nice_ceiling(100) == 100
        assert nice_ceiling(0) == 1
        assert nice_ceiling(1.7e308) >= 1.7e308
        assert nice_ceiling(5e-324) > 0


class TestPalette:
    def test_binaries_keep_their_colour(self) -> None:
        # CRC-32, not hash(): the same in every process.
        assert binary_color("libfoo.so") == binary_color("libfoo.so")
        assert binary_color("libtorch_cpu.so.2") == binary_color("libtorch_cuda.so")
        assert binary_color("[kernel]") == DARK.kernel
        assert binary_color("") == DARK.unknown
        assert len({binary_color(f"lib{n}.so") for n in range(200)}) > 8

    @pytest.mark.parametrize("palette", [DARK, LIGHT])
    def test_256_colours_keep_lines_and_backgrounds_apart(self, palette) -> None:
        def reduced(color: str) -> int | None:
            return Color.parse(color).downgrade(ColorSystem.EIGHT_BIT).number

        assert len({reduced(color) for color in palette.lines}) == len(palette.lines)
        assert len({reduced(palette.background), reduced(palette.selection), reduced(palette.cursor)}) == 3

    def test_sixteen_colours(self) -> None:
        assert choose(color_system="standard") is ANSI16
        assert len(set(ANSI16.lines)) == len(ANSI16.lines)
        for color in (*ANSI16.lines, *ANSI16.heat, ANSI16.selection):
            assert Color.parse(color).number < 16
        assert ANSI16.tinted("default", 0) == "default"

    @pytest.mark.parametrize("palette", [DARK, LIGHT])
    def test_text_and_lines_can_be_read(self, palette) -> None:
        def luminance(color: str) -> float:
            parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
            linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

        def contrast(a: str, b: str) -> float:  # WCAG 2, section 1.4.3
            light, dark = sorted((luminance(a), luminance(b)), reverse=True)
            return (light + 0.05) / (dark + 0.05)

        assert contrast(palette.text, palette.background) >= 7
        for color in (*palette.lines, palette.dim, palette.limit):
            assert contrast(color, palette.background) >= 3
