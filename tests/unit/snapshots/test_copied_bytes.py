"""Bytes that copies have moved, up the tree of GPU time: by hand, and against a sum over random rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import report, simplify
from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import STACK_NOT_TAKEN, FrameKind, Query, Tree
from gpuprof.snapshots.moved_text import bytes_text, moved_text

NOT_TAKEN = STACK_NOT_TAKEN.replace(" ", "_")
MB = 1_000_000


def moved(tree: Tree) -> dict[str, float]:
    """Bytes by path, of the rows that have some."""
    paths: list[str] = []
    found: dict[str, float] = {}
    for row in trees.rows(tree):
        above = paths[int(tree.parent[row.index])] if row.index else ""
        paths.append(f"{above}/{row.name}" if above else row.name if row.index else "")
        if row.bytes:
            found[paths[-1]] = row.bytes
    return found


def test_bytes_are_summed_for_all_callers(stories: Any) -> None:
    story = stories.Story()
    story.gpu(7, "main load =memcpy_HtoD", 0, 2, moved=8 * MB)
    story.gpu(7, "main load =memcpy_HtoD", 2, 6, moved=20 * MB)
    story.gpu(7, "main =memcpy_DtoH", 6, 7, moved=3)
    story.gpu(7, "main %gemm", 7, 9)
    story.gpu(8, "main =memset", 9, 10, moved=5 * MB)
    story.process_of[8] = 9
    story.gpu(8, "other =memset", 10, 11, moved=7 * MB)
    assert moved(story.ask("gpu", 0, 100)) == {
        "": 40 * MB + 3,
        "proc7 (7)": 33 * MB + 3,
        "proc7 (7)/main": 33 * MB + 3,
        "proc7 (7)/main/load": 28 * MB,
        "proc7 (7)/main/load/memcpy HtoD": 28 * MB,
        "proc7 (7)/main/memcpy DtoH": 3,
        "proc7 (7)/main/memset": 5 * MB,
        "proc9 (9)": 7 * MB,
        "proc9 (9)/other": 7 * MB,
        "proc9 (9)/other/memset": 7 * MB,
    }
    by_thread = moved(story.ask("gpu", 0, 100, by_thread=True))
    assert by_thread["proc7 (7)/t8 (8)"] == 5 * MB
    assert by_thread["proc7 (7)"] == 33 * MB + 3
    half = moved(story.ask("gpu", 1, 4))  # half of the first copy and half of the second
    assert half["proc7 (7)/main/load/memcpy HtoD"] == pytest.approx(14 * MB)
    cut = story.history.query(Query(1, "gpu", 0, 1 << 60, min_fraction=0.2))
    assert {name.rpartition("/")[2]: value for name, value in moved(cut).items()}["other (1)"] > 0
    assert moved(cut)[""] == 40 * MB + 3


def test_a_tree_without_copies_has_none(stories: Any) -> None:
    story = stories.Story()
    story.gpu(7, "main %gemm", 7, 9)
    assert not story.ask("gpu", 0, 100).bytes.any()


def test_copies_without_a_stack_share_their_bytes_as_their_time(stories: Any) -> None:
    story = stories.Story()
    story.gpu(7, "main a =memcpy_HtoD", 0, 1, weight=4, moved=1 * MB)
    story.gpu(7, "main b =memcpy_HtoD", 1, 3, weight=2, moved=2 * MB)
    story.gpu(7, f"{NOT_TAKEN} =memcpy_HtoD", 10, 20, moved=15 * MB)
    found = moved(story.ask("gpu", 0, 100))
    assert found[""] == pytest.approx(18 * MB)  # as it was
    assert found["proc7 (7)/main/a"] == pytest.approx(1 * MB + 15 * MB * 3 / 5)
    assert found["proc7 (7)/main/b"] == pytest.approx(2 * MB + 15 * MB * 2 / 5)


def test_random_copies_of_two_generations(stories: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    story = stories.Story()
    truth: dict[str, float] = {}
    for number in range(300):
        if number == 150:
            with story.history.lock:
                story.history.roll_generation()
        tid, path = int(rng.integers(1, 4)), [f"f{n}" for n in rng.integers(0, 3, rng.integers(1, 4))]
        size, start = int(rng.integers(0, 1000)), float(rng.uniform(0, 90))
        story.process_of[tid] = 100 + tid
        story.gpu(
            tid, " ".join([*path, "=memcpy_HtoD"]), start, start + float(rng.uniform(0.1, 5)), moved=size
        )
        names = [f"proc{100 + tid} ({100 + tid})", *path, "memcpy HtoD"]
        for depth in range(len(names) + 1):
            key = "/".join(names[:depth])
            truth[key] = truth.get(key, 0) + size
    expected = {key: pytest.approx(size) for key, size in truth.items() if size}
    tree = story.ask("gpu", 0, 100)
    assert moved(tree) == expected
    path = tmp_path / "a.gpuprof"
    with SnapshotWriter(path, story.history.hello) as writer:
        writer.write(story.history.frames_between(*story.history.span))
    opened = read_snapshot(path).history
    assert (
        moved(opened.query(replace(Query(1, "gpu", tree.start_ns, tree.end_ns), min_fraction=0.0)))
        == expected
    )


def test_hidden_rows_keep_their_bytes(stories: Any) -> None:
    story = stories.Story()
    tables = story.history.tables
    for number, name in enumerate(("_PyEval_EvalFrameDefault", "_PyEval_Vector", None)):
        inner = tables.function(name, "", "libpython3.12.so.1.0", FrameKind.NATIVE) if name else None
        frames = [story.frame("main"), *([tables.frame(inner)] if inner is not None else [])]
        stack = tables.stack([*frames, story.frame("step"), story.frame("=memcpy_HtoD")])
        story.history.add_gpu_work(
            start_ns=[stories.ORIGIN], end_ns=[stories.ORIGIN + MB], gpu=[tables.string("G0")], stream=[7],
            thread=[story.thread(7)], stack=[stack], bytes=[8 + number],
        )  # fmt: skip
    tree = story.ask("gpu", 0, 100)
    assert moved(tree)["proc7 (7)/main/step/memcpy HtoD"] == 10
    simplified = simplify.without_internals(tree)
    assert simplified.hidden == 2
    assert moved(simplified.tree)["proc7 (7)/main/step/memcpy HtoD"] == moved(simplified.tree)[""] == 27


def test_reports_tell_bytes_and_bandwidth(stories: Any) -> None:
    story = stories.Story()
    story.gpu(7, "main load =memcpy_HtoD", 0, 20, moved=500 * MB)
    story.gpu(7, "main load =memcpy_HtoD", 30, 40, moved=250 * MB)
    story.gpu(7, "main %gemm", 40, 60)
    query = Query(1, "gpu", *story.history.span, min_fraction=0.0)
    text = report.text_report(story.history, query, columns=120)
    assert "memcpy HtoD (750 MB at 25.0 GB/s)\n" in text + "\n"
    nodes = [json.loads(report.json_text(report.json_report(story.history, query)))["root"]]
    for node in nodes:
        nodes += node["children"]
    by_name = {node["name"]: node for node in nodes}
    assert by_name["memcpy HtoD"]["bytes"] == by_name["load"]["bytes"] == by_name["all"]["bytes"] == 750 * MB
    assert by_name["memcpy HtoD"]["total"] == 30 * MB  # ns
    assert "bytes" not in by_name["gemm"]
    assert by_name["memcpy HtoD"]["kind"] == FrameKind.GPU_COPY.label


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1.00 kB"),
        (4_194_304, "4.19 MB"),
        (25.04e9, "25.0 GB"),
        (9e30, "9000000000000 EB"),
    ],
)
def test_bytes_in_words(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_copies_in_words() -> None:
    assert moved_text(0, 5) == ""
    assert moved_text(4096, 0) == "4.10 kB"
    assert moved_text(1000, 1000) == "1.00 kB at 1.00 GB/s"
