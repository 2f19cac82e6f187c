"""Where in a fixed array things lie: spans of elements that are taken, given back and merged again."""

from __future__ import annotations

import bisect


class TableSpace:
    """Free space of an array of `size` elements as sorted spans; first fit. Element numbers below `first` are
    never given.
    """

    def __init__(self, size: int, first: int = 0) -> None:
        self.size = size
        self.first = first
        self._starts = [first]
        self._lengths = [size - first]

    @property
    def free(self) -> int:
        """Elements that are not taken, in however many pieces."""
        return sum(self._lengths)

    @property
    def largest(self) -> int:
        """The largest piece."""
        return max(self._lengths, default=0)

    def take(self, length: int) -> int | None:
        """Start of `length` elements in a row, or None when no piece is that large."""
        for index, free in enumerate(self._lengths):
            if free < length:
                continue
            start = self._starts[index]
            if free == length:
                del self._starts[index], self._lengths[index]
            else:
                self._starts[index] += length
                self._lengths[index] -= length
            return start
        return None

    def give_back(self, start: int, length: int) -> None:
        """Return a span that take() gave."""
        if length <= 0:
            return
        index = bisect.bisect_left(self._starts, start)
        if index < len(self._starts) and start + length == self._starts[index]:
            length += self._lengths[index]
            del self._starts[index], self._lengths[index]
        if index > 0 and self._starts[index - 1] + self._lengths[index - 1] == start:
            self._lengths[index - 1] += length
        else:
            self._starts.insert(index, start)
            self._lengths.insert(index, length)
