"""Ids of launch stacks that were seen lately: a launch of a known stack costs a few array operations."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.process_stacks import ProcessStacks

BITS = 15
MAX_PROCESSES = 1 << 12
_NO_KEY = np.uint64((1 << 64) - 1)
_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2^64 / golden ratio


class StackMemo:
    """Stack ids by key, in 2^BITS places: keys that share a place push each other out. Not thread-safe.

    A key is a stack's hash mixed with a random number of its process, so that no process can know the keys of
    another one.
    """

    def __init__(self) -> None:
        self._keys = np.full(1 << BITS, _NO_KEY, np.uint64)
        self._stacks = np.zeros(1 << BITS, np.uint32)
        self._truncated = np.zeros(1 << BITS, np.bool_)
        self._salts: dict[tuple[int, int], int] = {}

    def clear(self) -> None:
        """Forget all, as when another generation of tables begins."""
        self._keys.fill(_NO_KEY)
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
        place = _places(keys)
        stacks, truncated = self._stacks.take(place), self._truncated.take(place)
        unknown = np.flatnonzero(self._keys.take(place) != keys)
        if len(unknown):
            stacks[unknown], truncated[unknown] = 0, False
        return stacks, truncated, unknown

    def put(self, keys: NDArray[np.uint64], stacks: NDArray[np.uint32], truncated: NDArray[np.bool_]) -> None:
        """Remember stacks; of several that share a place one is kept."""
        place, first = np.unique(_places(keys), return_index=True)
        self._keys[place], self._stacks[place] = keys[first], stacks[first]
        self._truncated[place] = truncated[first]

    def forget(self, process: ProcessStacks, hashed: int) -> None:
        """Forget a stack, of which the frames have come again."""
        key = np.array([hashed ^ self._salt(process)], np.uint64)
        self._keys[_places(key)[self._keys[_places(key)] == key]] = _NO_KEY


def _places(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    places: NDArray[np.uint64] = keys * _SPREAD
    places >>= np.uint64(64 - BITS)
    return places.view(np.int64)
