"""The kernel, native and Python frames of many stack records, as frame ids in columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.records import Batch, RecordFlag
from gpuprof.sampler.frame_ids import FrameIds
from gpuprof.sampler.known_frames import ADDRESS_BITS, CODE_BASE, SIGNAL_RETURN, KnownFrames
from gpuprof.sampler.merge import UNKNOWN_DISTANCE
from gpuprof.sampler.process_stacks import SHIM, SHIM_OWNER, ProcessStacks
from gpuprof.sampler.stack_hash import Spans

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

_PC = np.uint64((1 << ADDRESS_BITS) - 1)
_GUESSED = np.uint64(1 << ADDRESS_BITS)  # a frame that was found by scanning the stack
_OWN_ADDRESS = np.uint64((1 << 48) - 1)
_DISTANCE_SHIFT = np.uint64(48)
_OWNER_SHIFT = np.uint64(56)
_FAR = 1 << 36  # words: beyond every stack
_RECORD_BITS = 42  # of a place in a record's stack, in one number with the record's index


class StackParts:
    """Innermost frames first. `processes`: those of the batch, `process_of`: index of each record's."""

    def __init__(  # noqa: PLR0917
        self,
        batch: Batch,
        processes: Sequence[ProcessStacks],
        process_of: I64,
        complete: NDArray[np.bool_],
        known: KnownFrames,
        ids: FrameIds,
    ) -> None:
        self._batch = batch
        self._processes = processes
        self._process_of = process_of
        n_kernel, n_user = batch.n_kernel.astype(np.int64), batch.n_user.astype(np.int64)
        kernel_end = batch.first + n_kernel
        self.kernel = Spans(batch.first, n_kernel)
        self.native = Spans(kernel_end, n_user)
        self.python = Spans(kernel_end + n_user, batch.n_python.astype(np.int64), step=2)
        self.kernel_ids = self._kernel(known)
        self.native_ids = self._native(known, ids)
        # Of each Python frame: 1 + index of a shim's native frame; 0: not known. None: there are no shims.
        self.hosts: I64 | None = None
        self.codes = self._codes(known, complete)  # as from KnownFrames.codes

    def _kernel(self, known: KnownFrames) -> U32:
        if not len(self.kernel):
            return np.zeros(0, np.uint32)
        return known.kernel(_call_sites(self._batch.words[self.kernel.index], self.kernel))

    def _native(self, known: KnownFrames, ids: FrameIds) -> U32:
        spans = self.native
        if not len(spans):
            return np.zeros(0, np.uint32)
        words = self._batch.words[spans.index]
        keys = _call_sites(words & _PC, spans)
        keys &= _PC
        prefix = np.array([process.native_number << ADDRESS_BITS for process in self._processes], np.uint64)
        keys |= np.repeat(prefix[self._process_of], spans.count)
        found = known.native(keys, self._owners, self._processes)
        if int(found.max()) >= SIGNAL_RETURN:
            at = np.flatnonzero(found >= SIGNAL_RETURN) + 1
            at = at[at < len(spans)]
            at = at[spans.position_of(at) > 0]  # what was interrupted, exactly there
            exact = keys[at] & ~_PC | words[at] & _PC
            found[at] = known.native(exact, lambda some: self._owners(at[some]), self._processes)
            found &= ~SIGNAL_RETURN
        if (self._batch.flags & np.uint8(RecordFlag.SCANNED)).any():
            self._mark_guesses(words, found, ids)
        return found

    def _owners(self, at: I64) -> I64:
        """The process of each of these native frames."""
        return self._process_of[self.native.run_of(at)]

    def _mark_guesses(self, words: U64, found: U32, ids: FrameIds) -> None:
        at = np.flatnonzero(words & _GUESSED)
        at = at[self.native.position_of(at) > 0] - 1
        plain, same = np.unique(found[at], return_inverse=True)
        marked = [ids.with_guessed_caller(frame) for frame in plain.tolist()]
        found[at] = np.array(marked, np.uint32)[same]

    def _codes(self, known: KnownFrames, complete: NDArray[np.bool_]) -> U32:
        spans, processes = self.python, self._processes
        if not len(spans):
            return np.zeros(0, np.uint32)
        words, details = self._batch.words[spans.index], self._batch.words[spans.index + 1]
        owners = np.repeat(self._process_of, spans.count)
        shims = words >> _OWNER_SHIFT == SHIM_OWNER
        if shims.any():
            shims &= np.array([process.has_shims for process in processes])[owners]
        at = np.flatnonzero(shims)
        if not len(at):
            return known.codes(words, details, owners, processes)
        codes = np.full(len(spans), SHIM + CODE_BASE, np.uint32)
        rest = np.flatnonzero(~shims)
        codes[rest] = known.codes(words[rest], details[rest], owners[rest], processes)
        record = np.repeat(np.arange(len(spans.count)), spans.count)[at]
        self.hosts = np.zeros(len(spans), np.int64)
        self.hosts[at] = self._find_hosts(words[at] & _OWN_ADDRESS, record, complete)
        return codes

    def _find_hosts(self, shims: U64, record: I64, complete: NDArray[np.bool_]) -> I64:
        """Of the shims of all records: 1 + index of the native frame in whose part of the stack it lies; 0:
        not known.

        A frame holds what lies between its own stack pointer and its caller's; of the last frame that is
        known only when the walk is complete.
        """
        spans = self.native
        distance = (self._batch.words[spans.index] >> _DISTANCE_SHIFT).view(np.int64)
        unknown = distance == UNKNOWN_DISTANCE
        usable = spans.count.copy()  # frames whose stack pointers are known
        if unknown.any():
            distance[unknown] = _FAR
            at = np.flatnonzero(unknown)[::-1]  # the first of each record is written last
            usable[spans.run_of(at)] = spans.position_of(at)
        last = usable - (~complete | (usable < spans.count))
        place = np.zeros(len(spans) + 1, np.int64)
        np.cumsum(distance, out=place[1:])
        place = place[1:] - np.repeat(place[spans.begin], spans.count)
        np.minimum(place, _FAR, out=place)
        place *= 8
        owner = np.arange(len(spans.count)) << _RECORD_BITS
        place += np.repeat(owner, spans.count)
        above = (shims - self._batch.sp0[record]).view(np.int64)
        found: I64 = place.searchsorted(np.minimum(above, 8 * _FAR - 1) + owner[record], "right")
        found -= spans.begin[record]
        found[(above < 0) | (above >= 8 * _FAR) | (found < 1) | (found > last[record])] = 0
        return found


def _call_sites(addresses: U64, spans: Spans) -> U64:
    """A return address is looked up by the address before it; that of each innermost frame is exact."""
    addresses -= np.uint64(1)
    addresses[spans.heads] += np.uint64(1)
    return addresses
