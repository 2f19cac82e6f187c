"""Keeps what following waits costs the sampler within a share of a core: from the CPU time that it took
lately it works out how many waits it can take, and from the waits themselves the threshold that leaves so
many.

A wait is kept with probability min(1, duration / threshold) and weighted with the reciprocal, so the waits of
a window say without bias how many there would have been under any other threshold. A threshold depends on the
past only, and each wait carries the one that it began under, so sums stay unbiased while it moves. What the
sampler can take is shared by the processes: those that wait seldom keep all, the others get alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.wait_programs import COUNTS_TWICE

TARGET_SHARE = 0.01  # of a core
WINDOW_NS = 250_000_000
COST_HALF_LIFE_NS = 1_000_000_000  # of what a wait cost before
MIN_WAITS_PER_S, MAX_WAITS_PER_S = 400, 5_000  # whatever they cost: the first ones have to be named
RAISE_AT_ONCE = 8.0  # times, in one window
FALL_NS = 1_000_000_000  # in which a threshold falls to a half, at most
RAISE_FROM, FALL_FROM = 1.1, 0.8  # of the threshold now: what is between them is chance
MIN_RAISED_NS, MAX_RAISED_NS = 10_000, 1_000_000_000
MAX_PROCESSES = 1000  # of the 1024 that the map holds
FORGET_NS = 10 * 10**9
OTHERS = 0  # in place of a pid: processes that have just begun to wait


@dataclass(frozen=True, slots=True)
class Thresholds:
    """In ns: of the processes `of`, and of all others. Waits that are shorter are sampled."""

    others: int
    of: Mapping[int, int] = field(default_factory=dict)

    def get(self, pid: int) -> int:
        """The threshold of a process."""
        return self.of.get(pid, self.others)


def threshold_for(duration: NDArray[np.float64], weight: NDArray[np.float64], most: float) -> float:
    """The least threshold, in ns, under which no more than `most` waits are expected to be kept of those that
    these stand for: the sum of weight * min(1, duration / threshold) is `most`. 0 where all can be kept.
    """
    if float(weight.sum()) <= most:
        return 0.0
    order = np.argsort(duration)
    ns, count = duration[order], weight[order]
    longer = float(count.sum()) - np.cumsum(count)  # waits that are longer than each of them
    length = np.cumsum(count * ns)  # of all up to each of them
    enough = longer + length / ns <= most  # where the threshold is as long as each of them
    at = max(int(np.argmax(enough)), 1) if enough[-1] else len(ns)  # not 0, but for rounding
    # From the wait before on up to this one the sum is longer + length / threshold.
    return float(length[at - 1] / (most - longer[at - 1]))


def fair_share(demands: Collection[float], most: float) -> float:
    """How much each may have, at most, so that together they have `most`; infinity where there is enough."""
    left, count = most, len(demands)
    for demand in sorted(demands):
        if demand * count > left:
            return left / count
        left -= demand
        count -= 1
    return float("inf")


def moved(now_ns: int, wanted_ns: float, base_ns: int, age_ns: int) -> int:
    """The next threshold: a burst is answered at once, and forgotten slowly. `age_ns`: since the last one."""
    wanted = min(max(wanted_ns, float(base_ns)), float(max(MAX_RAISED_NS, base_ns)))
    if wanted > now_ns * RAISE_FROM:
        return round(min(wanted, max(now_ns, MIN_RAISED_NS) * RAISE_AT_ONCE))
    if wanted < now_ns * FALL_FROM or wanted <= base_ns:
        found = round(max(wanted, now_ns * 0.5 ** (age_ns / FALL_NS)))
        return base_ns if found < max(MIN_RAISED_NS, 1.05 * base_ns) else found
    return now_ns


class WaitBudget:
    """The thresholds of processes. Not thread-safe.

    `base_ns`: the threshold that was asked for, below which none goes.
    """

    def __init__(self, base_ns: int) -> None:
        self.base_ns = base_ns
        self._others = base_ns
        self._of: dict[int, int] = {}  # threshold of each process that was seen, MAX_PROCESSES
        self._seen_ns: dict[int, int] = {}
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]] = []
        self._count, self._cpu_s = 0, 0.0  # in this window
        self._past_count, self._past_cpu_s = 0.0, 0.0
        self._since_ns: int | None = None

    def next(self, waits: NDArray[np.void], cpu_s: float, now_ns: int) -> Thresholds:
        """The thresholds from now on, after more waits (WAIT_RECORD) that ended, and the CPU time that they
        took.
        """
        if self._since_ns is None:
            self._since_ns = now_ns
        if len(waits):
            ns = np.maximum(waits["time_ns"].astype(np.float64) - waits["extra"].astype(np.float64), 1.0)
            weight = np.maximum(waits["threshold_ns"] / ns, 1.0)
            weight *= np.where((weight > 1) & (waits["waker_flags"] & COUNTS_TWICE > 0), 2.0, 1.0)
            self._parts.append((waits["pid"].astype(np.int64), ns, weight))
        self._count += len(waits)
        self._cpu_s += cpu_s
        age_ns = now_ns - self._since_ns
        if age_ns >= WINDOW_NS:
            self._since_ns = now_ns
            self._close_window(now_ns, age_ns)
        return Thresholds(self._others, {pid: ns for pid, ns in self._of.items() if ns != self._others})

    def _close_window(self, now_ns: int, age_ns: int) -> None:
        most = self._room(age_ns)
        parts, self._parts = self._parts, []
        pid, ns, weight = (
            (np.concatenate(column) for column in zip(*parts, strict=True))
            if parts
            else (np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        )
        pids, own = np.unique(pid, return_inverse=True)
        # How many there would be if nothing were thinned out beyond what was asked for.
        kept = weight * np.minimum(1.0, ns / self.base_ns) if self.base_ns else weight
        names = [number if number in self._of else OTHERS for number in pids.tolist()]
        new = np.array([name == OTHERS for name in names], bool)
        group = own
        if new.any():  # they are one group
            group = np.where(new[own], len(pids), own)
            names.append(OTHERS)
        demand = np.bincount(group, kept, minlength=len(names)).tolist()
        share = fair_share([count for count in demand if count], most)
        wanted: dict[int, float] = {}
        for number, name in enumerate(names):
            if demand[number] > share:
                mine = group == number
                wanted[name] = threshold_for(ns[mine], weight[mine], share)
                # So few that those of great weight began under a higher threshold: this one leaves no more.
                if 2 * np.count_nonzero(mine) < share:
                    wanted[name] = min(wanted[name], self._of.get(name, self._others))
        self._move(wanted, age_ns)
        self._notice(pids.tolist(), np.bincount(own, kept, minlength=len(pids)) <= share, now_ns)

    def _room(self, age_ns: int) -> float:
        """How many waits of a window can be taken, by what each cost lately."""
        keep = 0.5 ** (age_ns / COST_HALF_LIFE_NS)
        self._past_count = self._past_count * keep + self._count
        self._past_cpu_s = self._past_cpu_s * keep + self._cpu_s
        self._count, self._cpu_s = 0, 0.0
        seconds = age_ns / 1e9
        room = TARGET_SHARE * seconds * self._past_count / max(self._past_cpu_s, 1e-9)
        return min(max(room, MIN_WAITS_PER_S * seconds), MAX_WAITS_PER_S * seconds)

    def _move(self, wanted: Mapping[int, float], age_ns: int) -> None:
        for pid, threshold_ns in self._of.items():
            self._of[pid] = moved(threshold_ns, wanted.get(pid, 0.0), self.base_ns, age_ns)
        self._others = moved(self._others, wanted.get(OTHERS, 0.0), self.base_ns, age_ns)

    def _notice(self, pids: list[int], seldom: NDArray[np.bool_], now_ns: int) -> None:
        """From now on these have thresholds of their own; `seldom`: whether one keeps all of its waits."""
        for pid, keeps_all in zip(pids, seldom.tolist(), strict=True):
            if pid in self._of or len(self._of) < MAX_PROCESSES:
                self._of.setdefault(pid, self.base_ns if keeps_all else self._others)
                self._seen_ns[pid] = now_ns
        for pid in [pid for pid, seen_ns in self._seen_ns.items() if now_ns - seen_ns > FORGET_NS]:
            if self._of[pid] == self.base_ns:
                del self._of[pid], self._seen_ns[pid]
