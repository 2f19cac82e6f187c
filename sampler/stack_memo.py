"""Ids of launch stacks that were seen lately: a launch of a known stack costs a few array operations."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.process_stacks import ProcessStacks
from gpuprof.snapshots.key_memo import KeyMemo

BITS = 15
MAX_PROCESSES = 1 << 12


class StackMemo:
    """Stack ids by key, in 2^BITS places: older ones may be pushed out. Not thread-safe.

    A key is a stack's hash mixed with a random number of its process, so that no process can know the keys of
    another one.
    """

    def __init__(self) -> None:
        self._memo = KeyMemo(np.uint64, BITS)
        self._salts: dict[tuple[int, int], int] = {}

    def clear(self) -> None:
        """Forget all, as when another generation of tables begins."""
        self._memo.clear()
        self._salts.clear()

    def keys(
        self, hashes: NDArray[np.uint64], processes: Sequence[ProcessStacks], of_record: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        """The key of each record's stack; `of_record`: of each record, the index of its process."""
        salts = np.array([self._salt(process) for process in processes], np.uint64)
        salts = salts[:1] if (salts == salts[0]).all() else salts.take(of_record)
        keys: NDArray[np.uint64] = hashes ^ salts
        return keys

    def _salt(self, process: ProcessStacks) -> int:
        whose = process.pid, process.start_ns
        salt = self._salts.get(whose)
        if salt is None:
            if len(self._salts) >= MAX_PROCESSES:
                self.clear()
            salt = self._salts[whose] = secrets.randbits(64)
        return salt

    def find(
        self, keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.bool_], NDArray[np.intp]]:
        """Stack ids, whether each is truncated, and which keys are not known: those have 0 and False."""
        values, unknown = self._memo.find(keys)
        halves = values.view(np.uint32)  # of each value the stack, then whether it is truncated
        return halves[::2].copy(), halves[1::2] != 0, unknown

    def put(self, keys: NDArray[np.uint64], stacks: NDArray[np.uint32], truncated: NDArray[np.bool_]) -> None:
        """Remember stacks; of several that share a place one is kept."""
        self._memo.put(keys, stacks.astype(np.uint64) | (truncated.astype(np.uint64) << np.uint64(32)))

    def forget(self, process: ProcessStacks, hashed: int) -> None:
        """Forget a stack, of which the frames have come again."""
        self._memo.forget(hashed ^ self._salt(process))
