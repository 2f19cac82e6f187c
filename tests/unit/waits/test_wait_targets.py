"""Whose waits are followed."""

from __future__ import annotations

from gpuprof.bpf.wait_programs import TRACK_CHILDREN, TRACK_SELF
from gpuprof.sampler.wait_targets import Targets, descendants

BOTH = TRACK_SELF | TRACK_CHILDREN


class Machine:
    """Processes by pid: (parent, start)."""

    def __init__(self) -> None:
        self.processes = {
            1: (0, 1),
            10: (1, 5),
            11: (10, 6),
            12: (11, 7),
            20: (1, 8),
            99: (10, 9),
            100: (99, 9),
        }
        self.tracked: dict[int, int] = {}
        self.room = 100
        self.scans = 0
        self.targets = Targets(self.track, 99, start_of=self.processes.get, parents=self.parents)

    def track(self, pid: int, how: int) -> bool:
        if len(self.tracked) >= self.room:
            return False
        self.tracked[pid] = how
        return True

    def parents(self) -> dict[int, int]:
        self.scans += 1
        return {pid: parent for pid, (parent, _) in self.processes.items()}


def test_descendants() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 7: 6, 6: 7}
    assert descendants({2}, parents) == {3, 4}
    assert descendants({1}, parents, without={3}) == {2, 5}
    assert descendants({6}, parents) == {
        7
    }  # a circle, as of processes that came and went while /proc was read


def test_a_process_is_tracked_with_all_below_it_but_not_the_sampler() -> None:
    machine = Machine()
    assert machine.targets.want([10]) == {10, 11, 12}
    assert machine.tracked == {10: BOTH, 11: BOTH, 12: BOTH}
    assert machine.targets.want([10, 99]) == set()  # known, and the sampler itself
    assert machine.scans == 1


def test_descendants_without_their_parent() -> None:
    machine = Machine()
    machine.targets.want([], [10])
    assert machine.tracked == {10: TRACK_CHILDREN, 11: BOTH, 12: BOTH}
    assert len(machine.targets) == 1


def test_a_pid_that_is_used_again_is_another_process() -> None:
    machine = Machine()
    machine.targets.want([20])
    machine.processes[20] = (1, 30)
    assert machine.targets.want([20]) == {20}
    del machine.processes[20]
    assert machine.targets.want([20]) == set()
    assert len(machine.targets) == 0


def test_what_found_no_room_is_tried_again() -> None:
    machine = Machine()
    machine.room = 0
    assert machine.targets.want([20]) == set()
    machine.room = 5
    assert machine.targets.want([20]) == {20}
