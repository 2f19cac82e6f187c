"""The stacks of a tree that have samples of their own, as rows that a test can ask about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuprof.snapshots.frames import FrameKind, Query, Tree
from gpuprof.snapshots.history import History


@dataclass(frozen=True)
class Row:
    """A stack, from the process down, and its number of samples."""

    path: tuple[str, ...]
    files: tuple[str, ...]
    lines: tuple[int, ...]
    kinds: tuple[FrameKind, ...]
    weight: float

    @property
    def complete(self) -> bool:
        return FrameKind.UNKNOWN not in self.kinds

    def has(self, *names: str) -> bool:
        """Whether the names occur in the path in this order, others between them or not."""
        rest = iter(self.path)
        return all(name in rest for name in names)


class Rows(list[Row]):
    """The stacks of a query."""

    @property
    def weight(self) -> float:
        return sum(row.weight for row in self)

    def where(self, wanted: Callable[[Row], bool]) -> Rows:
        return Rows(row for row in self if wanted(row))

    def share(self, wanted: Callable[[Row], bool]) -> float:
        """The part of the samples that is wanted."""
        return self.where(wanted).weight / self.weight if self else 0.0


def own_rows(tree: Tree) -> Rows:
    """The rows of a tree that have a weight of their own."""
    found = [Row((), (), (), (), 0.0)]
    for node, parent in enumerate(tree.parent.tolist()):
        if node:
            above = found[parent]
            found.append(
                Row(
                    (*above.path, tree.strings[int(tree.name[node])]),
                    (*above.files, tree.strings[int(tree.file[node])]),
                    (*above.lines, int(tree.line[node])),
                    (*above.kinds, FrameKind(int(tree.kind[node]))),
                    float(tree.self_weight[node]),
                )
            )
    return Rows(row for row in found if row.weight)


def sampled_rows(history: History, start_ns: int, end_ns: int, pids: Iterable[int] = ()) -> Rows:
    """The stacks sampled in a time, none of them cut; no pids: of all processes."""
    query = Query(
        id=1, tree="cpu", start_ns=start_ns, end_ns=end_ns, pids=list(pids), min_fraction=0.0,
        max_nodes=1 << 20,
    )  # fmt: skip
    return own_rows(history.query(query))
