"""The injection library on mocks: what it records reaches the real reader, whole and rightly named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuprof.sampler import gpu_ring

Start = Callable[..., Any]
Listen = Callable[..., Any]
PRIMES = {
    ("a", "alpha"): 101,
    ("b", "alpha"): 103,
    ("a", "beta"): 107,
    ("b", "beta"): 109,
    ("a", "gamma"): 113,
}


def launch_primes(program: Any, threads: int = 1) -> int:
    for (path, name), count in PRIMES.items():
        program.launch(count, name, path=path, threads=threads, how="kernel" if path == "a" else "ex")
    return sum(PRIMES.values()) * threads


def test_prime_numbers_of_launches_all_arrive_under_their_path_and_name(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    total = launch_primes(program, threads=3)
    listener.expect(total)
    assert listener.by_launch(program) == {key: 3 * count for key, count in PRIMES.items()}
    assert listener.by_name() == {"alpha": 3 * 204, "beta": 3 * 216, "gamma": 3 * 113}
    facts = listener.facts
    assert (facts.launches, facts.records, facts.dropped, facts.cupti_dropped) == (total, total, 0, 0)
    assert facts.library == str(program.built.cupti)
    assert facts.cupti_version == 130500
    assert program.faults == {}


def test_copies_sets_and_graphs(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(13, "node", how="graph")
    program.launch(17, how="copy")
    program.launch(19, how="set")
    program.launch(23, how="sync")
    listener.expect(3 * 13 + 17 + 19)
    kernels = listener.work(gpu_ring.KERNEL)
    copies, sets = listener.work(gpu_ring.MEMCPY), listener.work(gpu_ring.MEMSET)
    assert (len(copies), len(sets)) == (17, 19)
    assert set(copies["bytes"].tolist()) == {4096}
    assert set(copies["flags"].tolist()) == {1}
    assert set(sets["bytes"].tolist()) == {8192}
    assert set(kernels["graph"].tolist()) == {9}
    nodes, counts = np.unique(kernels["bytes"], return_counts=True)
    assert (nodes & 0xFFFFFFFF).tolist() == [1, 2, 3]
    assert counts.tolist() == [13, 13, 13]
    assert len(np.unique(kernels["correlation"])) == 13  # the nodes of one launch share its id
    assert listener.facts.launches == 13 + 17 + 19  # copies and sets have a host stack as well, waits do not
    weights, counts = np.unique(program.probes()["weight"], return_counts=True)
    assert dict(zip(weights.tolist(), counts.tolist(), strict=True)) == {1: 49, 0: 23}  # a wait is no launch
    assert set(listener.work()["no_stack"].tolist()) == {0}


def test_a_quiet_thread_beside_a_busy_one_is_not_left_waiting(start: Start, listen: Listen, kit: Any) -> None:
    """CUPTI fills a buffer for each thread: what one launched before it fell silent is in one that is not
    full, while the busy one's come by themselves, several within the library's time between two looks.
    """
    program = start().init()
    listener = listen(program)
    program.ask("pace 1")
    program.ask("spin 1")
    program.launch(1512, "quiet")
    probes = program.probes()
    quiet = set(probes["correlation"][probes["kernel"] == b"quiet"].tolist())
    assert len(quiet) == 1512
    kit.wait_for(lambda: quiet <= set(listener.read()["correlation"].tolist()), what="its last record")
    assert listener.by_name()["quiet"] == 1512
    program.ask("stop")
    assert program.faults == {}


def test_every_one_of_many_threads_has_a_buffer(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.ask("pace 20000")
    program.ask("spin 120")  # a flush takes a while, in which each may begin another one
    time.sleep(1.5)
    total = int(program.ask("stop"))
    listener.expect(total)
    assert (listener.facts.records, listener.facts.cupti_dropped) == (total, 0)
    assert program.faults == {}


def test_more_threads_than_buffers_lose_records_that_are_counted(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.ask("pace 100000")
    program.ask("spin 300")
    time.sleep(1)
    total = int(program.ask("stop"))
    lost = program.counters["lost"]
    assert 0 < lost < total / 2  # what is held is asked for at once
    listener.expect(total - lost)
    program.launch(1)
    listener.expect(total - lost + 1)
    assert listener.facts.cupti_dropped == lost
    assert program.faults == {}


def test_times_are_of_one_clock_once_converted(start: Start, listen: Listen) -> None:
    program = start("clock_offset=-86400000000000").init()
    listener = listen(program)
    before = time.monotonic_ns()
    program.launch(11)
    listener.expect(11)
    after = time.monotonic_ns()
    clocks = listener.slots[listener.slots["kind"] == gpu_ring.CLOCK].view(gpu_ring.CLOCKS)
    assert len(clocks) >= 1
    width = int(clocks["width_ns"][0])
    assert 0 < width < 1_000_000
    shift = int(clocks["mono_ns"][0]) - int(clocks["cupti_ns"][0])
    kernels = listener.work(gpu_ring.KERNEL)
    starts = kernels["start"].astype(np.int64) + shift
    entered = {row["correlation"]: int(row["enter_ns"]) for row in program.probes()}
    for start_ns, correlation in zip(starts.tolist(), kernels["correlation"].tolist(), strict=True):
        assert before < entered[correlation] <= start_ns + width
        assert start_ns < after + width
    assert (kernels["end"] - kernels["start"]).tolist() == [500] * 11


def test_the_clock_is_compared_again_every_second(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listener = listen(program)
    program.ask("set clock_offset 5000000000")
    kit.wait_for(lambda: (listener.read()["kind"] == gpu_ring.CLOCK).sum() >= 2)
    clocks = listener.slots[listener.slots["kind"] == gpu_ring.CLOCK].view(gpu_ring.CLOCKS)
    step = (clocks["cupti_ns"] - clocks["mono_ns"]).astype(np.int64)
    assert abs(int(step[-1] - step[0]) - 5_000_000_000) < 1_000_000


def test_records_that_are_lies_unordered_or_foreign_pass_as_they_are(start: Start, listen: Listen) -> None:
    program = start("bad_every=7,backwards=1,foreign_every=5").init()
    listener = listen(program)
    program.launch(210)
    kernels = listener.expect(210)
    start_ns, end_ns = kernels["start"], kernels["end"]
    assert np.count_nonzero(start_ns == 0) == 10
    assert np.count_nonzero(end_ns < start_ns) == 10
    assert np.count_nonzero(start_ns > 1 << 62) == 10
    assert np.count_nonzero(np.diff(kernels["correlation"].astype(np.int64)) < 0) > 10
    assert sorted(kernels["correlation"].tolist()) == list(range(1, 211))


def test_correlation_ids_wrap(start: Start, listen: Listen) -> None:
    program = start("first_correlation=4294967290").init()
    listener = listen(program)
    program.launch(13)
    listener.expect(13)
    expected = [(4294967290 + i) & 0xFFFFFFFF for i in range(13)]
    assert listener.work()["correlation"].tolist() == expected
    assert program.probes()["correlation"].tolist() == expected
    assert listener.by_launch(program) == {("a", "k"): 13}


def test_a_failed_launch_is_none(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(5, how="bad")
    program.launch(3)
    listener.expect(3)
    assert listener.facts.launches == len(program.probes()) == 3


def test_records_that_cupti_dropped_are_counted(start: Start, listen: Listen) -> None:
    program = start("lose_every=10").init()
    listener = listen(program)
    program.launch(200)
    listener.expect(180)
    assert (listener.facts.cupti_dropped, listener.facts.records, listener.facts.dropped) == (20, 180, 0)


def test_a_name_is_its_text_and_not_its_pointer(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(5, "first")
    listener.expect(5)
    program.ask("rename first second")
    program.launch(7, "second")
    listener.expect(12)
    program.ask("rename second first")
    program.launch(11, "first")
    listener.expect(23)
    assert listener.by_name() == {"first": 16, "second": 7}
    assert len(listener.names()) == 2


def test_long_names_come_in_parts(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    names = ["n" * length for length in (1, 39, 40, 41, 80, 120)]
    for name in names:
        program.launch(2, name)
    listener.expect(12)
    assert listener.by_name() == dict.fromkeys(names, 2)


def test_a_hundred_thousand_names_take_bounded_memory(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.ask("names 20000")
    listener.expect(20000)
    resident = [memory_kb(program.pid, "RssAnon")]
    for _ in range(4):
        program.ask("names 20000")
        listener.expect(len(listener.work()) + 20000)
        resident.append(memory_kb(program.pid, "RssAnon"))
    assert listener.facts.records == 100_000
    assert len(listener.names()) == 8191
    assert listener.by_name()[""] == 100_000 - sum(
        count for name, count in listener.by_name().items() if name
    )
    # The harness itself keeps 72 bytes a name and its call, the library up to 8 MB of buffers, of which it
    # takes more where the machine is busy; but a name takes nothing.
    assert min(np.diff(resident)) < 20_000 * (72 + 20) // 1024
    assert resident[-1] - resident[0] < 80_000 * 72 // 1024 + 8192 + 2000


def memory_kb(pid: int, what: str) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(what))


def test_a_full_ring_drops_the_newest_and_counts_them(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(150_000)
    facts = listener.reach_records(150_000)
    assert facts.launches == 150_000
    listener.read()
    kept = listener.work()
    assert len(kept) == facts.records - facts.dropped
    assert 0 < gpu_ring.SLOTS - len(kept) < 10  # the rest is a name and the clock
    assert set(kept["correlation"].tolist()) == set(range(1, len(kept) + 1))  # the oldest
    program.launch(7, "after")  # its name comes with it
    listener.expect(len(kept) + 7)
    assert listener.by_name() == {"k": len(kept), "after": 7}


def test_a_name_that_found_the_ring_full_is_sent_later(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(140_000, "filler")
    listener.reach_records(140_000)
    program.launch(5, "unlucky")
    facts = listener.reach_records(140_005)
    listener.read()
    assert "unlucky" not in listener.by_name()
    kept = len(listener.work())
    assert kept == facts.records - facts.dropped
    program.launch(11, "unlucky")
    listener.expect(kept + 11)
    assert listener.by_name()["unlucky"] == 11


def test_a_tail_that_is_nonsense_is_a_full_ring(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(5)
    listener.expect(5)
    expected = 0
    for number, ahead in enumerate((1, gpu_ring.SLOTS, 1 << 63)):
        head = int(listener.ring._words[gpu_ring._HEAD_AT // 8])
        listener.ring._words[gpu_ring._TAIL_AT // 8] = head + ahead
        before = listener.facts.records
        program.launch(11, f"name{number}")
        listener.reach_records(before + 11)
        expected += 11
        assert listener.facts.dropped == expected
    listener.read()  # puts it right
    program.launch(3)
    listener.expect(8)


def test_devices_are_known_by_uuid_even_if_the_driver_was_still_starting(
    start: Start, kit: Any, listen: Listen
) -> None:
    program = start(MOCK_CUDA_INIT_MS="400", MOCK_CUDA_DEVICES="3")
    program.tell("init")
    listener = listen(program)  # attaches while cuInit is under way
    program.process.stdout.readline()
    kit.wait_for(lambda: len(listener.facts.uuids) == 3, what="the devices")
    assert listener.facts.uuids[0] == "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"
    assert listener.facts.uuids[2] == "GPU-30313233-3435-3637-3839-3a3b3c3d3e3f"


def test_nothing_is_written_unless_asked(start: Start, listen: Listen, kit: Any) -> None:
    quiet, loud = start().init(), start(GPUPROF_INJECT_LOG="1").init()
    for program in (quiet, loud):
        listener = listen(program)
        program.launch(3)
        listener.expect(3)
        assert program.end() == 0
        assert program.process.stdout.read() == b""
    assert quiet.errors == b""
    assert b"attached, epoch 1" in loud.errors


def test_the_ring_takes_none_of_the_standard_descriptors(start: Start) -> None:
    program = start()
    assert program.ask("init_closed") == "0"
    assert program.ring_fds()[0] > 2


def test_signals_are_for_the_threads_of_the_application(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.ask("signals")
    program.ask("spin 3")
    for number in range(1, 201):
        os.kill(program.pid, signal.SIGUSR1)
        while int(program.ask("signals?").split()[0]) < number:
            pass
    takers = set(program.ask("signals?").split()[1:])
    assert takers <= {"harness", "app-0", "app-1", "app-2"}
    threads = program.threads()
    for name in ("gpuprof", "mock-cupti"):  # CUPTI's own threads come from ours
        (tid,) = threads[name]
        with open(f"/proc/{program.pid}/task/{tid}/status", encoding="ascii") as status:
            blocked = next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk"))
        every = (1 << 64) - 1 - sum(1 << (n - 1) for n in (signal.SIGKILL, signal.SIGSTOP, 32, 33))
        assert blocked & every == every
    program.ask("stop")
    assert listener.facts.state == "recording"
