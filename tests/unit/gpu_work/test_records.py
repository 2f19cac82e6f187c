"""What the slots mean: clocks, names, copies, devices; the join; coverage; the status."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import gpu_ring
from gpuprof.sampler.gpu_clock import GpuClock
from gpuprof.sampler.gpu_coverage import KERNEL
from gpuprof.sampler.gpu_join import HOLD_NS, WorkJoin
from gpuprof.sampler.gpu_names import MAX_FULL_BYTES, NameTable
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.sampler.gpu_work_status import describe_state
from gpuprof.sampler.launch_stacks import Launches
from gpuprof.snapshots import report
from gpuprof.snapshots.frames import FrameKind, Query
from gpuprof.snapshots.history import History
from gpuprof.snapshots.names import MAX_FULL_NAME

SECOND = 10**9


def pairs(*rows: tuple[int, int, int]) -> Any:
    found = np.zeros(len(rows), gpu_ring.CLOCKS)
    for n, row in enumerate(rows):
        found["cupti_ns"][n], found["mono_ns"][n], found["width_ns"][n] = row
    return found


def u64(*values: int) -> Any:
    return np.array(values, np.uint64)


# ---------------------------------------------------------------------------------------------------- clocks


def test_conversion() -> None:
    clock = GpuClock()
    assert clock.convert(u64(5), u64(6), 100)[0].tolist() == [0]  # no pair yet: it cannot be placed
    now = 100 * SECOND
    assert clock.add(pairs((1000 * SECOND, 10 * SECOND, 70)), now) == 0
    start, end = clock.convert(u64(1001 * SECOND, 0, 5, 1001), u64(1001 * SECOND + 9, 7, 3, 1002), now)
    assert start.tolist() == [
        11 * SECOND,
        0,
        0,
        0,
    ]  # a start of 0, an end before it, before this machine began
    assert end.tolist() == [11 * SECOND + 9, 0, 0, 0]
    assert clock.width_ns == 70


@pytest.mark.parametrize("step_s", [5, -5])
def test_a_step_of_the_wall_clock(step_s: int) -> None:
    """Records from before and after a step, converted after it, in one batch."""
    clock = GpuClock()
    clock.add(pairs((1000 * SECOND, 10 * SECOND, 70)), 10 * SECOND)
    clock.add(pairs(((1001 + step_s) * SECOND, 11 * SECOND, 70)), 11 * SECOND)
    now = 12 * SECOND
    true_ns = np.array([10.2, 10.8, 11.2, 11.9]) * SECOND
    realtime = true_ns + np.where(true_ns < 11 * SECOND, 990, 990 + step_s) * SECOND
    start, _ = clock.convert(realtime.astype(np.uint64), realtime.astype(np.uint64) + np.uint64(5), now)
    assert start.tolist() == true_ns.astype(int).tolist()


def test_pairs_that_lie() -> None:
    clock, now = GpuClock(), 100 * SECOND
    lies = pairs(
        (0, 10, 70), (5, now + SECOND, 70), (1 << 63, 10, 70), (5, 50 * SECOND, 2 * SECOND), (5, 0, 0)
    )
    assert clock.add(lies, 4000 * SECOND + now) == 5
    assert clock.add(np.repeat(pairs((5, now, 70)), 1000), now) == 1000 - 8
    for n in range(100):
        clock.add(pairs((5 + n * SECOND, now, 70)), now)
    assert len(clock._segments) <= 8


# ----------------------------------------------------------------------------------------------------- names


def parts(number: int, text: bytes, **fields: int) -> Any:
    pieces = [text[at : at + 40] for at in range(0, len(text), 40)]
    rows = np.zeros(len(pieces), gpu_ring.TEXTS)
    for n, piece in enumerate(pieces):
        rows[n] = (gpu_ring.NAME_PART, len(piece), 0, 1, number, 0, 40 * n, len(text), piece.ljust(40, b"\0"))
    for name, value in fields.items():
        rows[name] = value
    return rows


def test_names() -> None:
    table = NameTable()
    mangled = (
        b"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEE"
        b"St5arrayIPcLm3EEEEviT0_T1_"
    )
    assert table.add(np.concatenate([parts(1, b"gemm"), parts(2, mangled), parts(8191, b"\x1b[2J[/x]")])) == 0
    leaves = [
        table.leaves[index][0] for index in table.kernels(np.array([1, 2, 8191, 0, 3, 1 << 31], np.uint32))
    ]
    nameless = "[kernel without a name]"
    assert leaves[:2] == ["gemm", "at::native::vectorized_elementwise_kernel<CUDAFunctor_add>"]
    assert "\x1b" not in leaves[2]
    assert leaves[3:] == [nameless] * 3
    count = len(table.leaves)
    assert table.add(parts(1, b"another")) == 0  # an id keeps its meaning
    assert len(table.leaves) == count
    assert table.leaves[int(table.kernels(np.array([1], np.uint32))[0])][0] == "gemm"


def test_names_that_lie() -> None:
    table = NameTable()
    long = parts(5, b"x" * 132)
    assert table.add(long[[0, 2]]) == 1  # a part is missing
    assert table.add(long[[1]]) == 1
    assert table.add(parts(6, b"abc", total=2)) == 1
    assert table.add(parts(0, b"abc")) == 1
    assert table.add(parts(8192, b"abc")) == 1
    assert table.add(parts(7, b"abc", total=1 << 31)) == 1
    assert table.add(parts(7, b"abc", length=255)) == 1  # longer than a slot
    for number in range(1, 1000):
        table.add(long[[0]] if number == 5 else parts(number, b"y" * 132)[[0]])
    assert len(table._parts._partial) <= 64
    assert table.add(parts(7, b"fine")) == 0
    assert table.leaves[int(table.kernels(np.array([7], np.uint32))[0])][0] == "fine"


def test_copies_and_devices(writer: Any, session: GpuSession) -> None:
    writer.clock()
    now = time.monotonic_ns()
    writer.work([1, 2, 3, 4], now, now, kind=gpu_ring.MEMCPY, flags=[1, 2, 8, 200], device=[0, 1, 31, 65535])
    writer.work([5], now, now, kind=gpu_ring.MEMSET)
    ((_, columns),) = session.read(now)
    names = [session.names.leaves[index] for index in columns["leaf"].tolist()]
    copy = FrameKind.GPU_COPY
    assert names == [
        ("memcpy HtoD", copy), ("memcpy DtoH", copy), ("memcpy DtoD", copy), ("memcpy", copy),
        ("memset", copy),
    ]  # fmt: skip
    assert columns["device"].tolist() == [0, 1, 31, 32, 0]
    assert not columns["kernel"].any()


def test_bytes_of_copies(writer: Any, session: GpuSession, history: History) -> None:
    """They reach the tree; of a kernel that field is a graph node; what no copy can move is nothing."""
    join = WorkJoin(history)
    writer.clock()
    writer.name(1, b"gemm")
    now = time.monotonic_ns()
    sizes = [1_000_003, 7, 1 << 40, 1 << 63, 99]
    kinds = [gpu_ring.MEMCPY, gpu_ring.MEMCPY, gpu_ring.MEMSET, gpu_ring.MEMCPY, gpu_ring.KERNEL]
    writer.work([1, 2, 3, 4, 5], now, now + 50, kind=kinds, flags=1, name=1, bytes=sizes)
    join.add_work(session, session.read(now), now + 100)
    join.add_work(session, [], now + HOLD_NS + SECOND)
    ((_, rows),) = history.gpu_work_between(0, 1 << 62)
    assert rows.columns["bytes"].tolist() == [1_000_003, 7, 1 << 40, 0, 0]
    tree = history.query(Query(1, "gpu", 0, now + SECOND, min_fraction=0.0))
    texts = [tree.strings[number] for number in tree.name.tolist()]
    moved = {name: int(value) for name, value in zip(texts, tree.bytes.tolist(), strict=True)}
    assert (moved["memcpy HtoD"], moved["memset"], moved["gemm"]) == (1_000_010, 1 << 40, 0)
    assert moved["all"] == (1 << 40) + 1_000_010


FULL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::sin_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#1}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, "
    "std::array<char*, 2ul> >(int, at::native::sin_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}::"
    "operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>)"
)


def mangled_sine(width: int) -> bytes:
    return (
        b"_ZN2at6native29vectorized_elementwise_kernelILi%dEZZZNS0_15sin_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE_"
        b"clEvENKUlvE0_clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_" % width
    )


def test_the_full_name_of_a_kernel(writer: Any, session: GpuSession, history: History) -> None:
    """Kernels are apart by label alone; the full name is that of the first."""
    join = WorkJoin(history)
    writer.clock()
    for number, name in enumerate((mangled_sine(4), mangled_sine(8), b"gemm"), 1):
        writer.name(number, name)
    now = time.monotonic_ns()
    writer.work([1, 2, 3], now, now + 50, name=[2, 1, 3])
    join.add_work(session, session.read(now), now + 100)
    join.add_work(session, [], now + HOLD_NS + SECOND)
    nodes = [report.json_report(history, Query(1, "gpu", 0, now + SECOND, min_fraction=0.0))["root"]]
    for node in nodes:
        nodes += node["children"]
    kernels = [
        (node["name"], node.get("full_name"), node["total"]) for node in nodes if node["kind"] == "gpu-kernel"
    ]
    label = "at::native::vectorized_elementwise_kernel<sin_kernel_cuda>"
    assert kernels == [(label, FULL, 100), ("gemm", None, 50)]
    assert not any("file" in node for node in nodes)
    text = report.text_report(history, Query(1, "gpu", 0, now + SECOND), columns=200)
    assert f"{label}\n" in text + "\n"
    assert "lambda" not in text


def test_full_names_are_bounded() -> None:
    table = NameTable()
    for number in range(1, 2000):
        name = (
            b"_Z%d" % 3000 + b"k%05d" % number + b"x" * 2994 + b"v"
        )  # a function of a name of 3000 characters
        parts = np.zeros(-(-len(name) // 40), gpu_ring.TEXTS)
        for n, part in enumerate(parts):
            text = name[40 * n : 40 * n + 40]
            part["id"], part["offset"], part["total"], part["length"] = number, 40 * n, len(name), len(text)
            part["text"] = text.ljust(40, b"\0")
        assert table.add(parts) == 0
    assert len(table.full) == len(table.leaves)
    assert max(map(len, table.full)) == MAX_FULL_NAME
    assert MAX_FULL_BYTES - MAX_FULL_NAME < sum(map(len, table.full)) <= MAX_FULL_BYTES


def test_a_device_keeps_its_uuid(writer: Any, session: GpuSession, gpu: str) -> None:
    session.look(time.monotonic_ns())
    assert session.uuids[0] == gpu
    writer.map[96:112] = bytes(range(50, 66))
    session.look(time.monotonic_ns())
    assert session.uuids[0] == gpu


def test_too_many_epochs(writer: Any, session: GpuSession) -> None:
    writer.clock()
    now = time.monotonic_ns()
    writer.work(np.arange(1000), now, now, epoch=np.arange(1000))
    found = session.read(now)
    assert len(found) <= 4
    assert session.invalid == 1000 - len(found)


def test_what_ran_before_we_listened_is_nobodys(writer: Any, session: GpuSession) -> None:
    writer.clock()
    before = session.began_ns - SECOND
    writer.work([1, 2], [before, session.began_ns + 1], [before + 5, session.began_ns + 5])
    ((_, columns),) = session.read(time.monotonic_ns())
    assert columns["correlation"].tolist() == [2]
    assert session.invalid == 0


# ------------------------------------------------------------------------------------------------------ join


def launches(
    history: History, session: GpuSession, rows: list[tuple[int, int, str]], epoch: int = 1
) -> Launches:
    """(correlation, enter_ns, function)."""
    with history.lock:
        tables = history.tables
        thread = tables.thread(tables.process(session.process), 77, "launcher")
        stacks = [
            tables.stack(
                [
                    tables.frame(tables.function(name, "", "app", FrameKind.NATIVE))
                    for name in ("main", function)
                ]
            )
            for _, _, function in rows
        ]
        return Launches(
            tables, session.pid, session.process.start_ns, epoch,
            np.array([row[0] for row in rows], np.uint32),
            np.array([row[1] for row in rows], np.uint64), np.full(len(rows), thread, np.uint32),
            np.array(stacks, np.uint32), np.ones(len(rows), np.float32),
        )  # fmt: skip


def paths(history: History) -> dict[tuple[str, ...], float]:
    """Self weight by path, from below the process."""
    tree = history.query(Query(1, "gpu", *history.span, min_fraction=0.0))
    names: list[tuple[str, ...]] = []
    found = {}
    for node, parent in enumerate(tree.parent.tolist()):
        own = tree.strings[int(tree.name[node])]
        names.append((*names[parent], own) if node else ())
        if tree.self_weight[node]:
            found[names[node][1:]] = float(tree.self_weight[node])
    return found


def test_records_are_joined_with_launches(writer: Any, session: GpuSession, history: History) -> None:
    join = WorkJoin(history)
    writer.clock()
    writer.name(1, b"gemm")
    now = time.monotonic_ns()
    writer.work([10, 11, 12], [now, now + 50, now + 90], [now + 40, now + 60, now + 100], name=1)
    work = session.read(now)
    join.add_launches([launches(history, session, [(10, now - 5, "forward"), (11, now - 4, "backward")])])
    intervals = join.add_work(session, work, now + 200)
    assert [(gpu, kind) for gpu, _, _, kind in intervals] == [(session.uuids[0], KERNEL)]
    assert paths(history) == {("main", "forward", "gemm"): 40, ("main", "backward", "gemm"): 10}
    # The third waits, and is then kept without its launch.
    join.add_work(session, [], now + HOLD_NS + SECOND)
    assert paths(history)["[launch not seen]", "gemm"] == 10
    counts = join.counts
    assert (counts.valid, counts.invalid, counts.early, counts.unmatched) == (3, 0, 0, 1)


def test_a_launch_that_comes_after_its_record(writer: Any, session: GpuSession, history: History) -> None:
    join = WorkJoin(history)
    writer.clock()
    writer.name(1, b"gemm")
    now = time.monotonic_ns()
    writer.work([10], now, now + 40, name=1)
    join.add_work(session, session.read(now), now + 100)
    join.add_launches([launches(history, session, [(10, now - 5, "forward")])])
    join.add_work(session, [], now + 1000)
    assert paths(history) == {("main", "forward", "gemm"): 40}


def test_a_new_generation_in_between(writer: Any, session: GpuSession, history: History) -> None:
    join = WorkJoin(history)
    writer.clock()
    writer.name(1, b"gemm")
    now = time.monotonic_ns()
    old = launches(history, session, [(10, now - 5, "forward")])
    stale = launches(history, session, [(12, now - 5, "lost")])
    join.add_launches([old])
    history.roll_generation()
    new = launches(history, session, [(11, now - 5, "backward")])
    join.add_launches([new, stale])
    writer.work([10, 11], now, now + 40, name=1)
    join.add_work(session, session.read(now), now + 100)
    assert paths(history) == {("main", "forward", "gemm"): 40, ("main", "backward", "gemm"): 40}
    assert join.stale_launches == 1


def test_the_cases_of_records(writer: Any, session: GpuSession, history: History) -> None:
    """Invalid, early, zero-length and unmatched records: counts and sums known."""
    join = WorkJoin(history)
    writer.clock()
    writer.name(1, b"gemm")
    writer.name(2, b"copyBuffer")
    base = time.monotonic_ns()
    rows = [
        (1, 1000, 1500, 1), (3, 2600, 2400, 1), (4, 3000, 3000, 1), (6, 4000, 4250, 2), (7, 5000, 6000, 1),
        (8, 900, 950, 1)
    ]  # fmt: skip
    for number, start, end, name in rows:
        writer.work([number], base + start, base + end, name=name)
    writer.work([2], [0], [0], raw=True, name=1)
    writer.work([5], [1 << 63], [(1 << 63) + 100], raw=True, name=1)
    work = session.read(base + 10_000)
    known = [(1, 800), (4, 2900), (6, 3900), (8, 960), (9, 7000)]
    join.add_launches([launches(history, session, [(n, base + at, "launch") for n, at in known])])
    join.add_work(session, work, base + HOLD_NS + SECOND)
    counts = join.counts
    assert (counts.valid, counts.invalid, counts.early, counts.unmatched) == (5, 3, 1, 1)
    assert join._join.launches.pending == 1
    by_kernel: dict[str, float] = {}
    for path, weight in paths(history).items():
        by_kernel[path[-1]] = by_kernel.get(path[-1], 0) + weight
    assert by_kernel == {"gemm": 1550, "copyBuffer": 250}


def test_correlation_ids_wrap(writer: Any, session: GpuSession, history: History) -> None:
    join = WorkJoin(history)
    writer.clock()
    now = time.monotonic_ns()
    old, new = [(0xFFFFFFFF, now, "a"), (0, now + 100, "b"), (1, now + 200, "c")], [(1, now + SECOND, "d")]
    join.add_launches([launches(history, session, old), launches(history, session, new)])
    starts = np.array([now + 50, now + 160, now + 250, now + SECOND + 100])
    writer.work([0xFFFFFFFF, 0, 1, 1], starts, starts + np.array([100, 10, 50, 500]))
    (work,) = [session.decode(session._ring.words(), now + 2 * SECOND)]
    join.add_work(session, work, now + 2 * SECOND)
    assert {path[1]: weight for path, weight in paths(history).items()} == {
        "a": 100,
        "b": 10,
        "c": 50,
        "d": 500,
    }


# ---------------------------------------------------------------------------------------------------- status


def test_states(writer: Any, session: GpuSession) -> None:
    assert describe_state([], {}, None, 0, "")[0] == "off"
    state, reason, hint = describe_state([], {}, {"g": {9}}, 0, "")
    assert (state, "pid 9" in reason, "gpuprof-tui run -- CMD" in hint) == ("off", True, True)
    writer.clock()
    session.read(time.monotonic_ns())
    assert describe_state([session], {}, {"g": {session.pid}}, 0, "") == (
        "ok", "GPU times are placed within 70 ns", "",
    )  # fmt: skip
    state, reason, hint = describe_state([session], {}, {"g": {session.pid, 4}, "h": {5}}, 0, "")
    assert (state, reason) == ("degraded", "not recording: pid 4, 5")
    message = b"another profiler uses CUPTI in this process: torch \x1b[1m"
    writer.map[608 : 608 + len(message)] = message
    writer.map[32:36] = (3).to_bytes(4, "little")  # refused
    session.look(time.monotonic_ns())
    state, reason, _ = describe_state([session], {7: "its ring is not sound"}, None, 2000, "")
    assert state == "degraded"
    assert "another profiler uses CUPTI in this process: torch" in reason
    assert "\x1b" not in reason
    assert "pid 7: its ring is not sound" in reason
    assert "2,000 launches lost" in reason
    assert not session.recording


def test_lost_is_bounded_whatever_the_header_says(writer: Any, session: GpuSession) -> None:
    writer.words[72 // 8] = 17  # dropped
    session.look(time.monotonic_ns())
    assert session.lost == 17
    writer.words[72 // 8] = (1 << 64) - 1
    session.look(time.monotonic_ns())
    assert session.lost == 0
    assert json.dumps(session.lost)
    assert os.getpid() == session.pid
    assert Path(f"/proc/{session.pid}").exists()
