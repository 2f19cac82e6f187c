"""Stack records that were read out of the kernel's rings and wait to be named: a ring must not fill while
tables and symbols are loaded.
"""

from __future__ import annotations

import time
from collections import deque

from gpuprof.bpf.programs import StackPrograms
from gpuprof.bpf.records import FAMILY_LAUNCH, HEADER, Batch

DRAIN_NS = 50_000_000
MAX_PENDING_WORDS = 4 << 20  # 32 MB of records that wait to be named; the oldest are dropped


class PendingRecords:
    """Batches in the order in which they were read. Used by the reader's thread; the counts may be read from
    any.
    """

    def __init__(self, programs: StackPrograms) -> None:
        self.drained_ns = 0  # when the rings were read last
        self.dropped = 0  # samples
        self.dropped_launches = 0
        self._programs = programs
        self._batches: deque[Batch] = deque()
        self._words = 0

    def __len__(self) -> int:
        return len(self._batches)

    def drain(self) -> None:
        """Take what is in the rings, when it is time."""
        now_ns = time.monotonic_ns()
        if now_ns - self.drained_ns >= DRAIN_NS:
            self.drained_ns = now_ns
            batch = self._programs.read()
            for part in (batch, *self._programs.read_launches()):
                if len(part):
                    self._batches.append(part)
                    self._words += _words_in(part)
            while self._words > MAX_PENDING_WORDS:
                dropped = self.pop()
                if dropped.family[0] == FAMILY_LAUNCH:
                    self.dropped_launches += len(dropped)
                else:
                    self.dropped += len(dropped)

    def be_due(self) -> None:
        """Let the next drain() read, however short a time after the last it is."""
        self.drained_ns = 0

    def pop(self) -> Batch:
        """Take the oldest batch. IndexError when there is none."""
        batch = self._batches.popleft()
        self._words -= _words_in(batch)
        return batch


def _words_in(batch: Batch) -> int:
    """How much a batch holds: that of known launches has two words for each, beside the columns."""
    return len(batch.words) + len(batch) * (HEADER.itemsize // 8)
