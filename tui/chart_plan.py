"""Which charts there are, from the series that exist.

A metric without readings has no line, and a chart without lines does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuprof.snapshots.frames import GpuFacts
from gpuprof.snapshots.names import clean
from gpuprof.tui.charts import WORK_METRICS, Chart, Limit, Line, Style
from gpuprof.tui.series import SeriesStore
from gpuprof.tui.units import nice_ceiling

GIB = 1 / 2**30
# ns of CPU time per second of wall time -> percent of one core
CPU_PERCENT = 100 / 1e9

MAX_PROCESS_LINES = 6


@dataclass(frozen=True, slots=True)
class Focus:
    """What the charts are about.

    The devices (one, or all of them), the processes, each with its colour, and the names of work rates.
    """

    gpus: tuple[GpuFacts, ...]
    all_gpus: bool
    names: Mapping[int, str]
    colors: Mapping[int, int]
    rates: Mapping[int, str]

    def process_label(self, pid: int) -> str:
        return clean(self.names.get(pid) or "pid", 64)


def process_colors(store: SeriesStore, line_count: int) -> dict[int, int]:
    """A colour number for each pid, by order of appearance, so that it stays while the ranking moves.

    Number 0 is the node's.
    """
    colors: dict[int, int] = {}
    for metric in ("proc_sm_percent", "proc_gpu_mem_bytes", "proc_cpu_ns"):
        for _, _, pid, _ in store.subjects(metric):
            if pid is not None and pid not in colors:
                colors[pid] = 1 + len(colors) % max(line_count - 1, 1)
    return colors


def plan_charts(
    store: SeriesStore,
    gpus: Sequence[GpuFacts],
    *,
    selected: str | None,
    names: Mapping[int, str],
    since_ns: int = 0,
    line_count: int = 10,
    rates: Mapping[int, str] | None = None,
) -> list[Chart]:
    """The charts that the series give, most important first.

    `selected`: UUID of the device to show, None for all. `since_ns`: processes without readings after it are
    left out. `rates`: names of what is counted, by the number of the series of `work_rate_hz`.
    """
    shown = [gpu for gpu in gpus if selected is None or gpu.uuid == selected] or list(gpus)
    focus = Focus(
        gpus=tuple(shown),
        all_gpus=len(shown) > 1,
        names=names,
        colors=process_colors(store, line_count),
        rates=rates or {},
    )
    charts = [
        _utilization(store, focus, since_ns),
        _memory(store, focus, since_ns),
        _power(store, focus),
        _temperature(store, focus),
        _pcie(store, focus),
        _work(store, focus),
        *_work_rates(store, focus),
        _kernel_rate(store, focus),
        _activity(store, focus),
        _cores(store),
        _clocks(store, focus),
        _process_cpu(store, focus, since_ns),
        None if gpus else _host_memory(store),
    ]
    return [chart for chart in charts if chart is not None]


# ------------------------------------------------------------------------------------------------- the charts


def _gpu_lines(
    store: SeriesStore,
    focus: Focus,
    metric: str,
    unit: str,
    *,
    scale: float = 1.0,
    fill: bool = False,
    label: str = "",
) -> list[Line]:
    """A line per device in focus that has the metric; the label is the device where there are several."""
    present = {key[1] for key in store.subjects(metric)}
    lines = []
    for number, gpu in enumerate(focus.gpus):
        if gpu.uuid in present:
            name = f"GPU {gpu.index}" if focus.all_gpus or not label else label
            color = number if focus.all_gpus else 0
            lines.append(
                Line(
                    (metric, gpu.uuid, None, None), name, color, unit, scale, fill=fill and not focus.all_gpus
                )
            )
    return lines


def _process_lines(
    store: SeriesStore,
    focus: Focus,
    metric: str,
    unit: str,
    since_ns: int,
    *,
    scale: float,
    counter: bool = False,
) -> list[Line]:
    """A line per process, those with the largest readings in sight first; on all devices together, none."""
    uuids = {gpu.uuid for gpu in focus.gpus}
    ranked = []
    for key in store.subjects(metric):
        _, gpu, pid, _ = key
        if pid is None or (gpu is not None and gpu not in uuids):
            continue
        view = store.view(key).since(since_ns, before=0)
        if len(view):
            weight = float(view.value[-1] - view.value[0]) if counter else float(view.value.mean())
            ranked.append((-weight, pid, key))
    ranked.sort(key=lambda item: item[:2])
    return [
        Line(key, focus.process_label(pid), focus.colors.get(pid, 1), unit, scale, counter=counter, pid=pid)
        for _, pid, key in ranked[:MAX_PROCESS_LINES]
    ]


def _utilization(store: SeriesStore, focus: Focus, since_ns: int) -> Chart | None:
    lines = _gpu_lines(store, focus, "util_gpu_percent", "%", fill=True)
    if not focus.all_gpus:
        lines += _process_lines(store, focus, "proc_sm_percent", "%", since_ns, scale=1.0)
    return Chart("util", "GPU util", "GPU", "%", tuple(lines), high=100.0, weight=2.0) if lines else None


def _memory(store: SeriesStore, focus: Focus, since_ns: int) -> Chart | None:
    lines = _gpu_lines(store, focus, "mem_used_bytes", "GiB", scale=GIB, fill=True, label="used")
    totals = [gpu.memory_total_bytes for gpu in focus.gpus if gpu.memory_total_bytes]
    high = max(totals) * GIB if totals else None
    if not focus.all_gpus:
        for line in _gpu_lines(store, focus, "util_mem_percent", "%", label="mem util"):
            if high is not None:
                # 100 % is drawn at the top of the chart, where all of the memory is.
                lines.append(Line(line.key, line.label, 4, "%", plot_scale=high / 100))
        lines += _process_lines(store, focus, "proc_gpu_mem_bytes", "GiB", since_ns, scale=GIB)
    if not lines:
        return None
    return Chart("memory", "memory", "mem", "GiB", tuple(lines), high=high, weight=1.5)


def _power(store: SeriesStore, focus: Focus) -> Chart | None:
    lines = _gpu_lines(store, focus, "power_w", "W", fill=True, label="power")
    if not lines:
        return None
    limits: list[Limit] = []
    top = 0.0
    for line in _gpu_lines(store, focus, "power_limit_w", "W"):
        view = store.view(line.key)
        value = float(view.value[-1])
        top = max(top, value)
        if value not in [limit.value for limit in limits]:
            limits.append(Limit("limit", "W", line.key, value))
    return Chart(
        "power", "power", "power", "W", tuple(lines), tuple(limits[:4]), least_high=top * 1.03, weight=1.3
    )


def _temperature(store: SeriesStore, focus: Focus) -> Chart | None:
    lines = _gpu_lines(store, focus, "temp_c", "°C", fill=True, label="temp")
    if not lines:
        return None
    thresholds = sorted({gpu.temp_slowdown_c for gpu in focus.gpus if gpu.temp_slowdown_c is not None})
    limits = tuple(Limit("slowdown", "°C", value=value) for value in thresholds[:4])
    low = 20.0 if all(float(store.view(line.key).value.min()) >= 20 for line in lines) else 0.0
    top = thresholds[-1] + 4 if thresholds else 0.0
    return Chart("temp", "temp", "temp", "°C", tuple(lines), limits, low=low, least_high=top)


def _pcie(store: SeriesStore, focus: Focus) -> Chart | None:
    sent = _gpu_lines(store, focus, "pcie_tx_bytes_per_s", "B/s", fill=True, label="↑ sent")
    received = _gpu_lines(store, focus, "pcie_rx_bytes_per_s", "B/s", fill=True, label="↓ received")
    lines = []
    for line in sent:
        label = f"{line.label} ↑" if focus.all_gpus else line.label
        lines.append(Line(line.key, label, line.color, "B/s", fill=line.fill))
    for line in received:
        label = f"{line.label} ↓" if focus.all_gpus else line.label
        color = line.color if focus.all_gpus else 2
        lines.append(Line(line.key, label, color, "B/s", sign=-1, fill=line.fill))
    if not lines:
        return None
    return Chart(
        "pcie", "PCIe", "PCIe", "B/s", tuple(lines), style=Style.SIGNED, low=None, least_high=1e6, weight=1.2
    )


def _activity(store: SeriesStore, focus: Focus) -> Chart | None:
    lines = _gpu_lines(store, focus, "sm_active_percent", "%", fill=True, label="SM")
    if not focus.all_gpus:
        for color, (metric, label) in enumerate(
            (("tensor_active_percent", "tensor"), ("dram_active_percent", "DRAM")), start=1
        ):
            lines += [
                Line(line.key, label, color, "%")
                for line in _gpu_lines(store, focus, metric, "%", label=label)
            ]
    if not lines:
        return None
    title = "SM active" if focus.all_gpus else "activity"
    return Chart("activity", title, "act", "%", tuple(lines), high=100.0, weight=1.2)


def _work(store: SeriesStore, focus: Focus) -> Chart | None:
    """What was recorded of the work of each device; all metrics of a device stand together."""
    recorded = {key[1] for metric in WORK_METRICS[:2] for key in store.subjects(metric)}
    lines = tuple(
        Line((metric, gpu.uuid, None, None), f"GPU {gpu.index}", number, "%")
        for number, gpu in enumerate(focus.gpus)
        if gpu.uuid in recorded
        for metric in WORK_METRICS
    )
    return Chart("work", "GPU work", "work", "", lines, style=Style.WORK, weight=1.0) if lines else None


def _work_rates(store: SeriesStore, focus: Focus) -> list[Chart]:
    """A chart for each kernel, function or range that is counted."""
    keys = [key for key in store.subjects("work_rate_hz") if key[3] in focus.rates]
    return [
        Chart(
            f"rate {key[3]}", "work rate", "rate", "/s",
            (Line(key, clean(focus.rates[key[3] or 0], 200), 5, "/s", fill=True),),
        )
        for key in sorted(keys, key=lambda key: key[3] or 0)
    ]  # fmt: skip


def _kernel_rate(store: SeriesStore, focus: Focus) -> Chart | None:
    lines = _gpu_lines(store, focus, "kernel_rate_hz", "/s", fill=True, label="all kernels")
    return Chart("kernels", "kernels", "kern", "/s", tuple(lines), weight=0.8) if lines else None


def _cores(store: SeriesStore) -> Chart | None:
    keys = sorted(store.subjects("core_busy_ns"), key=lambda key: key[3] or 0)
    lines = tuple(
        Line(key, f"core {key[3]}", 0, "%", CPU_PERCENT, counter=True) for key in keys if key[3] is not None
    )
    if not lines:
        return None
    return Chart("cores", "CPU cores", "cores", "%", lines, style=Style.STRIP, high=100.0, weight=1.5)


def _clocks(store: SeriesStore, focus: Focus) -> Chart | None:
    lines = _gpu_lines(store, focus, "clock_sm_mhz", "MHz", label="SM")
    maxima = [gpu.clock_sm_max_mhz for gpu in focus.gpus]
    if not focus.all_gpus:
        memory = _gpu_lines(store, focus, "clock_mem_mhz", "MHz", label="memory")
        lines += [Line(line.key, line.label, 3, "MHz") for line in memory]
        maxima += [gpu.clock_mem_max_mhz for gpu in focus.gpus] if memory else []
    if not lines:
        return None
    top = max((value for value in maxima if value is not None), default=0.0)
    title = "SM clock" if focus.all_gpus else "clocks"
    return Chart("clocks", title, "clock", "MHz", tuple(lines), least_high=top)


def _process_cpu(store: SeriesStore, focus: Focus, since_ns: int) -> Chart | None:
    lines = _process_lines(store, focus, "proc_cpu_ns", "%", since_ns, scale=CPU_PERCENT, counter=True)
    if not lines:
        return None
    return Chart("proc_cpu", "process CPU", "CPU", "%", tuple(lines), least_high=100.0, weight=1.3)


def _host_memory(store: SeriesStore) -> Chart | None:
    keys = store.subjects("mem_available_bytes")
    if not keys:
        return None
    line = Line(keys[0], "available", 0, "GiB", GIB, fill=True)
    top = nice_ceiling(float(store.view(keys[0]).value.max()) * GIB)
    return Chart("host_memory", "host memory", "mem", "GiB", (line,), least_high=top)
