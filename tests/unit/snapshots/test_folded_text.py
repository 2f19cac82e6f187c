"""Folded stacks, as flame graph viewers read them: every sample once, under its path."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gpuprof.snapshots
from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.folded_text import folded_text
from gpuprof.snapshots.frames import Query

START = 10**12
ALL = Query(1, "cpu", 0, 1 << 60, min_fraction=0.0)
DEMO = Path(gpuprof.snapshots.__path__[0]) / "recorded" / "pytorch-slow-loader-h200.gpuprof"


def weights(text: str) -> Counter[str]:
    """As such a viewer reads them."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        path, _, weight = line.rpartition(" ")
        found[path] += int(weight)
    return found


def test_every_path_has_its_own_weight(planted: Any, row: Any) -> None:
    for second, stack in enumerate(("main work", "main work", "main idle", "main", "main a;b")):
        planted.add(row(START + second * 10**9, stack))
    found = weights(folded_text(planted.history, ALL))
    assert sorted((path.split(";")[1:], weight) for path, weight in found.items()) == [
        (["main"], 1), (["main", "a:b"], 1), (["main", "idle"], 1), (["main", "work"], 2),
    ]  # fmt: skip
    assert len({path.split(";")[0] for path in found}) == 1  # the process


def test_nothing_sampled_is_no_line(planted: Any) -> None:
    assert folded_text(planted.history, ALL) == ""


@pytest.mark.parametrize("internals", [False, True])
@pytest.mark.parametrize("tree", ["cpu", "gpu", "idle", "offcpu"])
def test_the_weights_of_a_recording_sum_to_its_total(tree: str, internals: bool) -> None:
    history = read_snapshot(DEMO).history
    start, end = history.span
    query = Query(1, tree, start, end, min_fraction=0.0, max_nodes=200_000)
    text = folded_text(history, query, internals=internals)
    assert sum(weights(text).values()) == pytest.approx(history.query(query).total_weight[0], rel=1e-5)
    assert ("Py_BytesMain" in text) == internals
