"""Numbers for resolved frames: (name, file, binary, kind, line) to a small integer, with what the merge needs
to know.

These ids are the sampler's own and outlive a generation of the history's tables; `table_ids` maps them to the
current one.
"""

from __future__ import annotations

import re
from enum import IntEnum

from gpuprof.sampler.symbols import Symbol
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.tables import Tables

_INTERPRETER_FILE = re.compile(r"(lib)?python\d")


class Role(IntEnum):
    """What a native frame is to CPython."""

    NONE = 0
    EVAL = 1  # the evaluation loop: stands for the Python frames that it runs
    INNER = (
        2  # a part of the loop as a function of its own (tail-call interpreter), or unnamed interpreter code
    )


class FrameIds:
    """Interns frames. Not thread-safe."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str, str, int, int], int] = {}
        self._symbol_ids: dict[Symbol, int] = {}
        self._frames: list[tuple[str, str, str, int, int]] = []
        self.roles = bytearray()
        self._table_ids: list[int] = []
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
            self._table_ids.append(-1)
        return found

    def of_symbol(self, symbol: Symbol, binary: str) -> int:
        """The id of a function of a binary."""
        found = self._symbol_ids.get(symbol)
        if found is None:
            found = self._symbol_ids[symbol] = self.native(symbol.name, binary, symbol.known)
        return found

    def native(self, name: str, binary: str, known: bool) -> int:
        """The id of a native function; `known` False when its name was made from an address."""
        role = Role.NONE
        if name.startswith("_PyEval_EvalFrameDefault"):
            role = Role.EVAL
        elif name.startswith("_TAIL_CALL_") or (not known and _INTERPRETER_FILE.match(binary)):
            role = Role.INNER
        return self.get(name, "", binary, FrameKind.NATIVE, role=role)

    def describe(self, frame: int) -> tuple[str, str, str, FrameKind, int]:
        """(name, file, binary, kind, line) of an id."""
        name, file, binary, kind, line = self._frames[frame]
        return name, file, binary, FrameKind(kind), line

    def to_tables(self, tables: Tables, frames: tuple[int, ...]) -> list[int]:
        """The ids of these frames in the tables of the current generation (call under the history's lock)."""
        if tables.generation != self._generation:
            self._generation = tables.generation
            self._table_ids = [-1] * len(self._frames)
        ids = self._table_ids
        found = [ids[frame] for frame in frames]
        if -1 in found:
            for at, frame in enumerate(frames):
                if ids[frame] < 0:
                    name, file, binary, kind, line = self._frames[frame]
                    ids[frame] = tables.frame(tables.function(name, file, binary, FrameKind(kind)), line)
                found[at] = ids[frame]
        return found
