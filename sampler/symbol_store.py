"""The symbol tables in use, by binary: opened while a process that maps the file lives, read at the first
lookup.

Bounded in number (each holds a descriptor) and memory; the least recently used is let go and is opened again
when needed.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable

from gpuprof.sampler import memory
from gpuprof.sampler.maps import Mapping, open_mapping
from gpuprof.sampler.symbols import BinarySymbols

MAX_BINARIES = 384
MAX_ARRAY_BYTES = 16 << 20  # libtorch_cpu has 6 MB
_READ_BYTES = 256 << 10  # reading so much of tables has left holes
_TRIM_EVERY_NS = 5 * 10**9  # so do processes and stacks that come and go: 1 ms then gives 5 MB back


class SymbolStore:
    """BinarySymbols by Mapping.key. Not thread-safe."""

    def __init__(self) -> None:
        self._binaries: OrderedDict[Hashable, BinarySymbols] = OrderedDict()
        self._seen_bytes = 0
        self._next_trim_ns = 0

    def hold(self, pid: int, mapping: Mapping) -> None:
        """Open the binary now, so that it can be read after the process is gone."""
        if mapping.key is not None and mapping.key not in self._binaries:
            self._open(pid, mapping)

    def get(self, pid: int, mapping: Mapping) -> BinarySymbols | None:
        """The symbols of a mapped file; None when it cannot be opened (any more)."""
        binary = self._binaries.get(mapping.key)
        if binary is None:
            binary = self._open(pid, mapping)
        else:
            self._binaries.move_to_end(mapping.key)
        return binary

    def trim(self) -> None:
        """Let go of what is over the limits, and of free memory that reading and forgetting left behind; call
        it now and then.
        """
        total = sum(binary.nbytes for binary in self._binaries.values())
        now_ns = time.monotonic_ns()
        if total > self._seen_bytes + _READ_BYTES or now_ns >= self._next_trim_ns:
            self._next_trim_ns = now_ns + _TRIM_EVERY_NS
            memory.trim()
        self._seen_bytes = total
        while self._binaries and (len(self._binaries) > MAX_BINARIES or total > MAX_ARRAY_BYTES):
            if len(self._binaries) == 1:
                break
            _, binary = self._binaries.popitem(last=False)
            total -= binary.nbytes
            binary.close()

    def close(self) -> None:
        """Close all files."""
        for binary in self._binaries.values():
            binary.close()
        self._binaries.clear()

    def _open(self, pid: int, mapping: Mapping) -> BinarySymbols | None:
        try:
            fd = open_mapping(pid, mapping)
        except OSError:
            return None
        binary = self._binaries[mapping.key] = BinarySymbols(fd, mapping.name)
        if len(self._binaries) > MAX_BINARIES:
            self._binaries.popitem(last=False)[1].close()
        return binary
