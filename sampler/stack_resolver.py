"""Turns a batch of raw stack records into merged stacks of frame ids.

All is done for many records at once: words become frame ids by hash tables in numpy (known_frames.py), and a
record becomes a 128-bit hash of those ids, by which its merged stack is found. Stacks that differ in exact
addresses are mostly the same stack of (function, line), so that few are merged one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.records import Batch, RecordFlag, StopReason
from gpuprof.sampler.frame_ids import FrameIds, Role
from gpuprof.sampler.generated_code import advice
from gpuprof.sampler.kallsyms import KernelSymbols
from gpuprof.sampler.known_frames import CODE_BASE, KnownFrames
from gpuprof.sampler.merge import Group, merge
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.process_stacks import NO_FRAME_ENTRY, SHIM, ProcessStacks
from gpuprof.sampler.record_threads import RecordThreads, find_threads
from gpuprof.sampler.stack_hash import Hashes, StackHash, keys_of
from gpuprof.sampler.stack_parts import StackParts
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.recent import Recent

MAX_MERGED = 1 << 13  # kept twice: those in use, and those that were before
MAX_MERGED_BYTES = 5 << 19  # the same of their memory; a stack of ordinary depth takes 500 bytes
FORGET_NS = 30 * 10**9  # what is not seen for once to twice as long is let go of
_STACK_BYTES = 280  # of a MergedStack without its frames, with its key and its place
MAX_OUTER = 1024  # of a process
MAX_OUTERS = 1 << 14  # different ones
CHUNK_RECORDS = 2048  # at once: their columns stay in the processor's cache
MAX_LENGTH = 1024  # words of a record
NO_PYTHON = "the thread's Python frames were not found"
_COMPLETE = (StopReason.ROOT, StopReason.KERNEL_THREAD)
_COUNT_BITS = np.uint64(16)

I64 = NDArray[np.int64]
Outer = tuple[int, ...]


class MergedStack:
    """A stack of frame ids, and its id in the tables of one generation. `outer`: the native frames outside of
    all Python frames, where they are known.
    """

    __slots__ = ("complete", "generation", "outer", "packed", "table_id")

    def __init__(self, packed: bytes, complete: bool, outer: Outer | None) -> None:
        self.packed = packed  # u32 ids, root first
        self.complete = complete
        self.outer = outer
        self.generation = -1
        self.table_id = 0

    @property
    def frames(self) -> tuple[int, ...]:
        """The frame ids, root first."""
        return tuple(array("I", self.packed))


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedBatch:
    """One entry per record. `threads`: whose they are; a thread may be there several times."""

    processes: list[ProcessStacks]
    stacks: list[MergedStack]
    truncated: int
    threads: RecordThreads


@dataclass(frozen=True, slots=True, eq=False)
class _Records:
    """Some records, with what was found out about them so far; the columns have an element per record."""

    batch: Batch
    threads: RecordThreads
    processes: list[ProcessStacks]
    process_of: I64
    by_host: NDArray[np.bool_]  # the Python frames have hosts (3.12+)
    walked: NDArray[np.bool_]  # the native walk reached the root
    parts: StackParts

    def anchors(self, at: I64) -> NDArray[np.uint64]:
        """The code objects of the outermost Python frames of these records, which have some."""
        batch = self.batch
        python = batch.first[at] + batch.n_kernel[at] + batch.n_user[at]
        found: NDArray[np.uint64] = batch.words[python + 2 * batch.n_python[at].astype(np.int64) - 2]
        return found


class StackResolver:
    """Holds the caches. Not thread-safe; a follower has one resolver."""

    def __init__(self, ids: FrameIds, follower: ProcessFollower) -> None:
        self._follower = follower
        self._kernel_symbols = KernelSymbols()
        self._known = KnownFrames(ids, self._kernel_symbols, follower.all)
        self._next_age_ns = 0
        self.reset(ids)

    def reset(self, ids: FrameIds) -> None:
        """A new set of frame ids begins."""
        self._ids = ids
        self._known.reset(ids)
        self._hash = StackHash(MAX_LENGTH)
        self._weights = [self._hash.odd() for _ in range(5)]  # of the parts of a stack's hash
        self._host_words = self._hash.some(MAX_LENGTH)
        self._forget_stacks()

    def _forget_stacks(self) -> None:
        self._merged: Recent[bytes, MergedStack] = Recent(MAX_MERGED, MAX_MERGED_BYTES, _size_of)
        self._outers: dict[Outer, int] = {}  # a number for each
        self._shared: dict[Outer, Outer] = {}  # those of stacks, which are alike in most

    def tidy(self, now_ns: int) -> None:
        """Let go of stacks that were not seen for a while; call it now and then."""
        if now_ns >= self._next_age_ns:
            self._next_age_ns = now_ns + FORGET_NS
            self._merged.age()

    def prepare(self) -> None:
        """Load the kernel's symbols now rather than at the first kernel frame."""
        self._kernel_symbols.lookup(0)

    @property
    def nbytes(self) -> int:
        """About how much memory the caches take."""
        return self._known.nbytes + self._merged.nbytes

    def resolve(self, batch: Batch) -> ResolvedBatch:
        """The merged stack of every record."""
        found = [self._resolve(part) for part in _chunks(batch)]
        return found[0] if len(found) == 1 else _joined(found)

    def _resolve(self, batch: Batch) -> ResolvedBatch:
        records = self._look_at(batch)
        hashes = self._hashes(records)
        python = batch.n_python > 0
        broken = python & ~records.walked  # their Python frames stand below the break
        if broken.any():
            stacks = self._find_broken(records, hashes, broken)
        else:
            stacks = self._find(records, keys_of(hashes), range(len(batch)))
            self._note_outers(records, stacks, np.flatnonzero(python))
        cut = batch.flags & RecordFlag.PYTHON_TRUNCATED != 0
        cut_short = ~records.walked & (cut | ~python)
        lost = np.flatnonzero((batch.flags & RecordFlag.PYTHON_NOT_FOUND != 0) & ~cut_short)
        truncated = int(np.count_nonzero(cut_short))
        truncated += sum(not stacks[record].complete for record in lost.tolist())
        processes = list(map(records.processes.__getitem__, records.process_of.tolist()))
        return ResolvedBatch(processes, stacks, truncated, records.threads)

    def _look_at(self, batch: Batch) -> _Records:
        threads = find_threads(batch, self._follower)
        slots: dict[int, int] = {}
        slot_of = np.array([slots.setdefault(id(process), len(slots)) for process in threads.processes])
        processes = list({id(process): process for process in threads.processes}.values())
        process_of = slot_of[threads.of_record]
        self._known.enrol(processes)
        by_host = np.array([p.python is not None and p.python.has_shim_frames for p in processes])
        walked = np.isin(batch.stop, _COMPLETE)
        parts = StackParts(batch, processes, process_of, walked, self._known, self._ids)
        return _Records(batch, threads, processes, process_of, by_host[process_of], walked, parts)

    def _hashes(self, records: _Records) -> Hashes:
        """Of all that a merged stack depends on, but for what is known to be outside of a broken one."""
        batch, parts = records.batch, records.parts
        header = batch.n_kernel.astype(np.uint64)
        for column in (batch.n_user, batch.n_python):
            header <<= _COUNT_BITS
            header |= column
        header <<= _COUNT_BITS
        header |= batch.stop.astype(np.uint64) << np.uint64(2)
        header |= batch.flags & np.uint8(RecordFlag.PYTHON_TRUNCATED)  # bit 1
        header |= (batch.flags & np.uint8(RecordFlag.PYTHON_NOT_FOUND)).astype(np.uint64) << np.uint64(3)
        header |= records.by_host
        total = [header * weight for weight in self._weights[0]]
        self._hash.reserve(2 * len(self._ids) + CODE_BASE)
        codes = self._hash.words_of(parts.codes)
        if parts.hosts is not None:
            for seed, more in enumerate(self._host_words):
                codes[seed][:] += more[parts.hosts]
        sums = [
            self._hash.sums(self._hash.words_of(parts.kernel_ids), parts.kernel),
            self._hash.sums(self._hash.words_of(parts.native_ids), parts.native),
            self._hash.sums_by_place(codes, parts.python),
        ]
        for weights, part in zip(self._weights[1:4], sums, strict=True):
            for seed in range(2):
                total[seed] += part[seed] * weights[seed]
        return total[0], total[1]

    def _find(
        self,
        records: _Records,
        keys: list[bytes],
        at: Sequence[int],
        outers: Sequence[Outer | None] | None = None,
    ) -> list[MergedStack]:
        """The merged stacks of the records `at` by their keys. `outers`: what is outside of broken ones."""
        known = self._merged.get_many(keys)
        if None not in known:
            return known  # type: ignore[return-value]
        for n, key in enumerate(keys):
            if known[n] is None:
                stack = self._merged.get(key)  # it may have come a moment ago
                if stack is None:
                    stack = self._merge(records, at[n], outers[n] if outers is not None else None)
                    self._merged.put(key, stack)
                known[n] = stack
        return known  # type: ignore[return-value]

    def _find_broken(self, records: _Records, hashes: Hashes, broken: NDArray[np.bool_]) -> list[MergedStack]:
        """As _find, where some native walks ended early: what is outside of their outermost Python frame was
        perhaps seen in complete stacks of the same thread.
        """
        stacks: list[MergedStack] = [None] * len(broken)  # type: ignore[list-item]
        whole = np.flatnonzero(~broken)
        found = self._find(records, keys_of((hashes[0][whole], hashes[1][whole])), whole.tolist())
        for at, stack in zip(whole.tolist(), found, strict=True):
            stacks[at] = stack
        self._note_outers(records, stacks, np.flatnonzero(~broken & (records.batch.n_python > 0)))
        rest = np.flatnonzero(broken)
        owners, tids = records.process_of[rest].tolist(), records.batch.tid[rest].tolist()
        outers = [
            records.processes[owner].outer_frames.get((tid, code))
            for owner, tid, code in zip(owners, tids, records.anchors(rest).tolist(), strict=True)
        ]
        if len(self._outers) + len(rest) > MAX_OUTERS:
            self._forget_stacks()  # their keys have numbers that are given anew
        numbers = np.array([self._number(outer) for outer in outers], np.uint64)
        weights = self._weights[4]
        keys = keys_of((hashes[0][rest] + numbers * weights[0], hashes[1][rest] + numbers * weights[1]))
        for at, stack in zip(rest.tolist(), self._find(records, keys, rest.tolist(), outers), strict=True):
            stacks[at] = stack
        return stacks

    def _number(self, outer: Outer | None) -> int:
        return 0 if outer is None else self._outers.setdefault(outer, len(self._outers) + 1)

    def _note_outers(self, records: _Records, stacks: Sequence[MergedStack], at: I64) -> None:
        """Remember what is outside of the outermost Python frames, of the last stack of each such frame."""
        at = at[[stacks[record].outer is not None for record in at.tolist()]] if len(at) else at
        if not len(at):
            return
        anchors, tids, owners = records.anchors(at), records.batch.tid[at], records.process_of[at]
        thread = tids.astype(np.uint64) | owners.astype(np.uint64) << np.uint64(32)
        key = anchors * self._weights[4][0] + thread * self._weights[4][1]
        _, last = np.unique(key[::-1], return_index=True)
        for n in (len(at) - 1 - last).tolist():
            known = records.processes[int(owners[n])].outer_frames
            if len(known) >= MAX_OUTER:
                known.clear()
            outer = stacks[int(at[n])].outer
            assert outer is not None
            known[int(tids[n]), int(anchors[n])] = outer

    def _merge(self, records: _Records, at: int, outer: Outer | None) -> MergedStack:
        batch, parts, walked = records.batch, records.parts, bool(records.walked[at])
        kernel, native, python = (
            slice(int(spans.begin[at]), int(spans.end[at]))
            for spans in (parts.kernel, parts.native, parts.python)
        )
        whole = walked or (
            python.start < python.stop and not int(batch.flags[at]) & RecordFlag.PYTHON_TRUNCATED
        )
        codes = (parts.codes[python].astype(np.int64) - CODE_BASE).tolist()
        hosts = parts.hosts[python].tolist() if parts.hosts is not None else [0] * len(codes)
        by_host = bool(records.by_host[at])
        groups, native_ids = _groups(codes, hosts, by_host), parts.native_ids[native].tolist()
        merged = merge(native_ids, self._ids.roles, groups, by_host=by_host, native_complete=walked)
        frames = array("I", parts.kernel_ids[kernel].tobytes())
        frames.extend(merged.frames)
        # A thread without thread states runs no loop; where it runs one, not all Python frames are there.
        loops = sum(self._ids.roles[frame] == Role.EVAL for frame in native_ids)
        lost = bool(batch.flags[at] & RecordFlag.PYTHON_NOT_FOUND) and loops > len(groups)
        if lost or not whole:
            words = NO_PYTHON if whole else StopReason(int(batch.stop[at])).words
            if native_ids and not whole:
                words += advice(self._ids.describe(native_ids[-1])[2])
            frames.append(self._ids.get(f"[truncated: {words}]", "", "", FrameKind.UNKNOWN))
        elif not walked and outer is not None:
            # The outermost Python frame was seen in a complete stack: what is outside of it is the same.
            frames.extend(outer)
        frames.reverse()
        return MergedStack(frames.tobytes(), whole and not lost, self._share(merged.outer))

    def _share(self, outer: Outer | None) -> Outer | None:
        """The one that is kept of all that are alike."""
        if outer is None:
            return None
        if len(self._shared) >= MAX_OUTERS:
            self._shared.clear()
        return self._shared.setdefault(outer, outer)


def _size_of(_: bytes, stack: MergedStack) -> int:
    return _STACK_BYTES + len(stack.packed)


def _groups(codes: Sequence[int], hosts: Sequence[int], by_host: bool) -> list[Group]:
    """Cut the Python frames, innermost first, into the groups that one C call of the loop each runs; `hosts`:
    1 + index of the native frame of each shim, 0 where it is not known.
    """
    groups: list[Group] = []
    frames: list[int] = []
    for code, host in zip(codes, hosts, strict=True):
        if code >= 0:
            frames.append(code >> 1)
        if code == SHIM:
            groups.append(Group(tuple(frames), host - 1 if host else None))
            frames = []
        elif not by_host and (code == NO_FRAME_ENTRY or (code >= 0 and code & 1)):
            groups.append(Group(tuple(frames)))
            frames = []
    if frames:
        groups.append(Group(tuple(frames)))
    return groups


def _chunks(batch: Batch) -> Iterator[Batch]:
    """The batch in parts of CHUNK_RECORDS; the words stay where they are."""
    if len(batch) <= CHUNK_RECORDS:
        if len(batch):
            yield batch
        return
    names = [name for name in Batch.__dataclass_fields__ if name != "words"]
    for low in range(0, len(batch), CHUNK_RECORDS):
        columns: dict[str, Any] = {name: getattr(batch, name)[low : low + CHUNK_RECORDS] for name in names}
        yield replace(batch, **columns)


def _joined(parts: Sequence[ResolvedBatch]) -> ResolvedBatch:
    """The parts of a batch, one after the other."""
    processes: list[ProcessStacks] = []
    stacks: list[MergedStack] = []
    first: list[int] = []
    owners: list[ProcessStacks] = []
    of_record = [np.zeros(0, np.int64)]
    for part in parts:
        of_record.append(part.threads.of_record + len(owners))
        first += [len(stacks) + at for at in part.threads.first]
        owners += part.threads.processes
        processes += part.processes
        stacks += part.stacks
    threads = RecordThreads(first, owners, np.concatenate(of_record))
    return ResolvedBatch(processes, stacks, sum(part.truncated for part in parts), threads)
