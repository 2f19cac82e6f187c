"""NVTX ranges on their way from a ring to the history: paths, counts, launches of graphs, and what lies."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import gpu_ring
from gpuprof.sampler.gpu_join import WorkJoin
from gpuprof.sampler.gpu_ranges import (
    MAX_DEPTH,
    MAX_PATHS,
    GraphLaunches,
    PathStacks,
    PathTable,
    decode_ranges,
)
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.snapshots.history import History
from gpuprof.snapshots.work_frames import RateQuery, Wanted

MS = 10**6


def parts(number: int, parent: int, name: bytes) -> Any:
    """The slots of a path's name, as the library writes them."""
    texts = [name[at : at + 40] for at in range(0, len(name), 40)] or [b""]
    rows = np.zeros(len(texts), gpu_ring.TEXTS)
    for n, text in enumerate(texts):
        rows[n] = (
            gpu_ring.PATH_PART,
            len(text),
            0,
            1,
            number,
            parent,
            40 * n,
            len(name),
            text.ljust(40, b"\0"),
        )
    return rows


def ranges(*rows: tuple[int, int, int, int]) -> Any:
    found = np.zeros(len(rows), gpu_ring.RANGES)
    found["kind"], found["epoch"] = gpu_ring.RANGE, 1
    for n, row in enumerate(rows):
        found["start_ns"][n], found["end_ns"][n], found["path"][n], found["weight"][n] = row
    return found


def names_of(history: History, stack: int) -> list[str]:
    view = history.tables.view()
    found = []
    while stack:
        found.append(view.strings[int(view.name[view.frame_function[view.frame[stack]]])])
        stack = int(view.parent[stack])
    return found[::-1]


def test_paths_are_put_together(history: History) -> None:
    table = PathTable()
    long = b"x" * 100
    assert table.add(np.concatenate([parts(3, 0, b"step"), parts(9, 3, long), parts(4, 9, b"")])) == 0
    assert table.order == [(3, 0, "step"), (9, 3, "x" * 100), (4, 9, "(none)")]
    assert table.add(parts(3, 0, b"step")) == 0  # told again in a later epoch
    assert len(table.order) == 3
    assert table.knows(np.array([0, 3, 4, 5, 9], np.uint32)).tolist() == [False, True, True, False, True]
    stacks = PathStacks()
    nodes = stacks.of(history.tables, table)
    assert names_of(history, int(nodes[9])) == ["step", "x" * 100]
    assert nodes[0] == nodes[5] == 0
    table.add(parts(5, 3, b"late\x1b[2J"))
    assert names_of(history, int(stacks.of(history.tables, table)[5])) == ["step", "late␛[2J"]


@pytest.mark.parametrize(
    "slots",
    [
        parts(0, 0, b"none"),
        parts(MAX_PATHS, 0, b"too many"),
        parts(7, 6, b"whose parent is not known"),
        parts(7, 7, b"its own parent"),
        parts(7, 0, b"x" * 100)[1:2],
        parts(7, 0, b"x" * 100)[::2][:2],
    ],
)
def test_paths_that_lie(slots: Any) -> None:
    table = PathTable()
    assert table.add(slots) > 0
    assert table.order == []


def test_paths_are_not_deep_without_end() -> None:
    table = PathTable()
    chain = [parts(number, number - 1, b"deeper") for number in range(1, 1000)]
    assert table.add(np.concatenate(chain)) > 0
    assert len(table.order) == MAX_DEPTH


def test_ranges_that_lie() -> None:
    table = PathTable()
    table.add(parts(1, 0, b"a"))
    good = ranges((5, 9, 1, 1), (5, 5, 1, 7), (5, 9, 1, 0xFFFF_FFFF))
    bad = ranges((9, 5, 1, 1), (0, 5, 1, 1), (5, 1 << 63, 1, 1), (5, 9, 2, 1), (5, 9, 0, 1), (5, 9, 1, 0))
    columns, invalid = decode_ranges(np.concatenate([good, bad]), table)
    assert invalid == len(bad)
    assert columns["weight"].tolist() == [1, 7, 1e9]


def test_random_slots_raise_nothing(session: GpuSession, writer: Any, history: History) -> None:
    random = np.random.default_rng(3)
    join = WorkJoin(history)
    for _ in range(5):
        rows = random.integers(0, 256, (2000, 64), np.uint8).view(gpu_ring.WORK).reshape(-1).copy()
        rows["kind"] = random.choice([gpu_ring.PATH_PART, gpu_ring.RANGE, gpu_ring.KERNEL], len(rows))
        small = random.random(len(rows)) < 0.5
        paths = rows.view(gpu_ring.TEXTS)
        paths["id"][small] %= 50
        paths["parent"][small] %= 50
        paths["offset"][small] = 0
        paths["total"][small] = paths["length"][small] = paths["length"][small] % 41
        writer.put(rows)
        now = time.monotonic_ns()
        join.add_work(session, session.read(now), now)
    assert session.invalid > 1000


def test_the_first_kernel_of_a_graph_stands_for_its_launch() -> None:
    def columns(*rows: tuple[int, int, bool]) -> dict[str, Any]:
        correlation, launch, graph = zip(*rows, strict=True)
        return {
            "correlation": np.array(correlation, np.uint32),
            "launch_ns": np.array(launch, np.uint64),
            "graph": np.array(graph, np.bool_),
        }

    launches = GraphLaunches()
    first = columns((5, 100, True), (6, 110, False), (5, 100, True), (7, 120, True), (6, 110, False))
    assert launches.again(first).tolist() == [0, 0, 1, 0, 0]
    assert launches.again(columns((7, 120, True), (5, 900, True), (8, 950, True))).tolist() == [1, 0, 0]
    assert launches.again(columns((8, 950, False))).tolist() == [0]


@pytest.mark.parametrize("seed", range(4))
def test_kernels_of_graphs_in_random_batches(seed: int) -> None:
    """Against a set: some kernels come late, after those of newer launches."""
    random, launches, seen = np.random.default_rng(seed), GraphLaunches(), set[tuple[int, int]]()
    for batch in range(12):
        launch = random.integers(max(40 * batch - 30, 0), 40 * batch + 40, 60).astype(np.uint64) * 1000
        correlation, graph = (launch // 1000 % 17).astype(np.uint32), random.random(60) < 0.7
        wanted = []
        for key in zip(correlation.tolist(), launch.tolist(), graph.tolist(), strict=True):
            wanted.append(int(key[2] and key[:2] in seen))
            seen |= {key[:2]} if key[2] else set()
        columns = {"correlation": correlation, "launch_ns": launch, "graph": graph}
        assert launches.again(columns).tolist() == wanted


def test_from_the_ring_to_work_rates(session: GpuSession, writer: Any, history: History, gpu: str) -> None:
    join = WorkJoin(history)
    writer.clock()
    writer.put(np.concatenate([parts(1, 0, b"step"), parts(2, 1, b"forward")]))
    now = time.monotonic_ns()
    ends = [now + number * MS // 10 for number in range(10)]
    writer.work(range(1, 11), [end - 1000 for end in ends], ends, path=[2] * 6 + [1] * 3 + [0])
    writer.work([20] * 4, [end - 1000 for end in ends[:4]], ends[:4], graph=9, path=2)
    writer.put(ranges((now, now + MS, 2, 1), (now, now + MS, 1, 1), (now, now + MS + 1, 2, 41)))
    later = now + 2 * 10**9
    join.add_work(session, session.decode(session._ring.words(), later), later)
    ((_, rows),) = history.gpu_work_between(0, 1 << 62)
    paths = [names_of(history, stack) for stack in rows.columns["nvtx"].tolist()]
    assert paths == [["step", "forward"]] * 6 + [["step"]] * 3 + [[]] + [["step", "forward"]] * 4
    assert rows.columns["again"].tolist() == [0] * 11 + [1] * 3
    assert set(rows.columns["gpu"].tolist()) == {history.tables.string(gpu)}
    wanted = [Wanted("range", name, 0, later, MS) for name in ("step", "forward", "other")]
    counted = history.rates(RateQuery(1, wanted)).counted
    assert [one.total for one in counted] == [1, 42, 0]
    assert session.invalid == 0
