"""The prefix tree of stacks: the id of a stack is a node, and its parent is the stack of its caller, with a
smaller id; node 0 is the empty stack.
"""

from __future__ import annotations

from array import array
from collections.abc import Sized

import numpy as np

from gpuprof.snapshots.child_table import ChildTable
from gpuprof.snapshots.columns import GrowingColumn
from gpuprof.snapshots.recent import Recent

MAX_DEPTH = 60_000
_PREFIX_FRAMES = 8  # the outer eight, sixteen ... frames of a stack are found at once
_PREFIX_BYTES = 4 * _PREFIX_FRAMES
_PREFIXES = 1 << 12  # kept twice: those in use, and those of before
_PREFIXES_BYTES = 1 << 20  # the same of their memory
_PREFIX_ENTRY_BYTES = 170  # of one, without its frames
_NODE_BYTES = 10  # of a node's columns


class StackTree:
    """Stacks of frames, which are numbers below the length of `frames`. Not thread-safe: History.lock is held
    around every call.
    """

    def __init__(self, frames: Sized) -> None:
        self.parent = GrowingColumn("<u4", (0,))
        self.frame = GrowingColumn("<u4", (0,))
        self.depth = GrowingColumn("<u2", (0,))
        self._frames = frames
        self._children = ChildTable()
        # The node of the outer frames of stacks.
        self._prefixes: Recent[bytes, int] = Recent(_PREFIXES, _PREFIXES_BYTES, _prefix_bytes)

    def __len__(self) -> int:
        """Number of stacks, with the empty one."""
        return len(self.parent)

    def packed(self, key: bytes) -> int:
        """Return the id of the stack of these frame ids, given as u32 of this machine's byte order."""
        known = self._prefixes
        at = (len(key) - 1) // _PREFIX_BYTES * _PREFIX_BYTES
        node = 0
        while at > 0:  # most new stacks differ from known ones in a few frames at their leaf
            found = known.get(key[:at])
            if found is not None:
                node = found
                break
            at -= _PREFIX_BYTES
        children = self._children
        at = max(at, 0)
        frames = array("I", key[at:])
        for n, frame in enumerate(frames):
            child = children.get(node << 32 | frame)
            if not child:
                return self._grow(node, frames[n:], key)
            node = child
            at += 4
            if not at % _PREFIX_BYTES:
                known.put(key[:at], node)
        return node

    def _grow(self, node: int, frames: array[int], key: bytes) -> int:
        """Add the stacks that `frames` lead to from `node`, which has no child of the first of them; `key`:
        as in packed, of the last one.
        """
        depth, count, first = self.depth[node], len(frames), len(self.parent)
        if max(frames) >= len(self._frames):
            raise IndexError("a frame is not defined")
        if depth + count > MAX_DEPTH:
            for frame in frames:
                node = self.child(node, frame)
            return node
        parents = [node, *range(first, first + count - 1)]
        self.parent.extend(parents)
        self.frame.extend(np.frombuffer(frames, np.uint32))
        self.depth.extend(range(depth + 1, depth + count + 1))
        for n, frame in enumerate(frames):
            self._children.add(parents[n] << 32 | frame, first + n)
        for end in range(
            depth // _PREFIX_FRAMES * _PREFIX_FRAMES + _PREFIX_FRAMES, depth + count + 1, _PREFIX_FRAMES
        ):
            self._prefixes.put(key[: 4 * end], first + end - depth - 1)
        return first + count - 1

    def child(self, node: int, frame: int) -> int:
        """Return the stack that has `frame` called from stack `node`. IndexError when either is not
        defined.
        """
        if not (0 <= node < len(self.parent) and 0 <= frame < len(self._frames)):
            raise IndexError(f"stack {node} or frame {frame} is not defined")
        key = node << 32 | frame
        found = self._children.get(key)
        if not found:
            depth = self.depth[node] + 1
            if depth > MAX_DEPTH:
                return node
            found = len(self.parent)
            self._children.add(key, found)
            self.parent.append(node)
            self.frame.append(frame)
            self.depth.append(depth)
        return found

    @property
    def nbytes(self) -> int:
        """Return about how much memory the tree takes."""
        return len(self.parent) * _NODE_BYTES + self._children.nbytes + self._prefixes.nbytes

    def freeze(self) -> None:
        """Give back what only interning needs; the tree is only read from now on."""
        self._prefixes.clear()
        self._children = ChildTable()
        for column in (self.parent, self.frame, self.depth):
            column.trim()


def _prefix_bytes(frames: bytes, _: int) -> int:
    return _PREFIX_ENTRY_BYTES + len(frames)
