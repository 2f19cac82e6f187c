"""Questions about a range of a history: which tree answers them, and what it needs to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots import bottom_up, fold, gpu_tree, idle_query, wait_slices, wait_tree
from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.errors import EXIT_USAGE, GpuprofError
from gpuprof.snapshots.frames import Query, Tree
from gpuprof.snapshots.gaps import MAX_NS
from gpuprof.snapshots.gpu_tree import Devices, Gauge
from gpuprof.snapshots.recorded_hint import recorded_hint
from gpuprof.snapshots.table_view import TaggedRows

if TYPE_CHECKING:
    from gpuprof.snapshots.history import History

_TREES = {"cpu": "CPU samples", "gpu": "GPU time", "idle": "GPU idle time", "offcpu": "off-CPU time"}
_WAITS_HINT = (
    "Waits are recorded, by a sampler that runs as root, of the processes that use a GPU, of the command of "
    "`gpuprof-tui record -o FILE -- CMD`, and of what --offcpu-pid PID or --offcpu-all picks."
)
_CPU_HINT = "The tree of CPU samples is --tree cpu."


def answer(history: History, query: Query) -> Tree:
    """Return the folded tree of a range; rows are read under the lock of the history and folded outside it.

    GpuprofError for a tree that is not known or not recorded, and for a filter that the tree does not have.
    """
    if query.tree not in _TREES:
        raise GpuprofError(
            f"there is no tree named “{query.tree[:32]}”", f"The trees are: {', '.join(_TREES)}.", EXIT_USAGE
        )
    if query.bottom_up and (query.tree not in bottom_up.TREES or query.scaled):
        what = "scaled times are" if query.tree in bottom_up.TREES else f"the tree of {_TREES[query.tree]} is"
        raise GpuprofError(f"{what} read from the top only", "Leave --bottom-up out.", EXIT_USAGE)
    if query.tree == "cpu":
        _refuse("GPU", query.gpus, query)
        return fold.cpu_tree(query, history.samples_between(query.start_ns, query.end_ns))
    if query.tree == "gpu":
        return _gpu(history, query)
    if query.tree == "offcpu":
        return _offcpu(history, query)
    return _idle(history, query)


def _offcpu(history: History, query: Query) -> Tree:
    source = next((s for s in history.status.sources if s.name == "offcpu"), None) if history.status else None
    if not history.waits.next and (source is None or source.state not in {"ok", "degraded"}):
        why = f": {source.reason}" if source is not None and source.reason else ""
        hint = source.hint if source is not None else ""
        if history.is_recording:
            hint = recorded_hint(hint, history.hello.host)
        raise GpuprofError(f"no off-CPU time was recorded here{why}", hint or _WAITS_HINT)
    _refuse("CPU", query.cpus, query)
    _refuse("GPU", query.gpus, query)
    return wait_tree.wait_tree(query, _waits(history, query.start_ns, query.end_ns))


def _waits(history: History, start_ns: int, end_ns: int) -> list[TaggedRows]:
    """Return the waits that touch a range, with the slices behind it of those that go on beyond its end."""
    with history.lock:
        found = history.waits_between(start_ns, end_ns)
        return found + wait_slices.later(found, end_ns, lambda: history.waits_between(end_ns, MAX_NS))


def _gpu(history: History, query: Query) -> Tree:
    if not history.gpu_work.next:
        raise GpuprofError(
            "no GPU time was recorded here",
            f"Start the workload with `gpuprof-tui run -- CMD`. {_CPU_HINT}",
        )
    _refuse("CPU", query.cpus, query)
    with history.lock:
        first_ns, last_ns = history.span
        work = history.gpu_work_between(query.start_ns, query.end_ns)
        observed = gauges_between(history, "gpu_observed", query.start_ns, query.end_ns)
        ever = gauges_between(history, "gpu_observed", first_ns, last_ns) if query.scaled else None
        facts = list(history.gpus.gpus) if history.gpus else []
    low_ns, high_ns = max(query.start_ns, first_ns), min(query.end_ns, last_ns)
    return gpu_tree.gpu_tree(query, work, Devices(facts, observed, low_ns, high_ns, ever))


def _idle(history: History, query: Query) -> Tree:
    if not history.gpu_work.next:
        raise GpuprofError(
            "when a GPU was idle is not known: no GPU time was recorded here",
            f"Start the workload with `gpuprof-tui run -- CMD`. {_CPU_HINT}",
        )
    _refuse("CPU", query.cpus, query)
    start_ns, end_ns = query.start_ns, query.end_ns
    with history.lock:
        span = history.span
        first_ns = max(idle_query.look_back(start_ns, min(end_ns, span[1])), span[0])
        recorded = idle_query.Recorded(
            samples=history.samples_between(start_ns, end_ns),
            waits=_waits(history, start_ns, end_ns),
            work=history.gpu_work_between(first_ns, end_ns),
            observed=gauges_between(history, "gpu_observed", first_ns, end_ns),
            facts=list(history.gpus.gpus) if history.gpus else [],
            cpu_hz=history.hello.cpu_hz,
            first_ns=first_ns,
            low_ns=max(start_ns, span[0]),
            high_ns=min(end_ns, span[1]),
            last_ns=span[1],
        )
    return idle_query.idle_tree(query, recorded)


def _refuse(what: str, values: list[int] | list[str], query: Query) -> None:
    if values:
        raise GpuprofError(
            f"the tree of {_TREES[query.tree]} cannot be filtered by {what}",
            f"Leave the {what} filter out.",
            EXIT_USAGE,
        )


def gauges_between(history: History, metric: str, start_ns: int, end_ns: int) -> dict[str, Gauge]:
    """Return the readings of a metric of devices that touch the range, by UUID: start, end (ns) and value."""
    with history.lock:
        defs = history.series_defs.values()
        ids = {series.id: series.gpu for series in defs if series.metric == metric and series.gpu}
        parts = [rows.columns for rows in history.readings.between(start_ns, end_ns)] if ids else []
    wanted = np.array(list(ids), np.uint32)
    found: dict[str, list[list[Array]]] = {}
    for part in parts:
        mine = np.flatnonzero(np.isin(part["series"], wanted))
        series = part["series"][mine]
        for number in np.unique(series).tolist():
            rows = mine[series == number]
            columns = [part[name][rows] for name in ("start_ns", "end_ns", "value")]
            found.setdefault(ids[number], []).append(columns)
    gauges: dict[str, Gauge] = {}
    for uuid, pieces in found.items():
        start, end, value = (np.concatenate(column) for column in zip(*pieces, strict=True))
        gauges[uuid] = (start, end, value)
    return gauges
