"""Where charts stand: the rows of the screen that each of them takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuprof.tui.charts import Chart, Style

_STRIPS = (Style.STRIP, Style.WORK)


@dataclass(frozen=True, slots=True)
class Placed:
    """A chart and the rows [top, top + height) that it takes."""

    chart: Chart
    top: int
    height: int


def place(charts: Sequence[Chart], height: int, skip: int = 0) -> list[Placed]:
    """Rows for the charts from number `skip` on: every one gets a row, the rest is shared by weight.

    When there are more charts than rows, those that fit are placed. Strips take no more rows than they have
    cores.
    """
    charts = list(charts[skip : skip + height]) if height > 0 else []
    if not charts:
        return []
    heights = _share(charts, height, [_most_rows(chart, height) for chart in charts])
    fixed = [
        nice_rows(_most_rows(c, height), rows, height - len(charts) + 1) if c.style in _STRIPS else height
        for c, rows in zip(charts, heights, strict=True)
    ]
    heights = _share(
        charts,
        height,
        fixed,
        least=[f if c.style in _STRIPS else 1 for c, f in zip(charts, fixed, strict=True)],
    )
    placed, top = [], 0
    for chart, rows in zip(charts, heights, strict=True):
        placed.append(Placed(chart, top, rows))
        top += rows
    return placed


def _most_rows(chart: Chart, height: int) -> int:
    """The rows that a chart can make use of; a device's work is told in up to two."""
    if chart.style is Style.STRIP:
        return len(chart.lines)
    if chart.style is Style.WORK:
        devices = len({line.key[1] for line in chart.lines})
        return devices if devices > 2 else 2 * devices
    return height


def _share(
    charts: Sequence[Chart], height: int, most: Sequence[int], least: Sequence[int] | None = None
) -> list[int]:
    """Rows of each chart: the next row always goes to the one that is furthest below its share."""
    heights = list(least or [1] * len(charts))
    for _ in range(height - sum(heights)):
        candidates = [i for i in range(len(charts)) if heights[i] < most[i]]
        if not candidates:
            break
        needy = min(candidates, key=lambda i: (heights[i] / charts[i].weight, i))
        heights[needy] += 1
    return heights


def nice_rows(subjects: int, rows: int, most: int) -> int:
    """The number of strip rows near `rows`, at most `most`, that each stand for equally many subjects."""
    even = [
        count
        for count in range(1, min(subjects, most) + 1)
        if subjects % count == 0 and count <= rows * 3 // 2
    ]
    best = max(even, default=1)
    return best if 2 * best >= rows else min(rows, most)
