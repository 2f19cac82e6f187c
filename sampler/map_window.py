"""Edits parts of a BPF array that user space may map (BPF_F_MMAPABLE), without keeping it mapped."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class MapWindow:
    """An array of `count` elements behind a map descriptor. Nothing stays mapped: tables do not count as our
    memory.
    """

    def __init__(self, fd: int, count: int, dtype: Any) -> None:
        self._fd = fd
        self._dtype = np.dtype(dtype)
        self.count = count

    def edit(self, first: int, count: int, change: Callable[[NDArray[Any]], None]) -> None:
        """Call `change` with elements [first, first + count) mapped; it must not keep the array."""
        size = self._dtype.itemsize
        if first < 0 or count <= 0 or first + count > self.count:
            raise ValueError("outside of the table")
        begin = first * size
        base = begin - begin % mmap.PAGESIZE
        length = (begin + count * size - base + mmap.PAGESIZE - 1) & -mmap.PAGESIZE
        with mmap.mmap(
            self._fd, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=base
        ) as window:
            array = np.frombuffer(window, self._dtype, count, begin - base)
            change(array)
            del array

    def write(self, first: int, values: NDArray[Any]) -> None:
        """Store values from element `first` on."""

        def store(array: NDArray[Any]) -> None:
            array[:] = values

        if len(values):
            self.edit(first, len(values), store)

    def read(self, first: int, count: int) -> NDArray[Any]:
        """A copy of `count` elements."""
        copies: list[NDArray[Any]] = []
        self.edit(first, count, lambda array: copies.append(array.copy()))
        return copies[0]
