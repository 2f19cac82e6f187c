"""Which charts there are for which series, and where they stand."""

from __future__ import annotations

import numpy as np
import pytest

from gpuprof.snapshots.frames import GpuFacts, Readings, SeriesDef
from gpuprof.tui.chart_plan import plan_charts
from gpuprof.tui.charts import Chart, Style
from gpuprof.tui.charts_layout import nice_rows, place
from gpuprof.tui.series import Key, SeriesStore

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
