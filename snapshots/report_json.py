"""The report as JSON, which is a public interface: the answer to a query, with its sources.

Counts are always there, 0 when nothing was lost; other fields that do not apply are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.frames import FrameKind, Query
from gpuprof.snapshots.history import History
from gpuprof.snapshots.json_depth import cut_below
from gpuprof.snapshots.process_groups import without_count
from gpuprof.snapshots.report_rates import rates_between
from gpuprof.snapshots.report_sources import sources_between
from gpuprof.snapshots.timerange import wall_iso

MAX_JSON_NODES = 200_000  # about 30 MB of text


def json_report(
    history: History, query: Query, rates: Sequence[str] = (), *, depth: int | None = None
) -> dict[str, Any]:
    """Return the report as a nested dictionary. Use json_text to write it: a deep tree is too deep for
    json.dumps. `rates`: names of kernels, functions and NVTX ranges whose work rates are wanted; `depth`: how
    many rows may lie below each other, more being summed (json_depth.py).

    GpuprofError for a tree that was not recorded, or a name that did not occur.
    """
    tree = history.query(query)
    found = rates_between(history, rates, query.start_ns, query.end_ns)
    nodes: list[dict[str, Any]] = []
    for row in trees.rows(tree):
        node: dict[str, Any] = {"name": row.name, "kind": row.kind.label}
        if row.file:
            node["full_name" if row.is_kernel else "file"] = row.file
        if row.line:
            node["line"] = row.line
        if row.binary:
            node["binary"] = row.binary
        node["self"] = _number(row.self_weight)
        node["total"] = _number(row.total_weight)
        if row.bytes:
            node["bytes"] = round(row.bytes)
        if row.estimated:
            node["estimated"] = True
            if row.error is not None and tree.unit == "ns":
                node["error_ns"] = _number(row.error)
        node["children"] = []
        if row.index:
            nodes[int(tree.parent[row.index])]["children"].append(node)
        nodes.append(node)
    limits = _limits(query, cut=any(map(_stands_for_others, nodes)))
    if depth is not None and cut_below(nodes[0], depth):
        limits.append(f"what is more than {depth} rows deep is summed in deeper (n); --folded has it all")
    return {
        "host": history.hello.host,
        "range_ns": [query.start_ns, query.end_ns],
        "tree": tree.tree,
        "unit": tree.unit,
        **({"bottom_up": True} if tree.bottom_up else {}),
        "total": _number(float(tree.total_weight[0])),
        "root": nodes[0],
        "sources": [s.as_json() for s in sources_between(history, query.start_ns, query.end_ns)],
        "summary": tree.summary,
        **({"rates": found} if rates else {}),
        "range_epoch_ns": [history.wall_ns(query.start_ns), history.wall_ns(query.end_ns)],
        "range_wall": [wall_iso(history, query.start_ns), wall_iso(history, query.end_ns)],
        "min_percent": round(100 * query.min_fraction, 9),
        **({"cut": "; ".join(limits)} if limits else {}),
        **({"damage": history.damage} if history.damage else {}),
        **({"recording": history.growing} if history.growing else {}),
    }


def _limits(query: Query, *, cut: bool) -> list[str]:
    """Return what is said of a tree that was to be whole, and has more rows than are written."""
    if query.min_fraction > 0 or not cut:
        return []
    said = "small processes of one name are one row, and the smallest rows are summed in other (n)"
    how = "--range or --pid give a part of it"
    return [f"the tree has more than {query.max_nodes:,} rows: {said}; {how}"]


def _stands_for_others(node: dict[str, Any]) -> bool:
    kind, name = node["kind"], node["name"]
    people = kind in {FrameKind.PROCESS.label, FrameKind.THREAD.label}
    return kind == FrameKind.OTHER.label or (people and without_count(name) != name)


def json_text(report: dict[str, Any]) -> str:
    """Return a report as JSON text, however deep its tree is."""
    parts: list[str] = []
    todo: list[Any] = [report]  # dictionaries still to be written, and text to be copied
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            parts.append(item)
            continue
        after: list[Any] = ["}"]
        for number, (key, value) in reversed(list(enumerate(item.items()))):
            comma = ", " if number else "{"
            name = f"{comma}{json.dumps(key)}: "
            if key == "children":
                children = [part for child in value for part in (", ", child)][1:]
                after += ["]", *reversed(children), f"{name}["]
            elif key == "root":
                after += [value, name]
            else:
                after.append(name + json.dumps(value, ensure_ascii=False, allow_nan=False))
        todo += after
    return "".join(parts)


def _number(weight: float) -> int | float:
    rounded = round(weight, 3)  # sums of shares of whole ns, less what floats add
    return int(rounded) if rounded == int(rounded) else rounded
