"""128-bit hashes of many sequences of small numbers at once, to look up stacks that were seen before.

A sequence hashes to the sum of R[value] * P[position] modulo 2^64, once for each of two seeds, where R and P
are random 64-bit words (P odd) of this process: sequences that differ agree in both sums by chance of about
2^-120, and nobody outside can make them agree.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

_FIRST_VALUES = 1 << 12
KEY_BYTES = 16

Hashes = tuple[NDArray[np.uint64], NDArray[np.uint64]]


class StackHash:
    """The random words; they last as long as the hashes are compared."""

    def __init__(self, max_length: int) -> None:
        self._random = np.random.default_rng(secrets.randbits(128))
        self._values = [self._words(_FIRST_VALUES) for _ in range(2)]
        self._positions = [self._words(max_length) | np.uint64(1) for _ in range(2)]

    def words_of(self, values: NDArray[np.uint32]) -> Hashes:
        """The two random words of each value."""
        if len(values) and (highest := int(values.max())) >= len(self._values[0]):
            more = max(highest + 1 - len(self._values[0]), len(self._values[0]))
            self._values = [np.concatenate([known, self._words(more)]) for known in self._values]
        first, second = self._values
        return first[values], second[values]

    def sums(self, words: Hashes, spans: Spans) -> Hashes:
        """The hashes of the sequences that `spans` cuts these words (as from words_of) into."""
        first, second = (
            spans.sum(own * weight[spans.position])
            for own, weight in zip(words, self._positions, strict=True)
        )
        return first, second

    def some(self, count: int) -> Hashes:
        """`count` random words for each seed, the first of them 0."""
        first, second = self._words(count), self._words(count)
        first[0] = second[0] = 0
        return first, second

    def odd(self) -> tuple[np.uint64, np.uint64]:
        """A random odd word for each seed, to weigh a part of a hash with."""
        first, second = (self._words(2) | np.uint64(1)).tolist()
        return np.uint64(first), np.uint64(second)

    def _words(self, count: int) -> NDArray[np.uint64]:
        return self._random.integers(0, 1 << 64, count, np.uint64)


def keys_of(hashes: Hashes) -> list[bytes]:
    """Each hash as KEY_BYTES bytes."""
    data = np.stack(hashes, axis=1).tobytes()
    return [data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)]


class Spans:
    """Runs of elements of a larger array, one after the other: run i begins at `start[i]` and has `count[i]`.

    `index`: where each element lies, in steps of `step` from the start of its run; `position`: its place in
    its run; `begin` and `end`: of each run, among all elements.
    """

    __slots__ = ("begin", "count", "end", "index", "position")

    def __init__(self, start: NDArray[np.int64], count: NDArray[np.int64], step: int = 1) -> None:
        self.count = count
        self.end = np.cumsum(count)
        self.begin = self.end - count
        total = int(self.end[-1]) if len(count) else 0
        self.position = np.arange(total)
        self.position -= np.repeat(self.begin, count)
        self.index = np.repeat(start, count)
        self.index += self.position if step == 1 else step * self.position

    def __len__(self) -> int:
        return len(self.position)

    def sum(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The sum modulo 2^64 over each run."""
        before = np.zeros(len(words) + 1, np.uint64)
        np.cumsum(words, out=before[1:])
        total: NDArray[np.uint64] = before[self.end] - before[self.begin]
        return total
