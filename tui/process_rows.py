"""The rows of the process table, from the series and the process definitions; pure, so that it can be tested
without a screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from gpuprof.snapshots.frames import GpuFacts, ProcessDef
from gpuprof.snapshots.overhead import percent
from gpuprof.tui.series import SeriesStore, SeriesView

FRESH_NS = 5 * 10**9  # a reading holds for so long
GONE_NS = 12 * 10**9  # a process without any reading for so long has left the table
MAX_ROWS = 2000
_BY_GPU = (("proc_gpu_mem_bytes", "mem"), ("proc_sm_percent", "sm"), ("proc_recording", "recording"))
_COST, _STACKS = "proc_gpu_overhead_percent", "proc_launch_stack_percent"
SORT_KEYS = ("mem", "sm", "cpu", "pid", "user", "name")


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process on one GPU (or on none). None: not known, not 0."""

    pid: int
    gpu: int | None
    user: str | None
    name: str | None
    sm_percent: float | None
    gpu_mem_bytes: float | None
    cpu_percent: float | None  # of one core: 250 is two and a half cores
    recording: bool | None = None  # whether its GPU work is recorded
    reason: str = ""  # why it is not, where that is known
    budget: str = ""  # what the budget of recording leaves out, where it does


def process_rows(
    store: SeriesStore,
    processes: Mapping[int, ProcessDef],
    gpus: list[GpuFacts],
    now_ns: int,
    *,
    live: bool = True,
    reasons: Mapping[int, str] = MappingProxyType({}),
) -> list[ProcessRow]:
    """Rows as of `now_ns`; in a file (`live` false) the last reading of each process counts however old it
    is. `reasons`: by pid, why a process is not recorded."""
    index_of = {gpu.uuid: gpu.index for gpu in gpus}
    pairs: dict[tuple[int, str | None], dict[str, float | None]] = {}
    oldest = now_ns - GONE_NS if live else 0
    fresh = now_ns - FRESH_NS if live else 0
    for metric, field in _BY_GPU:
        for key in store.subjects(metric):
            _, gpu, pid, _ = key
            view = store.view(key)
            if pid is None or not len(view) or int(view.end_ns[-1]) < oldest:
                continue
            value = float(view.value[-1]) if int(view.end_ns[-1]) >= fresh else None
            pairs.setdefault((pid, gpu), {})[field] = value
    cpu: dict[int, float | None] = {}
    for key in store.subjects("proc_cpu_ns"):
        pid = key[2]
        view = store.view(key)
        if pid is not None and len(view) and int(view.end_ns[-1]) >= oldest:
            cpu[pid] = cpu_percent(view) if int(view.end_ns[-1]) >= fresh else None
    costs = {metric: _latest(store, metric, fresh) for metric in (_COST, _STACKS)}
    on_a_gpu = {pid for pid, _ in pairs}
    for pid in cpu:
        if pid not in on_a_gpu:
            pairs[(pid, None)] = {}
    rows: list[ProcessRow] = []
    for (pid, gpu), values in pairs.items():
        if gpu is None and cpu.get(pid) is None:
            continue  # it was seen once and is gone, or about to show what it uses
        if len(rows) == MAX_ROWS:
            break
        process = processes.get(pid)
        recording = values.get("recording")
        if pid in costs[_COST] and recording is not None:
            recording = 1.0  # it is, though a reading may be of a pause that the budget asked for
        rows.append(
            ProcessRow(
                pid,
                index_of.get(gpu) if gpu is not None else None,
                process.user if process else None,
                process.name if process else None,
                values.get("sm"),
                values.get("mem"),
                cpu.get(pid),
                None if recording is None else recording >= 0.5,
                reasons.get(pid, "") if not (recording or 0) >= 0.5 else "",
                _budget_note(costs[_STACKS].get(pid), costs[_COST].get(pid)),
            )
        )
    return rows


def _latest(store: SeriesStore, metric: str, fresh_ns: int) -> dict[int, float]:
    """The newest value of a metric by process, where it is fresh."""
    found = {}
    for key in store.subjects(metric):
        view = store.view(key)
        if key[2] is not None and len(view) and int(view.end_ns[-1]) >= fresh_ns:
            found[key[2]] = float(view.value[-1])
    return found


def _budget_note(stacks: float | None, cost: float | None) -> str:
    """Such as "stacks of 3.1 % of launches, costs 0.9 %"; nothing where every launch has a stack."""
    if stacks is None or stacks > 99.5:
        return ""
    return f"stacks of {percent(stacks)} of launches" + (f", costs {percent(cost)}" if cost else "")


def cpu_percent(view: SeriesView) -> float | None:
    """CPU time used between the last two readings of a counter, in percent of one core; None without two."""
    if len(view) < 2:
        return None
    elapsed = int(view.end_ns[-1]) - int(view.end_ns[-2])
    used = float(view.value[-1] - view.value[-2])
    return 100.0 * used / elapsed if elapsed > 0 and used >= 0 else None


def sort_rows(rows: list[ProcessRow], key: str, reverse: bool) -> list[ProcessRow]:
    """Rows by a sort key: numbers largest first, names from A, unless reversed; what is not known is last."""
    rows = sorted(rows, key=lambda row: (-(row.gpu_mem_bytes or 0), -(row.cpu_percent or 0), row.pid))
    values = [(_value(row, key), row) for row in rows]
    known = [(value, row) for value, row in values if value is not None]
    known.sort(key=itemgetter(0), reverse=(key in ("mem", "sm", "cpu")) != reverse)
    return [row for _, row in known] + [row for value, row in values if value is None]


def _value(row: ProcessRow, key: str) -> Any:
    return {
        "mem": row.gpu_mem_bytes,
        "sm": row.sm_percent,
        "cpu": row.cpu_percent,
        "pid": row.pid,
        "user": row.user,
        "name": row.name,
    }[key]
