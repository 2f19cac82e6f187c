"""The answers as plain text and as JSON: what was recorded, what was lost, and the tree of a range.

`json_report` is a public interface. Counts are always there, 0 when nothing was lost; other fields that do
not apply are left out.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.frames import FrameKind, Query, SourceStatus, Tree
from gpuprof.snapshots.gpu_tree import SUMMARY_SEPARATOR
from gpuprof.snapshots.history import History
from gpuprof.snapshots.moved_text import moved_text
from gpuprof.snapshots.names import clean, fit, width
from gpuprof.snapshots.report_charts import gpu_charts, gpu_lines
from gpuprof.snapshots.report_rates import rate_lines, rates_between
from gpuprof.snapshots.simplify import Simplified, without_internals
from gpuprof.snapshots.timerange import duration_text, parse_range, wall_text

__all__ = ["json_report", "json_text", "parse_range", "text_report"]

TEXT_MIN_FRACTION = 0.005  # of the whole: what is smaller does not help a reader of plain text
_DEFAULT_WIDTH = 100
_BAR_CELLS = 12
_NOTHING = {
    "cpu": "No CPU stack was sampled in this range.",
    "gpu": "No GPU work ran in this range.",
    "idle": "No GPU was seen idle in this range.",
    "offcpu": "No thread that is watched waited in this range.",
}
_AMOUNTS = {"gpu": "of GPU time", "idle": "of idle GPU time", "offcpu": "of waiting by threads"}
_BELOW = {"cpu": "calls", "gpu": "launches", "idle": "was doing meanwhile", "offcpu": "waited in"}
_BAR = " ▏▎▍▌▋▊▉█"


# ------------------------------------------------------------------------------------------------------- JSON


def json_report(history: History, query: Query, rates: Sequence[str] = ()) -> dict[str, Any]:
    """Return the report as a nested dictionary. Use json_text to write it: a deep tree is too deep for
    json.dumps. `rates`: names of kernels, functions and NVTX ranges whose work rates are wanted.

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
    return {
        "host": history.hello.host,
        "range_ns": [query.start_ns, query.end_ns],
        "tree": tree.tree,
        "unit": tree.unit,
        "total": _number(float(tree.total_weight[0])),
        "root": nodes[0],
        "sources": [_source(source) for source in history.status.sources] if history.status else [],
        "summary": tree.summary,
        **({"rates": found} if rates else {}),
    }


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


def _source(source: SourceStatus) -> dict[str, Any]:
    found: dict[str, Any] = {"name": source.name, "state": source.state}
    if source.reason:
        found["reason"] = source.reason
    for count in ("lost", "invalid", "early", "unmatched", "truncated"):
        found[count] = getattr(source, count)
    return found


# ------------------------------------------------------------------------------------------------------- text


def text_report(
    history: History,
    query: Query,
    *,
    columns: int | None = None,
    internals: bool = False,
    rates: Sequence[str] = (),
) -> str:
    """Return the report as text of at most `columns` cells a line (None: the terminal's, or 100 without one).

    Rows below half a percent are summed; rows of the Python interpreter itself are left out, unless
    `internals` asks for them. `rates`: as of json_report. GpuprofError for a tree that was not recorded, or a
    name that did not occur.
    """
    columns = max(columns or _terminal_columns(), 40)
    tree = history.query(replace(query, min_fraction=max(query.min_fraction, TEXT_MIN_FRACTION)))
    simplified = Simplified(tree, 0) if internals else without_internals(tree)
    tree = simplified.tree
    lines = [*_header(history, query, tree)]
    if simplified.hidden:
        lines.append(
            f"hidden    {simplified.hidden:,} rows of the Python interpreter (--internals shows them)"
        )
    lines += rate_lines(rates_between(history, rates, query.start_ns, query.end_ns))
    lines += gpu_lines(history, query.start_ns, query.end_ns)
    lines = [part for line in lines for part in _wrapped(line, columns)]
    lines += gpu_charts(history, query.start_ns, query.end_ns, columns)
    lines += ["", *_tree_lines(tree, columns)]
    return "\n".join(line.rstrip() for line in lines)


def _wrapped(line: str, columns: int) -> list[str]:
    """Return a line of the header on as many lines as it needs: a reason must not be cut."""
    parts = textwrap.wrap(line, columns, subsequent_indent=" " * 10, break_on_hyphens=False) or [line]
    return [fit(part, columns) for part in parts]


def _terminal_columns() -> int:
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return _DEFAULT_WIDTH
    return shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns


def _header(history: History, query: Query, tree: Tree) -> Iterator[str]:
    hello = history.hello
    first, last = history.span
    version = clean(hello.sampler_version)
    yield f"{clean(hello.host)}: Linux {clean(hello.kernel)}, {hello.cpu_count} CPUs, gpuprof {version}"
    whole = f"{wall_text(history, first, date=True)} to {wall_text(history, last)}"
    yield f"recorded  {whole} ({(last - first) / 1e9:.1f} s)"
    start, end = max(query.start_ns, first), min(query.end_ns, last)
    if (start, end) != (first, last):
        times = f"{wall_text(history, start)} to {wall_text(history, end)} ({(end - start) / 1e9:.3f} s)"
        yield f"range     {times}, {(start - first) / 1e9:.3f}..{(end - first) / 1e9:.3f} s"
    if history.damage:
        yield f"damaged   {history.damage}"
    for source in history.status.sources if history.status else []:
        yield f"source    {_source_line(source)}"
    filters: list[tuple[str, list[Any]]] = [
        ("pid", query.pids),
        ("thread", query.tids),
        ("CPU", query.cpus),
        ("GPU", query.gpus),
    ]
    for name, values in filters:
        if values:
            yield f"only      {name} {', '.join(clean(str(value)) for value in values)}"
    for sentence in tree.summary.split(SUMMARY_SEPARATOR) if tree.summary else []:
        yield f"summary   {sentence}"
    if tree.truncated:
        share = 100 * tree.truncated / max(float(tree.total_weight[0]), 1.0)
        if tree.unit == "samples":
            what = f"{tree.truncated} stacks do not reach the root of their thread"
        else:
            what = (
                f"{duration_text(tree.truncated)} is below stacks that do not reach the root of their thread"
            )
        yield f"truncated {what} ({share:.1f} %)"


def _source_line(source: SourceStatus) -> str:
    counts = [f"{count} {name}" for name, count in _counts(source) if count or name == "lost"]
    reason = f": {source.reason}" if source.reason else ""
    hint = f" ({source.hint})" if source.hint and source.state != "ok" else ""
    return f"{clean(source.name)} {clean(source.state)}{reason}{hint}; {', '.join(counts)}"


def _counts(source: SourceStatus) -> list[tuple[str, int]]:
    names = ("samples", "lost", "invalid", "early", "unmatched", "truncated")
    return [(name, getattr(source, name)) for name in names]


def _tree_lines(tree: Tree, columns: int) -> Iterator[str]:
    """Yield a line per row. A row is set in only where its parent has several children, so that deep stacks
    fit.
    """
    total = float(tree.total_weight[0])
    if not total:
        yield _NOTHING.get(tree.tree, "There is nothing in this range.")
        return
    in_samples = tree.unit == "samples"
    what = _AMOUNTS.get(tree.tree, "")
    amount = f"{total:.0f} CPU samples" if in_samples else f"{duration_text(round(total))} {what}"
    yield fit(f"{amount}; each row with all that it {_BELOW.get(tree.tree, 'calls')}", columns)
    estimates = bool(tree.estimated.any())
    if estimates:
        yield fit("rows with ~ are estimates, ± one standard error", columns)
    rows = list(trees.rows(tree))
    inset = [0] * len(rows)
    for row, parent in zip(rows, tree.parent.tolist(), strict=True):
        if row.index:
            inset[row.index] = inset[parent] + (1 if rows[parent].children > 1 or parent == 0 else 0)
        lead = min(inset[row.index], max((columns - 40) // 2, 4))
        share = row.total_weight / total
        time = "" if in_samples else f"{duration_text(round(row.total_weight)):>8} "
        if estimates:
            time += ("" if row.error is None else f"±{duration_text(round(row.error))}").ljust(9)
        sign = "~" if row.estimated else ""
        head = f"{f'{sign}{100 * share:.1f}':>{6 if estimates else 5}} % {time}{_bar(share)} {'  ' * lead}"
        yield head + _label(row, columns - width(head))


def _bar(share: float) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * _BAR_CELLS * 8)
    text = "█" * (eighths // 8) + (_BAR[eighths % 8] if eighths % 8 else "")
    return text.ljust(_BAR_CELLS)


def _label(row: trees.TreeRow, cells: int) -> str:
    name = row.name
    if row.kind == FrameKind.GPU_COPY and row.bytes:
        place = f" ({moved_text(row.bytes, row.total_weight)})"
    elif row.file and not row.is_kernel:
        base = row.file.rsplit("/", 1)[-1]
        place = f" ({base}:{row.line})" if row.line else f" ({base})"
    elif row.binary and row.kind in {FrameKind.NATIVE, FrameKind.JIT, FrameKind.KERNEL_SPACE}:
        place = f" ({row.binary})"
    else:
        place = ""
    if width(name) + width(place) <= cells:
        return name + place
    room = max(cells - width(place), 12)  # a name says more than the place, but both are wanted
    return fit(fit(name, room) + place, max(cells, 1))
