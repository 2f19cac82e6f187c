"""The source of waits: whom it follows, and what it says when it follows nobody."""

from __future__ import annotations

import os
import subprocess
import threading
from types import SimpleNamespace

import pytest

from gpuprof.bpf.wait_programs import TRACK_CHILDREN, TRACK_SELF
from gpuprof.sampler.offcpu import OffCpu, Picks, thinning
from gpuprof.sampler.stack_reader import StackReader
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import SourceStatus

MS = 10**6


class Programs:
    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        self.running = False
        self.threshold_ns, self.track_all = 0, False
        self.thresholds: dict[int, int] = {}
        self.own: set[int] | None = None  # what the kernel side tracks, where it is not `pids`
        self.pids: dict[int, int] = {}

    def start(self, threshold_ns: int, *, track_all: bool, own_pid: int) -> None:
        if self.problem:
            raise GpuprofError(self.problem, "a hint")
        assert own_pid == os.getpid()
        self.running, self.threshold_ns, self.track_all = True, threshold_ns, track_all

    def stop(self) -> None:
        self.running = False

    def track(self, pid: int, how: int) -> bool:
        self.pids[pid] = how
        return True

    def how_tracked(self, pid: int) -> int:
        return self.pids.get(pid, 0)

    def tracked(self) -> set[int]:
        return set(self.pids) if self.own is None else self.own


class Stacks:
    def __init__(self, problem: str = "") -> None:
        self.programs = Programs(problem)
        self.earlier: list[int] = []
        self.raised: tuple[int, dict[int, int]] = (0, {})
        self.waits = SimpleNamespace(
            programs=self.programs, rows=5, invalid=1, truncated=2,
            follow_earlier=self.earlier.append, raised=lambda: self.raised,
        )  # fmt: skip
        self.injected: set[int] = set()
        self.followed: list[int] = []
        self.lost = {"wait_ring_full": 3, "ring_full": 100}

    def status(self) -> SourceStatus:
        return SourceStatus("cpu", "ok")

    def follow(self, pid: int) -> None:
        self.followed.append(pid)

    def injected_pids(self) -> set[int]:
        return self.injected

    complete_ns = 0
    late = ""

    def settle(self, seconds: float, least_wait_ns: int = 0) -> bool:
        return True

    def overdue(self) -> str:
        return self.late

    def counters(self) -> dict[str, int]:
        return self.lost


def source(stacks: Stacks | None, picks: Picks = Picks(), gpu: set[int] | None = None) -> OffCpu:  # noqa: B008
    return OffCpu(lambda: stacks, lambda: False, lambda: gpu or set(), picks)  # type: ignore[arg-type, return-value]


def test_the_fake_is_like_the_stack_reader() -> None:
    assert isinstance(Stacks(), StackReader)


def test_without_a_gpu_and_a_pick_it_is_off_and_says_what_would_switch_it_on() -> None:
    stacks = Stacks()
    made = source(stacks)
    made.look()
    status = made.status()
    assert (status.state, status.reason) == ("off", "no process uses a GPU, and none was picked")
    assert "--offcpu-pid" in status.hint
    assert not stacks.programs.running


def test_a_process_on_a_gpu_is_followed_as_soon_as_there_is_one() -> None:
    stacks, gpu = Stacks(), set[int]()
    made = source(stacks, Picks(threshold_ns=5), gpu)
    made.look()
    gpu.add(os.getppid())
    made.look()
    assert stacks.programs.running
    assert stacks.programs.threshold_ns == 5
    assert os.getppid() in stacks.programs.pids
    assert os.getppid() in stacks.followed
    assert os.getpid() not in stacks.programs.pids  # the sampler itself
    status = made.status()
    assert (status.state, status.samples, status.lost, status.invalid, status.truncated) == ("ok", 5, 3, 1, 2)


def test_what_was_not_read_in_time_is_said_and_losses_are_those_of_now() -> None:
    stacks = Stacks()
    made = source(stacks, Picks(pids=(os.getppid(),)))
    made.look()
    stacks.late = "the last 2.0 s were not read"
    stacks.lost = {"wait_ring_full": 7}
    status = made.status()
    assert (status.state, status.reason, status.lost) == ("degraded", stacks.late, 7)
    stacks.late = ""
    assert (made.status().state, made.status().reason) == ("ok", "")


def test_injected_and_picked_processes_and_all() -> None:
    stacks = Stacks()
    stacks.injected = {1}
    made = source(stacks, Picks(pids=(os.getppid(), 1 << 22)))
    made.look()
    assert {1, os.getppid()} <= set(stacks.programs.pids)
    assert 1 << 22 not in stacks.programs.pids
    everything = Stacks()
    made = source(everything, Picks(everything=True))
    made.look()
    assert everything.programs.track_all
    assert (made.status().state, made.status().reason) == ("ok", "all processes")


def test_a_pick_that_is_not_there_is_said() -> None:
    made = source(Stacks(), Picks(pids=(1 << 22,)))
    made.look()
    assert f"there is no process {1 << 22}" in made.status().reason


def test_a_kernel_that_refuses_the_programs_is_a_reason_not_an_end() -> None:
    made = source(Stacks("the kernel refused the BPF program wait_switch"), Picks(everything=True))
    made.look()
    made.look()
    status = made.status()
    assert (status.state, status.hint) == ("failed", "a hint")
    assert "refused" in status.reason


def test_without_cpu_stacks_there_are_none_of_waits() -> None:
    made = source(None)
    made.look()
    assert made.status().state == "off"
    assert "CPU stacks are off" in made.status().reason


def test_more_than_can_be_followed_is_said() -> None:
    stacks = Stacks()
    stacks.lost = {"wait_threads_full": 1}
    made = source(stacks, Picks(pids=(1,)))
    made.look()
    assert made.status().state == "degraded"


def test_when_all_have_ended_switches_cost_nothing_more() -> None:
    stacks, gpu = Stacks(), {1}
    made = source(stacks, gpu=gpu)
    made.look()
    gpu.clear()
    made.look()
    assert stacks.programs.running  # it lives, though it uses the GPU no more
    stacks.programs.own = set()
    made.look()
    assert not stacks.programs.running


def test_a_threshold_that_had_to_be_raised_is_said() -> None:
    stacks = Stacks()
    made = source(stacks, Picks(pids=(1,), threshold_ns=1_000_000))
    made.look()
    stacks.raised = 0, {12: 1_000_000}
    assert made.status().state == "ok"
    stacks.raised = 4_000_000, {}
    assert (made.status().state, made.status().reason) == (
        "degraded",
        "so many that those under 4 ms are sampled",
    )
    stacks = Stacks()
    everything = source(stacks, Picks(everything=True, threshold_ns=1_000_000))
    everything.look()
    assert everything.status().state == "ok"  # begun with what was asked for
    stacks.raised = 0, {12: 4_321_000}
    everything.look()
    assert (everything.status().state, everything.status().reason) == (
        "degraded",
        "all processes; so many of process 12 that its waits under 4.3 ms are sampled",
    )


def test_waits_that_were_thinned_are_told_of_after_their_process_has_ended() -> None:
    stacks, gpu = Stacks(), {1}
    made = source(stacks, gpu=gpu)
    made.look()
    stacks.raised = 0, {1: 40_000_000}
    gpu.clear()
    stacks.programs.own = set()
    made.look()
    assert not stacks.programs.running
    status = made.status()
    assert (status.state, status.reason) == (
        "degraded",
        "so many of process 1 that its waits under 40 ms are sampled",
    )


@pytest.mark.parametrize(
    ("others", "of", "said"),
    [
        (MS, {}, ""),
        (MS, {7: MS}, ""),
        (128 * MS, {}, "so many that those under 130 ms are sampled"),
        (2 * MS, {7: MS}, "so many that those under 2 ms are sampled"),
        (
            2 * MS,
            {7: MS, 8: 512 * MS},
            "so many that those under 2 ms are sampled, of some processes those under up to 510 ms",
        ),
        (MS, {7: 2 * MS}, "so many of process 7 that its waits under 2 ms are sampled"),
        (MS, {7: 2 * MS, 8: MS, 9: 3 * MS},
         "so many of 2 processes that their waits under up to 3 ms are sampled"),
    ],
)  # fmt: skip
def test_what_is_said_of_thresholds_that_were_raised(others: int, of: dict[int, int], said: str) -> None:
    assert thinning(MS, others, of) == said


def test_what_a_client_asks_for_is_followed_before_it_is_answered() -> None:
    stacks = Stacks()
    made = source(stacks)
    made.start()
    child = subprocess.Popen(["/bin/sleep", "60"])
    try:
        made.watch(child.pid, TRACK_SELF | TRACK_CHILDREN, 5)
        made.watch(os.getpid(), TRACK_CHILDREN, 5)
        assert stacks.programs.pids[child.pid] == TRACK_SELF | TRACK_CHILDREN
        assert stacks.programs.pids[os.getpid()] == TRACK_CHILDREN
        assert stacks.earlier == [child.pid]  # of what was there already, what it waits for, once
        assert made.status().state == "ok"
    finally:
        child.kill()
        child.wait()
        made.stop()


def test_what_cannot_be_watched_is_said() -> None:
    with pytest.raises(GpuprofError, match="there is no process"):
        source(Stacks()).watch((1 << 22) + 1, TRACK_SELF, 1)
    refused = source(Stacks("the kernel said no"))
    refused.start()
    with pytest.raises(GpuprofError, match="the kernel said no"):
        refused.watch(os.getpid(), TRACK_SELF | TRACK_CHILDREN, 5)
    refused.stop()
    off = source(None)
    off.start()
    with pytest.raises(GpuprofError, match="CPU stacks are off"):
        off.watch(os.getpid(), TRACK_SELF, 5)
    off.stop()


def test_a_watch_ends_with_the_source() -> None:
    made = OffCpu(lambda: None, lambda: True, set, Picks())  # the stack reader never starts
    made.start()
    threading.Timer(0.3, made.stop).start()
    with pytest.raises(GpuprofError, match="not followed"):
        made.watch(os.getpid(), TRACK_SELF, 60)


def test_a_watch_ends_with_a_fault_of_the_source() -> None:
    """At once, with what it was, and not when its time is up."""

    def fault() -> None:
        raise RuntimeError("a fault that was planted")

    made = OffCpu(lambda: None, lambda: True, set, Picks())
    made.look = fault  # type: ignore[method-assign]
    made.start()
    with pytest.raises(GpuprofError, match="a fault that was planted"):
        made.watch(os.getpid(), TRACK_SELF, 3600)
    made.stop()


def test_a_process_that_the_kernel_side_follows_already_has_no_earlier_waits() -> None:
    stacks = Stacks()
    stacks.programs.pids[1] = TRACK_SELF | TRACK_CHILDREN  # as a child of one that is tracked
    made = source(stacks, Picks(pids=(1,)))
    made.look()
    assert 1 not in stacks.earlier
