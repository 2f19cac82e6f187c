"""Which frame of a tree of idle time says most, and what the threads did there, in a few words.

From the whole tree on, the search goes on to the function that holds most of where it is, as long as that is
a third of all and half of where it was; what it ends with is the deepest function of which one can say "it
was there". Python functions are looked for first, without those of the standard library that only wait or
only call; native ones where no Python function will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.snapshots.frames import NOT_SEEN, FrameKind, Tree
from gpuprof.snapshots.idle_tree import MEANWHILE
from gpuprof.snapshots.names import clean, short_path
from gpuprof.snapshots.preorder import preorder_ends
from gpuprof.snapshots.telling_tree import is_link
from gpuprof.snapshots.timelines import GIL_FRAMES, GIL_REACH
from gpuprof.snapshots.wait_tree import WOKEN_BY

_LEAST_OF_ALL = 1 / 3
_LEAST_OF_CALLER = 1 / 2
_MAX_STEPS = 200
_MAX_LINKS = 6
RUNNABLE = "runnable, not scheduled"
ON_CPU = "on CPU"
TIMER = f"{WOKEN_BY}a timer"
UNKNOWN = "not seen on CPU or waiting"
_HELPER = re.compile(
    r"(^|/)(threading|queue|selectors|socket|ssl|subprocess|runpy|contextlib|functools|weakref)\.py$"
    r"|(^|/)(multiprocessing|concurrent|asyncio|importlib)/|^<frozen "
)
_LAUNCH = re.compile(r"cu(da)?(Graph)?Launch(Kernel|Cooperative|HostFunc)?\w*")
_NATIVE = (FrameKind.NATIVE, FrameKind.JIT, FrameKind.KERNEL_SPACE)

Label = tuple[str, str]  # function and file, or function and binary


@dataclass(frozen=True, slots=True)
class Telling:
    """The frame that says most: its share of the whole, name and place, and the state of the threads there;
    without a frame ("") the state that most of the whole was in, and its share. `known`: whether that is one.

    `launching`: the share of the whole that was inside launch calls on the CPU there; `on_cpu`: whether most
    of it was on the CPU.
    """

    share: float
    frame: str
    state: str
    on_cpu: bool
    launching: float
    known: bool = True


class _Rows:
    """The rows of a tree, with what is asked of them."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.total = tree.total_weight.tolist()
        self.kind = tree.kind.tolist()
        self.parent = tree.parent.tolist()
        self.whole = float(tree.total_weight[0])
        self.rows = range(len(self.parent))
        self.names: list[str] = [tree.strings[number] for number in tree.name.tolist()]
        files: list[int] = np.unique(tree.file).tolist()
        self._helpers = frozenset(number for number in files if _HELPER.search(tree.strings[number]))
        self.ends: list[int] = preorder_ends(tree.parent.astype(np.int64)).tolist()
        self.python = {row: label for row in self.rows if (label := self._python(row)) is not None}
        self.native = {
            row: (self.name(row), tree.strings[int(tree.binary[row])])
            for row in self.rows
            if self.kind[row] in _NATIVE
        }

    def name(self, row: int) -> str:
        return self.names[row]

    def _python(self, row: int) -> Label | None:
        if self.kind[row] != FrameKind.PYTHON:
            return None
        file = int(self.tree.file[row])
        return None if file in self._helpers else (self.name(row), self.tree.strings[file])

    def inside(self, scope: Sequence[int]) -> Iterator[tuple[int, bool]]:
        """Yield the rows below those of a scope, and of each whether it lies in or below a wait there."""
        for top in scope:
            in_wait = -1
            for row in range(top + 1, self.ends[top]):
                if row >= in_wait and self.kind[row] == FrameKind.WAIT:
                    in_wait = self.ends[row]
                yield row, row < in_wait

    def outermost(self, rows: Iterable[int]) -> list[int]:
        """Return of rows in preorder those that lie below no other of them."""
        found: list[int] = []
        for row in rows:
            if not found or row >= self.ends[found[-1]]:
                found.append(row)
        return found

    def sum(self, rows: Iterable[int]) -> float:
        return float(sum(self.total[row] for row in rows))

    def descend(self, scope: Sequence[int], labels: dict[int, Label]) -> list[int]:
        """Return the rows of the function that says most below a scope; [] when none holds enough."""
        whole = held = self.sum(scope)
        found: list[int] = []
        seen: set[Label] = set()
        scope = list(scope)
        for _ in range(_MAX_STEPS):
            groups: dict[Label, list[int]] = {}
            outside: set[Label] = set()
            for row, in_wait in self.inside(scope):
                label = labels.get(row)
                if label is not None and label not in seen:
                    groups.setdefault(label, []).append(row)
                    if not in_wait:
                        outside.add(label)
            best: list[int] = []
            for label, every in groups.items():
                rows = self.outermost(every) if label in outside else []
                if self.sum(rows) > self.sum(best) * (1 + 1e-9):  # of equal ones the outermost
                    best = rows
            amount = self.sum(best)
            if not best or amount < _LEAST_OF_ALL * whole or (found and amount < _LEAST_OF_CALLER * held):
                break
            found, scope, held = best, best, amount
            seen.add(labels[best[0]])
        return found

    def place(self, rows: Sequence[int]) -> str:
        """Return a function with its file and the line that holds most: "transform (train.py:20)". A line
        with less than half of it is not what the share is of: "main (train.py:96 and other lines)".
        """
        lines: dict[int, float] = {}
        for row in rows:
            line = int(self.tree.line[row])
            lines[line] = lines.get(line, 0.0) + self.total[row]
        row, line = rows[0], max(lines, key=lambda line: (lines[line], -line))
        others = " and other lines" if 2 * lines[line] < self.sum(rows) else ""
        file = short_path(self.tree.strings[int(self.tree.file[row])])
        where = (
            f"{file}:{line}{others}"
            if file and line
            else file or self.tree.strings[int(self.tree.binary[row])]
        )
        return clean(self.name(row), 80) + (f" ({clean(where, 60)})" if where else "")


def telling(tree: Tree) -> Telling | None:
    """Return what says most in a tree of idle time (telling_tree.py); None when it is empty."""
    if not len(tree.total_weight) or float(tree.total_weight[0]) <= 0:
        return None
    rows = _Rows(tree)
    scope = rows.descend([0], rows.python) or rows.descend([0], rows.native)
    state, held = _state(rows, scope or [0], 0)
    if not scope:
        return Telling(held / rows.whole, "", state, state == ON_CPU, 0.0, state != UNKNOWN)
    launches = rows.outermost(
        row
        for row, in_wait in rows.inside(scope)
        if not in_wait and row in rows.native and _LAUNCH.fullmatch(rows.native[row][0])
    )
    share = rows.sum(scope) / rows.whole
    return Telling(
        share, rows.place(scope), state, state == ON_CPU, rows.sum(launches) / rows.whole, state != UNKNOWN
    )


def _state(rows: _Rows, scope: Sequence[int], depth: int) -> tuple[str, float]:
    """Return what threads mostly did in a scope, in words, and how much of it that was."""
    waits: dict[str, list[int]] = {}
    last_end = -1
    for row, _ in rows.inside(scope):
        if row >= last_end and rows.kind[row] == FrameKind.WAIT:
            waits.setdefault(rows.name(row), []).append(row)
            last_end = rows.ends[row]
    unseen = (row for row, in_wait in rows.inside(scope) if not in_wait and rows.names[row] == NOT_SEEN)
    unknown = rows.sum(rows.outermost(unseen))  # a function may be called like that, and call itself
    on_cpu = rows.sum(scope) - unknown - sum(rows.sum(tops) for tops in waits.values())
    name = max(waits, key=lambda name: (rows.sum(waits[name]), name), default="")
    most = rows.sum(waits[name]) if name else 0.0
    if unknown > max(on_cpu, most):
        return UNKNOWN, unknown
    if on_cpu >= most:
        return ON_CPU, on_cpu
    if name == RUNNABLE:
        return name, most
    for_gil = rows.sum(row for row in waits[name] if _takes_gil(rows, row)) > most / 2
    said = "waiting for the GIL" if for_gil else f"waiting ({clean(name, 60)})"
    return said + _by_whom(rows, waits[name], most, depth), most


def _by_whom(rows: _Rows, waits: Sequence[int], amount: float, depth: int) -> str:
    """Return who ended most of some waits, and where: ", woken by worker in transform (train.py:20)"."""
    links: dict[str, list[int]] = {}
    last_end = -1
    for row, _ in rows.inside(waits):
        if row >= last_end and rows.kind[row] == FrameKind.WAIT and is_link(rows.name(row)):
            links.setdefault(rows.name(row), []).append(row)
            last_end = rows.ends[row]
    name = max(links, key=lambda name: (rows.sum(links[name]), name), default="")
    if not name or rows.sum(links[name]) < amount / 2:
        return ""
    scope = _meanwhile(rows, links[name])
    who = name
    if name.startswith(MEANWHILE) or (name == TIMER and rows.name(scope[0]).startswith(MEANWHILE)):
        who = f"held up by {rows.name(scope[0]).removeprefix(MEANWHILE)}"
    elif name == TIMER:
        return ""  # it slept, or gave up
    if depth < _MAX_LINKS:  # it mostly waited itself: whoever was at work behind it is more telling
        state, _ = _state(rows, scope, depth + 1)
        _, comma, further = state.partition(", ")
        if comma and " in " in further:
            return f", {further}"
    inner = rows.descend(scope, rows.python)
    if inner:
        return f", {clean(who, 60)} in {rows.place(inner)}"
    inner = rows.descend(scope, rows.native)
    return f", {clean(who, 60)}" + (f" in {rows.place(inner)}" if inner else "")


def _meanwhile(rows: _Rows, scope: Sequence[int]) -> list[int]:
    """Return the rows that say what a waker did meanwhile, right below those that name it; or those."""
    found = [
        row
        for row, _ in rows.inside(scope)
        if rows.parent[row] in scope and rows.name(row).startswith(MEANWHILE)
    ]
    return found or list(scope)


def _takes_gil(rows: _Rows, row: int) -> bool:
    for _ in range(GIL_REACH):
        row = rows.parent[row]
        if rows.name(row) in GIL_FRAMES:
            return True
    return False
