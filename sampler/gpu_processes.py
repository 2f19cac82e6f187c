"""Tells a process's GPU utilization from the garbage that NVML returns beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from gpuprof.sampler.nvml_device import ProcessSample
from gpuprof.sampler.sample_clock import ClockInstant


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Utilization of one process over [start_ns, end_ns); a percentage out of range is None."""

    pid: int
    start_ns: int
    end_ns: int
    sm_percent: float | None
    mem_percent: float | None


@dataclass(slots=True)
class Window:
    """What one query said: utilization by process, and how many samples were no readings."""

    uses: dict[int, ProcessUse] = field(default_factory=dict)
    last_seen_us: int = 0
    invalid: int = 0


def use_by_process(
    samples: Iterable[ProcessSample],
    last_seen_us: int,
    since_ns: int,
    at: ClockInstant,
    *,
    alive: Callable[[int], bool],
    listed: Collection[int] = (),
) -> Window:
    """The readings of one query made at `at` with `last_seen_us`, the query before it at `since_ns`.

    Samples older than `last_seen_us`, in the future, of dead pids or over 100 % are no readings (zombies
    leave such). A process that is listed on the device and has no new sample did nothing in [since_ns, at):
    the driver answered, so that is a true 0. One that has only a sample out of range has no reading.
    """
    window = Window(last_seen_us=last_seen_us)
    spoiled: set[int] = set()
    for sample in sorted(samples, key=lambda s: s.stamp_us):
        if sample.stamp_us <= last_seen_us:
            window.invalid += _in_range(sample.sm_percent) is None
            continue
        end_ns = at.mono_ns_of(sample.stamp_us)
        sm, mem = _in_range(sample.sm_percent), _in_range(sample.mem_percent)
        if end_ns is None or (sm is None and mem is None) or not alive(sample.pid):
            window.invalid += 1
            spoiled.add(sample.pid)
            continue
        window.last_seen_us = max(window.last_seen_us, sample.stamp_us)
        start_ns = min(since_ns, end_ns)
        window.uses[sample.pid] = ProcessUse(sample.pid, start_ns, end_ns, sm, mem)
    for pid in listed:
        if pid not in window.uses and pid not in spoiled:
            window.uses[pid] = ProcessUse(pid, since_ns, at.mono_ns, 0.0, 0.0)
    return window


def _in_range(percent: int) -> float | None:
    return float(percent) if 0 <= percent <= 100 else None
