"""Reader of a BPF ring buffer (BPF_MAP_TYPE_RINGBUF) that copies what is there in bulk.

The format (kernel, Documentation/bpf/ringbuf.rst and kernel/bpf/ringbuf.c): page 0 of the map holds the
consumer's position and is writable; page 1 holds the producer's; then the data, mapped twice in a row so that
a record never wraps. Positions are byte counts that only grow. A record is a u32 length (bit 31: still being
written, bit 30: discarded), a u32 of the kernel's own, the payload, and padding to 8 bytes.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

_BUSY = 1 << 31
_DISCARDED = 1 << 30
_LENGTH = _DISCARDED - 1


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
        position, end = self._consumer[0], self._producer[0]
        base = position & self._mask
        starts: list[int] = []
        lengths = self._lengths
        offset = base
        limit = base + (end - position)
        before = -1
        while offset < limit:
            length = lengths[offset >> 2]
            if length & _BUSY:
                break
            step = (length & _LENGTH) + 15 & ~7
            if length == before and not length & _DISCARDED:
                # Repeated launches come in long runs of one length: found at once.
                run = self._run(offset, length, step, limit)
                starts += range(offset - base + 8 >> 3, offset - base + run * step + 8 >> 3, step >> 3)
                offset += run * step
                before = -1
                continue
            before = length
            if not length & _DISCARDED:
                starts.append(offset - base + 8 >> 3)
            offset += step
        words = self._data[base >> 3 : offset >> 3].copy()
        if offset != base:
            self._consumer[0] = position + offset - base
        return words, np.array(starts, np.int64)

    def _run(self, offset: int, length: int, step: int, limit: int) -> int:
        """How many records of this length follow each other from `offset` on, which holds one."""
        same = self._data.view(np.uint32)[offset >> 2 : limit >> 2 : step >> 2] == length
        return len(same) if same.all() else int(np.argmin(same))

    def close(self) -> None:
        """Unmap; read() must not be called afterwards."""
        self._consumer.release()
        self._producer.release()
        self._lengths.release()
        del self._data
        self._consumer_map.close()
        self._producer_map.close()
