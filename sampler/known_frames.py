"""The frame ids of code addresses and code objects that were named before, of the kernel and all processes.

Two hash tables, bounded however many processes come and go. A process has a number in each, which is part of
its keys; it gets a new one when what is known of it is void, and what is left under old numbers is swept out
when a table is full.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.frame_ids import FrameIds, Role
from gpuprof.sampler.id_table import MISSING, IdTable
from gpuprof.sampler.kallsyms import UNKNOWN_CODE, KernelSymbols
from gpuprof.sampler.process_stacks import NO_FRAME_ENTRY, ProcessStacks
from gpuprof.snapshots.frames import FrameKind

SIGNAL_RETURN = np.uint32(1 << 31)  # beside the frame id of a native frame that a signal handler returns to
CODE_BASE = -NO_FRAME_ENTRY  # added to what ProcessStacks.resolve_code returns, so that it is not negative
MAX_ADDRESSES = 1 << 17
MAX_CODES = 1 << 15
MAX_NUMBER = (1 << 16) - 1
KERNEL_RETRY_NS = 60 * 10**9  # unknown kernel code may be a module's that came later
_KERNEL_NUMBER = 0
ADDRESS_BITS = 47
_ADDRESS = np.uint64((1 << ADDRESS_BITS) - 1)
_NUMBER_SHIFT = np.uint64(ADDRESS_BITS)

# A Python frame's two words have eight free bits each (see records.py), which take the number.
_WORD = np.uint64(0xFF00_FFFF_FFFF_FFFF)
_DETAIL = np.uint64(0x00FF_FFFF_FFFF_FFFF)
_LOW, _BYTE = np.uint64(0xFF), np.uint64(8)
_WORD_SHIFT, _DETAIL_SHIFT = np.uint64(48), np.uint64(56)

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]


class KnownFrames:
    """Names what it does not know yet. Not thread-safe. `living`: the processes whose numbers are in use."""

    def __init__(
        self, ids: FrameIds, kernel: KernelSymbols, living: Callable[[], Iterable[ProcessStacks]]
    ) -> None:
        self._ids = ids
        self._kernel = kernel
        self._living = living
        self._native = IdTable(1, max_keys=MAX_ADDRESSES)
        self._codes = IdTable(2, max_keys=MAX_CODES)
        self._last_number = _KERNEL_NUMBER
        self._numbered: set[int] = set()
        self._kernel_retry_ns = 0
        self._unknown_kernel: list[int] = []
        self._kernel_functions: dict[int, int] = {}  # frame ids by start

    @property
    def nbytes(self) -> int:
        """Memory of the tables."""
        return self._native.nbytes + self._codes.nbytes

    def reset(self, ids: FrameIds) -> None:
        """A new set of frame ids begins; the processes were told (ProcessStacks.reset)."""
        self._ids = ids
        self._native.clear()
        self._codes.clear()
        self._last_number = _KERNEL_NUMBER
        self._unknown_kernel = []
        self._kernel_functions = {}

    def enrol(self, processes: Sequence[ProcessStacks]) -> None:
        """Give numbers to processes that have none, and drop what they say is stale. To be called before the
        numbers of these processes are used.
        """
        if self._last_number + 2 * len(processes) > MAX_NUMBER:
            for process in [*self._living(), *processes]:
                process.forget_native()
                process.code_number = 0
            self.reset(self._ids)
        for process in processes:
            if process.stale:
                stale = np.array(process.stale, np.uint64)
                self._native.forget(stale & _ADDRESS | np.uint64(process.native_number << ADDRESS_BITS))
                process.stale = []
            if not process.native_number:
                process.native_number = self._last_number = self._last_number + 1
            if not process.code_number:
                process.code_number = self._last_number = self._last_number + 1

    def kernel(self, addresses: U64) -> U32:
        """Frame ids of kernel addresses (of return addresses, the addresses before them)."""
        if self._unknown_kernel and time.monotonic_ns() >= self._kernel_retry_ns:
            self._kernel_retry_ns = time.monotonic_ns() + KERNEL_RETRY_NS
            self._native.forget(np.array(self._unknown_kernel, np.uint64) & _ADDRESS)
            self._unknown_kernel = []
            self._kernel_functions.clear()
        keys = addresses & _ADDRESS
        values = self._native.find(keys)
        missing = np.flatnonzero(values == MISSING)
        if len(missing):
            wanted, same = np.unique(addresses[missing], return_inverse=True)
            starts = self._kernel.starts(wanted).tolist()
            named = np.array(
                [
                    self._name_kernel_function(start) if start else self._name_kernel(address)
                    for address, start in zip(wanted.tolist(), starts, strict=True)
                ],
                np.uint32,
            )
            values[missing] = named[same]
            self._add(self._native, named, wanted & _ADDRESS)
        return values

    def native(self, keys: U64, owners: Callable[[I64], I64], processes: Sequence[ProcessStacks]) -> U32:
        """Frame ids of user addresses, with SIGNAL_RETURN. `keys`: the addresses, with the native numbers of
        their processes above ADDRESS_BITS; `owners`: the index in `processes` of the keys at some places.
        """
        values = self._native.find(keys)
        missing = np.flatnonzero(values == MISSING)
        if len(missing):
            wanted, first, same = np.unique(keys[missing], return_index=True, return_inverse=True)
            # By process, and in each by address, which is how they are named with least work.
            whose = owners(missing[first]).tolist()
            begin = [0, *(np.flatnonzero(np.diff(wanted >> _NUMBER_SHIFT)) + 1).tolist(), len(wanted)]
            frames: list[int] = []
            for low, high in itertools.pairwise(begin):
                frames += processes[whose[low]].resolve_native((wanted[low:high] & _ADDRESS).tolist())
            named = np.array(frames, np.uint32)
            named[np.frombuffer(self._ids.roles, np.uint8)[named] == Role.SIGNAL_RETURN] |= SIGNAL_RETURN
            values[missing] = named[same]
            self._add(self._native, named, wanted)
        return values

    def codes(self, words: U64, details: U64, owners: I64, processes: Sequence[ProcessStacks]) -> U32:
        """ProcessStacks.resolve_code plus CODE_BASE, of Python frames that are no shims; `owners`: the index
        in `processes` of each.
        """
        numbers = np.array([process.code_number for process in processes], np.uint64)
        keys = (
            words & _WORD | ((numbers & _LOW) << _WORD_SHIFT)[owners],
            details & _DETAIL | ((numbers >> _BYTE) << _DETAIL_SHIFT)[owners],
        )
        values = self._codes.find(*keys)
        missing = np.flatnonzero(values == MISSING)
        if len(missing):
            pairs = np.stack([words[missing] for words in keys], axis=1).view([("", np.uint64)] * 2)[:, 0]
            _, first, same = np.unique(pairs, return_index=True, return_inverse=True)
            first = missing[first]
            named = np.array(
                [
                    processes[owner].resolve_code(word, detail) + CODE_BASE
                    for owner, word, detail in zip(
                        owners[first].tolist(), words[first].tolist(), details[first].tolist(), strict=True
                    )
                ],
                np.uint32,
            )
            values[missing] = named[same]
            self._add(self._codes, named, *(column[first] for column in keys))
        return values

    def _add(self, table: IdTable, values: U32, *keys: U64) -> None:
        """Keep what was named, for as long as there is room."""
        if len(values) > table.room:
            self._sweep(table)
            table.grow(len(values))
            if len(values) > table.room:
                table.clear()
                table.grow(len(values))
        if len(values) <= table.room:
            table.add(values, *keys)

    def _name_kernel_function(self, start: int) -> int:
        found = self._kernel_functions.get(start)
        if found is None:
            name, binary = self._kernel.lookup(start)
            found = self._ids.get(name, "", binary, FrameKind.KERNEL_SPACE)
            self._kernel_functions[start] = found
        return found

    def _name_kernel(self, address: int) -> int:
        name, binary = self._kernel.lookup(address)
        if name == UNKNOWN_CODE and len(self._unknown_kernel) < MAX_ADDRESSES >> 3:
            self._unknown_kernel.append(address)
        return self._ids.get(name, "", binary, FrameKind.KERNEL_SPACE)

    def _sweep(self, table: IdTable) -> None:
        """Drop what belongs to no living process under its number of now."""
        used = np.zeros(MAX_NUMBER + 1, bool)
        used[_KERNEL_NUMBER] = True
        keys = table.keys()
        if table is self._native:
            used[[process.native_number for process in self._living()]] = True
            number = keys[0] >> _NUMBER_SHIFT
        else:
            used[[process.code_number for process in self._living()]] = True
            number = keys[0] >> _WORD_SHIFT & _LOW | keys[1] >> _DETAIL_SHIFT << _BYTE
        table.keep(used[np.minimum(number, MAX_NUMBER).astype(np.int64)])
