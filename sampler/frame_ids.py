"""Numbers for resolved frames: (name, file, binary, kind, line) to a small integer, with what the merge needs
to know.

These ids are the sampler's own and outlive a generation of the history's tables; `to_tables` maps them to the
current one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.generated_code import advice
from gpuprof.sampler.symbols import Symbol
from gpuprof.snapshots.columns import GrowingColumn
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.names import clean
from gpuprof.snapshots.tables import Tables

GUESSED_CALLER = " (caller guessed)"
_INTERPRETER_FILE = re.compile(r"(lib)?python\d")
_NOT_MAPPED = 0xFFFF_FFFF
MAX_TEXT = 512  # characters of a name or path in the tables


class Role(IntEnum):
    """What a native frame is to CPython, or to the frame that called it."""

    NONE = 0
    EVAL = 1  # the evaluation loop: stands for the Python frames that it runs
    INNER = (
        2  # a part of the loop as a function of its own (tail-call interpreter), or unnamed interpreter code
    )
    SIGNAL_RETURN = 3  # where a signal handler returns to: its "caller" was interrupted, and did not call


class FrameIds:
    """Interns frames. Not thread-safe."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str, str, int, int], int] = {}
        self._frames: list[tuple[str, str, str, int, int]] = []
        self.roles = bytearray()
        self.symbols: dict[Symbol, int] = {}  # of functions that were looked up
        self._table_ids = GrowingColumn("<u4")
        self._generation = -1

    def __len__(self) -> int:
        return len(self._frames)

    def get(
        self, name: str, file: str, binary: str, kind: FrameKind, *, line: int = 0, role: Role = Role.NONE
    ) -> int:
        """The id of a frame; the strings are clean already."""
        key = (name, file, binary, int(kind), line)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._frames)
            self._frames.append(key)
            self.roles.append(role)
            self._table_ids.append(_NOT_MAPPED)
        elif role and not self.roles[found]:
            self.roles[found] = role  # it was carried over from other ids by its name alone
        return found

    def native(self, name: str, binary: str, known: bool) -> int:
        """The id of a native function; `known` False when its name was made from an address."""
        role = Role.NONE
        if name.startswith("_PyEval_EvalFrameDefault"):
            role = Role.EVAL
        elif name.startswith("_TAIL_CALL_") or (not known and _INTERPRETER_FILE.match(binary)):
            role = Role.INNER
        return self.get(name, "", binary, FrameKind.NATIVE, role=role)

    def with_guessed_caller(self, frame: int) -> int:
        """The id of the same frame where its caller was found by scanning the stack.

        The mark is on the callee, which has no unwind rules and whose callers are nearly always guessed: on
        the caller it would split a function in two that also has callees which are known to be its own.
        """
        name, file, binary, kind, line = self._frames[frame]
        suffix = GUESSED_CALLER.replace(")", f"{advice(binary)})")
        if name.endswith(suffix):
            return frame
        role = Role(self.roles[frame])
        return self.get(name + suffix, file, binary, FrameKind(kind), line=line, role=role)

    def describe(self, frame: int) -> tuple[str, str, str, FrameKind, int]:
        """(name, file, binary, kind, line) of an id."""
        name, file, binary, kind, line = self._frames[frame]
        return name, file, binary, FrameKind(kind), line

    def to_tables(self, tables: Tables, frames: Sequence[int] | NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The ids of these frames in the tables of the current generation (call under the history's lock)."""
        if tables.generation != self._generation:
            self._generation = tables.generation
            self._table_ids.view()[:] = _NOT_MAPPED
        column = self._table_ids.view()
        wanted = np.asarray(frames, np.int64)
        found: NDArray[np.uint32] = column[wanted]
        new = found == _NOT_MAPPED
        if new.any():
            for frame in np.unique(wanted[new]).tolist():
                *texts, kind, line = self._frames[frame]
                name, file, binary = (
                    tables.string(clean(text) if len(text) > MAX_TEXT else text) for text in texts
                )
                column[frame] = tables.frame(tables.function_of_ids(name, file, binary, kind), line)
            found = column[wanted]
        return found
