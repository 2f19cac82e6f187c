"""A bounded hash table in numpy that turns columns of 64-bit keys into small numbers, thousands at a time.

Open addressing with linear probing; a key is one or two 64-bit words and is compared in full. The multipliers
are random, so that nobody outside can aim at a slot.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

MISSING = 0xFFFF_FFFF  # the value of a key that is not in the table
_EMPTY = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # first word of a free slot
_ROOM_BITS = 2  # slots for each key, as a power of two
_MAX_PROBES = 96  # a key that would lie farther from its slot is not kept

Keys = tuple[NDArray[np.uint64], ...]


class IdTable:
    """u32 values by keys of `words` 64-bit words; at most a quarter full, so that probing is short."""

    def __init__(self, words: int, *, max_keys: int = 1 << 17, first_bits: int = 10) -> None:
        self._first_bits = first_bits
        self._max_bits = max((max_keys - 1).bit_length() + _ROOM_BITS, first_bits)
        self._multipliers = tuple(np.uint64(secrets.randbits(64) | 1) for _ in range(words))
        self._make(first_bits)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Memory of the columns."""
        return self._values.nbytes + sum(keys.nbytes for keys in self._keys)

    def find(self, *keys: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """The value of each key, MISSING where there is none."""
        at = self._slots(keys)
        values = self._values[at]
        left = np.flatnonzero(self._unlike(keys, at))
        if len(left):
            self._probe(keys, at, left, values)
        return values

    def add(self, values: NDArray[np.uint32], *keys: NDArray[np.uint64]) -> None:
        """Set the values of keys, each of which occurs once here; there is no promise that they are kept."""
        at = self._slots(keys)
        left = np.arange(len(values))
        for _ in range(_MAX_PROBES):
            here = at[left]
            first = self._keys[0][here]
            free = first == _EMPTY
            # Of the keys that want the same free slot the last one gets it; the others see that below.
            for column, words in zip(self._keys, keys, strict=True):
                column[here[free]] = words[left[free]]
            own = ~self._unlike(tuple(words[left] for words in keys), here)
            self._count += int(np.count_nonzero(own & free))
            self._values[here[own]] = values[left[own]]
            left = left[~own]
            if not len(left):
                return
            at[left] = (at[left] + 1) & self._mask

    def forget(self, *keys: NDArray[np.uint64]) -> None:
        """Have these keys be MISSING again."""
        at = self._slots(keys)
        left = np.arange(len(at))
        for _ in range(_MAX_PROBES):
            here = at[left]
            unlike = self._unlike(tuple(words[left] for words in keys), here)
            self._values[here[~unlike]] = MISSING
            left = left[unlike & (self._keys[0][here] != _EMPTY)]
            if not len(left):
                return
            at[left] = (at[left] + 1) & self._mask

    @property
    def room(self) -> int:
        """How many keys can be added before `grow` is needed."""
        return (1 << (self._bits - _ROOM_BITS)) - self._count

    def grow(self, count: int) -> None:
        """Make room for `count` more keys, and some to spare, as far as the bound allows."""
        bits = self._bits
        while (self._count + count) * 4 > 3 << (bits - _ROOM_BITS) and bits < self._max_bits:
            bits += 1
        if bits != self._bits:
            self._rebuild(bits, self._values != MISSING)

    def keep(self, wanted: NDArray[np.bool_]) -> None:
        """Drop the keys in slots (as in `keys`) that are not wanted."""
        self._rebuild(self._bits, wanted & (self._values != MISSING))

    def keys(self) -> Keys:
        """The key words of all slots, also of free ones."""
        return self._keys

    def clear(self) -> None:
        """Forget all, and give the memory back."""
        self._make(self._first_bits)

    def _make(self, bits: int) -> None:
        self._bits = bits
        self._mask = (1 << bits) - 1
        self._shift = np.uint64(64 - bits)
        self._keys = tuple(np.full(1 << bits, _EMPTY, np.uint64) for _ in self._multipliers)
        self._values = np.full(1 << bits, MISSING, np.uint32)
        self._count = 0

    def _rebuild(self, bits: int, kept: NDArray[np.bool_]) -> None:
        at = np.flatnonzero(kept)
        keys, values = tuple(column[at] for column in self._keys), self._values[at]
        self._make(bits)
        self.add(values, *keys)

    def _slots(self, keys: Keys) -> NDArray[np.int64]:
        mixed = keys[0] * self._multipliers[0]
        for words, multiplier in zip(keys[1:], self._multipliers[1:], strict=True):
            mixed ^= words * multiplier
        mixed >>= self._shift
        return mixed.view(np.int64)

    def _unlike(self, keys: Keys, at: NDArray[np.int64]) -> NDArray[np.bool_]:
        unlike: NDArray[np.bool_] = self._keys[0][at] != keys[0]
        for column, words in zip(self._keys[1:], keys[1:], strict=True):
            unlike |= column[at] != words
        return unlike

    def _probe(
        self, keys: Keys, at: NDArray[np.int64], left: NDArray[np.int64], values: NDArray[np.uint32]
    ) -> None:
        """Fill in the values of the keys whose own slot (`at`) has another one."""
        values[left] = MISSING
        left = left[self._keys[0][at[left]] != _EMPTY]
        for step in range(1, _MAX_PROBES):
            if not len(left):
                return
            here = (at[left] + step) & self._mask
            unlike = self._unlike(tuple(words[left] for words in keys), here)
            values[left[~unlike]] = self._values[here[~unlike]]
            left = left[unlike & (self._keys[0][here] != _EMPTY)]
