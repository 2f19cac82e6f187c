"""What the row under the cursor of a tree stands for, as work that can be counted."""

from __future__ import annotations

import re

from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.occurrences import kind_of
from gpuprof.snapshots.work_frames import WorkKind
from gpuprof.tui.rate_feed import Choice
from gpuprof.tui.widgets.flame_rows import FlameRows

_WHY = {
    "cpu": "A CPU sample says that a function ran, not how often it was called.",
    "idle": "The time in which a GPU was idle has no work to count.",
    "offcpu": "Waits say how long a thread waited, not how much it did.",
}
_HINT = "Go to the tree of GPU time (2), and press r on a kernel, on a function that launches, or on a range."


def choice_of(tree: str, rows: FlameRows | None, node: int | None) -> Choice:
    """What key r counts of a row. GpuprofError, with the reason, where that cannot be known."""
    if tree != "gpu":
        raise GpuprofError(_WHY.get(tree, "This tree has no work to count."), _HINT)
    if rows is None or node is None:
        raise GpuprofError("There is no row whose work could be counted.", _HINT)
    kind = kind_of(int(rows.tree.kind[node]))
    if kind is None:
        raise GpuprofError("This row is no kernel, function or range.", _HINT)
    name, file = (rows.tree.strings[int(column[node])] for column in (rows.tree.name, rows.tree.file))
    if kind is WorkKind.KERNELS:
        if rows.tree.kind[node] != FrameKind.PROCESS:
            return Choice(kind, "")
        number = re.search(r"\((\d+)(?:, \d+ in its container)?\)$", name)
        if number is None:
            raise GpuprofError("This row stands for several processes, whose work is not told apart.", _HINT)
        return Choice(kind, "", pid=int(number[1]))
    return Choice(kind, name, file if kind is WorkKind.LAUNCH else "")
