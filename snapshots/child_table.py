"""The children of the nodes of a prefix tree, by (parent, frame): a hash table in two plain arrays.

A dictionary of integers takes ten times the memory; one lookup here takes a few hundred nanoseconds more.
"""

from __future__ import annotations

from array import array

import numpy as np

_MULTIPLIER = 0x9E37_79B9_7F4A_7C15  # 2^64 / golden ratio: neighbouring keys fall far from each other
_MASK_64 = (1 << 64) - 1
_FIRST_BITS = 8


class ChildTable:
    """Node ids (from 1 on; 0, the root, is nobody's child) by 64-bit keys. Open addressing, at most half
    full.
    """

    __slots__ = ("_bits", "_count", "_keys", "_nodes")

    def __init__(self) -> None:
        self._make(_FIRST_BITS)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return 12 << self._bits

    def get(self, key: int) -> int:
        """The node of a key, 0 when it has none."""
        keys, nodes, last = self._keys, self._nodes, (1 << self._bits) - 1
        at = (key * _MULTIPLIER & _MASK_64) >> 64 - self._bits
        while (node := nodes[at]) and keys[at] != key:
            at = at + 1 & last
        return node

    def add(self, key: int, node: int) -> None:
        """Set the node of a key that has none yet."""
        if 2 * self._count >= 1 << self._bits:
            self._grow()
        self._put(key, node)
        self._count += 1

    def _put(self, key: int, node: int) -> None:
        nodes, last = self._nodes, (1 << self._bits) - 1
        at = (key * _MULTIPLIER & _MASK_64) >> 64 - self._bits
        while nodes[at]:
            at = at + 1 & last
        self._keys[at], nodes[at] = key, node

    def _make(self, bits: int) -> None:
        self._bits = bits
        self._count = 0
        self._keys = array("Q", bytes(8 << bits))
        self._nodes = array("I", bytes(4 << bits))

    def _grow(self) -> None:
        """Twice the room. All at once in numpy: one by one it would take tens of milliseconds."""
        nodes = np.frombuffer(self._nodes, np.uint32)
        used = np.flatnonzero(nodes)
        keys, nodes = np.frombuffer(self._keys, np.uint64)[used], nodes[used]
        count, bits = self._count, self._bits + 1
        self._make(bits)
        self._count = count
        new_keys = np.frombuffer(self._keys, np.uint64)
        new_nodes = np.frombuffer(self._nodes, np.uint32)
        at = (keys * np.uint64(_MULTIPLIER) >> np.uint64(64 - bits)).astype(np.int64)
        left = np.arange(count)
        while len(left):
            free = left[new_nodes[at[left]] == 0]
            new_nodes[at[free]] = nodes[free]
            won = free[new_nodes[at[free]] == nodes[free]]  # of several for one slot, the one written last
            new_keys[at[won]] = keys[won]
            left = np.setdiff1d(left, won, assume_unique=True)
            at[left] = at[left] + 1 & (1 << bits) - 1
