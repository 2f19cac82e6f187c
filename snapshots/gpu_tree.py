"""The tree of GPU time of a range, and in words how each device spent the range.

The weight of a row is its overlap with the range, in ns. The widths of the tree are sums: work that runs at
the same time counts as often, so that they can exceed the wall time. Busy is the union of a device's rows.
Idle is claimed only where the device was observed (metrics.py, gpu_observed). Work whose launch got no stack
is spread over the paths of the launches that did (launch_estimates.py). Where a query asks for it, what ran
in pauses of recording is estimated (time_share.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.snapshots import fold, gaps, launch_estimates, range_tree, time_share
from gpuprof.snapshots.columns import Array, Rows
from gpuprof.snapshots.frames import STACK_NOT_TAKEN, UNMATCHED_LAUNCH, FrameKind, GpuFacts, Query, Tree
from gpuprof.snapshots.gaps import Shares, Spans
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.table_view import TablesView, TaggedRows
from gpuprof.snapshots.timerange import duration_text

_MAX_NAMED = 16  # devices that a summary names one by one
SUMMARY_SEPARATOR = " · "

Gauge = tuple[Array, Array, Array]  # start, end (ns) and value of readings


@dataclass(frozen=True, slots=True)
class Devices:
    """What is known of the devices: facts, readings of gpu_observed by UUID, and the part of the range that
    was recorded at all; `ever`: those readings of the whole recording, where scaled times are wanted.
    """

    facts: Sequence[GpuFacts]
    observed: Mapping[str, Gauge]
    low_ns: int
    high_ns: int
    ever: Mapping[str, Gauge] | None = None


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """How one device spent a range: `shares` of all processes, the sums of the work that was asked for."""

    uuid: str
    shares: Shares
    kernel_ns: int
    copy_ns: int
    communication_ns: int
    unmatched_ns: int


@dataclass(frozen=True, slots=True)
class _Work:
    """Rows of GPU work of one generation that touch the range, of the devices that were asked for."""

    view: TablesView
    columns: dict[str, Array]
    inside_ns: Array  # i64, in the range
    kept: Array | None  # mask of the rows that pass the pid and tid filters; None: all do


def gpu_tree(query: Query, work: Sequence[TaggedRows], devices: Devices) -> Tree:
    """Return the answer to a query of GPU time. `work`: rows that touch the range."""
    parts = [_asked_for(query, view, blocks) for view, blocks in fold.by_tables(work)]
    scale = _Scale.of(devices) if query.scaled else None
    weighed = [_weighed(work, scale, by_range=query.by_range) for work in parts]
    tree = fold.tree_of(query, weighed, name="gpu", unit="ns")
    said = _summary(query, _device_times(query, parts, devices), devices)
    return replace(tree, summary=said + (scale.sentence() if scale is not None else ""))


def observed_spans(gauge: Gauge) -> Spans:
    """Return when a device was observed: the windows of gpu_observed that say so and that none denies."""
    start, end, value = gauge
    yes = value >= 0.5
    return gaps.union(start[yes], end[yes]).minus(gaps.union(start[~yes], end[~yes]))


# ----------------------------------------------------------------------------------------------- rows to tree


def _asked_for(query: Query, view: TablesView, blocks: Sequence[Rows]) -> _Work:
    names = ("start_ns", "end_ns", "gpu", "thread", "stack", "weight", "bytes", "nvtx")
    columns = {name: np.concatenate([rows.columns[name] for rows in blocks]) for name in names}
    if query.gpus:
        wanted = set(query.gpus)
        known = np.unique(columns["gpu"])
        ids = [number for number in known.tolist() if number and view.strings[number] in wanted]
        mask = np.isin(columns["gpu"], np.array(ids, np.uint32))
        columns = {name: column[mask] for name, column in columns.items()}
    inside = gaps.lengths(columns["start_ns"], columns["end_ns"], query.start_ns, query.end_ns)
    threads = fold.thread_mask(query, view)
    return _Work(view, columns, inside, None if threads is None else threads[columns["thread"]])


@dataclass(frozen=True, slots=True)
class _Scale:
    """The windows in which devices were recorded, for a query that asks for scaled times."""

    windows: time_share.Windows
    places: Mapping[str, time_share.Place]

    @classmethod
    def of(cls, devices: Devices) -> _Scale:
        low, high = devices.low_ns, max(devices.high_ns, devices.low_ns)
        ever = devices.observed if devices.ever is None else devices.ever
        return cls(*time_share.windows_of({u: observed_spans(gauge) for u, gauge in ever.items()}, low, high))

    def apply(
        self, view: TablesView, columns: Mapping[str, Array], inside_ns: Array
    ) -> tuple[Array, Array, time_share.Clustered]:
        """Return for each row the time that counts, the factor that scales it, and its window.

        Work counts whole in the window in which it begins, as it is recorded, so that long work is not missed
        at the edges. What was recorded before the first window, or after the last one, counts as it is.
        """
        inside, factor = inside_ns.copy(), np.ones(len(inside_ns))
        window = np.full(len(inside_ns), -1, np.int64)
        for number in np.unique(columns["gpu"]).tolist():
            place = self.places.get(view.strings[number])
            if place is None:
                continue
            start = columns["start_ns"].astype(np.int64)
            between = (start >= place.first_ns) & (start < place.last_ns)
            mine = np.flatnonzero((columns["gpu"] == number) & between)
            start, spans = start[mine], place.windows
            inside[mine] = np.where(spans.holds(start), inside[mine], 0)
            factor[mine] = place.factor
            last = len(spans) - 1
            window[mine] = place.number + np.clip(np.searchsorted(spans.end, start, "right"), 0, last)
        return inside, factor, time_share.Clustered(self.windows, window)

    def sentence(self) -> str:
        if not self.places:
            return ""
        said = sorted({place.text() for place in self.places.values()})
        return f"{SUMMARY_SEPARATOR}the tree is scaled from the {', '.join(said)} that was recorded"


def _weighed(work: _Work, scale: _Scale | None = None, *, by_range: bool = False) -> fold.Weighed:
    columns, inside, view = work.columns, work.inside_ns, work.view
    if work.kept is not None:
        columns, inside = {name: column[work.kept] for name, column in columns.items()}, inside[work.kept]
    factor, clustered = None, None
    if scale is not None and len(inside):
        inside, factor, clustered = scale.apply(work.view, columns, inside)
    moved = _moved(columns, inside)
    host_stack = columns["stack"]
    if by_range:
        view, stack = range_tree.below_ranges(view, columns["nvtx"], host_stack)
        columns = {**columns, "stack": stack}
    if not len(inside) or (columns["weight"] == 1).all():
        weight = inside if factor is None else inside * factor
        moved = moved if moved is None or factor is None else moved * factor
        return fold.Weighed(
            view, columns["thread"], columns["stack"], weight, clustered=clustered, bytes=moved
        )
    leaves = _leaves(work.view, host_stack)
    usable = (columns["weight"] > 0) & ~leaves.unmatched & ~leaves.not_taken
    stays, rows, sampled = launch_estimates.spread(
        view, columns, inside, without=leaves.not_taken, usable=usable, moved=moved, by_range=by_range
    )
    thread, stack, weight = columns["thread"][stays], columns["stack"][stays], inside[stays]
    if factor is not None and clustered is not None:
        weight = weight * factor[stays]
        of_row = clustered.of_row[stays]
        if sampled is not None:
            more = factor[rows]
            sampled = replace(sampled, part=sampled.part * more, noise=sampled.noise * more**2)
            of_row = np.concatenate([of_row, clustered.of_row[rows]])
        clustered = replace(clustered, of_row=of_row)
    if moved is not None:
        moved = moved[stays] if factor is None else moved[stays] * factor[stays]
        if sampled is not None and sampled.bytes is not None:
            shared = sampled.bytes if factor is None else sampled.bytes * factor[rows]
            moved = np.concatenate([moved, shared])
    return fold.Weighed(view, thread, stack, weight, sampled=sampled, clustered=clustered, bytes=moved)


def _moved(columns: Mapping[str, Array], inside_ns: Array) -> Array | None:
    """Return what each row has moved within the range, as if at an even speed; None where nothing was."""
    if not columns["bytes"].any():
        return None
    length = (columns["end_ns"] - columns["start_ns"]).astype(np.float64)
    share = np.divide(inside_ns, length, out=np.zeros(len(length)), where=length > 0)
    moved: Array = columns["bytes"] * share
    return moved


# --------------------------------------------------------------------------------------------------- in words


def _device_times(query: Query, parts: Sequence[_Work], devices: Devices) -> list[DeviceTime]:
    """Return how each device that has work or readings in the range spent it, in the order of the node."""
    low, high = devices.low_ns, max(devices.high_ns, devices.low_ns)
    sums: dict[str, Array] = {}
    spans: dict[str, Spans] = {}
    for work in parts:
        leaves = _leaves(work.view, work.columns["stack"])
        inside = work.inside_ns if work.kept is None else np.where(work.kept, work.inside_ns, 0)
        for number in np.unique(work.columns["gpu"]).tolist():
            uuid = work.view.strings[number]
            mine = work.columns["gpu"] == number
            busy = gaps.union(work.columns["start_ns"][mine], work.columns["end_ns"][mine])
            spans[uuid] = spans[uuid].joined(busy) if uuid in spans else busy
            mine_ns, kind = inside[mine], leaves.kind[mine]
            copies, talk = kind == FrameKind.GPU_COPY, kind == FrameKind.GPU_COMM
            masks = (~copies & ~talk, copies, talk, leaves.unmatched[mine])
            mine_sums = [mine_ns[mask].sum() for mask in masks]
            sums[uuid] = sums.get(uuid, np.zeros(4, np.int64)) + np.array(mine_sums, np.int64)
    order = {gpu.uuid: gpu.index for gpu in devices.facts}
    asked = set(query.gpus)
    uuids = {*spans, *(uuid for uuid in devices.observed if not asked or uuid in asked)}
    times = []
    for uuid in sorted(uuids, key=lambda uuid: (order.get(uuid, len(order)), uuid)):
        observed = observed_spans(devices.observed[uuid]) if uuid in devices.observed else gaps.EMPTY
        shares = gaps.shares(low, high, spans.get(uuid, gaps.EMPTY), observed)
        times.append(DeviceTime(uuid, shares, *sums.get(uuid, np.zeros(4, np.int64)).tolist()))
    return times


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Of each row of GPU work: the kind of its leaf frame, and whether its launch was not seen or got no
    stack.
    """

    kind: Array
    unmatched: Array
    not_taken: Array


def _leaves(view: TablesView, stack: Array) -> _Leaves:
    stacks, inverse = fold.compact(stack, len(view.parent))
    kind = np.full(len(stacks), int(FrameKind.UNKNOWN), np.uint8)
    outermost = stacks.copy()
    some = stacks > 0
    kind[some] = view.kind[view.frame_function[view.frame[stacks[some]]]]
    while len(inner := np.flatnonzero(view.parent[outermost])):
        outermost[inner] = view.parent[outermost[inner]]
    function = view.frame_function[view.frame[outermost[some]]]
    unknown = [n for n in np.unique(function).tolist() if view.kind[n] == FrameKind.UNKNOWN]
    masks = []
    for text in (UNMATCHED_LAUNCH, STACK_NOT_TAKEN):
        named = [number for number in unknown if view.strings[int(view.name[number])] == text]
        mask = np.zeros(len(stacks), np.bool_)
        mask[some] = np.isin(function, named)
        masks.append(mask[inverse])
    return _Leaves(kind[inverse], *masks)


def _summary(query: Query, times: Sequence[DeviceTime], devices: Devices) -> str:
    names = {gpu.uuid: f"GPU {gpu.index}" for gpu in devices.facts}
    said = [_sentence(time, names, only_part=bool(query.pids or query.tids)) for time in times[:_MAX_NAMED]]
    if len(times) > _MAX_NAMED:
        said.append(f"{len(times) - _MAX_NAMED} more devices")
    return SUMMARY_SEPARATOR.join(said)


def _sentence(time: DeviceTime, names: Mapping[str, str], *, only_part: bool) -> str:
    """Return, for example: GPU 0: busy 2.10 s, idle 1.20 s, not observed 0.40 s of 3.70 s; kernels sum …"""
    shares, name = time.shares, names.get(time.uuid) or clean(time.uuid[:12] or "unknown GPU")
    length = shares.busy_ns + shares.idle_ns + shares.unobserved_ns
    unobserved = shares.unobserved_ns > length / 2000  # less would be shown as a share of 0.0 %
    parts = [f"busy {duration_text(shares.busy_ns)}"]
    if shares.idle_ns or not unobserved:
        parts.append(f"idle {duration_text(shares.idle_ns)}")
    if unobserved:
        parts.append(f"not observed {duration_text(shares.unobserved_ns)}")
    everyone = " (all processes)" if only_part else ""
    said = [f"{name}: {', '.join(parts)} of {duration_text(length)}{everyone}"]
    total = time.kernel_ns + time.copy_ns + time.communication_ns
    if total:
        copies = f", copies {duration_text(time.copy_ns)}" if time.copy_ns else ""
        talk = f", communication {duration_text(time.communication_ns)}" if time.communication_ns else ""
        sums = f"kernels sum {duration_text(time.kernel_ns)}{copies}{talk}"
        said.append(f"{'here ' if only_part else ''}{sums}")
        said.append(f"{_percent(total - time.unmatched_ns, total)} % matched to a launch")
    return "; ".join(said)


def _percent(part: int, whole: int) -> str:
    """Return a share that says 100 or 0 only where it is."""
    if part in {0, whole}:
        return "0" if not part else "100"
    return f"{min(max(100 * part / whole, 0.1), 99.9):.1f}"
