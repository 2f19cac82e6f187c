"""The GPU part of a text report: a line of figures for each device, and a small chart of its utilization by
plotext.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.frames import GpuFacts
from gpuprof.snapshots.history import History
from gpuprof.snapshots.names import clean

_CHART_ROWS = 9
_MAX_CHARTS = 8
_MAX_COLUMNS = 160
_ESCAPES = re.compile("\x1b\\[[0-9;]*m")


def gpu_lines(history: History, start_ns: int, end_ns: int) -> list[str]:
    """Return a line for each device with what was read of it in the range."""
    lines: list[str] = []
    gpus = history.gpus
    if gpus is None:
        return lines
    readings = _Readings(history, start_ns, end_ns)
    for gpu in gpus.gpus:
        parts = [f"GPU {gpu.index}     {clean(gpu.name)}"]
        util = readings.of("util_gpu_percent", gpu)
        memory = readings.of("mem_used_bytes", gpu)
        power = readings.of("power_w", gpu)
        temp = readings.of("temp_c", gpu)
        if len(util[2]):
            parts.append(f"utilization {_mean(util):.0f} %")
        if len(memory[2]):
            of_total = f" of {gpu.memory_total_bytes / 2**30:.0f}" if gpu.memory_total_bytes else ""
            parts.append(f"memory up to {memory[2].max() / 2**30:.1f}{of_total} GiB")
        if len(power[2]):
            parts.append(f"power {_mean(power):.0f} W")
        if len(temp[2]):
            parts.append(f"up to {temp[2].max():.0f} °C")
        if gpu.uuid in gpus.lost:
            parts.append("lost")
        lines.append(", ".join(parts))
    return lines


def gpu_charts(history: History, start_ns: int, end_ns: int, columns: int) -> list[str]:
    """Return the lines of a utilization chart per device that has such readings in the range; [] when none
    has.
    """
    if history.gpus is None:
        return []
    readings = _Readings(history, start_ns, end_ns)
    origin = history.span[0]
    lines: list[str] = []
    for gpu in history.gpus.gpus[:_MAX_CHARTS]:
        start, end, value = readings.of("util_gpu_percent", gpu)
        if len(value) > 1:
            seconds = ((start.astype(np.float64) + end.astype(np.float64)) / 2 - origin) / 1e9
            lines += [
                "",
                *_chart(f"GPU {gpu.index} utilization %", seconds, value, min(columns, _MAX_COLUMNS)),
            ]
    if len(history.gpus.gpus) > _MAX_CHARTS and lines:
        lines += ["", f"({len(history.gpus.gpus) - _MAX_CHARTS} more GPUs are not drawn)"]
    return lines


class _Readings:
    """The readings of a range, by metric and device; what is not a finite number is left out."""

    def __init__(self, history: History, start_ns: int, end_ns: int) -> None:
        self._defs, columns = history.readings_between(start_ns, end_ns)
        good = np.isfinite(columns["value"])
        self._columns = {name: column[good] for name, column in columns.items()}

    def of(self, metric: str, gpu: GpuFacts) -> tuple[Array, Array, Array]:
        """Return start, end (ns) and value of one series, in the order of time."""
        ids = [
            number
            for number, series in self._defs.items()
            if (series.metric, series.gpu) == (metric, gpu.uuid)
        ]
        mine = np.flatnonzero(np.isin(self._columns["series"], np.array(ids, np.uint32)))
        mine = mine[np.argsort(self._columns["end_ns"][mine], kind="stable")]
        return self._columns["start_ns"][mine], self._columns["end_ns"][mine], self._columns["value"][mine]


def _mean(readings: tuple[Array, Array, Array]) -> float:
    """Return the mean of readings, weighted by the length of their windows where they have any."""
    start, end, value = readings
    lengths = (end - start).astype(np.float64)
    return float(np.average(value, weights=lengths)) if lengths.any() else float(value.mean())


def _chart(title: str, seconds: Array, value: Array, columns: int) -> list[str]:
    """Return a chart of 0 to 100 over seconds as plain lines."""
    import plotext  # takes longer to import than the rest of a report

    figure: Any = plotext.figure
    figure.clear()
    figure.plot_size(columns, _CHART_ROWS)
    figure.title(title)
    seconds, value = _thinned(seconds, value, 2 * columns)
    figure.draw(figure.signal(seconds.tolist(), value.tolist(), marker="braille").lines())
    ruler = figure.ruler("y", "left")
    ruler.lim(0, 100)
    ruler.ticks([0, 50, 100])
    drawn = _ESCAPES.sub("", str(figure.build()))
    figure.clear()
    return [line.rstrip() for line in drawn.split("\n") if line.strip()]


def _thinned(seconds: Array, value: Array, points: int) -> tuple[Array, Array]:
    """Return at most `points` points: the mean of each equal slice of time that has readings."""
    if len(seconds) <= points or seconds[-1] <= seconds[0]:
        return seconds, value
    slot = ((seconds - seconds[0]) / (seconds[-1] - seconds[0]) * (points - 1)).astype(np.intp)
    count = np.bincount(slot, minlength=points)
    used = np.flatnonzero(count)
    means = [np.bincount(slot, column, points)[used] / count[used] for column in (seconds, value)]
    return means[0], means[1]
