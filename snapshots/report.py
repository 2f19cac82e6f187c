"""The answers as plain text: what was recorded, what was lost, and the tree of a range."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.frames import FrameKind, Query, Tree
from gpuprof.snapshots.gpu_tree import SUMMARY_SEPARATOR
from gpuprof.snapshots.history import History
from gpuprof.snapshots.moved_text import moved_text
from gpuprof.snapshots.names import bound, clean, fit, short_path, unbound, width
from gpuprof.snapshots.report_charts import gpu_charts, gpu_lines
from gpuprof.snapshots.report_json import json_report, json_text
from gpuprof.snapshots.report_rates import rate_lines, rates_between
from gpuprof.snapshots.report_sources import sources_between
from gpuprof.snapshots.timerange import duration_text, parse_range, wall_text

__all__ = ["json_report", "json_text", "nothing_there", "parse_range", "text_report"]

TEXT_MIN_FRACTION = 0.005  # of the whole: what is smaller does not help a reader of plain text
_DEFAULT_WIDTH = 100
_BAR_CELLS = 12
_SAME_SHARE = 0.9  # an only child of so much of its parent stands right under it
_NOTHING = {  # {}: whose, where that is filtered
    "cpu": "No CPU stack{} was sampled in this range.",
    "gpu": "No GPU work{} was seen in this range.",
    "idle": "No thread{} fed a GPU that was idle in this range.",
    "offcpu": "No thread{} that is watched waited in this range.",
}
_AMOUNTS = {"gpu": "of GPU time", "idle": "of idle GPU time", "offcpu": "of waiting by threads"}
_BELOW = {"cpu": "calls", "gpu": "launches", "idle": "was doing meanwhile", "offcpu": "waited in"}
_BAR = " ▏▎▍▌▋▊▉█"


# ------------------------------------------------------------------------------------------------------- text


def text_report(
    history: History,
    query: Query,
    *,
    columns: int | None = None,
    internals: bool = False,
    rates: Sequence[str] = (),
    min_fraction: float | None = None,
    depth: int | None = None,
) -> str:
    """Return the report as text of at most `columns` cells a line (None: the terminal's, or 100 without one).

    Rows below `min_fraction` of the whole (None: half a percent) are summed; internal rows
    (internal_rows.py) are left out, unless `internals` asks for them. `rates`: as of json_report.
    `depth`: how many rows may lie below each other (None: all; one in a tree that is read bottom up).
    GpuprofError for a tree that was not recorded, or a name that did not occur.
    """
    columns = max(columns or _terminal_columns(), 40)
    least = max(query.min_fraction, TEXT_MIN_FRACTION) if min_fraction is None else min_fraction
    tree = history.query(replace(query, min_fraction=least, internals=internals))
    lines = [*_header(history, query, tree)]
    if tree.hidden:
        lines.append(
            f"hidden    {tree.hidden:,} internal rows: interpreter, libc's start, kernel entry (--internals)"
        )
    lines += rate_lines(rates_between(history, rates, query.start_ns, query.end_ns))
    lines += gpu_lines(history, query.start_ns, query.end_ns)
    lines = [part for line in lines for part in _wrapped(line, columns)]
    lines += gpu_charts(history, query.start_ns, query.end_ns, columns)
    lines += ["", *_tree_lines(query, tree, columns, depth or (1 if query.bottom_up else len(tree.parent)))]
    return "\n".join(line.rstrip() for line in lines)


def _wrapped(line: str, columns: int) -> list[str]:
    """Return a line of the header on as many lines as it needs: a reason must not be cut."""
    parts = textwrap.wrap(bound(line), columns, subsequent_indent=" " * 10, break_on_hyphens=False) or [line]
    return [fit(unbound(part), columns) for part in parts]


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
    if history.growing:
        yield f"recording {history.growing}"
    start, end = max(query.start_ns, first), min(query.end_ns, last)
    if (start, end) != (first, last):
        times = f"{wall_text(history, start)} to {wall_text(history, end)} ({(end - start) / 1e9:.3f} s)"
        yield f"range     {times}, {(start - first) / 1e9:.3f}..{(end - first) / 1e9:.3f} s"
    if history.damage:
        yield f"damaged   {history.damage}"
    for source in sources_between(history, query.start_ns, query.end_ns):
        yield f"source    {source.line()}"
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


def _tree_lines(query: Query, tree: Tree, columns: int, depth: int) -> Iterator[str]:
    """Yield a line per row. A row is set in only where its parent has several children, or has much that is
    not this row's, so that deep stacks fit and no row seems to stand beside the one that it is part of.
    """
    total = float(tree.total_weight[0])
    if not total:
        yield nothing_there(query)
        return
    in_samples = tree.unit == "samples"
    what = _AMOUNTS.get(tree.tree, "")
    amount = f"{total:,.0f} CPU samples" if in_samples else f"{duration_text(round(total))} {what}"
    below = f"each row with all that it {_BELOW.get(tree.tree, 'calls')}"
    if tree.bottom_up:
        below = "what it was spent in" + (", and who called that" if depth > 1 else " (callers: --depth N)")
    yield fit(f"{amount}; {below}", columns)
    estimates = bool(tree.estimated.any())
    rows = list(trees.rows(tree))
    if estimates:
        unknown = " (?: not known)" if any(row.estimated and row.error is None for row in rows) else ""
        yield fit(f"rows with ~ are estimates, ± one standard error{unknown}", columns)
    inset = [0] * len(rows)
    for row, parent in zip(rows, tree.parent.tolist(), strict=True):
        if row.index:
            above = rows[parent]
            whole = above.children == 1 and row.total_weight >= _SAME_SHARE * above.total_weight
            inset[row.index] = inset[parent] + (0 if whole and parent else 1)
        if row.depth > depth:
            continue
        lead = min(inset[row.index], max((columns - 40) // 2, 4))
        share = row.total_weight / total
        time = "" if in_samples else f"{duration_text(round(row.total_weight)):>8} "
        if estimates:
            error = "?" if row.error is None else duration_text(math.ceil(row.error))
            time += (f"±{error}" if row.estimated else "").ljust(9)
        sign = "~" if row.estimated else ""
        head = f"{f'{sign}{100 * share:.1f}':>{6 if estimates else 5}} % {time}{_bar(share)} {'  ' * lead}"
        yield head + _label(row, columns - width(head))


def nothing_there(query: Query) -> str:
    """Return what is said where a tree has no rows."""
    pids = ", ".join(map(str, query.pids))
    of = f" of {'pids' if len(query.pids) > 1 else 'pid'} {fit(pids, 60)}" if pids else ""
    return _NOTHING.get(query.tree, "There is nothing{} in this range.").format(of)


def _bar(share: float) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * _BAR_CELLS * 8)
    text = "█" * (eighths // 8) + (_BAR[eighths % 8] if eighths % 8 else "")
    return text.ljust(_BAR_CELLS)


def _label(row: trees.TreeRow, cells: int) -> str:
    name = row.name
    if row.kind == FrameKind.GPU_COPY and row.bytes:
        place = f" ({moved_text(row.bytes, row.total_weight)})"
    elif row.file and not row.is_kernel:
        base = short_path(row.file)
        place = f" ({base}:{row.line})" if row.line else f" ({base})"
    elif row.binary and row.kind in {FrameKind.NATIVE, FrameKind.JIT, FrameKind.KERNEL_SPACE}:
        place = f" ({row.binary})"
    else:
        place = ""
    if width(name) + width(place) <= cells:
        return name + place
    room = max(cells - width(place), 12)  # a name says more than the place, but both are wanted
    return fit(fit(name, room) + place, max(cells, 1))
