"""The injection library beside another user of CUPTI, where CUPTI allows several."""

from __future__ import annotations

import fcntl
import os
import random
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler import gpu_ring

Start = Callable[..., Any]
Listen = Callable[..., Any]

SHARES = "shares CUPTI with torch: "
SPINNING = 8
ASAN = "halt_on_error=1:exitcode=66:detect_leaks=0:quarantine_size_mb=1"
POLL = "-DPOLL_NS=1000000ull"


@pytest.fixture(scope="module")
def several(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A CUPTI that allows several subscribers."""
    return kit.build(tmp_path_factory.mktemp("several"), cupti=("-DMOCK_MULTI",))


@pytest.fixture
def shared(start: Start, several: Any) -> Any:
    """A program in which another user of CUPTI records."""
    program = start(which=several).init()
    assert program.ask("other_shares torch") == "0"
    return program


def unlock(listener: Any) -> None:
    request = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 1, 0)
    fcntl.fcntl(listener.ring._fd, 37, request)


def left_alone(program: Any) -> bool:
    """Whether the other's recording is whole, and nothing was done that only a lone subscriber may do."""
    counters = program.counters
    got = int(program.ask("other_records"))
    return (
        got == counters["other_records"]
        and program.ask("other_spoilt") == "0"
        and counters["finalizes"] == 0
        and program.faults == {}
    )


def test_both_get_all_records(shared: Any, listen: Listen) -> None:
    listener = listen(shared)
    facts = listener.facts
    assert facts.message.startswith(SHARES)
    assert shared.counters["pool_limit"] == 0  # what is set for all subscribers is the other's
    shared.launch(1009, "one", threads=3)
    shared.launch(101, how="graph", name="node")
    shared.launch(37, how="copy")
    shared.launch(41, how="set")
    shared.launch(5, how="sync33")
    records = 3 * 1009 + 3 * 101 + 37 + 41
    listener.expect(records)
    assert listener.by_name() == {"one": 3 * 1009, "node": 3 * 101}
    assert set(listener.by_launch(shared)) == {("a", "one"), ("a", "node")}
    facts = listener.facts
    assert (facts.launches, facts.records, facts.cupti_dropped) == (3 * 1009 + 101 + 37 + 41, records, 0)
    entered = {row["correlation"]: int(row["enter_ns"]) for row in shared.probes()}
    work = listener.work()
    assert work["enter"].tolist() == [entered[number] for number in work["correlation"].tolist()]
    assert int(shared.ask("other_records")) == records
    assert int(shared.ask("other_calls")) == 3 * 1009
    assert left_alone(shared)


def test_a_detach_needs_no_call_and_disables_all(shared: Any, listen: Listen, kit: Any) -> None:
    listener = listen(shared)
    watcher = listen(shared, lock=False)
    shared.launch(50)
    listener.expect(50)
    listener.close()
    watcher.reach("waiting")
    counters = shared.counters
    assert counters["kinds_enabled"] == 0
    assert counters["callbacks_enabled"] in {kit.GRAPH_CALLS, 0}  # 0: it has unsubscribed already
    shared.launch(50)
    assert shared.counters["records"] == 50
    assert int(shared.ask("other_records")) == 100
    kit.wait_for(lambda: shared.counters["unsubscribes"] == 1)
    assert shared.counters["callbacks_enabled"] == 0
    assert left_alone(shared)


def test_alone_again_when_the_other_has_left(shared: Any, listen: Listen, kit: Any) -> None:
    listener = listen(shared)
    watcher = listen(shared, lock=False)
    assert shared.ask("other_leave") == "0"
    shared.launch(5)
    listener.expect(5)
    unlock(listener)
    watcher.reach("waiting")
    kit.wait_for(lambda: shared.counters["unsubscribes"] == 1)
    assert listener.ring.lock()
    assert watcher.reach("recording").message == ""
    assert shared.counters["pool_limit"] == 16
    assert watcher.facts.epoch == 2
    shared.launch(7)
    listener.expect(12)
    unlock(listener)
    watcher.reach("detaching")
    shared.launch(1)
    assert shared.counters["finalizes"] == 1
    assert shared.faults == {}


def test_shared_with_nobody_where_cupti_stays_so(start: Start, several: Any, listen: Listen) -> None:
    """What the first subscriber asked for may be fixed for good: it is still shared, and nothing is lost."""
    program = start("sticky=1", which=several).init()
    assert program.ask("other_shares torch") == "0"
    assert program.ask("other_leave") == "0"
    listener = listen(program)
    assert listener.facts.message.startswith("shares CUPTI with another profiler: ")
    program.launch(77)
    listener.expect(77)
    assert program.faults == {}


@pytest.mark.parametrize("name", ["torch", "-"])
def test_one_that_wants_to_be_alone_is_named_and_outwaited(
    start: Start, several: Any, listen: Listen, name: str
) -> None:
    program = start(which=several).init()
    assert program.ask(f"other {name}") == "0"
    listener = listen(program, wait=False)
    said = "CUPTI for torch" if name == "torch" else "it gives no name"
    assert listener.reach("refused").message == f"another profiler uses CUPTI in this process: {said}"
    program.launch(5)
    assert program.ask("other_leave") == "0"
    assert listener.reach("recording").message == ""
    assert program.faults == {}


def test_an_old_cupti_is_not_shared(start: Start, kit: Any, listen: Listen, built: Any) -> None:
    program = start(which=built).init()
    assert program.ask("other torch") == "0"
    assert listen(program, wait=False).reach("refused").message.endswith("CUPTI for torch")
    assert program.counters["refusals"] == 1


def test_records_of_another_layout_are_not_taken(start: Start, several: Any, listen: Listen) -> None:
    program = start("user_records=1", which=several).init()
    assert program.ask("other_shares torch") == "0"
    listener = listen(program, wait=False)
    message = listener.reach("refused").message
    assert message == "torch, which uses CUPTI too, has records of another layout"
    program.launch(5)
    assert left_alone(program)


def test_graphs_that_come_whole_are_said(start: Start, several: Any, listen: Listen) -> None:
    program = start("whole_graphs=1", which=several).init()
    assert program.ask("other_shares torch") == "0"
    listener = listen(program)
    assert listener.facts.message.startswith("kernels inside CUDA graphs are not recorded: torch")
    program.launch(9, how="graph")
    program.launch(11)
    listener.expect(11)
    assert listener.facts.launches == 20


def test_no_kernel_records_is_said_where_it_is_shared_too(shared: Any, listen: Listen) -> None:
    shared.ask("set activity_result 38")
    listener = listen(shared, wait=False)
    assert "CUPTI gives no kernel records" in listener.reach("refused").message
    shared.ask("set activity_result 0")
    assert listener.reach("recording").message.startswith(SHARES)
    shared.launch(5)
    listener.expect(5)


def test_the_other_ends_cupti_for_all(shared: Any, listen: Listen, kit: Any) -> None:
    """Then nobody tells us: the clock is asked every second, and what was not recorded is not claimed."""
    listener = listen(shared)
    shared.launch(50)
    listener.expect(50)
    shared.ask("other_finalizes")
    ended = time.monotonic_ns()
    message = listener.reach("refused").message
    assert message == "torch has let go of CUPTI for the whole process; attaching anew"
    assert listener.reach("recording").message == ""
    assert listener.facts.epoch == 2
    shared.launch(31)
    listener.expect(81)
    spans = listener.slots[listener.slots["kind"] == gpu_ring.SPAN].view(gpu_ring.SPANS)
    assert len(spans) == 1
    assert spans["end_ns"][0] <= ended
    assert shared.faults == {}


def test_a_slow_launcher_costs_the_other_few_flushes(shared: Any, listen: Listen, kit: Any) -> None:
    """A flush hands over the other's buffers, too: those that fill by themselves are waited for."""
    listener = listen(shared)
    before = shared.counters["flushes"]
    began = time.monotonic()
    for _ in range(20):
        shared.launch(3)
        time.sleep(0.1)
    listener.expect(60)
    passed = time.monotonic() - began
    assert 1 <= shared.counters["flushes"] - before <= passed / 2 + 1
    quiet = shared.counters["flushes"]
    time.sleep(2.5)
    assert shared.counters["flushes"] - quiet <= 1  # nothing of ours is out
    assert left_alone(shared)


@pytest.fixture(scope="module")
def hasty(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One that waits for buffers only three seconds, after which what comes is nobody's."""
    flags = (POLL, "-DGIVE_UP_NS=3000000000ull")
    return kit.build(tmp_path_factory.mktemp("hasty"), cupti=("-DMOCK_MULTI",), library=flags)


def test_a_buffer_that_is_out_keeps_the_subscription(
    start: Start, listen: Listen, kit: Any, hasty: Any
) -> None:
    """The next sampler goes on in the same epoch: CUPTI may go on to fill the buffer of before."""
    program = start(which=hasty).init()
    program.ask("other_shares torch")
    listener = listen(program)
    program.ask("long 2000000000")
    program.launch(1)
    unlock(listener)
    listener.reach("waiting")
    assert program.counters["unsubscribes"] == 0
    assert program.counters["buffers_out"] == 1
    assert listener.ring.lock()
    listener.reach("recording")
    assert listener.facts.epoch == 1
    program.launch(1, threads=0)
    listener.expect(2)
    assert set(listener.work()["epoch"].tolist()) == {1}
    assert len(set(listener.work()["correlation"].tolist())) == 2
    assert left_alone(program)


def test_a_buffer_that_comes_after_we_left_is_counted(
    start: Start, listen: Listen, kit: Any, hasty: Any
) -> None:
    program = start(which=hasty).init()
    program.ask("other_shares torch")
    listener = listen(program)
    program.ask("long 6000000000")
    program.launch(1)
    unlock(listener)
    kit.wait_for(lambda: program.counters["unsubscribes"] == 1)
    kit.wait_for(lambda: program.counters["buffers_out"] == 0, what="the buffer")
    kit.wait_for(lambda: listener.facts.cupti_dropped == 1)
    assert listener.facts.records == 0
    assert left_alone(program)


def test_a_pause_lets_the_other_go_on(start: Start, listen: Listen, kit: Any, tmp_path: Path) -> None:
    dear = ("-DCUPTI_CALL_NS=1.0", "-DCUPTI_RECORD_NS=500000.0", "-DPOLL_NS=5000000ull")
    program = start(which=kit.build(tmp_path / "dear", library=dear, cupti=("-DMOCK_MULTI",))).init()
    program.ask("other_shares torch")
    listener = listen(program, lock=False)
    assert listener.ring.lock(100_000)
    program.ask("spin 4")
    facts = listener.reach("paused")
    assert facts.message.startswith("paused, to stay within --gpu-overhead; not at native speed meanwhile")
    assert "torch" in facts.message
    counters = program.counters
    assert counters["callbacks_enabled"] in {kit.GRAPH_CALLS, 0}
    assert counters["kinds_enabled"] == 0
    kit.wait_for(lambda: listener.facts.pauses >= 2, what="the second pause")
    program.ask("stop")
    assert left_alone(program)


def test_children_and_the_end_of_a_process(shared: Any, listen: Listen, kit: Any) -> None:
    listener = listen(shared)
    shared.ask("spin 4")
    kit.wait_for(lambda: listener.facts.launches > 50)
    assert shared.ask("fork 10") == "0"
    shared.ask("stop")
    shared.launch(7, "last")
    assert shared.faults == {}
    time.sleep(0.01)
    assert shared.end() == 0
    listener.read()
    facts = listener.facts
    assert facts.state == "ended"
    assert facts.records == facts.launches == len(listener.work())
    assert listener.by_name()["last"] == 7
    assert "child" not in listener.by_name()
    assert shared.faults == {}


def cycle_beside(cycles: int, program: Any, listen: Listen, kit: Any, seconds: float = 240.0) -> None:
    """Attach and detach again and again while threads launch and the other records."""
    listener = listen(program, lock=False)
    program.ask(f"spin {SPINNING}")
    end = time.monotonic() + seconds
    for cycle in range(cycles):
        patience_s = max(end - time.monotonic(), 0)  # under a sanitizer, on a busy machine, one may take long
        kit.wait_for(listener.ring.lock, patience_s)
        kit.wait_for(lambda: listener.facts.state == "recording", patience_s, "an attach")
        assert listener.facts.message.startswith(SHARES)
        listener.read()
        unlock(listener)
        kit.wait_for(lambda: listener.facts.state == "waiting", patience_s, "a detach")
        assert time.monotonic() < end, f"only {cycle} cycles"
    program.ask("stop")
    kit.wait_for(lambda: program.counters["buffers_out"] == 0, what="the last buffer")
    kit.wait_for(lambda: program.counters["subscribers"] == 1, what="the end of our subscription")
    listener.read()
    facts, counters = listener.facts, program.counters
    assert counters["callbacks_enabled"] == counters["kinds_enabled"] == 0
    assert counters["records"] == facts.records + facts.cupti_dropped
    assert facts.records == len(listener.work()) + facts.dropped
    assert facts.launches == len(program.probes())
    assert facts.records > cycles
    assert int(program.ask("other_records")) == counters["other_records"] >= counters["records"]
    assert left_alone(program)
    assert program.end() == 0


@pytest.mark.timeout(300)
def test_two_hundred_cycles_beside_another(start: Start, listen: Listen, kit: Any, tmp_path: Path) -> None:
    fast = kit.build(tmp_path / "fast", library=(POLL,), cupti=("-DMOCK_MULTI",))
    program = start(which=fast).init()
    assert program.ask("other_shares torch") == "0"
    cycle_beside(200, program, listen, kit)


@pytest.mark.timeout(300)
def test_the_other_comes_and_goes(start: Start, listen: Listen, kit: Any, tmp_path: Path) -> None:
    """Alone and beside the other by turns, under launching threads."""
    fast = kit.build(tmp_path / "fast", library=(POLL,), cupti=("-DMOCK_MULTI",))
    program = start(which=fast).init()
    listener = listen(program, lock=False)
    program.ask(f"spin {SPINNING}")
    for _ in range(60):
        for other in (True, False):
            if other:
                assert program.ask("other_shares torch") == "0"
            kit.wait_for(listener.ring.lock)
            kit.wait_for(lambda: listener.facts.state == "recording", what="an attach")
            assert listener.facts.message.startswith(SHARES) == other
            listener.read()
            unlock(listener)
            kit.wait_for(lambda: listener.facts.state == "waiting", what="a detach")
            kit.wait_for(lambda other=other: program.counters["subscribers"] == other, what="our leave")
            if other:
                assert program.ask("other_leave") == "0"
    program.ask("stop")
    kit.wait_for(lambda: program.counters["buffers_out"] == 0)
    listener.read()
    counters, facts = program.counters, listener.facts
    assert (counters["finalizes"], counters["unsubscribes"]) == (60, 60)
    assert counters["records"] == facts.records + facts.cupti_dropped + counters["discarded"]
    assert program.ask("other_spoilt") == "0"
    assert program.faults == {}


def sanitized(kit: Any, start: Start, folder: Path, sanitizer: str) -> Any:
    """A program of which every part is built with a sanitizer; skips where there is none."""
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    try:
        built = kit.build(folder / "built", all_flags=flags, library=(POLL,), cupti=("-DMOCK_MULTI",))
    except subprocess.CalledProcessError:
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    loader = folder / "loader"  # its own list of libraries, to which the other's dlopen has added CUPTI
    loader.write_text("race:cupti_open\n")
    options = f"halt_on_error=1:exitcode=66:detect_leaks=0:suppressions={loader}"
    program = start(which=built, TSAN_OPTIONS=options, ASAN_OPTIONS=ASAN)
    try:
        return program.init()
    except BrokenPipeError:
        pytest.skip(f"the sanitizer does not run here: {program.errors[:200]!r}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_cycles_beside_another_under_a_sanitizer(
    kit: Any, start: Start, listen: Listen, tmp_path: Path, sanitizer: str
) -> None:
    program = sanitized(kit, start, tmp_path, sanitizer)
    assert program.ask("other_shares torch") == "0"
    cycle_beside(40, program, listen, kit)
    assert program.errors == b""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_all_at_once_under_a_sanitizer(
    kit: Any, start: Start, listen: Listen, tmp_path: Path, sanitizer: str
) -> None:
    """Listeners, another user of CUPTI, events, frees and ranges come and go in a random order."""
    program = sanitized(kit, start, tmp_path, sanitizer)
    listener, chance = listen(program, lock=False), random.Random(5)
    program.ask("spin 6")
    locked = other = False
    steps, deadline = 0, time.monotonic() + 200

    def all_have_left() -> bool:
        """Each way to leave CUPTI was taken; how soon depends on who is there when another comes."""
        counters = program.counters
        names = ("finalizes", "unsubscribes", "other_finalizes")
        return all(counters.get(name, 0) > 0 for name in names)

    while steps < 400 or (not all_have_left() and time.monotonic() < deadline):
        steps += 1
        step = chance.choice(
            ("other", "event", "event", "await", "free", "sync", "range", "listen", "listen")
        )
        if step == "other":
            end = chance.choice(("other_leave", "other_leave", "other_finalizes"))
            answer = program.ask(end if other else "other_shares torch")
            other = not other and answer == "0"
        elif step == "event":
            program.launch(50, how=f"rec{chance.randint(1, 9)}:{chance.randint(1, 99)}", threads=4)
        elif step == "await":
            program.launch(20, how=f"await{chance.randint(1, 9)}", threads=4)
        elif step == "range":
            program.ask("push x")
            program.ask("ranges hot 2000")
            program.launch(5, threads=0)
        elif step == "listen" and locked:
            unlock(listener)
            locked = False
        elif step == "listen":
            locked = listener.ring.lock(chance.choice((0, 10_000, 300_000)))
        else:
            program.launch(20, how=step, threads=3)
        listener.read()
        time.sleep(chance.random() * 0.015)
    program.ask("stop")
    assert program.end() == 0
    assert program.errors == b""
    counters = program.counters
    assert all_have_left(), counters
    assert counters["fault_forced"] == counters["fault_old_function"] == 0
