"""What a row is worth does not depend on how much of what is small is shown, nor on who shows it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.codec import decode, encode
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import FrameKind, Query, Tree
from gpuprof.snapshots.history import History
from gpuprof.snapshots.process_groups import without_count
from gpuprof.snapshots.report import json_report, text_report
from gpuprof.snapshots.simplify import without_internals
from gpuprof.tui.tree_feed import TreeFeed

HERE = Path(__file__).parent
RECORDINGS = [
    *sorted((HERE.parents[1] / "snapshots" / "recorded").glob("*.gpuprof")),
    *sorted((HERE / "h200").glob("*.gpuprof")),
]
DEMO = HERE.parents[1] / "snapshots" / "recorded" / "pytorch-slow-loader-h200.gpuprof"
THRESHOLDS = (0.005, 0.02, 0.05)
Row = tuple[Any, ...]

recordings = pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
kinds = pytest.mark.parametrize("kind", ["cpu", "gpu", "idle", "offcpu"])


@cache
def history_of(path: Path) -> History:
    return read_snapshot(str(path)).history


def whole(history: History, kind: str, **more: Any) -> Query:
    return Query(1, kind, *history.span, max_nodes=200_000, **more)


def rows_of(tree: Tree) -> Counter[Row]:
    """Path, total and error of each row but of those that stand for others, with what is below them."""
    paths: list[Row | None] = []
    found: Counter[Row] = Counter()
    for row in trees.rows(tree):
        above = paths[int(tree.parent[row.index])] if row.index else ()
        stands = row.kind == FrameKind.OTHER or without_count(row.name) != row.name
        path = None if above is None or stands else (*above, (row.name, row.file, row.binary, row.line))
        paths.append(path)
        if path is not None:
            error = None if row.error is None else f"{row.error:.5g}"
            found[path, f"{row.total_weight:.9g}", row.estimated, error] += 1
    return found


def asked(history: History, query: Query) -> Tree:
    try:
        return history.query(query)
    except GpuprofError as error:
        pytest.skip(error.message)


@pytest.mark.timeout(300)  # many seconds of CPU time, which a busy machine may give slowly
@kinds
@recordings
def test_a_row_is_worth_the_same_whatever_the_threshold(path: Path, kind: str) -> None:
    history = history_of(path)
    for query, thresholds in (
        (whole(history, kind, internals=False), THRESHOLDS),
        (whole(history, kind, internals=True), THRESHOLDS[:1]),
        (whole(history, kind, internals=False, by_thread=True), THRESHOLDS[:1]),
    ):
        every = asked(history, replace(query, min_fraction=0.0))
        known = rows_of(every)
        for least in thresholds:
            tree = asked(history, replace(query, min_fraction=least))
            assert rows_of(tree) <= known
            assert tree.hidden == every.hidden
            assert tree.total_weight[0] == every.total_weight[0]


@kinds
@recordings
def test_the_screen_has_the_values_of_the_report(path: Path, kind: str) -> None:
    """Of all rows that the report shows; over the wire, and as a sampler of today answers."""
    history = history_of(path)
    feed = TreeFeed(tree=kind)
    query = feed.due(0, history.span[1], history.span)
    assert query is not None
    answer = decode(encode(asked(history, query)))
    assert isinstance(answer, Tree)
    shown = without_internals(answer)
    assert shown.tree is answer
    on_screen = rows_of(answer)
    for least in THRESHOLDS:
        report = asked(history, whole(history, kind, internals=False, min_fraction=least))
        assert rows_of(report) <= on_screen
        assert shown.hidden == report.hidden


def lines_of(text: str) -> Counter[str]:
    """The rows of a report without bars and insets, but for those that stand for others."""
    rows = (line for line in text.splitlines() if re.match(r" *~?[\d.]+ % ", line))
    short = (re.sub(r"[ ▏▎▍▌▋▊▉█]+", " ", row) for row in rows)
    return Counter(row for row in short if not re.search(r"other \(\d+\)|\(\d+ (processes|threads)\)", row))


@kinds
def test_the_lines_of_a_report_are_the_same_whatever_the_threshold(kind: str) -> None:
    history = history_of(DEMO)
    query = whole(history, kind)
    every = lines_of(text_report(history, query, columns=600, min_fraction=0.0))
    assert len(every) > 200
    for least in (None, *THRESHOLDS):
        some = lines_of(text_report(history, query, columns=600, min_fraction=least))
        assert some <= every
        assert len(some) > 5


def test_a_row_under_internal_frames_is_worth_what_its_parts_are() -> None:
    """The loop of the demo is run by many little paths through the interpreter: all of them count."""
    history = history_of(DEMO)
    tree = history.query(whole(history, "idle", internals=True, min_fraction=0.0))
    paths: list[tuple[str, ...]] = []  # the first three rows, but for the interpreter's and libc's
    total = 0.0
    for row in trees.rows(tree):
        above = paths[int(tree.parent[row.index])] if row.index else ()
        of_libc = row.binary == "libc.so.6" and (row.depth <= 4 or "!0x" in row.name)
        glue = row.kind == FrameKind.NATIVE and (row.binary == "python3.12" or of_libc)
        path = above if glue or not row.index else (*above, f"{row.name}:{row.line}")[:3]
        paths.append(path)
        if path == ("python3 (815):0", "<module>:110", "main:96"):
            total += row.self_weight
    assert 5e9 < total < 7e9
    for least in (0.0, *THRESHOLDS):
        text = text_report(history, whole(history, "idle"), columns=200, min_fraction=least)
        line = next(line for line in text.splitlines() if "main (train_slow_loader.py:96)" in line)
        assert f" {total / 1e9:.2f} s " in line


@kinds
def test_json_has_the_values_of_a_report_with_internals(kind: str) -> None:
    history = history_of(DEMO)
    tree = history.query(whole(history, kind, min_fraction=0.0))
    known = {(row.name, row.kind.label, round(row.total_weight, 3)) for row in trees.rows(tree)}
    for least in THRESHOLDS:
        todo = [json_report(history, whole(history, kind, min_fraction=least))["root"]]
        while todo:
            node = todo.pop()
            todo += node["children"]
            if node["kind"] != "other" and without_count(node["name"]) == node["name"]:
                assert (node["name"], node["kind"], node["total"]) in known
