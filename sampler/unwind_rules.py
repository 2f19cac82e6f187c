"""The distinct unwind rules of all binaries: one array in the kernel, an index for each rule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RuleTable:
    """Index of each packed rule. Rule 0 is none. Rules that no rows use any more are dropped by sweep()."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._index: dict[int, int] = {0: 0}
        self._free: list[int] = []
        self._next = 1

    def __len__(self) -> int:
        return len(self._index)

    def room(self) -> int:
        """How many more rules fit."""
        return self.size - self._next + len(self._free)

    def add(self, rules: NDArray[np.uint64]) -> tuple[NDArray[np.uint32], list[tuple[int, int]]] | None:
        """(index of each rule, new (index, rule) pairs to write), or None when they do not fit."""
        values = rules.tolist()
        new = [value for value in dict.fromkeys(values) if value not in self._index]
        if len(new) > self.room():
            return None
        written = []
        for value in new:
            if self._free:
                place = self._free.pop()
            else:
                place = self._next
                self._next += 1
            self._index[value] = place
            written.append((place, value))
        return np.fromiter((self._index[value] for value in values), np.uint32, len(values)), written

    def sweep(self, used: NDArray[np.bool_]) -> None:
        """Forget the rules whose index is not marked in `used` (one mark per index)."""
        for value, place in list(self._index.items()):
            if place and not used[place]:
                del self._index[value]
                self._free.append(place)
