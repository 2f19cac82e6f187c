"""Records joined with launches: the cases, and a plain search over random launches."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import gpu_records as records_module
from gpuprof.snapshots import join as join_module
from gpuprof.snapshots.frames import FrameKind
from gpuprof.snapshots.gpu_records import LeafStacks, RecordJoin, valid
from gpuprof.snapshots.join import LaunchTable
from gpuprof.snapshots.table_view import frame_label
from gpuprof.snapshots.tables import Tables

DATA = Path(__file__).parent / "data"
WRAP = json.loads((DATA / "correlation_wrap.json").read_text())
EXPECTED = json.loads((DATA / "records.expected.json").read_text())
RECORDS = list(csv.DictReader((DATA / "records.csv").open()))


def launch(table: LaunchTable, rows: list[tuple[int, int, int]], process: Any = 7, epoch: int = 0) -> None:
    """Add launches given as correlation, enter_ns, stack; the thread is the stack plus 1000."""
    correlation, enter, stack = (list(column) for column in zip(*rows, strict=True))
    thread = [number + 1000 for number in stack]
    table.add(process, epoch, correlation=correlation, enter_ns=enter, thread=thread, stack=stack)


def u64(*numbers: int) -> Any:
    return np.array(numbers, np.uint64)


@pytest.mark.parametrize("backwards", [False, True])
def test_an_id_that_wrapped_belongs_to_the_launch_of_its_time(backwards: bool) -> None:
    names = [name for *_, name in WRAP["launches"]]
    table = LaunchTable()
    rows = [(id_, at, number) for number, (id_, at, _) in enumerate(WRAP["launches"])]
    launch(table, rows[::-1] if backwards else rows)
    correlation, start, end = (list(column) for column in zip(*WRAP["kernels"], strict=True))
    found = table.match(7, 0, correlation, u64(*start))
    sums: Counter[str] = Counter()
    for stack, began, ended in zip(found.stack.tolist(), start, end, strict=True):
        sums[names[stack]] += ended - began
    assert sums == WRAP["expected_ns"]
    assert found.thread.tolist() == [1000, 1001, 1002, 1003]


def test_the_records_of_the_case() -> None:
    launches = [row for row in RECORDS if row["kind"] == "launch"]
    kernels = [row for row in RECORDS if row["kind"] == "kernel"]
    join = RecordJoin(LaunchTable())
    launch(join.launches, [(int(row["correlation"]), int(row["start_ns"]), 5) for row in launches])
    records = {
        "correlation": np.array([int(row["correlation"]) for row in kernels], np.uint32),
        "start_ns": u64(*(int(row["start_ns"]) for row in kernels)),
        "end_ns": u64(*(int(row["end_ns"]) for row in kernels)),
        "name": np.array([row["name"] for row in kernels]),
    }
    mask = valid(records["start_ns"], records["end_ns"], EXPECTED["now_ns"], tolerance_ns=0)
    assert int(mask.sum()) == EXPECTED["valid"]
    done = join.take(7, 0, records, EXPECTED["now_ns"])
    assert len(done) == 4  # the one without a launch waits for it
    assert join.held == 1
    last = join.flush(7, 0)
    assert last is not None
    assert (len(last), join.held) == (1, 0)
    counts = join.counts
    assert {"valid": counts.valid, "invalid": counts.invalid, "early": counts.early,
            "unmatched": counts.unmatched, "pending_launches": join.launches.pending} == {
        name: EXPECTED[name] for name in ("valid", "invalid", "early", "unmatched", "pending_launches")
    }  # fmt: skip
    sums: Counter[str] = Counter()
    for part in (done, last):
        lengths = part.columns["end_ns"] - part.columns["start_ns"]
        for name, length in zip(part.columns["name"].tolist(), lengths.tolist(), strict=True):
            sums[name] += length
    assert sums == EXPECTED["kernel_ns"]


def slow_match(
    launches: list[tuple[int, int, int]], kernels: list[tuple[int, int]], tolerance: int
) -> list[int]:
    """Return the enter time of each kernel's launch by looking at every launch, -1 without one."""
    found = []
    for id_, start in kernels:
        fitting = [at for launch_id, at, _ in launches if launch_id == id_ and at <= start + tolerance]
        found.append(max(fitting, default=-1))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_random_launches_are_matched_as_by_a_plain_search(seed: int) -> None:
    """Few ids, so that most occur several times; batches out of order; two processes with the same ids."""
    rng = random.Random(seed)
    tolerance = rng.choice([0, 10, 100])
    table = LaunchTable(tolerance_ns=tolerance)
    ids = [rng.choice([rng.randrange(1 << 32), number * 2048, 0xFFFF_FFFF - number]) for number in range(60)]
    rows = {pid: [(rng.choice(ids), rng.randrange(10_000), n) for n in range(700)] for pid in (1, 2)}
    for pid, mine in rows.items():
        size = rng.choice([1, 100, 700])
        for at in range(0, len(mine), size):
            launch(table, mine[at : at + size], pid)
    for pid, mine in rows.items():
        kernels = [(rng.choice(ids), rng.randrange(11_000)) for _ in range(500)]
        correlation, start = (list(column) for column in zip(*kernels, strict=True))
        found = table.match(pid, 0, correlation, u64(*start))
        assert found.enter_ns.tolist() == slow_match(mine, kernels, tolerance)
        assert (found.found == (found.enter_ns >= 0)).all()
        assert (found.thread[found.found] == found.stack[found.found] + 1000).all()
        assert (found.weight == found.found).all()


def test_processes_and_epochs_are_apart() -> None:
    table = LaunchTable()
    launch(table, [(1, 100, 1)], 7, 0)
    launch(table, [(1, 100, 2)], 7, 1)
    launch(table, [(1, 100, 3)], 8, 0)
    for key, stack in (((7, 0), 1), ((7, 1), 2), ((8, 0), 3), ((9, 0), -1)):
        assert table.match(*key, [1], u64(100)).stack.tolist() == [stack]
    table.forget(7, 1)
    assert table.match(7, 1, [1], u64(100)).stack.tolist() == [-1]
    table.forget(7)
    assert table.match(7, 0, [1], u64(100)).stack.tolist() == [-1]
    assert table.match(8, 0, [], []).stack.tolist() == []
    table.expire(100 + 10**12)
    assert table.nbytes == 0


def test_all_kernels_of_a_graph_share_one_launch_and_its_weight() -> None:
    table = LaunchTable()
    table.add(7, 0, correlation=[5], enter_ns=[10], thread=[1], stack=[2], weight=[16.0])
    found = table.match(7, 0, [5] * 20, u64(*range(10, 30)))
    assert found.stack.tolist() == [2] * 20
    assert found.weight.tolist() == [16.0] * 20
    assert table.pending == 0


def test_a_launch_far_later_than_the_kernel_is_not_its_own() -> None:
    table = LaunchTable(tolerance_ns=50, max_age_ns=1000)
    launch(table, [(5, 1000, 1)])
    starts = u64(949, 950, 1000, 2000, 2001)
    assert table.match(7, 0, [5] * 5, starts).found.tolist() == [False, True, True, True, False]


def test_memory_is_bounded_and_the_newest_launches_stay() -> None:
    table = LaunchTable(max_launches=1 << 14)
    for batch in range(40):
        launch(table, [(number, number, number % 100) for number in range(batch * 1000, (batch + 1) * 1000)])
        assert table.nbytes <= (1 << 14) * join_module._LAUNCH_BYTES
    ids = np.arange(40_000)
    found = table.match(7, 0, ids, ids).found
    assert found[40_000 - (1 << 14) :].all()
    assert not found[: 40_000 - (1 << 14)].any()
    assert table.evicted == 40_000 - (1 << 14)
    launch(
        table, [(number, number, 1) for number in range(100_000, 140_000)]
    )  # more than the table in a call
    assert table.match(7, 0, [139_999], u64(139_999)).found.all()


def test_a_process_that_launches_much_leaves_room_for_others() -> None:
    table = LaunchTable(max_launches=1 << 14)
    launch(table, [(number, number, 1) for number in range(1 << 14)], 1)
    launch(table, [(number, number, 1) for number in range(3000)], 5)
    assert table.pending + table.evicted == (1 << 14) + 3000
    for pid in (2, 3):
        launch(table, [(number, number, 1) for number in range(3000)], pid)
        assert table.match(pid, 0, range(3000), range(3000)).found.all()
    assert table.nbytes <= (1 << 14) * join_module._LAUNCH_BYTES
    assert table.match(1, 0, range(1 << 14), range(1 << 14)).found.sum() >= 1024


def test_a_thousand_attach_cycles_do_not_grow_the_table() -> None:
    table = LaunchTable(max_launches=1 << 14)
    for epoch in range(1000):
        launch(table, [(1, epoch, epoch)], 7, epoch)
    assert table.nbytes <= (1 << 14) * join_module._LAUNCH_BYTES
    assert table.match(7, 999, [1], u64(999)).stack.tolist() == [999]
    assert table.evicted == 1000 - 16


@pytest.mark.parametrize("size", [1, 7, 500])
def test_ids_that_all_meet_in_one_bucket_do_not_cost_more(size: int) -> None:
    """A chain is followed for 64 launches, however many calls they came in."""
    ids = np.arange(1 << 21, dtype=np.uint32)
    bucket = join_module._Ring(join_module._FIRST_RING).bucket_of(ids)
    bad = ids[bucket == np.bincount(bucket).argmax()][:500].tolist()
    assert len(bad) == 500
    table = LaunchTable()
    for at in range(0, 500, size):
        launch(table, [(id_, at + n, 1) for n, id_ in enumerate(bad[at : at + size])])
    found = table.match(7, 0, bad, range(500)).found
    assert found[-64:].all()
    assert not found[:-64].any()


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 64, 2048, 4096, 1 << 15, 65_537])
def test_ids_at_any_regular_distance_are_spread(stride: int) -> None:
    """Buckets hold few launches each: not many more meet than at random ids."""
    ring = join_module._Ring(1 << 15)
    ids = (np.arange(1 << 15, dtype=np.uint64) * np.uint64(stride) + np.uint64(12345)).astype(np.uint32)
    load = np.bincount(ring.bucket_of(ids), minlength=1 << 16)
    looked_at = float((load * (load + 1) / 2).sum()) / len(ids)  # mean place in the chain; 1.25 at random ids
    assert looked_at < 2
    assert load.max() < 16


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError):
        LaunchTable().add(7, 0, correlation=[1, 2], enter_ns=[1], thread=[1], stack=[1])


# ------------------------------------------------------------------------------------------- waiting, batches


def records(*rows: tuple[int, int, int]) -> dict[str, Any]:
    correlation, start, end = zip(*rows, strict=True)
    return {"correlation": np.array(correlation, np.uint32), "start_ns": u64(*start), "end_ns": u64(*end)}


def test_a_record_waits_for_a_launch_that_comes_later() -> None:
    join = RecordJoin(LaunchTable(), hold_ns=1000)
    assert len(join.take(7, 0, records((1, 500, 600), (2, 500, 700)), 1000)) == 0
    assert join.counts.unmatched == 0
    launch(join.launches, [(1, 400, 3)])
    done = join.take(7, 0, records((3, 900, 950)), 1650)
    assert done.columns["correlation"].tolist() == [1]
    assert done.launch.stack.tolist() == [3]
    done = join.take(7, 0, records((9, 0, 0)), 1900)  # 2 has waited long enough
    assert done.columns["correlation"].tolist() == [2]
    assert done.launch.stack.tolist() == [-1]
    assert (join.held, join.counts.valid, join.counts.invalid, join.counts.unmatched) == (1, 3, 1, 1)
    assert join.flush(8, 0) is None


def test_no_more_wait_than_may() -> None:
    join = RecordJoin(LaunchTable(), max_held=3)
    done = join.take(7, 0, records(*((number, number, number) for number in range(1, 11))), 11)
    assert done.columns["correlation"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert join.held == 3


@pytest.mark.parametrize("whole", [1, 10, 1 << 11])
@pytest.mark.parametrize("seed", range(5))
def test_batches_that_wait_wholly_or_in_part(whole: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is settled once, with its launch if that came in time, however batches are kept."""
    monkeypatch.setattr(records_module, "_WHOLE_PART", whole)
    rng = random.Random(seed)
    join = RecordJoin(LaunchTable(), hold_ns=4000, max_held=150)
    settled: Counter[tuple[int, int]] = Counter()
    most, sent = 0, 0
    launched: set[int] = set()
    for tick in range(1, 30):
        now = 1000 * tick
        count = rng.choice([0, 3, 40])
        fresh = list(range(sent, sent + count))
        sent += count
        late = [id_ for id_ in range(max(sent - 90, 0), sent) if id_ not in launched]
        come = late if rng.random() < 0.3 else [id_ for id_ in late if rng.random() < 0.2 and id_ % 10]
        if come:
            launch(join.launches, [(id_, 1, id_ + 7) for id_ in come])
            launched.update(come)
        rows = records(*((id_, now - 10, now - 5) for id_ in fresh)) if fresh else records((1, 0, 0))
        done = join.take(7, 0, rows, now)
        settled.update(zip(done.columns["correlation"].tolist(), done.launch.stack.tolist(), strict=True))
        most = max(most, join.held)
        assert len(done.columns["end_ns"]) == len(done.launch.weight) == len(done)
        assert len(settled) + join.held == sent
    last = join.flush(7, 0)
    if last is not None:
        settled.update(zip(last.columns["correlation"].tolist(), last.launch.stack.tolist(), strict=True))
    assert sorted(id_ for id_, _ in settled) == list(range(sent))
    assert set(settled.values()) == {1}
    assert all(stack in {-1, id_ + 7} for id_, stack in settled)
    assert join.counts.unmatched == sum(stack < 0 for _, stack in settled)
    assert most <= 150
    assert join.held == 0


@pytest.mark.parametrize(
    ("start", "end", "good"),
    [(0, 5, False), (5, 4, False), (5, 5, True), (5, 1000, True), (5, 1001, False), (1 << 63, 1 << 63, False),
     ((1 << 64) - 1, 3, False), (0, 0, False)],
)  # fmt: skip
def test_which_records_can_be_true(start: int, end: int, good: bool) -> None:
    assert valid(u64(start), u64(end), 1000, tolerance_ns=0).tolist() == [good]


# ---------------------------------------------------------------------------------------- leaves, generations


def stack_names(tables: Tables, stack: int) -> list[str]:
    view = tables.view()
    names = []
    while stack:
        names.append(frame_label(view, int(view.frame[stack]))[0])
        stack = int(view.parent[stack])
    return names[::-1]


def host_stack(tables: Tables, names: str) -> int:
    return tables.stack(
        [tables.frame(tables.function(name, "a.py", "p", FrameKind.PYTHON), 3) for name in names.split()]
    )


def test_leaves_are_put_below_stacks_and_below_one_that_says_no_launch_was_seen() -> None:
    tables = Tables(0)
    one, two = host_stack(tables, "main step"), host_stack(tables, "main")
    gemm, add = (
        tables.frame(tables.function(name, "", "", FrameKind.GPU_KERNEL)) for name in ("gemm", "add")
    )
    leaves = LeafStacks(tables)
    found = leaves.of([one, two, -1, one, -1], [gemm, gemm, add, gemm, gemm])
    assert [" ".join(stack_names(tables, stack)) for stack in found.tolist()] == [
        "main step gemm", "main gemm", "[launch not seen] add", "main step gemm", "[launch not seen] gemm",
    ]  # fmt: skip
    assert found[0] == found[3]
    assert len(leaves.of([], [])) == 0
    for stack, leaf in ((999, gemm), (one, 999)):
        with pytest.raises(IndexError):
            leaves.of([stack], [leaf])


@pytest.mark.parametrize("bits", [1, 3, 15])
def test_remembered_leaves_are_the_ones_that_are_interned(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "_MEMO_BITS", bits)  # so few places that pairs push each other out
    tables = Tables(0)
    stacks = [host_stack(tables, f"main f{number}") for number in range(20)]
    kernels = [tables.frame(tables.function(f"k{n}", "", "", FrameKind.GPU_KERNEL)) for n in range(10)]
    leaves = LeafStacks(tables)
    rng = random.Random(bits)
    for _ in range(20):
        pairs = [(rng.choice(stacks), rng.choice(kernels)) for _ in range(60)]
        found = leaves.of(*zip(*pairs, strict=True))
        assert found.tolist() == [tables.stacks.child(*pair) for pair in pairs]


def test_launches_live_on_in_the_next_generation(planted: Any) -> None:
    old = Tables(0)
    process = old.process(planted.process(7))
    threads = [old.thread(process, tid, f"t{tid}") for tid in (1, 2, 3)]
    stacks = [host_stack(old, names) for names in ("a b", "a c d", "x")]
    table = LaunchTable()
    table.add(7, 0, correlation=[1, 2], enter_ns=[1, 2], thread=threads[1:], stack=stacks[:2])
    new = Tables(1)
    host_stack(new, "something else before")
    table.carry_over(old.view(), new)
    found = table.match(7, 0, [1, 2], u64(1, 2))
    assert [stack_names(new, stack) for stack in found.stack.tolist()] == [["a", "b"], ["a", "c", "d"]]
    view = new.view()
    assert [view.threads[thread].tid for thread in found.thread.tolist()] == [2, 3]
    assert view.processes[view.threads[0].process] == planted.process(7)
    assert "x" not in view.strings  # only what is needed
    LaunchTable().carry_over(old.view(), new)
