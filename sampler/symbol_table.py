"""The function symbols of one binary by address, in 13 bytes each: libtorch_cpu has half a million.

Addresses and name offsets are held as distances from the lowest one, in 32 bits where they fit, which
they do but for binaries of more than 4 GB. Names stay in the file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.elf import FunctionSymbols

MAX_LABEL_DISTANCE = 1 << 16  # what a label without a size covers at most
_MAX_COVERING_STEPS = 16
_MAX_ALIASES = 8
_MAX_SAME = 1024  # symbols at one address that are looked through for the best
_RANK_LABEL = 4


class SymbolTable:
    """Rows by rising (address, rank). Columns are array.array: bisect and single items cost a fraction of
    what they do in numpy.
    """

    def __init__(self, symbols: FunctionSymbols | None = None) -> None:
        self._base, self._value = _distances(symbols.value if symbols is not None else _NONE)
        self._name_base, self._name = _distances(symbols.name if symbols is not None else _NONE)
        self._size = array("I", symbols.size.tobytes() if symbols is not None else b"")
        self._rank = symbols.rank.tobytes() if symbols is not None else b""

    def __len__(self) -> int:
        return len(self._value)

    @property
    def nbytes(self) -> int:
        """Memory of the columns."""
        columns = (self._value, self._name, self._size)
        return sum(column.itemsize * len(column) for column in columns) + len(self._rank)

    def start(self, index: int) -> int:
        """Address of a symbol."""
        return self._base + self._value[index]

    def reach(self, index: int) -> int:
        """Address behind what a symbol covers."""
        return self.start(index) + (self._size[index] or MAX_LABEL_DISTANCE)

    def next_start(self, address: int) -> int:
        """Address of the first symbol behind this one; 1 << 64: there is none."""
        after = bisect_right(self._value, address - self._base)
        return self.start(after) if after < len(self._value) else 1 << 64

    def covering(self, address: int) -> int | None:
        """Index of the best symbol at or before an address that covers it; labels without size reach to the
        next one.
        """
        value, size = self._value, self._size
        distance = address - self._base
        at = bisect_right(value, distance) - 1
        label = None
        for index in range(at, max(at - _MAX_COVERING_STEPS, -1), -1):
            start, length = value[index], size[index]
            if length and distance < start + length:
                return self._first_at(index)
            if not length and label is None and distance - start < MAX_LABEL_DISTANCE and start == value[at]:
                label = index
        return label

    def aliases(self, index: int) -> Iterator[tuple[int, int]]:
        """(file offset of the name, rank) of the symbols at the same address, the given one first; no
        labels beside a function.
        """
        value, rank = self._value, self._rank
        for other in range(index, min(index + _MAX_ALIASES, len(value))):
            if value[other] != value[index] or rank[other] >= _RANK_LABEL > rank[index]:
                return
            yield self._name_base + self._name[other], rank[other]

    def _first_at(self, index: int) -> int:
        """The best of the symbols with the same address, which are sorted by rank."""
        value, size = self._value, self._size
        lowest = max(index - _MAX_SAME, 0)
        while index > lowest and value[index - 1] == value[index] and size[index - 1] == size[index]:
            index -= 1
        return index


_NONE: NDArray[np.uint64] = np.zeros(0, np.uint64)


def _distances(column: NDArray[np.uint64]) -> tuple[int, array[int]]:
    """(lowest value, distances from it)."""
    if not len(column):
        return 0, array("I")
    base = int(column.min())
    if int(column.max()) - base >> 32:
        return 0, array("Q", column.tobytes())
    return base, array("I", (column - np.uint64(base)).astype(np.uint32).tobytes())
