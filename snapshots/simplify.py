"""Hides what a Python programmer did not write: rows of the interpreter's own code in a tree.

CPython runs Python code through its own C functions (_PyEval_EvalFrameDefault, _PyObject_MakeTpCall ...).
Between and below Python frames they say nothing that the Python line does not say. A row is hidden when it is
native code of the interpreter and there is a Python frame above it or below it. Its own weight goes to its
nearest shown caller, its callees are lifted there, and rows that then have the same path are merged, so that
totals stay exact. Everything else (extension modules, libc, the kernel, threads without Python) is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.fold import Nodes
from gpuprof.snapshots.frames import FrameKind, Tree
from gpuprof.snapshots.preorder import Bools, Ints, marked_above, marked_below, preorder_ends

if TYPE_CHECKING:
    from gpuprof.snapshots.fold import Label

# File names of the interpreter: python3.12, python3.13t, python3-dbg, libpython3.12.so.1.0
_INTERPRETER = re.compile(r"(lib)?python(\d[\d.]*[dmtu]*(-\w+)?)?(\.so(\.[\d.]+)?)?( \(deleted\))?")
# Names of the C API and of what is behind it, which a program that embeds Python holds in its own binary.
_API_NAME = re.compile(r"_?Py([A-Z][A-Za-z0-9]*)?_")
_OTHER_NAME = re.compile(r"other \((\d{1,9})\)")


@dataclass(frozen=True, slots=True)
class Simplified:
    """A tree without the interpreter's rows; `hidden` counts the rows of the original that are gone."""

    tree: Tree
    hidden: int


def without_internals(tree: Tree) -> Simplified:
    """Return the tree without rows of the interpreter. Linear in rows, apart from sorting.

    A tree that holds none is returned as it is. FrameError for columns that are no tree.
    """
    columns = (
        tree.name, tree.file, tree.binary, tree.line, tree.kind, tree.self_weight, tree.total_weight,
        tree.estimated, tree.error, tree.bytes,
    )  # fmt: skip
    if not tree.strings or any(len(column) != len(tree.parent) for column in columns):
        raise FrameError("a tree whose columns differ in length")
    trees.check(tree)
    parent = tree.parent.astype(np.int64)
    end = preorder_ends(parent)
    hidden = _internal(tree)
    python = tree.kind == FrameKind.PYTHON
    hidden &= (marked_above(python, end) > 0) | (marked_below(python, end) > 0)
    hidden[0] = False
    count = int(np.count_nonzero(hidden))
    if not count:
        return Simplified(tree, 0)
    nodes = _merged(tree, parent, hidden, marked_above(~hidden, end))
    built = trees.build(
        nodes,
        query_id=tree.id,
        name=tree.tree,
        unit=tree.unit,
        start_ns=tree.start_ns,
        end_ns=tree.end_ns,
        truncated=tree.truncated,
        min_fraction=0.0,
        max_nodes=len(parent) + 2,
    )
    return Simplified(replace(built, summary=tree.summary), count)


def _internal(tree: Tree) -> Bools:
    """A mask of the rows that are native code of the interpreter."""
    count = len(tree.strings)
    is_interpreter, is_library, is_api = (np.zeros(count, np.bool_) for _ in range(3))
    native = tree.kind == FrameKind.NATIVE
    for number in np.unique(tree.binary[native]).tolist():
        text = tree.strings[number]
        is_interpreter[number] = _INTERPRETER.fullmatch(text) is not None
        is_library[number] = ".so" in text or not text
    named = native & ~is_library[tree.binary]
    for number in np.unique(tree.name[named]).tolist():
        is_api[number] = _API_NAME.match(tree.strings[number]) is not None
    result: Bools = native & (is_interpreter[tree.binary] | (named & is_api[tree.name]))
    return result


def _merged(tree: Tree, parent: Ints, hidden: Bools, depth: Ints) -> Nodes:
    """The shown rows below their nearest shown caller, those of equal paths as one; level by level.

    `depth` counts the shown rows above each row.
    """
    caller = np.where(hidden, parent, np.arange(len(parent)))  # of each row: itself, or its caller if hidden
    while not np.array_equal(further := caller[caller], caller):
        caller = further
    key, rows_of_key = _keys(tree)
    labels = [_label(tree, row) for row in rows_of_key]
    shown = np.flatnonzero(~hidden)
    shown = shown[np.argsort(depth[shown], kind="stable")]
    group = np.zeros(len(parent), np.int64)
    parents, keys, levels = [np.zeros(1, np.int64)], [key[:1]], [0]
    made = 1
    bounds = np.flatnonzero(np.diff(depth[shown])) + 1
    for rows in np.split(shown, bounds)[1:]:
        code = group[caller[parent[rows]]] * len(labels) + key[rows]
        unique, inverse = np.unique(code, return_inverse=True)
        group[rows] = made + inverse
        parents.append(unique // len(labels))
        keys.append(unique % len(labels))
        levels.append(len(unique))
        made += len(unique)
    label = np.concatenate(keys)
    levels[0] = 1
    total = np.bincount(group[shown], tree.total_weight[shown], made)
    own = np.bincount(group[caller], tree.self_weight, made)
    _name_others(tree, labels, label, group, shown)
    variance = estimated = None
    if tree.estimated.any():
        squares = np.nan_to_num(tree.error[shown]) ** 2
        variance = np.bincount(group[shown], squares, made)
        estimated = np.bincount(group[shown], tree.estimated[shown], made) > 0
    return Nodes(
        parent=np.concatenate(parents),
        label=label,
        depth=np.repeat(np.arange(len(levels)), levels),
        self_weight=own,
        total_weight=total,
        labels=labels,
        variance=variance,
        estimated=estimated,
        bytes=np.bincount(group[shown], tree.bytes[shown], made) if tree.bytes.any() else None,
    )


def _keys(tree: Tree) -> tuple[Ints, list[int]]:
    """A number for each row that is the same for rows of equal name, place and kind, and a row of each.

    All "other (n)" rows are alike, whatever their number.
    """
    key = np.zeros(len(tree.parent), np.int64)
    other = tree.kind == FrameKind.OTHER
    for column in (tree.name, tree.file, tree.binary, tree.line, tree.kind):
        values = column.astype(np.int64)
        if column is not tree.kind:
            values[other] = 0
        combined = key * (int(values.max(initial=0)) + 1) + values
        _, first, key = np.unique(combined, return_index=True, return_inverse=True)
    return key.astype(np.int64), first.tolist()


def _label(tree: Tree, row: int) -> Label:
    texts = tree.strings
    name, file, binary = texts[tree.name[row]], texts[tree.file[row]], texts[tree.binary[row]]
    return name, file, binary, int(tree.line[row]), int(tree.kind[row])


def _name_others(tree: Tree, labels: list[Label], label: Ints, group: Ints, shown: Ints) -> None:
    """Give each merged "other (n)" row the sum of the numbers of the rows that it is made of."""
    others = shown[tree.kind[shown] == FrameKind.OTHER]
    if not len(others):
        return
    numbers = {}
    for number in np.unique(tree.name[others]).tolist():
        match = _OTHER_NAME.fullmatch(tree.strings[number])
        numbers[number] = int(match[1]) if match else 1
    counts = np.array([numbers[number] for number in tree.name[others].tolist()], np.int64)
    sums = np.bincount(group[others], counts, len(label)).astype(np.int64)
    by_sum: dict[int, int] = {}
    for node in np.unique(group[others]).tolist():
        count = int(sums[node])
        if count not in by_sum:
            by_sum[count] = len(labels)
            labels.append((f"other ({count})", "", "", 0, int(FrameKind.OTHER)))
        label[node] = by_sum[count]
