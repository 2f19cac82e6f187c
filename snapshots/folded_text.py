"""The tree of a report as folded stacks: one line for each path, its frames with ; between them, then its own
weight. The form that flame graph viewers read (flamegraph.pl, speedscope, inferno).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.frames import Query, Tree
from gpuprof.snapshots.history import History


def folded_text(history: History, query: Query, *, internals: bool = False) -> str:
    """Return the answer to a query as folded stacks, without the root row, in the order of the tree.

    Weights are whole numbers: samples, or ns; a path of less than half of one is left out. In a name `;`
    becomes `:`, which is what divides frames. Internal rows (internal_rows.py) are left out unless
    `internals` asks for them. GpuprofError for a tree that was not recorded.
    """
    return "\n".join(_lines(history.query(replace(query, internals=internals))))


def _lines(tree: Tree) -> Iterator[str]:
    path: list[str] = []
    for row in trees.rows(tree):
        del path[row.depth :]
        path.append(row.name.replace(";", ":"))
        weight = round(row.self_weight)
        if weight > 0:
            yield f"{';'.join(path[1:] or path)} {weight}"
