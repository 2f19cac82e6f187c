"""Which thread of which process each record of a batch is of: each thread is looked up once."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.records import Batch
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.process_stacks import ProcessStacks

_MULTIPLIERS = [np.uint64(secrets.randbits(64) | 1) for _ in range(5)]


@dataclass(frozen=True, slots=True, eq=False)
class RecordThreads:
    """Threads, as distinct (process, thread id, name), by the time of their last record: of two names of a
    thread the later one comes last. Of each the index of one record, and its process.
    """

    first: list[int]
    processes: list[ProcessStacks]
    of_record: NDArray[np.int64]  # of each record, the index of its thread here


def find_threads(batch: Batch, follower: ProcessFollower) -> RecordThreads:
    """The threads of a batch that is not empty. Their processes are looked up, and have been seen now."""
    first, of_record, earliest, latest = _grouped(batch)
    processes: list[ProcessStacks] = []
    split: list[int] = []
    pids, starts, uids = batch.pid[first].tolist(), batch.start_ns[first].tolist(), batch.uid[first].tolist()
    comms = batch.comm[first].tolist()
    for n, (pid, start_ns) in enumerate(zip(pids, starts, strict=True)):
        process = follower.get(pid, start_ns, earliest[n], uid=uids[n], comm=comms[n])
        process.last_seen_ns = latest[n]
        processes.append(process)
        if process.gone_ns is None and earliest[n] >= process.since_ns:
            continue
        later = follower.get(pid, start_ns, latest[n], uid=uids[n], comm=comms[n])
        if later is not process:  # it became another program in between
            later.last_seen_ns = latest[n]
            split.append(n)
    found = first.tolist()
    for n in split:
        _split(batch, follower, n, (found, processes, of_record))
    return _by_time(batch, found, processes, of_record)


def _grouped(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int], list[int]]:
    """The index of each thread's first record, of each record its thread; of each thread its first and last
    time.
    """
    name = np.ascontiguousarray(batch.comm).view(np.uint64).reshape(-1, 2)
    columns: tuple[NDArray[Any], ...] = (batch.tid, batch.pid, batch.start_ns, name[:, 0], name[:, 1])
    times = batch.time_ns
    if all((column == column[0]).all() for column in columns):  # one thread launches most of the time
        nothing = np.zeros(len(times), np.int64)
        return nothing[:1], nothing, [int(times.min())], [int(times.max())]
    key = np.zeros(len(times), np.uint64)
    for column, multiplier in zip(columns, _MULTIPLIERS, strict=True):
        key += column.astype(np.uint64) * multiplier
    order = np.argsort(key, kind="stable")
    key = key[order]
    begin = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    times = times[order]
    earliest, latest = np.minimum.reduceat(times, begin).tolist(), np.maximum.reduceat(times, begin).tolist()
    of_record = np.empty(len(order), np.int64)
    of_record[order] = np.repeat(np.arange(len(begin)), np.diff(begin, append=len(order)))
    return order[begin], of_record, earliest, latest


def by_latest(
    of_record: NDArray[np.integer[Any]], time_ns: NDArray[np.uint64], count: int
) -> NDArray[np.int64]:
    """The numbers of `count` groups of records, by the time of the latest record of each.

    `of_record`: the group of each record, `time_ns` its time.
    """
    latest = np.zeros(count, np.uint64)
    np.maximum.at(latest, of_record, time_ns)
    return np.argsort(latest, kind="stable")


def _by_time(
    batch: Batch, first: list[int], processes: list[ProcessStacks], of_record: NDArray[np.int64]
) -> RecordThreads:
    if len(first) == 1:
        return RecordThreads(first, processes, of_record)
    order = by_latest(of_record, batch.time_ns, len(first))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    wanted = order.tolist()
    return RecordThreads([first[n] for n in wanted], [processes[n] for n in wanted], place[of_record])


def _split(
    batch: Batch,
    follower: ProcessFollower,
    thread: int,
    threads: tuple[list[int], list[ProcessStacks], NDArray[np.int64]],
) -> None:
    """Make threads of their own of those records of `thread` that are of what its process became later."""
    first, processes, of_record = threads
    groups: dict[int, tuple[ProcessStacks, list[int]]] = {}
    for at in np.flatnonzero(of_record == thread).tolist():
        process = follower.get(
            int(batch.pid[at]), int(batch.start_ns[at]), int(batch.time_ns[at]),
            uid=int(batch.uid[at]), comm=bytes(batch.comm[at]),
        )  # fmt: skip
        groups.setdefault(id(process), (process, []))[1].append(at)
    for process, own in groups.values():
        if process is not processes[thread]:
            of_record[own] = len(first)
            first.append(own[-1])
            processes.append(process)
