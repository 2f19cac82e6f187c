"""The kinds of rows of a history: their columns, and the checks that they pass before they are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpuprof.snapshots.columns import Array, RowLog, constant, is_constant
from gpuprof.snapshots.frames import NO_THREAD, WaitKind
from gpuprof.snapshots.gaps import MAX_NS
from gpuprof.snapshots.table_view import TablesView, TaggedRows
from gpuprof.snapshots.tables import Tables

SAMPLE_COLUMNS = {"time_ns": "<u8", "cpu": "<u2", "thread": "<u4", "stack": "<u4"}
GPU_WORK_COLUMNS = {
    "start_ns": "<u8", "end_ns": "<u8", "gpu": "<u4", "stream": "<u4", "thread": "<u4", "stack": "<u4",
    "weight": "<f4", "nvtx": "<u4", "again": "<u1", "bytes": "<u8",
}  # fmt: skip
WAIT_COLUMNS = {
    "start_ns": "<u8", "end_ns": "<u8", "thread": "<u4", "stack": "<u4", "waker": "<u4", "weight": "<f4",
    "kind": "<u1",
}  # fmt: skip
RANGE_COLUMNS = {
    "start_ns": "<u8", "end_ns": "<u8", "thread": "<u4", "stack": "<u4", "weight": "<f4",
}  # fmt: skip
READING_COLUMNS = {"series": "<u4", "start_ns": "<u8", "end_ns": "<u8", "value": "<f8"}
MAX_WEIGHT = 1e9  # of one row: sums of weighted durations stay far from where a float loses whole ns
_MAX_WAIT_KIND = max(int(kind) for kind in WaitKind)


def columns_of(schema: dict[str, str], values: Sequence[Any], rows: int | None = None) -> dict[str, Array]:
    """Return values as the columns of a schema, in its order. ValueError for columns of different lengths.

    `rows`: with it a value may be one for all rows.
    """
    columns: dict[str, Array] = {}
    for (name, dtype), value in zip(schema.items(), values, strict=True):
        if rows is not None and np.ndim(value) == 0:
            columns[name] = constant(value, dtype, rows)
        elif isinstance(value, np.ndarray) and is_constant(value) and len(value):
            columns[name] = constant(value[0], dtype, len(value))
        else:
            columns[name] = np.asarray(value, dtype)
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise ValueError("columns of different lengths")
    return columns


def weights(weight: ArrayLike, rows: int) -> Array:
    """Return the weights of some rows (one for all, or one each) as f4. ValueError for what is no weight."""
    found = np.asarray(weight, "<f4")
    if found.size and not (found.min() >= 0 and found.max() <= MAX_WEIGHT):  # both are NaN where one is
        raise ValueError("a row has a weight that is negative, too large, or no number")
    return found if found.ndim else constant(found, "<f4", rows)


def _largest(column: Array) -> int:
    return int(column[0]) if is_constant(column) else int(column.max())


def check_samples(columns: dict[str, Array], tables: Tables) -> None:
    """Raise ValueError where samples refer to what `tables` do not define."""
    if columns["thread"].max() >= tables.thread_count or columns["stack"].max() >= tables.node_count:
        raise ValueError("a sample refers to a thread or a stack that is not defined")


def check_gpu_work(columns: dict[str, Array], tables: Tables) -> None:
    """Raise ValueError for GPU work that cannot be true or refers to what `tables` do not define."""
    _check_window(columns, "GPU work")
    for name, count in (
        ("gpu", tables.string_count),
        ("thread", tables.thread_count),
        ("stack", tables.node_count),
        ("nvtx", tables.node_count),
    ):
        if _largest(columns[name]) >= count:
            raise ValueError(f"GPU work refers to a {name} that is not defined")


def check_waits(columns: dict[str, Array], tables: Tables) -> None:
    """Raise ValueError for waits that cannot be true or refer to what `tables` do not define."""
    _check_window(columns, "a wait")
    if columns["thread"].max() >= tables.thread_count or columns["stack"].max() >= tables.node_count:
        raise ValueError("a wait refers to a thread or a stack that is not defined")
    waker = columns["waker"]
    if ((waker >= tables.thread_count) & (waker != NO_THREAD)).any():
        raise ValueError("a wait refers to a waker that is not defined")
    if columns["kind"].max() > _MAX_WAIT_KIND:
        raise ValueError("a wait of a kind that is not known")


def check_ranges(columns: dict[str, Array], tables: Tables) -> None:
    """Raise ValueError for NVTX ranges that cannot be true or refer to what `tables` do not define."""
    _check_window(columns, "a range")
    if columns["thread"].max() >= tables.thread_count or columns["stack"].max() >= tables.node_count:
        raise ValueError("a range refers to a thread or a stack that is not defined")


def _check_window(columns: dict[str, Array], what: str) -> None:
    if (columns["end_ns"] < columns["start_ns"]).any() or int(columns["end_ns"].max()) >= MAX_NS:
        raise ValueError(f"{what} that ends before it starts, or never")


def tagged(log: RowLog, start_ns: int, end_ns: int) -> list[TaggedRows]:
    """Return the rows of a log in a range, each block with a view of its tables. The history's lock is
    held.
    """
    views: dict[int, TablesView] = {}
    found: list[TaggedRows] = []
    for rows in log.between(start_ns, end_ns):
        tables: Tables = rows.tag
        if tables.generation not in views:
            views[tables.generation] = tables.view()
        found.append((views[tables.generation], rows))
    return found


def ending(columns: dict[str, Array], start_ns: int, end_ns: int) -> dict[str, Array]:
    """Return the rows that end in [start_ns, end_ns)."""
    ends = columns["end_ns"]
    inside = (ends >= np.uint64(max(start_ns, 0))) & (ends < np.uint64(max(end_ns, 0)))
    return {name: column[inside] for name, column in columns.items()}
