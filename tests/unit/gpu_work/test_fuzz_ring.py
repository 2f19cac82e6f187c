"""A ring whose process lies in every field, on its whole way into the history: nothing raises, or leaves its
range.
"""

from __future__ import annotations

import json
import math
import struct
import time
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import gpu_ring
from gpuprof.sampler.gpu_budget import Costs
from gpuprof.sampler.gpu_coverage import Coverage
from gpuprof.sampler.gpu_join import HOLD_NS, WorkJoin
from gpuprof.sampler.gpu_names import MAX_CALLS
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.sampler.gpu_work_status import describe_state
from gpuprof.sampler.launch_stacks import Launches
from gpuprof.snapshots import report
from gpuprof.snapshots.frames import Query
from gpuprof.snapshots.history import History

SECOND = 10**9
EDGES = [0, 1, 2, 7, 31, 32, 33, (1 << 15) - 1, 1 << 15, (1 << 16) - 1]
WIDE = [*EDGES, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
WIDEST = [*WIDE, 1 << 40, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
FLOATS = [0.0, -1.0, 0.5, 1.0, 3.5, 1e9, 2e9, 1e30, math.nan, math.inf, -math.inf, 5e-324]
KINDS = [gpu_ring.WORK, gpu_ring.TEXTS, gpu_ring.CLOCKS, gpu_ring.WAITS, gpu_ring.SPANS]


def values(rng: np.random.Generator, name: str, dtype: np.dtype[Any], count: int, now_ns: int) -> Any:
    """Edges, times about now, and noise."""
    if dtype.kind == "V":
        return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
    if dtype.kind == "f":
        return rng.choice(FLOATS, count).astype(dtype)
    if dtype.itemsize == 8:
        near = (now_ns + rng.integers(-10 * SECOND, SECOND, count)).astype(np.uint64)
        ahead = near + np.uint64(1_700_000_000 * SECOND)
        which = rng.integers(0, 3, count)
        return np.where(
            which == 0, rng.choice(np.array(WIDEST, np.uint64), count), np.where(which == 1, near, ahead)
        )
    if name == "kind":
        return rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 255], count).astype(dtype)
    edges = [edge for edge in WIDE if edge < 1 << 8 * dtype.itemsize]
    return np.where(rng.random(count) < 0.5, rng.choice(edges, count), rng.integers(0, 40, count)).astype(
        dtype
    )


def slots(rng: np.random.Generator, count: int, now_ns: int) -> Any:
    dtype = KINDS[rng.integers(len(KINDS))]
    rows = np.zeros(count, dtype)
    for name in dtype.names or ():
        rows[name] = values(rng, name, dtype[name], count, now_ns)
    if rng.random() < 0.7:  # of the kind that the fields are meant for
        rows["kind"] = {id(one): kind for one, kind in zip(KINDS, (1, 4, 5, 6, 7), strict=True)}[id(dtype)]
    if rng.random() < 0.5:
        rows["epoch"] = 1
    return rows


def lie_in_header(rng: np.random.Generator, writer: Any, now_ns: int) -> None:
    for at in range(24, 96, 4):
        if rng.random() < 0.5:
            struct.pack_into("<I", writer.map, at, int(rng.choice(WIDE)))
    for at in range(gpu_ring._COSTS_AT, gpu_ring._COSTS_AT + gpu_ring._COSTS.size, 8):
        if rng.random() < 0.7:
            struct.pack_into("<Q", writer.map, at, int(rng.choice(np.array([*WIDEST, now_ns], np.uint64))))
    struct.pack_into("<I", writer.map, 40, int(rng.integers(0, 7)))  # the state, often one that exists
    writer.map[608 : 608 + 512] = rng.bytes(512)


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # of what other tests have left
@pytest.mark.parametrize("seed", range(12))
def test_a_ring_full_of_lies(writer: Any, session: GpuSession, history: History, gpu: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    join, costs = WorkJoin(history), Costs(history, 10_000)
    coverage = Coverage(history, time.monotonic_ns() - SECOND)
    process = history.tables.process(session.process)
    thread = history.tables.thread(process, 77, "main")
    now_ns = time.monotonic_ns()
    writer.clock(mono_ns=now_ns)
    writer.name(1, b"gemm")
    true_ns = now_ns + np.arange(5)
    writer.work(np.arange(5), true_ns, true_ns + 50, kind=[1, 1, 2, 3, 1], name=1, bytes=4096)
    wait = np.zeros(1, gpu_ring.WAITS)
    for name, value in {
        "kind": gpu_ring.WAIT,
        "epoch": 1,
        "start_ns": now_ns - 50,
        "end_ns": now_ns,
    }.items():
        wait[name] = value
    wait["weight"] = 1
    writer.put(wait)
    join.add_work(session, session.read(now_ns), now_ns + 1000)
    for _ in range(12):
        now_ns = time.monotonic_ns()
        lie_in_header(rng, writer, now_ns)
        for _ in range(4):
            writer.put(slots(rng, int(rng.integers(1, 600)), now_ns))
        session.look(now_ns)
        session._resume_ns = 0
        work = session.read(now_ns)
        correlation = rng.choice(np.array(WIDE, np.uint32), 5)
        nothing = np.zeros(5, np.uint32)
        join.add_launches(
            [
                Launches(
                    history.tables, *session.key, 1, correlation, np.full(5, now_ns, np.uint64),
                    np.full(5, thread, np.uint32), nothing, rng.choice([0.0, 1.0, 8.0, 4e9], 5),
                )
            ]
        )  # fmt: skip
        for device, start, end, kind in join.add_work(session, work, now_ns):
            coverage.add(device, start, end, kind=kind)
        spans = session.recorded(now_ns - 4 * SECOND, now_ns)
        assert all(now_ns - 4 * SECOND <= low < high <= now_ns for low, high in spans.pairs())
        coverage.write(now_ns + 1, {gpu})
        coverage.write_observed(now_ns, {gpu: {session.pid}}, {session.pid: spans})
        costs.write(now_ns, [session])
        assert len(costs.words([session])) < 200
        assert 0 <= session.lost < 1 << 41
        state, reason, _ = describe_state(
            [session], {}, {gpu: {session.pid}}, 0, "", budget=costs.words([session])
        )
        assert state in {"ok", "degraded", "off"}
        assert len(reason) < 4000
        assert reason.isprintable()
        join.tidy(now_ns)
        assert len(session.names.calls) <= MAX_CALLS
        assert len(session.epochs) <= 8
        assert len(session.spans) <= 65
    join.add_work(session, [], now_ns + 2 * HOLD_NS)
    join.end(session)
    whole = (0, now_ns + 100 * SECOND)
    for _, rows in [*history.gpu_work_between(*whole), *history.waits_between(*whole)]:
        assert (rows.columns["end_ns"] >= rows.columns["start_ns"]).all()
        assert int(rows.columns["end_ns"].max()) < 1 << 62
        assert np.isfinite(rows.columns["weight"]).all()
    _, readings = history.readings_between(*whole)
    assert np.isfinite(readings["value"]).all()
    for tree in ("gpu", "offcpu", "idle"):
        for by_thread in (False, True):
            query = Query(1, tree, *whole, min_fraction=0.0, by_thread=by_thread)
            found = history.query(query)
            assert np.isfinite(found.total_weight).all()
            assert (found.total_weight >= 0).all()
            assert np.isfinite(found.bytes).all()
            json.loads(report.json_text(report.json_report(history, query)))
            report.text_report(history, query, columns=100)
