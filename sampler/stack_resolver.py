"""Turns a batch of raw stack records into merged stacks of frame ids.

Per record: kernel words, user words and Python pairs become frame ids by dictionary; the merge is cached by
those ids, since stacks that differ in exact addresses are mostly the same stack of (function, line).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuprof.bpf.records import Batch, RecordFlag, StopReason
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.kallsyms import KernelSymbols
from gpuprof.sampler.merge import Group, find_hosts, merge
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.process_stacks import NO_FRAME_ENTRY, SHIM, KernelIds, ProcessStacks
from gpuprof.snapshots.frames import FrameKind

MAX_MERGED = 8192
MAX_OUTER = 1024
_ADDRESS_BITS = (1 << 48) - 1
_ADDRESS = np.uint64(_ADDRESS_BITS)
_DISTANCE_SHIFT = np.uint64(48)
_COMPLETE = {StopReason.ROOT, StopReason.KERNEL_THREAD}


class StackKey(NamedTuple):
    """All that a merged stack depends on; frame ids innermost first."""

    kernel: tuple[int, ...]
    native: tuple[int, ...]
    codes: tuple[int, ...]  # as from ProcessStacks.resolve_code
    hosts: tuple[int | None, ...]  # of the shims among `codes`
    stop: int
    flags: int
    by_host: bool
    outer: (
        tuple[int, ...] | None
    )  # for a walk that ended early: what is known to be outside of its Python frames


@dataclass(slots=True, eq=False)
class MergedStack:
    """A stack of frame ids, root first, and its id in the tables of one generation."""

    frames: tuple[int, ...]
    complete: bool
    outer: tuple[int, ...] | None
    generation: int = -1
    table_id: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedBatch:
    """One entry per record."""

    processes: list[ProcessStacks]
    stacks: list[MergedStack]
    truncated: int


class StackResolver:
    """Holds the caches. Not thread-safe."""

    def __init__(self, ids: FrameIds, follower: ProcessFollower) -> None:
        self._follower = follower
        self._kernel_symbols = KernelSymbols()
        self.reset(ids)

    def reset(self, ids: FrameIds) -> None:
        """A new set of frame ids begins."""
        self._ids = ids
        self._kernel = KernelIds(ids, self._kernel_symbols)
        self._merged: dict[StackKey, MergedStack] = {}

    def prepare(self) -> None:
        """Load the kernel's symbols now rather than at the first kernel frame."""
        self._kernel_symbols.lookup(0)

    def resolve(self, batch: Batch) -> ResolvedBatch:
        """The merged stack of every record."""
        count = len(batch)
        if not count:
            return ResolvedBatch([], [], 0)
        kernel_end = batch.first + batch.n_kernel
        user_end = kernel_end + batch.n_user
        ends = (user_end + 2 * batch.n_python.astype(np.int64)).tolist()
        # A return address is looked up by the address before it; the innermost frame's is exact.
        exact = np.zeros(len(batch.words), bool)
        exact[batch.first[batch.n_kernel > 0]] = True
        exact[kernel_end[batch.n_user > 0]] = True
        back = (~exact).astype(np.uint64)
        words = batch.words
        addresses = ((words & _ADDRESS) - back).tolist()
        kernel_addresses = words - back
        firsts, kernel_ends, user_ends = batch.first.tolist(), kernel_end.tolist(), user_end.tolist()
        stops, flags, sp0s = batch.stop.tolist(), batch.flags.tolist(), batch.sp0.tolist()
        pids, starts, times = batch.pid.tolist(), batch.start_ns.tolist(), batch.time_ns.tolist()
        uids, comms, tids = batch.uid.tolist(), batch.comm.tolist(), batch.tid.tolist()
        processes, stacks = [], []
        truncated = 0
        kernel_id = self._kernel.__getitem__
        for i in range(count):
            known = stops[i] != StopReason.NO_TABLES
            process = self._follower.get(
                pids[i], starts[i], times[i], known=known, uid=uids[i], comm=comms[i]
            )
            process.last_seen_ns = times[i]
            first, kernel_stop, user_stop, end = firsts[i], kernel_ends[i], user_ends[i], ends[i]
            kernel: tuple[int, ...] = ()
            if kernel_stop > first:
                kernel = tuple(map(kernel_id, kernel_addresses[first:kernel_stop].tolist()))
            native = tuple(map(process.native.__getitem__, addresses[kernel_stop:user_stop]))
            codes: tuple[int, ...] = ()
            hosts: tuple[int | None, ...] = ()
            anchor = None
            if end > user_stop:
                details = words[user_stop:end].tolist()
                pairs = list(zip(details[::2], details[1::2], strict=True))
                codes = tuple(map(process.code.__getitem__, pairs))
                anchor = (tids[i], details[-2])
                if SHIM in codes:
                    shims = [
                        pair[0] & _ADDRESS_BITS
                        for pair, code in zip(pairs, codes, strict=True)
                        if code == SHIM
                    ]
                    distances = (words[kernel_stop:user_stop] >> _DISTANCE_SHIFT).tolist()
                    hosts = find_hosts(shims, sp0s[i], distances, stops[i] in _COMPLETE)
            by_host = process.python is not None and process.python.has_shim_frames
            key = StackKey(kernel, native, codes, hosts, stops[i], flags[i], by_host, None)
            stack = self._stack(process, key, anchor)
            truncated += not stack.complete
            processes.append(process)
            stacks.append(stack)
        return ResolvedBatch(processes, stacks, truncated)

    def _stack(self, process: ProcessStacks, key: StackKey, anchor: tuple[int, int] | None) -> MergedStack:
        """The merged stack; `anchor`: thread and outermost Python frame."""
        native_complete = key.stop in _COMPLETE
        if anchor is not None and not native_complete:
            key = key._replace(outer=process.outer_frames.get(anchor))
        stack = self._merged.get(key)
        if stack is None:
            if len(self._merged) >= MAX_MERGED:
                self._merged.clear()
            stack = self._merged[key] = self._merge(key)
        if native_complete and anchor is not None and stack.outer is not None:
            if len(process.outer_frames) >= MAX_OUTER:
                process.outer_frames.clear()
            process.outer_frames[anchor] = stack.outer
        return stack

    def _merge(self, key: StackKey) -> MergedStack:
        native_complete = key.stop in _COMPLETE
        complete = native_complete or (bool(key.codes) and not key.flags & RecordFlag.PYTHON_TRUNCATED)
        groups = _groups(key)
        merged = merge(
            key.native, self._ids.roles, groups, by_host=key.by_host, native_complete=native_complete
        )
        frames = array("I", key.kernel)
        frames.extend(merged.frames)
        if not complete:
            words = StopReason(key.stop).words
            frames.append(self._ids.get(f"[truncated: {words}]", "", "", FrameKind.UNKNOWN))
        elif not native_complete and key.outer is not None:
            # The outermost Python frame was seen in a complete stack: what is outside of it is the same.
            frames.extend(key.outer)
        return MergedStack(tuple(reversed(frames)), complete, merged.outer)


def _groups(key: StackKey) -> list[Group]:
    """Cut the Python frames, innermost first, into the groups that one C call of the loop each runs."""
    groups: list[Group] = []
    frames: list[int] = []
    hosts = iter(key.hosts)
    for code in key.codes:
        if code >= 0:
            frames.append(code >> 1)
        if code == SHIM:
            groups.append(Group(tuple(frames), next(hosts)))
            frames = []
        elif not key.by_host and (code == NO_FRAME_ENTRY or (code >= 0 and code & 1)):
            groups.append(Group(tuple(frames)))
            frames = []
    if frames:
        groups.append(Group(tuple(frames)))
    return groups
