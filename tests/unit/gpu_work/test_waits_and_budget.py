"""What comes with the budget and with waits: launches without a stack, pauses, costs, delays, classes of
kernels."""

from __future__ import annotations

import argparse
import struct
import time
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import gpu_ring
from gpuprof.sampler.gpu_budget import Costs
from gpuprof.sampler.gpu_coverage import COMMUNICATION, KERNEL, WINDOW_NS, Coverage
from gpuprof.sampler.gpu_delay import LaunchDelay, delays
from gpuprof.sampler.gpu_join import HOLD_NS, WorkJoin
from gpuprof.sampler.gpu_names import MAX_CALL_STREAMS, MAX_NAMES, NameTable, kernel_kind
from gpuprof.sampler.gpu_session import GpuSession
from gpuprof.sampler.gpu_work_status import describe_state
from gpuprof.sampler.launch_stacks import Launches
from gpuprof.snapshots.frames import NO_THREAD, STACK_NOT_TAKEN, UNMATCHED_LAUNCH, FrameKind, WaitKind
from gpuprof.snapshots.gaps import EMPTY, union
from gpuprof.snapshots.history import History
from gpuprof.snapshots.overhead import parse_budget, percent

SECOND = 10**9


def launches(history: History, session: GpuSession, rows: list[tuple[int, int, str, float]]) -> Launches:
    """(correlation, enter_ns, function, weight)."""
    with history.lock:
        tables = history.tables
        thread = tables.thread(tables.process(session.process), 77, "launcher")
        stacks = [
            tables.stack([tables.frame(tables.function(row[2], "", "app", FrameKind.NATIVE))]) for row in rows
        ]
        return Launches(
            tables, session.pid, session.process.start_ns, 1, np.array([row[0] for row in rows], np.uint32),
            np.array([row[1] for row in rows], np.uint64), np.full(len(rows), thread, np.uint32),
            np.array(stacks, np.uint32), np.array([row[3] for row in rows], np.float32),
        )  # fmt: skip


def names_of(view: Any, stack: int) -> tuple[str, ...]:
    names = []
    while stack:
        names.append(view.strings[int(view.name[int(view.frame_function[int(view.frame[stack])])])])
        stack = int(view.parent[stack])
    return tuple(reversed(names))


def work_rows(history: History) -> list[tuple[tuple[str, ...], float, int]]:
    """(path, weight, ns) of each row of GPU work."""
    return [
        (names_of(view, stack), weight, end - start)
        for view, rows in history.gpu_work_between(0, 1 << 62)
        for stack, weight, start, end in zip(
            *(rows.columns[name].tolist() for name in ("stack", "weight", "start_ns", "end_ns")), strict=True
        )
    ]


def wait_slots(*rows: tuple[int, int, int, int, float]) -> Any:
    """(correlation, start_ns, end_ns, name, weight)."""
    found = np.zeros(len(rows), gpu_ring.WAITS)
    for n, row in enumerate(rows):
        found[n]["kind"], found[n]["epoch"], found[n]["thread"] = gpu_ring.WAIT, 1, 77
        for name, value in zip(("correlation", "start_ns", "end_ns", "name", "weight"), row, strict=True):
            found[n][name] = value
    return found


# --------------------------------------------------------------------------------------- stacks left out


def test_records_without_a_stack_on_purpose_wait_for_nothing(
    writer: Any, session: GpuSession, history: History
) -> None:
    join = WorkJoin(history)
    writer.clock()
    writer.name(1, b"gemm")
    now = time.monotonic_ns()
    enter = [now - 5, now - 5, now + 9, now - 5]  # of the third: after its start
    writer.work([10, 11, 12, 13], now, now + 40, name=1, no_stack=[0, 1, 1, 0], enter=enter)
    work = session.read(now)
    join.add_launches([launches(history, session, [(10, now - 5, "forward", 4.0)])])
    join.add_work(session, work, now + 100)
    rows = work_rows(history)
    assert sorted(rows) == [
        ((STACK_NOT_TAKEN, "gemm"), 0.0, 40), ((STACK_NOT_TAKEN, "gemm"), 0.0, 40),
        (("forward", "gemm"), 4.0, 40),
    ]  # fmt: skip
    join.add_work(session, [], now + HOLD_NS + SECOND)  # the fourth should have had one
    assert work_rows(history)[-1] == ((UNMATCHED_LAUNCH, "gemm"), 1.0, 40)
    counts = join.counts
    assert (counts.valid, counts.unmatched, counts.left_out, counts.early) == (4, 1, 2, 1)


def test_a_stack_that_is_there_for_the_wait_is_not_the_copys(
    writer: Any, session: GpuSession, history: History
) -> None:
    """The launch was not drawn: its record has weight 0, however well its stack is known."""
    join = WorkJoin(history)
    writer.clock()
    writer.name(1, b"cuMemcpyDtoH_v2")
    now = time.monotonic_ns()
    writer.work([10], now, now + 40, kind=gpu_ring.MEMCPY, flags=2, no_stack=1)
    writer.put(wait_slots((10, now - 100, now + 90, 1, 1.0)))
    work = session.read(now + 200)
    join.add_launches([launches(history, session, [(10, now - 100, "loss_item", 0.0)])])
    join.add_work(session, work, now + 200)
    assert work_rows(history) == [((STACK_NOT_TAKEN, "memcpy DtoH"), 0.0, 40)]
    ((view, rows),) = history.waits_between(0, 1 << 62)
    columns = {name: column.tolist() for name, column in rows.columns.items()}
    assert names_of(view, columns["stack"][0]) == ("loss_item", "cuMemcpyDtoH_v2")
    leaf = int(view.frame_function[int(view.frame[columns["stack"][0]])])
    assert int(view.kind[leaf]) == FrameKind.WAIT
    assert columns["kind"] == [WaitKind.SYNC]
    assert columns["waker"] == [NO_THREAD]
    assert (columns["start_ns"], columns["end_ns"]) == ([now - 100], [now + 90])
    assert view.threads[columns["thread"][0]].tid == 77


def test_waits_that_lie(writer: Any, session: GpuSession) -> None:
    now = time.monotonic_ns()
    nan, infinite = float("nan"), float("inf")
    lies = [
        (1, now, now - 5, 1, 1.0), (2, 0, now, 1, 1.0), (3, now, 1 << 63, 1, 1.0), (4, now, now, 1, nan),
        (5, now, now, 1, infinite), (6, now, now, 1, 0.5), (7, now, now, 1, -3.0), (8, now, now, 1, 1e30),
    ]  # fmt: skip
    writer.put(wait_slots(*lies, (9, now, now + 5, 1 << 31, 2.0)))
    session.read(now)
    ((epoch, columns),) = session.waits
    assert (epoch, columns["correlation"].tolist(), columns["weight"].tolist()) == (1, [9], [2.0])
    assert columns["leaf"].tolist() == [0]
    assert session.invalid == 8


def test_a_wait_whose_stack_is_lost_is_kept(writer: Any, session: GpuSession, history: History) -> None:
    join = WorkJoin(history)
    writer.name(1, b"cuStreamSynchronize")
    now = time.monotonic_ns()
    writer.put(wait_slots((10, now, now + 70_000, 1, 1.0)))
    join.add_work(session, session.read(now + SECOND), now + SECOND)
    assert not list(history.waits_between(0, 1 << 62))
    join.add_work(session, [], now + HOLD_NS + SECOND)
    ((view, rows),) = history.waits_between(0, 1 << 62)
    assert names_of(view, int(rows.columns["stack"][0])) == (UNMATCHED_LAUNCH, "cuStreamSynchronize")
    assert join.wait_counts.unmatched == 1
    assert join.counts.unmatched == 0


def test_a_wait_names_its_stream(writer: Any, session: GpuSession, history: History) -> None:
    join = WorkJoin(history)
    now = time.monotonic_ns()
    writer.name(1, b"cuStreamSynchronize")
    writer.name(2, b"cuCtxSynchronize")
    rows = wait_slots(*((10 + n, now, now + 70_000, name, 1.0) for n, name in enumerate([1, 2, 1, 1, 1, 1])))
    rows["stream"] = [7, 9, 0, 0xFFFF_FFFF, 7, 13]
    rows["flags"] = [1, 0, 1, 1, 1, 2]
    writer.put(rows)
    join.add_work(session, session.read(now + SECOND), now + SECOND)
    join.add_work(session, [], now + HOLD_NS + SECOND)
    ((view, kept),) = history.waits_between(0, 1 << 62)
    called = [names_of(view, stack)[-1] for stack in kept.columns["stack"].tolist()]
    assert called == [
        "cuStreamSynchronize (stream 7)", "cuCtxSynchronize", "cuStreamSynchronize (stream 0)",
        "cuStreamSynchronize (stream 4294967295)", "cuStreamSynchronize (stream 7)", "cuStreamSynchronize",
    ]  # fmt: skip


def test_streams_without_end_are_a_bounded_number_of_names(writer: Any, session: GpuSession) -> None:
    writer.name(1, b"cuStreamSynchronize")
    writer.name(2, b"cuStreamSynchronize_ptsz")
    now = time.monotonic_ns()
    for number in range(20):
        rows = wait_slots(*((n, now, now + 5, 1 + number % 2, 1.0) for n in range(1000)))
        rows["stream"], rows["flags"] = np.arange(1000) + 1000 * number, 1
        writer.put(rows)
        session.read(now)
    names = session.names
    assert len(names.calls) == len(set(names.calls)) == 1 + MAX_CALL_STREAMS + 2
    assert names.calls[-2:] == [
        "cuStreamSynchronize (other streams)",
        "cuStreamSynchronize_ptsz (other streams)",
    ]
    assert len(names._call) <= len(names.calls)
    ((_, columns),) = session.waits
    assert {names.calls[leaf] for leaf in columns["leaf"].tolist()} == {names.calls[-1]}


# ---------------------------------------------------------------------------------------------------- names


def test_the_tail_of_a_jits_names_is_one_row() -> None:
    table = NameTable()
    index = table.kernels(np.array([0, MAX_NAMES, MAX_NAMES + 1, 1 << 31], np.uint32)).tolist()
    assert [table.leaves[n][0] for n in index] == [
        "[kernel without a name]", "[other kernels]", "[kernel without a name]", "[kernel without a name]"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", FrameKind.GPU_COMM),
        ("ncclKernel_Broadcast", FrameKind.GPU_COMM),
        ("gemm_nccl", FrameKind.GPU_KERNEL),
    ],
)
def test_communication_is_a_class_of_its_own(name: str, kind: FrameKind) -> None:
    assert kernel_kind(name) == kind


def test_communication_kernels_are_told_apart(writer: Any, session: GpuSession, history: History) -> None:
    join = WorkJoin(history)
    writer.clock()
    writer.name(1, b"gemm")
    writer.name(2, b"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    now = time.monotonic_ns()
    writer.work([1, 2, 3], now, now + 40, name=[1, 2, 1])
    intervals = join.add_work(session, session.read(now), now + 100)
    assert [(kind, len(starts)) for _, starts, _, kind in intervals] == [(KERNEL, 3), (COMMUNICATION, 1)]


# ------------------------------------------------------------------------------------------- pauses and costs


def readings(history: History) -> dict[str, list[tuple[int, int, float]]]:
    defs, columns = history.readings_between(0, 1 << 62)
    found: dict[str, list[tuple[int, int, float]]] = {}
    for series, start, end, value in zip(*(columns[n].tolist() for n in columns), strict=True):
        found.setdefault(defs[series].metric, []).append((start, end, value))
    return found


def test_what_was_paused_is_not_observed_and_not_idle(history: History, gpu: str) -> None:
    w = WINDOW_NS
    begin = 50 * SECOND
    coverage = Coverage(history, begin)
    recorded = {5: union([begin, begin + 3 * w + w // 2], [begin + w // 2, begin + SECOND])}
    starts = np.array([begin, begin + 4 * w], np.uint64)
    coverage.add(gpu, starts, starts + np.uint64(w // 4), kind=KERNEL)
    coverage.write_observed(begin + SECOND, {gpu: [5]}, recorded)
    coverage.write(begin + 5 * w + SECOND, {gpu})
    found = readings(history)
    pieces = [
        (begin, begin + w // 2, 1.0), (begin + w // 2, begin + 3 * w + w // 2, 0.0),
        (begin + 3 * w + w // 2, begin + SECOND, 1.0),
    ]  # fmt: skip
    assert found["gpu_observed"] == found["proc_recording"] == pieces
    # Of the first window half was recorded, and half of that was busy; of the next two nothing was.
    assert found["gpu_kernel_busy_percent"] == [
        (begin, begin + w, 50.0), (begin + 3 * w, begin + 4 * w, 0.0), (begin + 4 * w, begin + 5 * w, 25.0)
    ]  # fmt: skip
    assert "gpu_comm_busy_percent" not in found


def test_a_process_that_does_not_record_is_no_pause(history: History, gpu: str) -> None:
    """Another process on the device may have been busy: what is known of it is shown as before."""
    coverage = Coverage(history, 10 * SECOND)
    always = union([0], [20 * SECOND])
    coverage.write_observed(11 * SECOND, {gpu: [5, 6]}, {5: always})
    coverage.write(12 * SECOND, {gpu})
    found = readings(history)
    assert {value for *_, value in found["gpu_observed"]} == {0.0}
    assert len(found["gpu_kernel_busy_percent"]) == SECOND // WINDOW_NS


def test_spans(writer: Any, session: GpuSession) -> None:
    now = time.monotonic_ns()
    rows = np.zeros(5, gpu_ring.SPANS)
    rows["kind"], rows["epoch"] = gpu_ring.SPAN, 1
    began = session.began_ns
    rows["start_ns"] = [began + 10, began + 50, now + 5 * SECOND, 9, 9]  # the last: of before
    rows["end_ns"] = [began + 20, began + 40, now + 6 * SECOND, began + 5, began - 5]
    writer.put(rows)
    session.read(now)
    assert session.spans == [(began + 10, began + 20), (began, began + 5)]
    assert session.invalid == 2
    struct.pack_into("<I", writer.map, 32, 5)  # paused
    session.look(now)
    assert session.paused
    assert not session.recording
    assert session.recorded(began, now).pairs() == [(began, began + 5), (began + 10, began + 20)]
    struct.pack_into("<I", writer.map, 32, 1)
    struct.pack_into("<Q", writer.map, 1280 + 32, now)
    session.look(now)
    assert session.recorded(now - 5, now + 100).pairs() == [(now, now + 100)]
    assert session.spans == []


def test_the_budget_goes_with_the_lock(writer: Any, session: GpuSession) -> None:
    assert session._ring.lock(12_345)
    assert struct.unpack_from("<I", writer.map, 1224) == (12_345,)


def test_costs(writer: Any, session: GpuSession, history: History) -> None:
    costs = Costs(history, 10_000)
    costs.write(10 * SECOND, [session])
    struct.pack_into("<QQQQQIIQ", writer.map, 1280, 30, 8_000_000, 0, 0, 0, 32, 50_000, 2)
    struct.pack_into("<Q", writer.map, 56, 1000)
    session.look(time.monotonic_ns())
    costs.write(11 * SECOND, [session])
    assert readings(history) == {
        "proc_gpu_overhead_percent": [(10 * SECOND, 11 * SECOND, 0.8)],
        "proc_launch_stack_percent": [(10 * SECOND, 11 * SECOND, 3.0)],
    }
    said = f"stacks of 3.1 % of launches; recorded in windows: pid {session.pid} (--gpu-overhead 1%)"
    assert costs.words([session]) == said
    assert describe_state([session], {}, None, 0, "", budget=said)[1].startswith(said)
    struct.pack_into("<Q", writer.map, 1288, 1 << 63)  # a cost that cannot be
    session.look(time.monotonic_ns())
    costs.write(12 * SECOND, [session])
    assert len(readings(history)["proc_gpu_overhead_percent"]) == 1


def test_what_is_left_out_of_nvtx_is_said(writer: Any, session: GpuSession, history: History) -> None:
    costs = Costs(history, 10_000)
    assert session.facts.range_depth is None
    assert costs.words([session]) == ""
    said = []
    for number in (1, 2, 3):  # ranges within so many others, less one, are left out
        struct.pack_into("<I", writer.map, 1360, number)
        session.look(time.monotonic_ns())
        said.append(costs.words([session]).removesuffix(" (--gpu-overhead 1%)"))
    assert said == [
        "NVTX ranges are not followed: they are too many",
        "NVTX ranges within 1 other count as the one around them",
        "NVTX ranges within 2 others count as the one around them",
    ]


def test_sharing_cupti_is_said_and_no_fault(writer: Any, session: GpuSession) -> None:
    message = b"shares CUPTI with torch: until that one is gone, to detach does not give native speed"
    writer.map[608 : 608 + len(message)] = message
    session.look(time.monotonic_ns())
    said = f"pid {session.pid} {message.decode()}"
    assert describe_state([session], {}, None, 0, "") == ("ok", said, "")
    assert describe_state([session], {}, None, 0, "", budget="b") == ("ok", f"b; {said}", "")
    state, reason, _ = describe_state([session], {7: "no"}, None, 0, "")
    assert (state, reason) == ("degraded", f"pid 7: no; {said}")
    struct.pack_into("<I", writer.map, 32, 3)  # refused: whatever it says, nothing is recorded
    session.look(time.monotonic_ns())
    assert describe_state([session], {}, None, 0, "")[0] == "degraded"


def test_delays_are_means(history: History, gpu: str) -> None:
    delay = LaunchDelay(history)
    delay.write(10 * SECOND)
    starts = np.array([9000, 5000, 5000, 7000], np.uint64)
    launched = np.array([5000, 5050, 1 << 63, 6000], np.uint64)
    found = delays(starts, launched)
    assert found.tolist() == [4000, 0, 0, 1000]
    delay.add(gpu, 5, found, np.array([True, True, False, False]))
    delay.add(gpu, 5, found, np.array([False, False, False, True]))
    delay.add(gpu, 6, found, np.zeros(4, np.bool_))
    delay.write(11 * SECOND)
    delay.write(12 * SECOND)
    assert readings(history) == {"launch_delay_ns": [(10 * SECOND, 11 * SECOND, 5000 / 3)]}


def test_delays_come_with_the_join(writer: Any, session: GpuSession, history: History) -> None:
    join = WorkJoin(history)
    join.delay.write(SECOND)
    writer.clock()
    now = time.monotonic_ns()
    enter = [now - 1000, now - 3000, now - 9000, 0]
    writer.work([1, 2, 3, 4], now, now + 40, graph=[0, 0, 9, 0], no_stack=[1, 1, 1, 1], enter=enter)
    join.add_work(session, session.read(now), now + 100)
    join.delay.write(2 * SECOND)
    assert readings(history)["launch_delay_ns"] == [(SECOND, 2 * SECOND, 2000.0)]


@pytest.mark.parametrize(
    ("text", "ppm"), [("1%", 10_000), ("0.5 %", 5_000), ("2", 20_000), ("off", 0), ("OFF", 0), ("0.00001", 1)]
)
def test_budgets(text: str, ppm: int) -> None:
    assert parse_budget(text) == ppm


@pytest.mark.parametrize("text", ["", "0", "-1%", "51%", "nan", "inf", "one", "%"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_budget(text)


def test_percent() -> None:
    assert [percent(v) for v in (0.123, 3.1, 25.4)] == ["0.12 %", "3.1 %", "25 %"]
    assert len(EMPTY) == 0
