"""What each source has contributed to a range, and lost in it.

Rows are counted; losses are differences of what the sampler has counted (losses.py), since it may have run
for long before the recording began.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.snapshots import fold
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.history import History
from gpuprof.snapshots.losses import COUNTS
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.recorded_hint import recorded_hint
from gpuprof.snapshots.table_view import TablesView, TaggedRows

_UNITS = {"nvml": "readings", "processes": "readings", "gpu": "kernels and copies", "offcpu": "waits"}


@dataclass(frozen=True, slots=True)
class SourceFound:
    """One source in a range: its state as of the end of the recording, rows, and counts by name."""

    name: str
    state: str
    reason: str
    hint: str
    rows: int
    counts: dict[str, int]
    elsewhere: str = ""  # of what has no rows here: where it has some

    @property
    def unit(self) -> str:
        """What its rows are called."""
        return _UNITS.get(self.name, "samples")

    def line(self) -> str:
        """Return the source as a line of text."""
        rows = [f"{self.rows:,} {self.unit}"] if self.rows else []
        if not rows and self.state == "ok":  # or it looks as if they were there and are not told
            rows = [f"no {self.unit.replace(' and ', ' or ')}{self.elsewhere}"]
        counts = [f"{self.counts[name]:,} {name}" for name in COUNTS if self.counts[name] or name == "lost"]
        reason = f": {self.reason}" if self.reason else ""
        hint = f" ({self.hint})" if self.hint and self.state != "ok" else ""
        return f"{clean(self.name)} {clean(self.state)}{reason}{hint}; {', '.join([*rows, *counts])}"

    def as_json(self) -> dict[str, Any]:
        """Return the source as `report --json` has it."""
        reason = {"reason": self.reason} if self.reason else {}
        return {"name": self.name, "state": self.state, **reason, "rows": self.rows, **self.counts}


def sources_between(history: History, start_ns: int, end_ns: int) -> list[SourceFound]:
    """Return the sources of a history in [start_ns, end_ns), whatever is filtered."""
    status = history.status
    if status is None:
        return []
    with history.lock:
        samples = history.samples_between(start_ns, end_ns)
        work = history.gpu_work_between(start_ns, end_ns)
        waits = history.waits_between(start_ns, end_ns)
        defs, columns = history.readings_between(start_ns, end_ns)
        counts = {source.name: history.losses.between(source, start_ns, end_ns) for source in status.sources}
    on_gpu = np.array([number for number, series in defs.items() if series.gpu is not None], np.uint32)
    of_gpus = int(np.count_nonzero(np.isin(columns["series"], on_gpu)))
    rows = {"nvml": of_gpus, "processes": len(columns["series"]) - of_gpus}
    for name, log in (("cpu", samples), ("gpu", work), ("offcpu", waits)):
        rows[name] = sum(len(part) for _, part in log)
        if name in counts:
            counts[name]["truncated"] = _cut_short(log)
    return [
        SourceFound(
            s.name, s.state, s.reason, _hint(history, s.hint), rows.get(s.name, s.samples), counts[s.name],
            _elsewhere(history, s.name, start_ns, end_ns) if not rows.get(s.name, s.samples) else "",
        )
        for s in status.sources
    ]  # fmt: skip


def _hint(history: History, hint: str) -> str:
    return recorded_hint(hint, history.hello.host) if history.is_recording else hint


def _elsewhere(history: History, source: str, start_ns: int, end_ns: int) -> str:
    """Return where the rows of a source are that lie nearest to a range without any; "" where none are."""
    reads = {
        "cpu": (history.samples_between, "time_ns"),
        "gpu": (history.gpu_work_between, "start_ns"),
        "offcpu": (history.waits_between, "start_ns"),
    }
    if source not in reads:
        return ""
    read, column = reads[source]
    first_ns, last_ns = history.span
    after = [part.columns[column] for _, part in read(min(end_ns, last_ns), last_ns)]
    before = [part.columns[column] for _, part in read(first_ns, max(start_ns, first_ns))]
    for words, found in (
        ("the first after it", sorted(int(times.min()) for times in after if len(times))[:1]),
        ("the last before it", sorted(int(times.max()) for times in before if len(times))[-1:]),
    ):
        if found:
            return f" ({words} at {max(found[0] - first_ns, 0) / 1e9:.1f} s)"
    return ""


def _cut_short(log: Sequence[TaggedRows]) -> int:
    """Return how many rows have a stack that does not reach the root of its thread."""
    return sum(
        int(np.count_nonzero(_is_cut_short(view, np.concatenate([part.columns["stack"] for part in parts]))))
        for view, parts in fold.by_tables(log)
    )


def _is_cut_short(view: TablesView, stack: Array) -> Array:
    stacks, of_row = fold.compact(stack, len(view.parent))
    outermost = stacks.copy()
    while len(inner := np.flatnonzero(view.parent[outermost])):
        outermost[inner] = view.parent[outermost[inner]]
    some = np.flatnonzero(stacks)
    function = view.frame_function[view.frame[outermost[some]]]
    cut = [number for number in _unique(function) if fold.is_cut_short(view, number)]
    mask = np.zeros(len(stacks), np.bool_)
    mask[some] = np.isin(function, cut)
    found: Array = mask[of_row]
    return found


def _unique(numbers: Array) -> Iterable[int]:
    return map(int, np.unique(numbers))
