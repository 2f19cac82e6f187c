"""128-bit hashes of many sequences of small numbers at once, to look up stacks that were seen before.

A sequence v hashes to the sum of R[v[i]] * P[i] modulo 2^64, once for each of two seeds, where R are random
words and P random odd ones, of this process, which nobody outside can see: sequences that differ agree in
both sums by a chance of about 2^-120. Where P[i] is a power of one random number, which is cheaper, that is
so for all but sequences that repeat themselves in just the wrong way: about 2^-58 at 128 elements.
"""

from __future__ import annotations

import os
import secrets

import numpy as np
from numpy.typing import NDArray

_FIRST_VALUES = 1 << 12
_FIRST_POWERS = 1 << 12
KEY_BYTES = 16

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
Hashes = tuple[U64, U64]


class StackHash:
    """The random words; they last as long as the hashes are compared."""

    def __init__(self, max_length: int) -> None:
        self._places = [self._words(max_length) | np.uint64(1) for _ in range(2)]
        self._values = [self._words(_FIRST_VALUES) for _ in range(2)]
        # 5 modulo 8: of the odd numbers those with the most different powers.
        self._bases = [secrets.randbits(64) & ~7 | 5 for _ in range(2)]
        self._powers: list[U64] = []
        self._inverses: list[U64] = []
        self._make_powers(_FIRST_POWERS)

    def reserve(self, values: int) -> None:
        """Have words for values below this number."""
        more = values - len(self._values[0])
        if more > 0:
            more = max(more, len(self._values[0]))
            self._values = [np.concatenate([known, self._words(more)]) for known in self._values]

    def words_of(self, values: NDArray[np.uint32]) -> Hashes:
        """The two random words of each value, all of which are reserved."""
        first, second = self._values
        return first[values], second[values]

    def sums(self, words: Hashes, spans: Spans) -> Hashes:
        """The hashes of the sequences that `spans` cuts these words (as from words_of) into, by powers; the
        words are used up.
        """
        count = len(spans)
        if count > len(self._powers[0]):
            self._make_powers(2 * count)
        found = []
        before = np.zeros(count + 1, np.uint64)
        for own, powers, inverses in zip(words, self._powers, self._inverses, strict=True):
            own *= powers[:count]  # noqa: PLW2901
            np.cumsum(own, out=before[1:])
            sums: U64 = before[spans.end] - before[spans.begin]
            sums *= inverses[spans.begin]  # as if each run had begun at r^0
            found.append(sums)
        return found[0], found[1]

    def sums_by_place(self, words: Hashes, spans: Spans) -> Hashes:
        """The same with words P that have nothing to do with each other, for sequences of any length up to
        `max_length`.
        """
        place = np.arange(len(spans)) - np.repeat(spans.begin, spans.count)
        found = []
        before = np.zeros(len(spans) + 1, np.uint64)
        for own, weights in zip(words, self._places, strict=True):
            np.cumsum(own * weights[place], out=before[1:])
            found.append(before[spans.end] - before[spans.begin])
        return found[0], found[1]

    def some(self, count: int) -> Hashes:
        """`count` random words for each seed, the first of them 0."""
        first, second = self._words(count), self._words(count)
        first[0] = second[0] = 0
        return first, second

    def odd(self) -> tuple[np.uint64, np.uint64]:
        """A random odd word for each seed, to weigh a part of a hash with."""
        first, second = (self._words(2) | np.uint64(1)).tolist()
        return np.uint64(first), np.uint64(second)

    def _make_powers(self, count: int) -> None:
        self._powers = [_powers(base, count) for base in self._bases]
        self._inverses = [_powers(pow(base, -1, 1 << 64), count + 1) for base in self._bases]

    def _words(self, count: int) -> U64:
        """From the system: numpy's generators would be 2 MB to load."""
        return np.frombuffer(bytearray(os.urandom(8 * count)), np.uint64)


def _powers(base: int, count: int) -> U64:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    found: U64 = np.multiply.accumulate(factors)
    return found


def keys_of(hashes: Hashes) -> list[bytes]:
    """Each hash as KEY_BYTES bytes."""
    data = np.stack(hashes, axis=1).tobytes()
    return [data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)]


class Spans:
    """Runs of elements of a larger array, one after the other: run i begins at `start[i]` and has `count[i]`.

    `index`: where each element lies, in steps of `step` from the start of its run; `begin` and `end`: of each
    run, among all elements.
    """

    __slots__ = ("begin", "count", "end", "index")

    def __init__(self, start: I64, count: I64, step: int = 1) -> None:
        self.count = count
        self.end = np.cumsum(count)
        self.begin = self.end - count
        total = int(self.end[-1]) if len(count) else 0
        self.index = np.arange(0, step * total, step)
        self.index += np.repeat(start - step * self.begin, count)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def heads(self) -> I64:
        """The first element of each run that has some."""
        return self.begin[self.count > 0]

    def run_of(self, at: I64) -> I64:
        """The run of each of these elements."""
        return self.end.searchsorted(at, "right")

    def position_of(self, at: I64) -> I64:
        """The place of each of these elements in its run."""
        return at - self.begin[self.run_of(at)]
