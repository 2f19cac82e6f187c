"""The injection library under a budget: which launches get a stack, when it pauses, what it says of both."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.sampler import gpu_ring

Start = Callable[..., Any]
Listen = Callable[..., Any]
BEHIND_NS = 100_000  # as in records.c


def with_budget(program: Any, listen: Listen, ppm: int) -> Any:
    listener = listen(program, lock=False)
    assert listener.ring.lock(ppm)
    listener.reach("recording")
    return listener


@pytest.fixture
def dear(kit: Any, tmp_path: Path) -> Any:
    """A library that takes CUPTI to cost half a millisecond a launch: few launches use a budget up."""
    flags = ("-DCUPTI_CALL_NS=1.0", "-DCUPTI_RECORD_NS=500000.0", "-DPOLL_NS=5000000ull")
    return kit.build(tmp_path / "dear", library=flags)


def test_stacks_are_a_sample_of_known_weight(start: Start, listen: Listen, kit: Any, tmp_path: Path) -> None:
    """Which launches have a stack is marked in the records, exactly; the weights add up to the launches."""
    free = kit.build(
        tmp_path / "free", library=("-DCUPTI_CALL_NS=1.0", "-DCUPTI_RECORD_NS=1.0", "-DSTACK_NS=1e6")
    )
    program = start(which=free).init()
    listener = with_budget(program, listen, 10_000)
    program.ask("spin 6")
    kit.wait_for(lambda: listener.facts.launches_per_stack > 1, what="sampling")
    end = time.monotonic() + 2
    while time.monotonic() < end:
        listener.read()
        time.sleep(0.02)
    program.ask("stop")
    listener.read()
    kit.wait_for(lambda: listener.facts.records == listener.facts.launches)
    listener.read()
    probes, work = program.probes(), listener.work()
    facts = listener.facts
    assert len(work) == facts.launches
    assert facts.stacks == len(probes) < facts.launches
    with_stack = set(probes["correlation"].tolist())
    marked = dict(zip(work["correlation"].tolist(), work["no_stack"].tolist(), strict=True))
    assert {number for number, left_out in marked.items() if not left_out} == with_stack
    weights = probes["weight"].astype(np.float64)
    assert (np.log2(weights) % 1 == 0).all()
    error = np.sqrt((weights * (weights - 1)).sum())  # of the sum, for independent choices
    assert abs(weights.sum() - facts.launches) < 5 * error + 1
    assert program.faults == {}


def test_a_pause_detaches_and_ends_by_itself(start: Start, listen: Listen, kit: Any, dear: Any) -> None:
    program = start(which=dear).init()
    listener = with_budget(program, listen, 100_000)
    watcher = listen(program, lock=False)
    program.ask("spin 4")
    watcher.reach("paused")
    assert watcher.facts.recording_since_ns == 0
    assert program.counters["subscribers"] == program.counters["callbacks_enabled"] == 0
    assert "--gpu-overhead" in watcher.facts.message
    # What is recorded between two pauses may be over before it is seen: the second pause tells of it.
    kit.wait_for(lambda: watcher.facts.pauses >= 2, what="the second pause")
    program.ask("stop")

    def spans_read() -> Any:
        slots = listener.read()
        return slots[slots["kind"] == gpu_ring.SPAN].view(gpu_ring.SPANS)

    kit.wait_for(lambda: len(spans_read()) == watcher.facts.pauses, what="a span for each pause")
    spans = spans_read()
    assert watcher.facts.epoch >= len(spans) >= 2
    assert (spans["end_ns"] > spans["start_ns"]).all()
    assert (spans["start_ns"][1:] > spans["end_ns"][:-1] + np.uint64(100_000_000)).all()
    clock = listener.slots[listener.slots["kind"] == gpu_ring.CLOCK].view(gpu_ring.CLOCKS)[-1]
    shift = int(clock["mono_ns"]) - int(clock["cupti_ns"])
    work = listener.work()
    starts = work["start"][work["epoch"] <= len(spans)].astype(np.int64) + shift  # not those after the last
    inside = [(starts >= int(span["start_ns"])) & (starts < int(span["end_ns"]) + 10**6) for span in spans]
    assert np.logical_or.reduce(inside).mean() > 0.99
    assert program.faults == {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_pauses_under_a_sanitizer(
    kit: Any, start: Start, listen: Listen, tmp_path: Path, sanitizer: str
) -> None:
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    dear = ("-DCUPTI_CALL_NS=1.0", "-DCUPTI_RECORD_NS=50000.0", "-DPOLL_NS=1000000ull")
    try:
        built = kit.build(tmp_path / "sanitized", all_flags=flags, library=dear)
    except subprocess.CalledProcessError:
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    options = "halt_on_error=1:exitcode=66:detect_leaks=0"
    program = start(which=built, TSAN_OPTIONS=options, ASAN_OPTIONS=options)
    try:
        program.init()
    except BrokenPipeError:
        pytest.skip(f"the sanitizer does not run here: {program.errors[:200]!r}")
    budget_ppm = 100_000
    listener = with_budget(program, listen, budget_ppm)
    program.ask("wait 1000000")
    program.ask("spin 8")
    end = time.monotonic() + 200
    changed, pauses = time.monotonic(), 0
    while listener.facts.pauses < 3 and time.monotonic() < end:
        listener.read()
        if listener.facts.pauses > pauses:
            changed, pauses = time.monotonic(), listener.facts.pauses
        elif time.monotonic() - changed > 15:  # a busy machine makes too few launches to use it up
            changed, budget_ppm = time.monotonic(), budget_ppm // 4
            assert listener.ring.lock(budget_ppm)
        if listener.facts.state == "recording":  # on a busy machine those that spin launch too seldom
            program.launch(500, threads=4)
        time.sleep(0.01)
    program.launch(50, how="sync", threads=4)
    program.ask("stop")
    assert listener.facts.pauses >= 3
    assert program.faults == {}
    assert program.end() == 0
    assert program.errors == b""


def test_a_sampler_that_goes_ends_a_pause(start: Start, listen: Listen, dear: Any) -> None:
    program = start(which=dear).init()
    listener = with_budget(program, listen, 1000)
    watcher = listen(program, lock=False)
    program.ask("spin 4")
    watcher.reach("paused")
    listener.close()
    watcher.reach("waiting")
    assert watcher.ring.lock()
    watcher.reach("recording", 5)  # the pause was the other's
    time.sleep(1)
    assert watcher.facts.state == "recording"
    assert watcher.facts.launches_per_stack == 1
    program.ask("stop")


def test_no_calls_no_pause(start: Start, listen: Listen, dear: Any) -> None:
    """What is recorded rarely costs little, however dear it is."""
    program = start(which=dear).init()
    listener = with_budget(program, listen, 10_000)
    program.launch(3)
    time.sleep(1.5)
    program.launch(3)
    listener.expect(6)
    assert listener.facts.state == "recording"
    assert listener.facts.pauses == 0


def test_waits_are_timed_and_have_a_stack(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listener = with_budget(program, listen, 500_000)  # which a callback that was preempted does not use up
    program.ask("wait 10000000")
    before = time.monotonic_ns()
    program.launch(7, how="sync", path="b")
    program.launch(5, how="copy")
    after = time.monotonic_ns()
    listener.expect(5)
    kit.wait_for(lambda: len(listener.read()) and len(listener.waits()) == 12)
    waits, names = listener.waits(), listener.names()
    called = [names[number] for number in waits["name"].tolist()]
    assert called == [b"cuStreamSynchronize"] * 7 + [b"cuMemcpyHtoD_v2"] * 5
    assert set(waits["weight"].tolist()) == {1.0}
    length = (waits["end_ns"] - waits["start_ns"]).astype(np.int64)
    assert ((length >= 10_000_000) & (length < after - before)).all()
    assert (waits["start_ns"] > before).all()
    assert (waits["end_ns"] < after).all()
    probes = program.probes()
    assert len(probes) == 12  # a copy that waits has one stack for both
    by_id = {row["correlation"]: row for row in probes}
    for wait in waits:
        row = by_id[wait["correlation"]]
        assert row["enter_ns"] == wait["start_ns"]
        assert row["tid"] == wait["thread"]
    assert sorted(probes["weight"].tolist()) == [0] * 7 + [1] * 5
    assert (listener.facts.waits, listener.facts.launches) == (12, 5)
    assert listener.facts.wait_ns == length.sum()


def test_waits_say_for_which_stream(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(1)
    program.launch(3, how="sync")
    program.launch(5, how="sync33")
    program.launch(2, how="copy")
    program.launch(4, how="sync-1")  # fails: its handle must not be asked about
    kit.wait_for(lambda: len(listener.read()) and len(listener.waits()) == 14)
    listener.expect(3)
    waits = listener.waits()
    known = waits["flags"] == gpu_ring.WAIT_HAS_STREAM
    assert waits["stream"][known].tolist() == [7] * 3 + [33] * 5
    assert set(listener.work(gpu_ring.KERNEL)["stream"].tolist()) == {7}  # the same numbers as of work
    assert set(waits["flags"][~known].tolist()) == {0}
    assert program.faults == {}


def follow_events(program: Any, kit: Any) -> None:
    """The process is seen to wait for an event; from then on records of events are looked at."""
    before = program.counters["callbacks_enabled"]
    program.launch(1, how="await1", name="first")
    kit.wait_for(lambda: program.counters["callbacks_enabled"] == before + 4, what="four more callbacks")


def test_records_of_events_are_looked_at_by_those_who_wait_for_events(
    start: Start, listen: Listen, kit: Any
) -> None:
    program = start().init()
    listen(program)
    before = program.counters["callbacks_enabled"]
    program.launch(50, how="rec5:33")
    program.launch(5, how="sync")
    time.sleep(1.2)  # a look each second
    assert program.counters["callbacks_enabled"] == before
    assert program.counters["enters"] == 5
    follow_events(program, kit)


def test_waits_for_events_say_for_which_stream(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(2, how="rec5:33")  # not seen: nobody had waited for an event yet
    follow_events(program, kit)
    calls = (
        ("await5", None), ("rec5:33", 0), ("await5", 33), ("rec6:34", 0), ("rec5:35", 0), ("await5", 35),
        ("await6", 34), ("await9", None), ("flags9:36", 0), ("await9", 36), ("ptsz9:0", 0), ("await9", 8),
        ("rec9:0", 0), ("await9", 7), ("fptsz9:0", 0), ("await9", 8), ("rec9:-1", 0), ("await9", 8),
        ("rec-1:33", 0), ("await-1", None), ("ctxsync", None),
    )  # fmt: skip
    for how, _ in calls:
        program.launch(1, how=how)
    expected = [None] + [stream for _, stream in calls if stream != 0]
    kit.wait_for(lambda: len(listener.read()) and len(listener.waits()) == len(expected))
    waits = listener.waits()
    waits = waits[np.argsort(waits["start_ns"])]
    known = waits["flags"] == gpu_ring.WAIT_HAS_STREAM
    assert [int(s) if k else None for s, k in zip(waits["stream"], known, strict=True)] == expected
    assert waits["stream"][~known].tolist() == [0] * int((~known).sum())
    assert program.faults == {}  # no handle was asked about that the driver had refused


def test_many_events_push_each_other_out_and_are_never_mixed_up(
    start: Start, listen: Listen, kit: Any
) -> None:
    program = start().init()
    listener = listen(program)
    follow_events(program, kit)
    for number in range(2, 500):
        program.launch(1, how=f"rec{number}:{1000 + number}")
    for number in range(2, 500):
        program.launch(1, how=f"await{number}")
    kit.wait_for(lambda: len(listener.read()) and len(listener.waits()) == 499)
    waits = listener.waits()[1:]
    known = waits["flags"] == gpu_ring.WAIT_HAS_STREAM
    assert (waits["stream"][known] == np.arange(1002, 1500)[known]).all()
    assert known.mean() > 0.85


def test_events_of_before_a_detach_are_not_known_after(start: Start, listen: Listen, kit: Any) -> None:
    """Meanwhile they may have been recorded in another stream."""
    program = start().init()
    listener = listen(program)
    follow_events(program, kit)
    program.launch(1, how="rec5:33")
    listener.read()  # else the next one would
    listener.close()
    watcher = listen(program, lock=False)
    watcher.reach("detaching")
    program.launch(1, how="rec6:33")
    watcher.reach("waiting")
    again = listen(program)
    program.launch(1, how="await5")
    program.launch(1, how="rec5:34")  # at once: that it waits for events is known
    program.launch(1, how="await5")
    kit.wait_for(lambda: len(again.read()) and len(again.waits()) == 2)
    assert again.waits()["flags"].tolist() == [0, gpu_ring.WAIT_HAS_STREAM]
    assert again.waits()["stream"][1] == 34
    assert program.faults == {}


def test_a_free_that_takes_long_is_a_wait(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(50, how="free")
    program.ask("wait 1000000")
    program.launch(3, how="free")
    kit.wait_for(lambda: len(listener.read()) and len(listener.waits()) >= 3)
    waits = listener.waits()
    assert len(waits) < 10  # the short ones were none
    names = {listener.names()[number] for number in waits["name"].tolist()}
    assert names == {b"cuMemFree_v2"}
    assert (listener.facts.launches, listener.facts.records) == (0, 0)
    assert program.faults == {}


def test_event_records_are_part_of_the_cost(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listener = listen(program)
    follow_events(program, kit)
    kit.wait_for(lambda: listener.facts.cost_ns > 0)
    before = listener.facts.cost_ns
    program.launch(10_000, how="rec5:33")
    kit.wait_for(lambda: listener.facts.cost_ns - before >= 10_000 * 500)


def test_a_cupti_that_cannot_tell_streams(kit: Any, start: Start, listen: Listen, tmp_path: Path) -> None:
    program = start(which=kit.build(tmp_path / "old", cupti=("-DMOCK_OLD",))).init()
    listener = listen(program)
    program.launch(3, how="sync33")
    kit.wait_for(lambda: len(listener.read()) and len(listener.waits()) == 3)
    assert set(listener.waits()["flags"].tolist()) == {0}


def test_short_waits_are_a_sample_by_their_length(start: Start, listen: Listen, kit: Any) -> None:
    """The time in them is estimated without bias. The budget is such that the threshold stays, however long
    those waits are in which the thread was off the CPU: how far off an estimate may be is known from it.
    """
    program = start().init()
    listener = with_budget(program, listen, 400_000_000)
    kit.wait_for(lambda: listener.facts.wait_threshold_ns > 0)
    program.ask("wait 5000")
    program.launch(2000, how="sync", threads=2)
    facts = listener.facts
    assert facts.waits == 4000
    listener.read()
    waits = listener.waits()
    assert 0 < len(waits) < 3000
    length, weight = (waits["end_ns"] - waits["start_ns"]).astype(np.float64), waits["weight"].astype(float)
    assert (weight >= 1).all()
    assert ((length * weight) >= 0.999 * np.maximum(length, 50_000)).all()
    error = np.sqrt((length**2 * weight * (weight - 1)).sum())
    assert abs((length * weight).sum() - facts.wait_ns) < 5 * error
    assert listener.facts.wait_threshold_ns == 50_000


def test_without_a_budget_all_waits_are_kept(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(101, how="sync")
    kit.wait_for(lambda: len(listener.read()) and len(listener.waits()) == 101)
    assert set(listener.waits()["weight"].tolist()) == {1.0}


def test_records_know_their_launch(start: Start, listen: Listen, kit: Any) -> None:
    """The time of the enter comes with each record; whether the device was behind is counted by launch."""
    program = start().init()
    listener = listen(program)
    program.launch(101)
    program.launch(7, "node", how="graph")
    listener.expect(101 + 21)
    entered = {row["correlation"]: int(row["enter_ns"]) for row in program.probes()}
    work = listener.work()
    assert work["enter"].tolist() == [entered[number] for number in work["correlation"].tolist()]
    program.launch(1)  # judged when the next comes
    listener.expect(123)
    # Its own thread may have been off the CPU between the enter and the call: that is a delay, too.
    clock = listener.slots[listener.slots["kind"] == gpu_ring.CLOCK].view(gpu_ring.CLOCKS)[0]
    shift = int(clock["mono_ns"]) - int(clock["cupti_ns"])
    delays = work["start"].astype(np.int64) + shift - work["enter"].astype(np.int64)
    _, first = np.unique(work["correlation"], return_index=True)
    behind = int((delays[first] >= BEHIND_NS).sum())
    assert behind < 10
    assert (listener.facts.judged, listener.facts.behind) == (108, behind)
    program.ask("long 300000000")  # of each, far longer than the five calls take: the later ones wait
    program.launch(5, "slow")
    kit.wait_for(lambda: listener.facts.judged == 113)
    assert 3 <= listener.facts.behind - behind <= 4  # the last is not judged yet


def test_the_cost_is_told(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(1000)
    kit.wait_for(lambda: listener.facts.cost_ns >= 1000 * 1800)
    facts = listener.facts
    assert 0 < facts.callback_ns < facts.cost_ns < 10**9


def test_the_library_that_was_named_before_is_loaded_too(
    start: Start, listen: Listen, tmp_path: Path, kit: Any
) -> None:
    source, other = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(
        "#include <fcntl.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        "int InitializeInjection(void);\n"
        "int InitializeInjection(void)\n"
        '{ return open(getenv("OTHER_WAS_HERE"), O_CREAT | O_EXCL, 0600) >= 0; }\n'
    )
    kit._gcc(other, [source], "-shared", "-fPIC")
    mark = tmp_path / "mark"
    program = start(GPUPROF_NEXT_INJECTION=str(other), OTHER_WAS_HERE=str(mark)).init()
    assert mark.exists()
    listener = listen(program)
    program.launch(3)
    listener.expect(3)
    itself = start(GPUPROF_NEXT_INJECTION=str(program.built.library)).init()
    listen(itself)
    missing = start(GPUPROF_NEXT_INJECTION="/nowhere.so").init()
    listen(missing)
