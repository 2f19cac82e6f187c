"""The answer to a query of idle GPU time: the tree, and in words the largest cause for each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.snapshots import fold
from gpuprof.snapshots.frames import GpuFacts, ProcessDef, Query, Tree
from gpuprof.snapshots.gpu_tree import SUMMARY_SEPARATOR, Gauge
from gpuprof.snapshots.idle_spans import LOOK_BACK_NS, DeviceIdle, device_idle
from gpuprof.snapshots.idle_tree import IdleTime, folded
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.people import People
from gpuprof.snapshots.table_view import TablesView, TaggedRows
from gpuprof.snapshots.telling import Telling, telling
from gpuprof.snapshots.telling_tree import telling_tree
from gpuprof.snapshots.timelines import Timelines
from gpuprof.snapshots.timerange import duration_text

_MAX_NAMED = 8  # devices of which a summary names the cause
_LAUNCH_SHARE = 1 / 3  # of the idle time inside launch calls, from which launching holds the device up
_LONG_NS = 100_000  # no launch takes so long: kernels of this length and more keep a device busy meanwhile
_TINY_NS = 10_000  # kernels and gaps so short, launched one after the other, are bound by launching too
_TINY_GAP_NS = 50_000
_TINY_SHARE = 0.1
_UNSEEN_SHARE = 0.02  # of the range not observed, from which it is worth a word; the GPU tree has it exactly
_TALK_SHARE = 0.05  # of the range, from which communication is worth a word


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a history holds for a query: rows of the range, but of GPU work and observation those from
    `first_ns` on; [low_ns, high_ns) is the part of the range that was recorded; all is, up to `last_ns`.
    """

    samples: Sequence[TaggedRows]
    waits: Sequence[TaggedRows]
    work: Sequence[TaggedRows]
    observed: Mapping[str, Gauge]
    facts: Sequence[GpuFacts]
    cpu_hz: int
    first_ns: int
    low_ns: int
    high_ns: int
    last_ns: int


def idle_tree(query: Query, recorded: Recorded) -> Tree:
    """Return the answer to a query of idle GPU time."""
    samples, waits, work = _same_views(recorded.samples, recorded.waits, recorded.work)
    people = People()
    low, high = recorded.low_ns, max(recorded.high_ns, recorded.low_ns)
    devices = device_idle(
        work, recorded.observed, people,
        asked=query.gpus, low_ns=low, high_ns=high, first_ns=recorded.first_ns,
    )  # fmt: skip
    order = {gpu.uuid: gpu.index for gpu in recorded.facts}
    devices.sort(key=lambda device: (order.get(device.uuid, len(order)), device.uuid))
    lines = Timelines(people, samples, waits, low, high)
    wanted = _wanted(query, people)
    told = [_device_parts(lines, recorded, device, wanted) for device in devices]
    rows = folded([part for time in told for part in time.parts()], by_thread=query.by_thread)
    names = {gpu.uuid: f"GPU {gpu.index}" for gpu in recorded.facts}
    said = []
    for device, time in list(zip(devices, told, strict=True))[:_MAX_NAMED]:
        name = names.get(device.uuid) or clean(device.uuid[:12] or "unknown GPU")
        one = rows if len(told) == 1 and not query.by_thread else folded(time.parts())
        found = telling(telling_tree(one.nodes))
        said.append(_sentence(name, device, found, high - low, with_waits=bool(waits)))
    if len(devices) > _MAX_NAMED:
        said.append(f"{len(devices) - _MAX_NAMED} more devices")
    return replace(fold.cut(query, rows, name="idle", unit="ns"), summary=SUMMARY_SEPARATOR.join(said))


def look_back(start_ns: int, end_ns: int) -> int:
    """Return from where on GPU work is asked for, for a range."""
    return min(start_ns, end_ns - LOOK_BACK_NS)


def _device_parts(
    lines: Timelines, recorded: Recorded, device: DeviceIdle, wanted: frozenset[int]
) -> IdleTime:
    time = IdleTime(lines, recorded.cpu_hz, recorded.last_ns)
    time.add_device(device, wanted)
    return time


def _same_views(*logs: Sequence[TaggedRows]) -> list[list[TaggedRows]]:
    """Return rows with one view per generation: that which has seen most."""
    views: dict[int, TablesView] = {}
    for log in logs:
        for view, _ in log:
            known = views.get(view.generation)
            if known is None or len(view.parent) > len(known.parent):
                views[view.generation] = view
    return [[(views[view.generation], rows) for view, rows in log] for log in logs]


def _wanted(query: Query, people: People) -> frozenset[int]:
    """Return the threads that pass the pid and tid filters."""

    def passes(number: int, process: ProcessDef) -> bool:
        return (not query.pids or process.pid in query.pids) and (
            not query.tids or people.tids[number] in query.tids
        )

    return frozenset(number for number, process in enumerate(people.processes) if passes(number, process))


# --------------------------------------------------------------------------------------------------- in words


def _sentence(
    name: str, device: DeviceIdle, found: Telling | None, length_ns: int, *, with_waits: bool
) -> str:
    """Return, for example: GPU 0 idle 1.8 of 3.7 s; 71 % in _next_data (dataloader.py:733), on CPU; …"""
    idle = device.idle.total_ns
    talk = f"communication alone for {_of(device.alone_ns, length_ns)}, waiting for other devices"
    waits_for_others = device.alone_ns > _TALK_SHARE * length_ns
    unobserved = device.unobserved_ns > _UNSEEN_SHARE * length_ns
    if not idle:
        if unobserved and device.unobserved_ns == length_ns:
            return f"{name} was not observed in this range"
        unseen = f", not observed for {_of(device.unobserved_ns, length_ns)}" if unobserved else ""
        return f"{name} was not seen idle{unseen}" + (f"; {talk}" if waits_for_others else "")
    if unobserved:
        known = f"{idle / 1e9:.1f} s" if _in_seconds(idle, length_ns) else duration_text(idle)
        said = [f"{name} idle {known}, not observed {_of(device.unobserved_ns, length_ns)}"]
    else:
        said = [f"{name} idle {_of(idle, length_ns)}"]
    if not device.feeders:
        said.append("no thread launched work on it in the last minutes")
    elif found is not None:
        share = f"{100 * found.share:.0f} %"
        state = found.state
        if _launch_bound(device, found):
            mean = duration_text(round(device.kernel_ns / max(device.kernels, 1)))
            state = f"launch-bound: launching kernels of {mean} each"
        elif found.on_cpu and found.launching >= _LAUNCH_SHARE:
            state = f"{state}, in launch calls"
        if not found.known and not with_waits:
            state += " (no waits are recorded)"
        said.append(f"{share} in {found.frame}, {state}" if found.frame else f"{share} {state}")
    count, known = _repeats(device), duration_text(device.known_ns)
    if count > 1:
        minutes = "5 min" if device.known_ns >= LOOK_BACK_NS else known
        said.append(f"{count} such gaps in the last {minutes}")
    if waits_for_others:
        said.insert(0 if device.alone_ns > idle else len(said), f"{name} {talk}")
    return "; ".join(said)


def _in_seconds(part_ns: int, whole_ns: int) -> bool:
    return part_ns >= 50_000_000 and whole_ns < 3600 * 10**9


def _of(part_ns: int, whole_ns: int) -> str:
    if _in_seconds(part_ns, whole_ns):
        return f"{part_ns / 1e9:.1f} of {whole_ns / 1e9:.1f} s"
    return f"{duration_text(part_ns)} of {duration_text(whole_ns)}"


def _launch_bound(device: DeviceIdle, found: Telling) -> bool:
    if not found.on_cpu or not device.kernels:
        return False
    mean_ns = device.kernel_ns / device.kernels
    if mean_ns >= _LONG_NS:
        return False
    gap_ns = device.idle.total_ns / max(len(device.idle), 1)
    tiny = mean_ns <= _TINY_NS and gap_ns <= _TINY_GAP_NS and found.launching >= _TINY_SHARE
    return found.launching >= _LAUNCH_SHARE or tiny


def _repeats(device: DeviceIdle) -> int:
    """Return how many idle gaps of the last minutes are at least half as long as the range's longest one."""
    longest = int((device.idle.end - device.idle.start).max())
    lengths = device.recent.end - device.recent.start
    return int(np.count_nonzero(2 * lengths >= longest))
