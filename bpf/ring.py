"""Reader of a BPF ring buffer (BPF_MAP_TYPE_RINGBUF) that copies what is there in bulk.

The format (kernel, Documentation/bpf/ringbuf.rst and kernel/bpf/ringbuf.c): page 0 of the map holds the
consumer's position and is writable; page 1 holds the producer's; then the data, mapped twice in a row so that
a record never wraps. Positions are byte counts that only grow. A record is a u32 length (bit 31: still being
written, bit 30: discarded), a u32 of the kernel's own, the payload, and padding to 8 bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_BUSY = 1 << 31
_DISCARDED = 1 << 30
_LENGTH = _DISCARDED - 1
_ALIKE = 4  # records of one length in a row, before a run of them is looked for
_FIRST_RUN = 256  # how many are looked at; twice as many where all of them were alike
_NO_LIMIT = 1 << 62
Taken = TypeVar("Taken")
_NO_WORDS, _NO_STARTS = np.zeros(0, np.uint64), np.zeros(0, np.int64)


class RingReader:
    """Maps the ring of a map descriptor (which stays the caller's) of `size` bytes. One reader per ring."""

    def __init__(self, fd: int, size: int) -> None:
        page = mmap.PAGESIZE
        self._mask = size - 1
        self._consumer_map = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        self._producer_map = mmap.mmap(fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._consumer = memoryview(self._consumer_map).cast("Q")
        self._producer = memoryview(self._producer_map)[:page].cast("Q")
        self._data = np.frombuffer(self._producer_map, np.uint64, 2 * size // 8, page)
        self._lengths = memoryview(self._producer_map)[page:].cast("I")

    def read(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """(words, starts): a copy of all finished records and the index of each one's payload in it."""
        return self.take(lambda words, starts: (words.copy(), starts)) or (_NO_WORDS, _NO_STARTS)

    def take(
        self, convert: Callable[[NDArray[np.uint64], NDArray[np.int64]], Taken], limit_words: int = _NO_LIMIT
    ) -> Taken | None:
        """What `convert` makes of (words, starts) as `read` has them; None without records.

        These words are those of the ring itself, whose room is free again afterwards: they must be copied.
        With a limit there may be more records than those of about so many words.
        """
        position, end = self._consumer[0], self._producer[0]
        if position == end:
            return None
        first = (position & self._mask) >> 3  # in words
        at, starts = self._scan(first, first + min(end - position >> 3, limit_words))
        taken = convert(self._data[first:at], starts) if len(starts) else None
        if at != first:
            self._consumer[0] = position + 8 * (at - first)
        return taken

    def _scan(self, first: int, limit: int) -> tuple[int, NDArray[np.int64]]:
        """Where the finished records from word `first` on end, and where their payloads are after it; of
        records that begin before `limit`.
        """
        found: list[NDArray[np.int64]] = []
        starts: list[int] = []
        lengths = self._lengths
        at, before, alike = first, -1, 0
        while at < limit:
            length = lengths[2 * at]
            if length > _LENGTH:
                if length & _BUSY:
                    break
                at += (length & _LENGTH) + 15 >> 3
                continue
            starts.append(at - first + 1)
            at += length + 15 >> 3
            if length != before:
                before, alike = length, 0
                continue
            alike += 1
            if alike == _ALIKE:
                # Repeated launches come in long runs of one length: found at once.
                alike, step = 0, length + 15 >> 3
                end = at + self._run(at, length, step, limit) * step
                found += [np.array(starts, np.int64), np.arange(at - first + 1, end - first + 1, step)]
                at, starts = end, []
        if starts or not found:
            found.append(np.array(starts, np.int64))
        return at, found[0] if len(found) == 1 else np.concatenate(found)

    def _run(self, at: int, length: int, step: int, limit: int) -> int:
        """How many records of this length follow each other from the one at word `at` on."""
        count, size, lengths = 0, _FIRST_RUN, self._data.view(np.uint32)
        while (left := -((at - limit) // step) - count) > 0:
            begin = at + count * step
            same = lengths[2 * begin : 2 * (begin + min(size, left) * step) : 2 * step] == length
            if not same.all():
                return count + int(np.argmin(same))
            count, size = count + len(same), 2 * size
        return count

    def close(self) -> None:
        """Unmap; read() must not be called afterwards."""
        self._consumer.release()
        self._producer.release()
        self._lengths.release()
        del self._data
        self._consumer_map.close()
        self._producer_map.close()
