"""Work rates against counts that were planted or written down by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import wire
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import FrameKind, Hello, ProcessDef
from gpuprof.snapshots.gaps import EMPTY, union
from gpuprof.snapshots.history import History
from gpuprof.snapshots.rate_windows import Occurrences, windows
from gpuprof.snapshots.report_rates import rate_lines, rates_between
from gpuprof.snapshots.work_frames import MAX_RATES, RateQuery, Rates, Wanted

S = 10**9
MS = 10**6
ZERO = 100 * S
HELLO = Hello(1, "node", "boot", "6.1", 2, ZERO, 10**18, "0.1", 1, 99, 10, True)


class Planted:
    """A history of one process that launches, with what is planted in it."""

    def __init__(self) -> None:
        self.history = History(HELLO)

    def _thread(self, pid: int) -> int:
        tables = self.history.tables
        return tables.thread(
            tables.process(ProcessDef(pid, pid, "train", "train", "ada", 1, 1)), pid, "train"
        )

    def _stack(self, *frames: tuple[str, FrameKind] | tuple[str, FrameKind, str]) -> int:
        tables = self.history.tables
        return tables.stack(
            [tables.frame(tables.function(f[0], f[2] if len(f) > 2 else "", "", f[1])) for f in frames]
        )

    def work(self, ends_ns: list[int], *frames: Any, pid: int = 7, gpu: str = "G0", **columns: Any) -> None:
        with self.history.lock:
            end = np.array(ends_ns, np.uint64)
            one = np.ones(len(end), np.uint32)
            self.history.add_gpu_work(
                start_ns=end - np.uint64(1000), end_ns=end, gpu=one * self.history.tables.string(gpu),
                stream=one, thread=one * self._thread(pid), stack=one * self._stack(*frames), **columns,
            )  # fmt: skip

    def ranges(self, ends_ns: list[int], *names: str, length_ns: int = MS, weight: Any = 1.0) -> None:
        with self.history.lock:
            end = np.array(ends_ns, np.uint64)
            one = np.ones(len(end), np.uint32)
            stack = self._stack(*((name, FrameKind.NVTX) for name in names))
            start = end - np.uint64(length_ns)
            self.history.add_ranges(start, end, one * self._thread(7), one * stack, weight)

    def recording(self, pid: int, *pieces: tuple[int, int, float]) -> None:
        series = self.history.series("proc_recording", gpu="G0", pid=pid)
        start, end, value = zip(*pieces, strict=True)
        self.history.add_readings([series] * len(pieces), start, end, value)

    def ask(self, *wanted: Wanted) -> Rates:
        answer = self.history.rates(RateQuery(5, list(wanted)))
        assert answer.id == 5
        return answer


def rows_of(answer: Rates, number: int = 0) -> list[tuple[int, int, int, float]]:
    mine = answer.of == number
    columns = (answer.start_ns, answer.end_ns, answer.recorded_ns, answer.count)
    return [tuple(row) for row in zip(*(column[mine].tolist() for column in columns), strict=True)]  # type: ignore[misc]


def times(*ends: int) -> Occurrences:
    return Occurrences(np.array(ends, np.int64), np.ones(len(ends)))


KERNEL = ("gemm", FrameKind.GPU_KERNEL)
MAIN = ("main", FrameKind.PYTHON, "train.py")


# ------------------------------------------------------------ windows


def test_a_window_goes_from_occurrence_to_occurrence() -> None:
    # cells of 100: 0..99 has 10 and 70, 100..199 has 130, 200..299 none, 300..399 has 300, 310, 399
    found = windows(times(10, 70, 130, 300, 310, 399), 0, 400, 100)
    assert found.start_ns.tolist() == [70, 130]
    assert found.end_ns.tolist() == [130, 399]
    assert found.count.tolist() == [1, 3]
    assert found.recorded_ns.tolist() == [60, 269]


def test_slow_steps_have_an_exact_rate() -> None:
    ends = [ZERO + step * 230 * MS for step in range(50)]
    found = windows(times(*ends), ZERO, ZERO + 12 * S, 200 * MS)
    assert set((found.count / (found.recorded_ns / 1e9)).round(9)) == {round(1 / 0.23, 9)}


def test_windows_do_not_depend_on_the_range_asked_for() -> None:
    random = np.random.default_rng(5)
    ends = np.sort(random.integers(0, 10 * S, 500))
    work = Occurrences(ends, np.ones(len(ends)))
    whole = windows(work, 0, 10 * S, 100 * MS)
    first, second = windows(work, 0, 4 * S, 100 * MS), windows(work, 4 * S, 10 * S, 100 * MS)
    assert whole.end_ns.tolist() == [*first.end_ns.tolist(), *second.end_ns.tolist()]
    assert whole.count.tolist() == [*first.count.tolist(), *second.count.tolist()]
    last = int(np.searchsorted(ends, whole.end_ns[-1]))
    assert whole.count.sum() == last - int(np.searchsorted(ends, whole.start_ns[0]))


def test_when_the_work_has_stopped_nothing_is_done() -> None:
    work = times(*range(0, S + 1, 100 * MS))
    found = windows(work, 0, 5 * S, 200 * MS)
    assert (found.start_ns[-1], found.end_ns[-1], found.count[-1]) == (S, 5 * S, 0)
    assert found.count.sum() == 9  # of eleven: the first cell's last one, at 100 ms, begins the first window
    not_yet = windows(work, 0, S + S // 2, 200 * MS)
    assert (not_yet.count > 0).all()


def test_work_that_was_not_recorded_has_not_stopped() -> None:
    """A window of the budget ends a moment after its last kernel, and a pause of ten seconds follows."""
    work = times(*range(0, S + 1, 100 * MS))
    seen = union([S + 5 * MS], [10 * S])
    found = windows(work, 0, 10 * S, 200 * MS, unrecorded=seen)
    assert (found.end_ns[-1], found.count[-1] > 0) == (S, True)
    assert found.count.sum() == 9
    seen = union([S + 5 * MS], [5 * S])  # and then it is recorded, and does nothing
    found = windows(work, 0, 10 * S, 200 * MS, unrecorded=seen)
    assert (found.start_ns[-1], found.end_ns[-1], found.count[-1]) == (S, 10 * S, 0)


def test_time_that_was_not_recorded_is_left_out() -> None:
    work = times(50, 150, 850, 950)
    found = windows(work, 0, 1000, 100, unrecorded=union([200], [800]))
    assert found.recorded_ns.tolist() == [100, 100, 100]
    assert windows(work, 0, 1000, 100, unrecorded=union([150], [850])).end_ns.tolist() == [150, 950]
    assert windows(times(), 0, 1000, 100, unrecorded=EMPTY).count.tolist() == []


# ------------------------------------------------------------ what is asked


@pytest.fixture
def planted() -> Planted:
    """In 3 s: gemm 60 times, relu 30 times by another process, two to a launch, and 6 copies."""
    found = Planted()
    found.work(
        [ZERO + i * 50 * MS for i in range(1, 61)], MAIN, ("forward", FrameKind.PYTHON, "net.py"), KERNEL
    )
    found.work(
        [ZERO + i * 100 * MS for i in range(1, 31)],
        MAIN, ("forward", FrameKind.PYTHON, "other.py"), ("relu", FrameKind.GPU_KERNEL),
        again=[i % 2 for i in range(1, 31)], gpu="G1", pid=8,
    )  # fmt: skip
    found.work([ZERO + i * 500 * MS for i in range(1, 7)], MAIN, ("memcpy HtoD", FrameKind.GPU_COPY))
    return found


def total(planted: Planted, kind: str, name: str, **more: Any) -> float:
    answer = planted.ask(Wanted(kind, name, ZERO, ZERO + 3 * S + 1, 100 * MS, **more))
    assert answer.counted[0].reason == ""
    return answer.counted[0].total


def test_kernels_functions_and_copies_are_counted(planted: Planted) -> None:
    assert total(planted, "kernels", "") == 90
    assert total(planted, "kernels", "", gpu="G1") == 30
    assert total(planted, "kernels", "", pid=7) == 60
    assert total(planted, "kernel", "gemm") == 60
    assert total(planted, "kernel", "memcpy HtoD") == 6
    assert total(planted, "launch", "forward") == 60 + 15
    assert total(planted, "launch", "forward", file="net.py") == 60
    assert total(planted, "launch", "main") == 60 + 15 + 6
    assert total(planted, "launch", "gemm") == 0  # a kernel is no function that launches
    assert total(planted, "kernel", "main") == 0
    assert total(planted, "kernel", "no such kernel") == 0
    assert total(planted, "kernel", "") == 0


def test_rates_of_the_windows(planted: Planted) -> None:
    answer = planted.ask(
        Wanted("kernel", "gemm", ZERO, ZERO + 2 * S, 100 * MS),
        Wanted("kernel", "relu", ZERO, ZERO + 2 * S, S),
    )
    for start, end, recorded, count in rows_of(answer):
        assert end - start == recorded == 100 * MS
        assert count == 2
    assert rows_of(answer, 1) == [(ZERO + 900 * MS, ZERO + 1900 * MS, S, 10)]


def test_a_sample_stands_for_the_others(planted: Planted) -> None:
    ends = [ZERO + 10 * MS * i for i in range(1, 41)]
    planted.work(ends, MAIN, ("step", FrameKind.NATIVE), KERNEL, weight=[4.0] * 40)
    planted.work([ZERO + 5 * MS], ("[stack not taken]", FrameKind.UNKNOWN), KERNEL, weight=[0.0])
    answer = planted.ask(Wanted("launch", "step", ZERO, ZERO + S, 100 * MS))
    assert answer.counted[0].total == 160
    assert answer.counted[0].error == pytest.approx((40 * 4 * 3) ** 0.5)
    assert total(planted, "kernel", "gemm") == 60 + 40 + 1  # each of them is a row
    assert (answer.error[answer.count > 0] > 0).all()


def test_what_was_not_recorded_is_no_zero(planted: Planted) -> None:
    planted.recording(
        7, (ZERO, ZERO + S, 1.0), (ZERO + S, ZERO + 2 * S, 0.0), (ZERO + 2 * S, ZERO + 3 * S, 1.0)
    )
    answer = planted.ask(Wanted("kernel", "gemm", ZERO, ZERO + 3 * S + 1, 100 * MS))
    assert answer.counted[0].recorded_ns == 2 * S + 1
    assert (
        answer.counted[0].total == 19 + 21
    )  # before 1 s, and from 2 s on; the one at 1 s is of the time between
    assert all(not ZERO + S < end <= ZERO + 2 * S for _, end, _, _ in rows_of(answer))
    assert {round(count * 1e9 / recorded) for _, _, recorded, count in rows_of(answer)} == {20}
    assert total(planted, "kernel", "relu") == 30  # of a process that was recorded all the time


@pytest.mark.parametrize("kind", ["kernel", "range"])
def test_rows_that_were_dropped_do_not_thin_a_rate(kind: str) -> None:
    """A live history holds what it has room for: 1,000 a second stay 1,000, of what is left."""
    planted = Planted()
    for second in range(40):
        ends = [ZERO + second * S + at * MS for at in range(1, 1001)]
        if kind == "range":
            planted.ranges(ends, "step", length_ns=1000)
        else:
            planted.work(ends, MAIN, KERNEL)
    log = planted.history.ranges if kind == "range" else planted.history.gpu_work
    with planted.history.lock:
        dropped = log.drop_oldest()
    assert 10_000 < dropped < 30_000
    wanted = Wanted(kind, "step" if kind == "range" else "gemm", ZERO, ZERO + 41 * S, S)
    (counted,) = planted.ask(wanted).counted
    assert counted.total == 40_000 - dropped
    assert counted.recorded_ns == pytest.approx((40_000 - dropped) * MS, abs=2 * MS)
    (other,) = planted.ask(Wanted(kind, "none", ZERO, ZERO + 41 * S, S)).counted
    assert (other.total, other.recorded_ns) == (0, counted.recorded_ns)


def test_time_before_the_recording_does_not_thin_a_rate() -> None:
    """A range may be pinned on the screen from before the start of a file: 40 launches in 5 s are 8 /s."""
    planted = Planted()
    planted.work([ZERO + S + at * 100 * MS for at in range(1, 41)], MAIN, KERNEL)
    planted.history.recorded = (ZERO, ZERO + 5 * S + MS)
    for start_ns in (ZERO - 60 * S, ZERO):
        counted = planted.ask(Wanted("kernel", "gemm", start_ns, ZERO + 5 * S + MS, S)).counted
        assert [(one.total, one.recorded_ns) for one in counted] == [(40, 5 * S + MS)], start_ns


def test_ranges(planted: Planted) -> None:
    planted.ranges([ZERO + i * 200 * MS for i in range(1, 16)], "step")
    planted.ranges([ZERO + i * 200 * MS - 5 * MS for i in range(1, 16)], "step", "forward")
    planted.ranges([ZERO + i * 100 * MS for i in range(1, 4)], "forward", weight=[1, 10, 100])
    assert total(planted, "range", "step") == 15
    assert total(planted, "range", "forward") == 15 + 111
    assert total(planted, "launch", "step") == 0


def test_the_loop_is_the_most_regular_range() -> None:
    planted = Planted()
    random = np.random.default_rng(1)
    at = [ZERO + i * 200 * MS for i in range(1, 31)]
    planted.ranges(at, "step", length_ns=190 * MS)
    planted.ranges([t - 90 * MS for t in at], "forward", length_ns=60 * MS)
    planted.ranges(sorted((ZERO + random.integers(0, 6 * S, 60)).tolist()), "log", length_ns=MS)
    planted.ranges([t - 100 * MS for t in at], "step", "inner", length_ns=300 * MS)
    planted.ranges([ZERO + 3 * S], "epoch", length_ns=3 * S)
    answer = planted.ask(Wanted("loop", "", ZERO, ZERO + 7 * S, 100 * MS))
    assert answer.counted[0].name == "step"
    assert answer.counted[0].total == 30


def test_there_may_be_nothing_to_count() -> None:
    planted = Planted()
    reasons = [
        planted.ask(Wanted(k, "x", 0, S, S)).counted[0].reason for k in ("kernel", "launch", "range", "loop")
    ]
    assert reasons == ["no GPU work was recorded here"] * 2 + ["no NVTX range was recorded here"] * 2
    planted.work([ZERO], KERNEL)
    answer = planted.ask(Wanted("kernel", "gemm", 5 * S, 2 * S, 0), Wanted("kernel", "gemm", -5, 1 << 62, -7))
    assert answer.counted[0].total == 0
    assert answer.counted[1].total == 1


@pytest.mark.parametrize(
    "wanted",
    [
        [Wanted("kernel", "x", 0, S, S)] * (MAX_RATES + 1),
        [Wanted("calls", "x", 0, S, S)],
        [Wanted("kernel", "x" * 5000, 0, S, S)],
        [Wanted("kernel", "x", 0, S, S, file="x" * 5000)],
    ],
)
def test_too_much_is_refused(planted: Planted, wanted: list[Wanted]) -> None:
    with pytest.raises(GpuprofError):
        planted.ask(*wanted)


def test_an_answer_is_bounded(planted: Planted) -> None:
    planted.work([ZERO + i * 200_000 for i in range(15_000)], MAIN, KERNEL)
    answer = planted.ask(Wanted("kernel", "gemm", ZERO, ZERO + 3 * S, 1))
    assert 1000 < len(answer.of) <= 4096


# ------------------------------------------------------------ travel and report


def test_questions_and_answers_travel(planted: Planted) -> None:
    query = RateQuery(
        9, [Wanted("kernel", "gemm", ZERO, ZERO + S, MS, gpu="G0"), Wanted("loop", "", 0, 1, 1)]
    )
    answer = planted.history.rates(query)
    decoder = wire.Decoder()
    came = [*decoder.feed(wire.MAGIC), *decoder.feed(wire.pack(query) + wire.pack(answer))]
    assert isinstance(came[0], RateQuery)
    assert came[0].wanted == query.wanted
    assert isinstance(came[1], Rates)
    assert came[1].counted == answer.counted
    for name in ("of", "start_ns", "end_ns", "recorded_ns", "count", "error"):
        assert (getattr(came[1], name) == getattr(answer, name)).all()


def test_a_file_answers_as_its_recorder(planted: Planted, tmp_path: Any) -> None:
    planted.ranges([ZERO + i * 200 * MS for i in range(1, 16)], "step", weight=[2.0] * 15)
    with planted.history.lock:
        path = planted._stack(("step", FrameKind.NVTX))
        planted.work([ZERO + 2 * S], MAIN, KERNEL, nvtx=[path], again=[1])
    file = str(tmp_path / "a.gpuprof")
    with SnapshotWriter(file, HELLO) as writer:
        writer.write(planted.history.frames_between(0, 1 << 62))
    again = read_snapshot(file).history
    kinds = [("kernels", ""), ("launch", "forward"), ("launch", "main"), ("range", "step"), ("loop", "")]
    start_ns = ZERO + 50 * MS  # of the first row: a file does not say that it was recorded before
    wanted = [Wanted(kind, name, start_ns, ZERO + 3 * S, 100 * MS) for kind, name in kinds]
    before, after = planted.history.rates(RateQuery(1, wanted)), again.rates(RateQuery(1, wanted))
    assert before.counted == after.counted
    assert before.counted[3].total == 28
    assert (before.count == after.count).all()
    ((view, rows),) = [part for part in again.gpu_work_between(0, 1 << 62) if part[1].columns["nvtx"].any()]
    node = int(rows.columns["nvtx"].max())
    assert view.strings[int(view.name[view.frame_function[view.frame[node]]])] == "step"


def test_report(planted: Planted) -> None:
    found = rates_between(planted.history, ["gemm", "forward"], ZERO, ZERO + 3 * S)
    assert [(entry["name"], entry["kind"], entry["count"]) for entry in found] == [
        ("gemm", "kernel", 59),
        ("forward", "launch", 59 + 14),
    ]
    assert next(rate_lines(found)) == "rate      gemm: 19.67 /s, on the GPU, 59 times"
    with pytest.raises(GpuprofError, match="nothing that is called “no such”") as told:
        rates_between(planted.history, ["no such"], ZERO, ZERO + 3 * S)
    assert "samples cannot tell" in told.value.hint
