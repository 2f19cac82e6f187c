"""Numbers by 64-bit key that were seen lately, in bounded memory, looked up many at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof.snapshots.columns import Array

_NO_KEY = np.uint64((1 << 64) - 1)
_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2^64 / golden ratio
_SPREAD_AGAIN = np.uint64(0xC2B2_AE3D_27D4_EB4F)  # any other odd number


class KeyMemo:
    """A value for each key, in 2^bits places. Not thread-safe.

    A key may be in either of two places, so that two that come again and again do not push each other out;
    only the second place is looked at twice.
    """

    def __init__(self, dtype: Any, bits: int) -> None:
        self._bits = bits
        self._keys = np.full(1 << bits, _NO_KEY, np.uint64)
        self._values = np.zeros(1 << bits, dtype)

    def clear(self) -> None:
        """Forget all."""
        self._keys.fill(_NO_KEY)

    def find(self, keys: Array) -> tuple[Array, Array]:
        """Return the value of each key (u64), 0 where it is not known, and the indices of those."""
        place = self._places(keys, _SPREAD)
        values: Array = self._values.take(place)
        unknown = np.flatnonzero(self._keys.take(place) != keys)
        if len(unknown):
            others = keys[unknown]
            place = self._places(others, _SPREAD_AGAIN)
            found = self._keys.take(place) == others
            values[unknown] = np.where(found, self._values.take(place), 0)
            unknown = unknown[~found]
        return values, unknown

    def put(self, keys: Array, values: Array) -> None:
        """Remember the values of keys; of several that share a place one is kept."""
        place = self._places(keys, _SPREAD)
        there = self._keys.take(place)
        taken = (there != keys) & (there != _NO_KEY)
        place = np.where(taken, self._places(keys, _SPREAD_AGAIN), place)
        place, first = np.unique(place, return_index=True)
        self._keys[place], self._values[place] = keys[first], values[first]

    def forget(self, key: int) -> None:
        """Forget the value of a key, should there be one."""
        one = np.array([key], np.uint64)
        for spread in (_SPREAD, _SPREAD_AGAIN):
            place = self._places(one, spread)
            if self._keys[place] == one:
                self._keys[place] = _NO_KEY

    def _places(self, keys: Array, spread: np.uint64) -> Array:
        places: Array = keys * spread
        places >>= np.uint64(64 - self._bits)
        return places.view(np.int64)
