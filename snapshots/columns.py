"""Columns that only grow, and a log of rows in blocks: bounded, numbered, and asked by time or by number.

Elements that were written never change, so a view taken under the owner's lock can be read without it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
BLOCK_ROWS = 16_384
_FIRST_BLOCK_ROWS = 1_024
_MAX_U64 = (1 << 64) - 1


def constant(value: Any, dtype: Any, rows: int) -> Array:
    """Return a column with one value in all rows, which takes no memory; it cannot be written to."""
    column: Array = np.ndarray((rows,), dtype, np.full(1, value, dtype), strides=(0,))
    column.flags.writeable = False
    return column


def is_constant(column: Array) -> bool:
    """Whether a column (of some rows) is one value in all of them, as `constant` makes it."""
    return column.strides == (0,)


class GrowingColumn:
    """A numpy column that grows at its end."""

    __slots__ = ("_data", "_length")

    def __init__(self, dtype: Any, first: tuple[int, ...] = ()) -> None:
        self._data: Array = np.zeros(64, dtype)
        self._length = 0
        for value in first:
            self.append(value)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        if index >= self._length:
            raise IndexError(index)
        return int(self._data[index])

    def append(self, value: int) -> None:
        if self._length == len(self._data):
            self._reserve(self._length + 1)
        self._data[self._length] = value
        self._length += 1

    def extend(self, values: ArrayLike) -> None:
        array = np.asarray(values, dtype=self._data.dtype)
        end = self._length + len(array)
        if end > len(self._data):
            self._reserve(end)
        self._data[self._length : end] = array
        self._length = end

    def _reserve(self, rows: int) -> None:
        # views of the old buffer stay valid: it is replaced, not resized
        data = np.zeros(max(rows, len(self._data) * 3 // 2), self._data.dtype)
        data[: self._length] = self._data[: self._length]
        self._data = data

    def view(self) -> Array:
        """Return the elements so far, without copying; later appends do not show."""
        return self._data[: self._length]

    def trim(self) -> None:
        """Give back the unused room at the end."""
        self._data = self._data[: self._length].copy()

    @property
    def nbytes(self) -> int:
        return self._data.nbytes


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one block: numbers [first, first + len), the tag of the block, and equal-length columns."""

    first: int
    tag: Any
    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class _Block:
    """Up to a fixed number of rows with one tag; room is taken in two steps so that a short history stays
    small.
    """

    __slots__ = ("columns", "count", "first", "first_end_ns", "max_ns", "min_ns", "ordered", "tag")

    def __init__(self, first: int, tag: Any, schema: Mapping[str, Any], rows: int) -> None:
        self.first = first
        self.tag = tag
        self.count = 0
        self.min_ns = 0
        self.max_ns = 0
        self.first_end_ns = 0  # the earliest instant in which a row ends
        self.ordered = True
        self.columns: dict[str, Array] = {name: np.empty(rows, dtype) for name, dtype in schema.items()}

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def room(self) -> int:
        return len(next(iter(self.columns.values()))) - self.count

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    def grow(self, rows: int) -> None:
        for name, column in self.columns.items():
            larger = np.empty(rows, column.dtype)
            larger[: self.count] = column[: self.count]
            self.columns[name] = larger

    def slice(self, low: int, high: int) -> Rows:
        return Rows(self.first + low, self.tag, {name: col[low:high] for name, col in self.columns.items()})


class RowLog:
    """Rows in the order in which they came, numbered from 0; the oldest blocks are dropped by `drop_oldest`.

    `schema`: column name -> dtype; `start` and `end` name the columns that hold the instants (ns, unsigned)
    in which a row begins and ends (the same column for rows that are instants). Rows may come somewhat out
    of order. Not thread-safe: the owner holds a lock around every call, but may read what was returned
    without it.
    """

    def __init__(
        self, schema: Mapping[str, Any], *, start: str, end: str, block_rows: int = BLOCK_ROWS
    ) -> None:
        self._schema = dict(schema)
        self._start = start
        self.end = end  # the name of that column
        self._block_rows = block_rows
        self._blocks: deque[_Block] = deque()
        self._next = 0
        self._nbytes = 0

    @property
    def first(self) -> int:
        """Number of the oldest row that is still held (the next number when there is none)."""
        return self._blocks[0].first if self._blocks else self._next

    @property
    def next(self) -> int:
        """Number that the next row will get."""
        return self._next

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    def __len__(self) -> int:
        return self._next - self.first

    def span(self) -> tuple[int, int] | None:
        """Return the earliest and the latest instant of the rows held, None when there are none."""
        if not self._blocks:
            return None
        return min(block.min_ns for block in self._blocks), max(block.max_ns for block in self._blocks)

    def ends(self) -> tuple[int, int] | None:
        """Return the earliest and the latest instant in which a row ends, None when there are no rows."""
        if not self._blocks:
            return None
        return min(block.first_end_ns for block in self._blocks), max(block.max_ns for block in self._blocks)

    def newest_ns(self) -> int:
        """Return about the latest instant: that of the last two blocks (0 when there are none)."""
        return max((block.max_ns for block in itertools.islice(reversed(self._blocks), 2)), default=0)

    def oldest_ns(self) -> int | None:
        """Return the latest instant of the oldest block, None when there is none."""
        return self._blocks[0].max_ns if self._blocks else None

    def tags(self) -> list[Any]:
        """Return the tags of the blocks held, oldest first, each once where neighbours are equal."""
        tags: list[Any] = []
        for block in self._blocks:
            if not tags or tags[-1] is not block.tag:
                tags.append(block.tag)
        return tags

    def add(self, columns: Mapping[str, Array], tag: Any = None) -> None:
        """Append rows: equal-length arrays, one for each name of the schema. ValueError when they are not."""
        count = len(columns[self.end])
        if any(len(columns[name]) != count for name in self._schema):
            raise ValueError("columns of different lengths")
        done = 0
        while done < count:
            block = self._block_for(tag, count - done)
            rows = min(block.room, count - done)
            at = block.count
            for name, column in block.columns.items():
                column[at : at + rows] = columns[name][done : done + rows]
            self._note_times(block, at, rows)
            block.count += rows
            self._next += rows
            done += rows

    def _block_for(self, tag: Any, wanted: int) -> _Block:
        last = self._blocks[-1] if self._blocks else None
        if last is not None and last.tag is tag:
            if last.room:
                return last
            if last.count < self._block_rows:
                self._nbytes -= last.nbytes
                last.grow(min(self._block_rows, max(4 * last.count, last.count + wanted)))
                self._nbytes += last.nbytes
                return last
        rows = self._block_rows if last is not None and last.tag is tag else max(_FIRST_BLOCK_ROWS, wanted)
        block = _Block(self._next, tag, self._schema, min(rows, self._block_rows))
        self._blocks.append(block)
        self._nbytes += block.nbytes
        return block

    def _note_times(self, block: _Block, at: int, rows: int) -> None:
        ends = block.columns[self.end][at : at + rows]
        starts = block.columns[self._start][at : at + rows]
        low, low_end, high = int(starts.min()), int(ends.min()), int(ends.max())
        in_order = block.ordered and self._start == self.end
        if in_order and at:
            in_order = bool(block.columns[self.end][at - 1] <= ends[0])
        if in_order and rows > 1:
            in_order = bool((ends[1:] >= ends[:-1]).all())
        block.ordered = in_order
        block.min_ns = low if not at else min(block.min_ns, low)
        block.first_end_ns = low_end if not at else min(block.first_end_ns, low_end)
        block.max_ns = high if not at else max(block.max_ns, high)

    def between(self, start_ns: int, end_ns: int) -> Iterator[Rows]:
        """Yield the rows that touch [start_ns, end_ns): instants in it, and windows that overlap it."""
        for block in self._blocks:
            if block.max_ns < start_ns or block.min_ns >= end_ns:
                continue
            if block.min_ns >= start_ns and block.max_ns < end_ns:
                yield block.slice(0, block.count)
                continue
            starts = block.columns[self._start][: block.count]
            ends = block.columns[self.end][: block.count]
            low, high = (np.uint64(min(max(edge, 0), _MAX_U64)) for edge in (start_ns, end_ns))
            if block.ordered:
                first, last = np.searchsorted(ends, [low, high], "left").tolist()
                rows = block.slice(first, last)
            else:
                # a window that ends exactly at the start of the range has no part in it; an instant there has
                touches = (starts < high) & ((ends > low) | ((ends == low) & (starts == ends)))
                at = np.flatnonzero(touches)
                rows = Rows(block.first, block.tag, {name: col[at] for name, col in block.columns.items()})
            if len(rows):
                yield rows

    def since(self, number: int, limit: int) -> Rows | None:
        """Return up to `limit` rows of one block, from row `number` on (or the oldest held); None when there
        is none.
        """
        number = max(number, self.first)
        if number >= self._next or limit <= 0:
            return None
        for block in reversed(self._blocks) if number > (self.first + self._next) // 2 else self._blocks:
            if block.first <= number < block.end:
                low = number - block.first
                return block.slice(low, min(block.count, low + limit))
        return None

    def first_at(self, time_ns: int) -> int:
        """Return the number of the first row of which it or a later row in its block ends at or after
        `time_ns`.
        """
        for block in self._blocks:
            if block.max_ns >= time_ns:
                ends = block.columns[self.end][: block.count]
                return block.first + int(np.argmax(ends >= np.uint64(min(max(time_ns, 0), _MAX_U64))))
        return self._next

    def drop_oldest(self) -> int:
        """Drop the oldest block and return how many rows it held."""
        block = self._blocks.popleft()
        self._nbytes -= block.nbytes
        return block.count
