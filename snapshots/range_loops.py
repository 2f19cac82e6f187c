"""Which NVTX range is the program's loop: the one that comes round most regularly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.table_view import TablesView

LEAST_ROUNDS = 5  # of a loop
ALIKE = 0.05  # loops whose irregularity differs by less are equally regular: the longer one counts


def ranges_by_name(
    view: TablesView, blocks: Sequence[Rows], low_ns: int, end_ns: int
) -> dict[str, tuple[Array, float]]:
    """Return of the outermost ranges of one generation by name: their ends, and the time in them."""
    stack, start, end = (
        np.concatenate([rows.columns[name] for rows in blocks]) for name in ("stack", "start_ns", "end_ns")
    )
    inside = (view.parent[stack] == 0) & (stack > 0) & (end >= low_ns) & (end < end_ns)
    stack, start, end = stack[inside], start[inside].astype(np.int64), end[inside].astype(np.int64)
    found: dict[str, tuple[Array, float]] = {}
    for node in np.unique(stack).tolist():
        mine = stack == node
        name = view.strings[int(view.name[view.frame_function[view.frame[node]]])]
        found[name] = (end[mine], float((end[mine] - start[mine]).sum()))
    return found


def most_regular(parts: Sequence[dict[str, tuple[Array, float]]]) -> str | None:
    """Return the name of the range that comes round most regularly; of equals, that with most time in it."""
    scores: dict[str, tuple[float, float]] = {}
    for name in {name for part in parts for name in part}:
        mine = [part[name] for part in parts if name in part]
        end = np.sort(np.concatenate([ends for ends, _ in mine]))
        interval = np.diff(end)
        usual = float(np.median(interval)) if len(interval) >= LEAST_ROUNDS else 0.0
        if usual > 0:
            irregular = float(np.median(np.abs(interval - usual))) / usual
            scores[name] = (irregular, sum(time for _, time in mine))
    if not scores:
        return None
    best = min(irregular for irregular, _ in scores.values()) + ALIKE
    return max((name for name in scores if scores[name][0] <= best), key=lambda name: (scores[name][1], name))
