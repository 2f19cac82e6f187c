"""A nested tree of a report, cut at a depth for readers that take no deeper one.

jq before 1.7 takes 256 levels, of which a row is three: an object counts two, its list of children one.
"""

from __future__ import annotations

from typing import Any

from gpuprof.snapshots.frames import FrameKind


def cut_below(root: dict[str, Any], depth: int) -> bool:
    """Sum what lies more than `depth` rows below the root in a row "deeper (n)", of n rows, wherever there is
    such; whether there was. Kept rows keep their values.
    """
    was_cut = False
    rows: list[dict[str, Any]] = [root]
    for _ in range(depth):
        rows = [child for row in rows for child in row["children"]]
    for row in rows:
        if tops := row["children"]:
            row["children"] = [_summed(tops)]
            was_cut = True
    return was_cut


def _summed(tops: list[dict[str, Any]]) -> dict[str, Any]:
    count, todo = 0, list(tops)
    while todo:
        row = todo.pop()
        count += 1
        todo += row["children"]
    total = round(sum(row["total"] for row in tops), 3)  # as report_json has numbers
    total = int(total) if total == int(total) else total
    return {
        "name": f"deeper ({count})",
        "kind": FrameKind.OTHER.label,
        "self": total,
        "total": total,
        **({"estimated": True} if any(row.get("estimated") for row in tops) else {}),
        "children": [],
    }
