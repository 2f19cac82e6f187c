"""Windows between occurrences, so that a rate is exact however few of these there are (work_rate.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpuprof.snapshots.columns import Array
from gpuprof.snapshots.gaps import EMPTY, Spans

# Without an occurrence for so long, and for QUIET_TIMES the usual interval: nothing is done.
QUIET_NS = 2 * 10**9
QUIET_TIMES = 4


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Instants (i64, ns, in order) in which something ended, how many each stands for, and by which
    processes (pids) it was done.
    """

    end_ns: Array
    weight: Array
    pids: frozenset[int] = frozenset()


def joined(parts: Iterable[Occurrences]) -> Occurrences:
    """Return all occurrences of several parts."""
    parts = list(parts)
    if not parts:
        return Occurrences(np.zeros(0, np.int64), np.zeros(0))
    end = np.concatenate([part.end_ns for part in parts])
    weight = np.concatenate([part.weight for part in parts])
    order = np.argsort(end, kind="stable")
    return Occurrences(end[order], weight[order], frozenset().union(*(part.pids for part in parts)))


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of one work rate, as columns; see work_frames.Rates."""

    start_ns: Array
    end_ns: Array
    recorded_ns: Array
    count: Array
    error: Array


def windows(
    work: Occurrences,
    start_ns: int,
    end_ns: int,
    window_ns: int,
    *,
    asked_ns: int = 0,
    unrecorded: Spans = EMPTY,
) -> Windows:
    """Return the windows that end in [start_ns, end_ns), of about `window_ns` where the work is frequent.

    `work`: what ended before `end_ns`, from before the start on, as far as it is known; none of it in
    `unrecorded` time. `asked_ns`: until then nothing more will come, where that is later than `end_ns`.
    """
    end, total = work.end_ns, np.concatenate([[0.0], np.cumsum(work.weight)])
    noise = np.concatenate([[0.0], np.cumsum(work.weight * (work.weight - 1))])
    if not len(end):
        none = np.zeros(0)
        return Windows(none, none, none, none, none)
    last = np.flatnonzero(np.append(np.diff(end // window_ns) > 0, True))
    edge = end[last]
    if (edge[-1] // window_ns + 1) * window_ns > max(end_ns, asked_ns):  # more may come in its cell
        last, edge = last[:-1], edge[:-1]
    begin, until, number = edge[:-1], edge[1:], last
    count = total[number[1:] + 1] - total[number[:-1] + 1]
    error = np.sqrt(np.maximum(noise[number[1:] + 1] - noise[number[:-1] + 1], 0))
    inside = (until >= start_ns) & (until < end_ns)
    begin, until, count, error = begin[inside], until[inside], count[inside], error[inside]
    usual = float(np.median(np.diff(edge[-64:]))) if len(edge) > 1 else 0.0
    newest = int(end[-1])
    quiet_ns = max(QUIET_NS, QUIET_TIMES * usual)
    if end_ns - newest > quiet_ns:
        if len(edge) and newest != edge[-1] and newest >= start_ns:  # the cell is over all the same
            rest = total[-1] - total[last[-1] + 1]
            begin, until = np.append(begin, edge[-1]), np.append(until, newest)
            count, error = np.append(count, rest), np.append(error, np.sqrt(noise[-1] - noise[last[-1] + 1]))
        unseen_ns = int(unrecorded.overlap(np.array([newest]), np.array([end_ns]))[0])
        if end_ns - newest - unseen_ns > quiet_ns:  # else nothing is known of most of it
            begin, until = np.append(begin, newest), np.append(until, end_ns)
            count, error = np.append(count, 0.0), np.append(error, 0.0)
    recorded = (until - begin) - unrecorded.overlap(begin, until)
    some = recorded > 0
    return Windows(begin[some], until[some], recorded[some], count[some], error[some])
