"""What a chart is: its lines, its limits, and how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpuprof.tui.series import Key

WORK_METRICS = (
    "gpu_kernel_busy_percent", "gpu_copy_busy_percent", "gpu_observed", "gpu_comm_busy_percent",
)  # fmt: skip


class Style(Enum):
    """How a chart is drawn."""

    LINES = "lines"
    SIGNED = "signed"  # above zero: sent, below: received
    STRIP = "strip"  # a row of heat per subject
    WORK = "work"  # per device what ran on it: kernels, copies, nothing, or not known


@dataclass(frozen=True, slots=True)
class Line:
    """One series in a chart: drawn value = reading * scale * sign; `color` counts in the palette's lines."""

    key: Key
    label: str
    color: int
    unit: str
    scale: float = 1.0
    sign: int = 1
    counter: bool = False
    fill: bool = False
    plot_scale: float = 1.0  # drawn on the chart's axis at value * plot_scale, where its unit is another
    pid: int | None = None  # shown behind the label, and never cut off


@dataclass(frozen=True, slots=True)
class Limit:
    """A dashed line across a chart: the latest reading of `key`, or a fixed value."""

    label: str
    unit: str
    key: Key | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. `low` and `high` None: from the data in sight."""

    id: str
    title: str
    short_title: str
    unit: str
    lines: tuple[Line, ...] = ()
    limits: tuple[Limit, ...] = ()
    style: Style = Style.LINES
    low: float | None = 0.0
    high: float | None = None
    least_high: float = 0.0  # an automatic top is at least this
    weight: float = 1.0
