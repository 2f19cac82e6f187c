"""When the injection library uses CUPTI, and when it lets go of it."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler import gpu_ring

Start = Callable[..., Any]
Listen = Callable[..., Any]

SAMPLER = """
import os, sys, time
from gpuprof.sampler.gpu_ring import GpuRing
ring = GpuRing(os.open(sys.argv[1], os.O_RDWR))
assert ring.lock()
print("locked", flush=True)
time.sleep(60)
"""

RETRY_S = 2.0  # RETRY_NS
SPINNING = 16  # threads that launch without end
EVERY_CALL = 12 + 89 + 5 + 3  # launches, copies and sets, waits, frees, of the driver API; and graphs


def detached(program: Any) -> bool:
    counters = program.counters
    return all(
        counters[name] == 0 for name in ("subscribers", "callbacks_enabled", "kinds_enabled", "buffers_out")
    )


def test_nobody_listens_nothing_is_used(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program, lock=False)
    program.launch(101, threads=2)
    time.sleep(0.2)  # four polls
    assert program.counters == {}  # CUPTI was not even loaded
    assert "libcupti" not in Path(f"/proc/{program.pid}/maps").read_text()
    facts = listener.facts
    assert (facts.state, facts.launches, facts.records, facts.message) == ("waiting", 0, 0, "")
    assert len(listener.read()) == 0
    assert len(program.probes()) == 0


def test_attaches_soon_after_the_lock(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listener = listen(program, lock=False)
    took = []
    for turn in range(5):  # on a busy machine not each time
        time.sleep(0.1)
        assert listener.ring.lock()
        began = time.monotonic()
        listener.reach("recording")
        took.append(time.monotonic() - began)
        if min(took) < 0.3 or turn == 4:
            break
        unlock(listener)
        listener.reach("detaching")
        program.launch(1)
        listener.reach("waiting")
    assert min(took) < 0.3
    counters = program.counters
    assert (counters["subscribers"], counters["kinds_enabled"]) == (1, 3)
    assert counters["pool_limit"] == 16  # of CUPTI's buffers on the device
    assert counters["callbacks_enabled"] == EVERY_CALL + kit.GRAPH_CALLS


def test_a_lock_on_the_process_s_own_description_is_not_a_listener(start: Start, listen: Listen) -> None:
    """A duplicate of its descriptor (pidfd_getfd) shares the description: only a fresh open counts."""
    program = start().init()
    listener = listen(program)
    assert not listen(program, lock=False).ring.lock()
    assert listener.facts.state == "recording"


@pytest.mark.parametrize("how", ["kernel", "copy", "sync", "query"])
def test_detaches_at_the_next_call_and_only_there(start: Start, listen: Listen, how: str) -> None:
    program = start().init()
    listener = listen(program)
    watcher = listen(program, lock=False)
    program.launch(5)
    listener.expect(5)
    listener.close()
    watcher.reach("detaching")
    time.sleep(0.2)
    assert program.counters["finalizes"] == 0
    assert program.counters["subscribers"] == 1
    program.launch(1, how=how)
    assert program.counters["finalizes"] == 1
    assert watcher.facts.state == "waiting"
    assert detached(program)
    assert program.faults == {}
    program.launch(50)
    more = how in ("kernel", "copy")
    assert watcher.facts.launches == 5 + more
    assert program.counters["records"] == 5 + more


def test_detaches_when_the_sampler_is_killed(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    watcher = listen(program, lock=False)
    path = f"/proc/{program.pid}/fd/{program.ring_fds()[0]}"
    with subprocess.Popen([sys.executable, "-c", SAMPLER, path], stdout=subprocess.PIPE) as sampler:
        assert sampler.stdout is not None
        assert sampler.stdout.readline() == b"locked\n"
        watcher.reach("recording")
        program.ask("spin 2")
        kit.wait_for(lambda: watcher.facts.launches > 10)
        sampler.send_signal(signal.SIGKILL)
        sampler.wait()
    watcher.reach("waiting")
    program.ask("stop")
    assert detached(program)
    assert program.faults == {}


def test_a_new_sampler_before_the_next_launch_goes_on_and_gets_the_names_again(
    start: Start, listen: Listen, kit: Any
) -> None:
    program = start().init()
    first = listen(program)
    program.launch(5, "seen_before")
    first.expect(5)
    first.close()
    second = listen(program, lock=False)
    second.reach("detaching")
    assert second.ring.lock()
    second.reach("recording")
    program.launch(7, "seen_before")
    second.expect(7)
    assert second.by_name() == {"seen_before": 7}
    assert second.facts.epoch == 1
    assert (second.slots["kind"] == 5).sum() >= 1  # and a clock at once
    assert program.counters["subscribes"] == 1
    # No longer those that only the detach needs.
    assert program.counters["callbacks_enabled"] == EVERY_CALL + kit.GRAPH_CALLS


def test_a_new_sampler_after_the_detach_is_a_new_epoch(start: Start, listen: Listen) -> None:
    program = start().init()
    first = listen(program)
    program.launch(5)
    first.expect(5)
    first.close()
    second = listen(program, lock=False)
    second.reach("detaching")
    program.launch(1)
    assert second.facts.state == "waiting"
    assert second.ring.lock()
    second.reach("recording")
    second.read()
    second.slots = second.slots[:0]  # the launch that detached is the first sampler's
    program.launch(7)
    second.expect(7)
    assert second.by_name() == {"": 7} or second.by_name() == {"k": 7}
    assert second.facts.epoch == 2
    assert set(second.work()["epoch"].tolist()) == {2}
    assert second.by_launch(program) == {("a", "k"): 7}


@pytest.mark.parametrize(
    ("name", "said"), [("torch.profiler", "CUPTI for torch.profiler"), ("-", "it gives no name")]
)
def test_another_cupti_user_is_named_and_outwaited(
    start: Start, listen: Listen, name: str, said: str
) -> None:
    program = start().init()
    assert program.ask(f"other {name}") == "0"
    listener = listen(program, wait=False)
    assert listener.reach("refused").message == f"another profiler uses CUPTI in this process: {said}"
    program.launch(5)
    assert program.counters["subscribers"] == 1
    assert program.counters["callbacks_enabled"] == program.counters["kinds_enabled"] == 0
    assert program.ask("other_leave") == "0"
    assert listener.reach("recording").message == ""
    program.launch(5)
    listener.expect(5)
    assert program.faults == {}


def test_the_next_sampler_does_not_wait_for_the_retry_of_a_refusal(start: Start, listen: Listen) -> None:
    took = []
    while not took or (min(took) >= RETRY_S and len(took) < 5):  # on a busy machine not each time
        program = start().init()
        program.ask("other x")
        began = time.monotonic()  # the retry is due not before RETRY_S from here
        first = listen(program, wait=False)
        first.reach("refused")
        first.close()
        program.ask("other_leave")
        second = listen(program, lock=False)
        assert second.reach("waiting").message == ""
        assert second.ring.lock()
        second.reach("recording")
        took.append(time.monotonic() - began)
    assert min(took) < RETRY_S


def test_a_refusal_is_said_in_cupti_s_words(start: Start, listen: Listen) -> None:
    listener = listen(start("subscribe_result=38").init(), wait=False)
    assert listener.reach("refused").message == "CUPTI refuses a subscriber: CUPTI_ERROR_NOT_COMPATIBLE (38)"


def test_no_kernel_records_is_said_and_tried_again(start: Start, listen: Listen) -> None:
    program = start("activity_result=38").init()
    listener = listen(program, wait=False)
    assert (
        listener.reach("refused").message == "CUPTI gives no kernel records: CUPTI_ERROR_NOT_COMPATIBLE (38)"
    )
    program.ask("set activity_result 0")
    assert listener.reach("recording").message == ""
    program.launch(5)
    listener.expect(5)


def test_a_missing_cupti_is_said(start: Start, listen: Listen) -> None:
    listener = listen(start(GPUPROF_CUPTI="/nowhere/libcupti.so").init(), wait=False)
    message = listener.reach("refused").message
    assert message.startswith("GPUPROF_CUPTI cannot be opened: /nowhere/libcupti.so")


def test_cupti_13_0_has_shorter_parameters(start: Start, listen: Listen) -> None:
    program = start("params_size=32").init()
    listener = listen(program)
    assert program.ask("other x") == "39"
    program.launch(5)
    listener.expect(5)


def test_cupti_11_lacks_what_is_optional(kit: Any, start: Start, listen: Listen, tmp_path: Path) -> None:
    old = kit.build(tmp_path / "old", cupti=("-DMOCK_OLD",))
    program = start(which=old).init()
    listener = listen(program)
    program.launch(5)
    listener.expect(5)
    program.ask("other -")
    assert program.counters["refusals"] == 1


def test_a_library_without_a_needed_function_is_named(
    kit: Any, start: Start, listen: Listen, tmp_path: Path
) -> None:
    incomplete = kit.build(tmp_path / "incomplete", cupti=("-DMOCK_INCOMPLETE",))
    listener = listen(start(which=incomplete).init(), wait=False)
    assert listener.reach("refused").message == f"{incomplete.cupti} has no cuptiFinalize: it is too old"


def test_a_finalize_that_fails_leaves_at_least_no_subscription(start: Start, listen: Listen) -> None:
    program = start("finalize_result=999").init()
    listener = listen(program)
    program.launch(5)
    listener.expect(5)
    listener.close()
    watcher = listen(program, lock=False)
    watcher.reach("detaching")
    program.launch(1)
    assert watcher.facts.state == "waiting"
    counters = program.counters
    assert (counters["subscribers"], counters["callbacks_enabled"], counters["kinds_enabled"]) == (0, 0, 0)
    assert watcher.ring.lock()
    watcher.reach("recording")
    program.launch(3, "again")
    watcher.read()
    assert watcher.facts.epoch == 2


def test_the_application_closes_descriptors_that_it_did_not_open(start: Start, listen: Listen) -> None:
    """Another file then has the number: its locks are no listener's, and nothing crashes."""
    program = start().init()
    listener = listen(program)
    program.launch(5)
    listener.expect(5)
    program.ask("close 3")
    listener.reach("detaching")
    program.launch(2)
    assert listener.facts.state == "waiting"
    program.launch(50)
    assert program.end() == 0


@pytest.mark.timeout(300)
def test_a_thousand_attach_cycles_under_sixteen_launching_threads(
    kit: Any, start: Start, listen: Listen, tmp_path: Path
) -> None:
    """Nothing crashes or hangs, and every record that CUPTI made is delivered, or lost by CUPTI itself."""
    fast = kit.build(tmp_path / "fast", library=("-DPOLL_NS=1000000ull",))
    cycle_through(1000, start(which=fast).init(), listen, kit)


def cycle_through(cycles: int, program: Any, listen: Listen, kit: Any, seconds: float = 240.0) -> None:
    listener = listen(program, lock=False)
    program.ask(f"spin {SPINNING}")
    end = time.monotonic() + seconds
    done = resident = 0
    for done in range(1, cycles + 1):
        patience_s = max(end - time.monotonic(), 0)  # under a sanitizer, on a busy machine, one may take long
        kit.wait_for(listener.ring.lock, patience_s, f"lock {done} of {listener.facts}")
        kit.wait_for(lambda: listener.facts.state == "recording", patience_s, "an attach")
        listener.read()
        if done == cycles // 10:
            resident = memory_kb(program.pid)
        unlock(listener)
        kit.wait_for(lambda: listener.facts.state == "waiting", patience_s, "a detach")
        if time.monotonic() > end:
            break
    assert done == cycles
    program.ask("stop")
    assert memory_kb(program.pid) - resident < 8192
    listener.read()
    facts, counters = listener.facts, program.counters
    assert facts.epoch == done == counters["finalizes"]
    assert detached(program)
    assert program.faults == {}
    assert counters["records"] == facts.records + counters["discarded"]
    assert facts.records == len(listener.work()) + facts.dropped
    assert facts.launches == len(program.probes())
    assert facts.records > cycles  # it did something
    unmatched = unmatched_by_epoch(listener, program)
    assert all(count <= SPINNING for edges in unmatched.values() for count in edges), unmatched
    assert program.end() == 0


def unmatched_by_epoch(listener: Any, program: Any) -> dict[int, tuple[int, int]]:
    """Records without their launch, by epoch: those that were entered before all its launches that were seen,
    and the others.

    A thread has at most one call under way at the attach, whose enter was not seen, and one when CUPTI is
    finalized, whose end is not seen: on either side there are no more than there are threads.
    """
    seen: dict[int, dict[int, int]] = {}  # epoch: correlation id: time of the enter
    for row in program.probes():
        seen.setdefault(int(row["epoch"]), {})[int(row["correlation"])] = int(row["enter_ns"])
    found: dict[int, tuple[int, int]] = {}
    for row in listener.work(gpu_ring.KERNEL):
        epoch, enter = int(row["epoch"]), int(row["enter"])
        launches = seen.get(epoch, {})
        if int(row["correlation"]) not in launches:
            early, late = found.get(epoch, (0, 0))
            # Where no launch was seen at all, which side it is on is not known: half and half.
            is_early = enter < min(launches.values()) if launches else early < late
            found[epoch] = (early + is_early, late + (not is_early))
    return found


def memory_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))


def unlock(listener: Any) -> None:
    request = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 1, 0)
    fcntl.fcntl(listener.ring._fd, 37, request)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_attach_cycles_under_a_sanitizer(
    kit: Any, start: Start, listen: Listen, tmp_path: Path, sanitizer: str
) -> None:
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    try:
        built = kit.build(tmp_path / "sanitized", all_flags=flags, library=("-DPOLL_NS=1000000ull",))
    except subprocess.CalledProcessError:
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    options = "halt_on_error=1:exitcode=66:detect_leaks=0"
    freed = ":quarantine_size_mb=1"  # else memory that was freed long ago counts as the library's
    program = start(which=built, TSAN_OPTIONS=options, ASAN_OPTIONS=options + freed)
    try:
        program.init()
    except BrokenPipeError:
        pytest.skip(f"the sanitizer does not run here: {program.errors[:200]!r}")
    cycle_through(40, program, listen, kit)
    assert program.errors == b""
