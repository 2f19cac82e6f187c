"""How a recorded process may end, fork or become another, and what is left of its records."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler import gpu_ring

Start = Callable[..., Any]
Listen = Callable[..., Any]


def test_exit_right_after_the_launches_hands_over_all_records(start: Start, listen: Listen) -> None:
    """Among them the newest, which wait in CUPTI's buffer for the flush that exit() makes."""
    program = start().init()
    listener = listen(program)
    program.launch(101)
    assert program.end("exit 3") == 3
    listener.expect(101)
    assert listener.by_name() == {"k": 101}
    facts = listener.facts
    assert (facts.state, facts.launches, facts.records) == ("ended", 101, 101)
    assert program.counters["teardowns"] == 1
    assert program.faults == {}


def test_exit_before_anyone_could_attach(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program, wait=False)
    assert program.end() == 0
    assert listener.facts.state == "ended"
    assert program.faults == {}


def test_exit_while_threads_launch(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listener = listen(program)
    program.ask("spin 4")
    kit.wait_for(lambda: listener.facts.launches > 50)
    assert program.end() == 0
    listener.read()
    facts = listener.facts
    assert facts.state == "ended"
    assert len(listener.work()) == facts.records
    assert program.faults == {}


def test_exit_from_a_signal_handler_within_cuda_calls(start: Start, listen: Listen, kit: Any) -> None:
    """The interrupted thread may hold CUPTI's locks for ever: the flush cannot be had, the exit can."""
    for _ in range(4):
        program = start().init()
        listener = listen(program)
        program.ask("exit_on_signal")
        program.ask("spin 8")
        kit.wait_for(lambda listener=listener: listener.facts.launches > 50)
        for tid in [
            tid for name, tids in program.threads().items() if name.startswith("app") for tid in tids
        ]:
            with suppress(ProcessLookupError):
                os.kill(tid, signal.SIGTERM)
                break
        assert program.process.wait(kit.PATIENCE_S) == 0


def test_exit_while_it_waits_to_detach(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(7)
    listener.close()
    watcher = listen(program, lock=False)
    watcher.reach("detaching")
    assert program.end() == 0
    assert watcher.facts.state == "ended"
    assert watcher.facts.records == 7


def test_exit_during_a_slow_attach(start: Start, listen: Listen) -> None:
    program = start("subscribe_ms=300").init()
    listener = listen(program, wait=False)
    time.sleep(0.1)
    assert program.end() == 0
    assert listener.facts.state == "ended"
    assert program.faults == {}


def test_a_slow_flush_is_waited_for(start: Start, listen: Listen) -> None:
    program = start("flush_ms=300").init()
    listener = listen(program)
    program.launch(11)
    assert program.end() == 0
    listener.expect(11)


def test_a_flush_that_hangs_does_not_keep_the_process(start: Start, listen: Listen, kit: Any) -> None:
    program = start("flush_ms=-1").init()
    listener = listen(program)
    program.launch(2000)
    kit.wait_for(lambda: len(listener.read()) and len(listener.work()) >= 1000, what="a full buffer")
    assert program.end("exit 5") == 5  # and does not wait for ever


@pytest.mark.parametrize(("line", "status"), [("_exit 7", 7), (f"raise {int(signal.SIGKILL)}", -9)])
def test_records_that_were_never_handed_over_are_counted(
    start: Start, listen: Listen, line: str, status: int
) -> None:
    program = start().init()
    listener = listen(program)
    program.launch(50)
    listener.expect(50)
    program.ask("long 3600000000000")  # kernels that will not have ended
    program.launch(31)
    assert program.end(line) == status
    listener.expect(50)
    facts = listener.facts
    assert facts.state == "recording"  # it could say nothing more
    assert facts.launches - facts.records == 31


def test_a_kill_in_the_middle_of_writing_leaves_a_sound_ring(start: Start, listen: Listen, kit: Any) -> None:
    for _ in range(5):
        program = start().init()
        listener = listen(program)
        program.ask("spin 8")
        kit.wait_for(lambda listener=listener: listener.facts.records > 100)
        os.kill(program.pid, signal.SIGKILL)
        program.process.wait()
        listener.read()
        kinds = listener.slots["kind"]
        assert set(kinds.tolist()) <= {gpu_ring.KERNEL, gpu_ring.NAME_PART, gpu_ring.CLOCK}
        assert listener.by_name() == {"spin": len(listener.work())}
        ids = listener.work()["correlation"]
        assert len(set(ids.tolist())) == len(ids)
        assert ids.min() >= 1


def test_work_under_way_when_a_process_ends_has_no_times(start: Start, listen: Listen) -> None:
    program = start().init()
    listener = listen(program)
    program.ask("long 3600000000000")
    program.launch(5)
    assert program.end() == 0
    listener.expect(5)
    assert listener.work()["start"].tolist() == [0] * 5


def test_forked_children_are_silent_and_the_parent_goes_on(start: Start, listen: Listen, kit: Any) -> None:
    """Children that launch and exit(), while threads of the parent hold the library's and CUPTI's locks."""
    program = start().init()
    listener = listen(program)
    program.ask("spin 8")
    kit.wait_for(lambda: listener.facts.launches > 10)
    assert program.ask("fork 40") == "0"
    program.ask("stop")
    program.launch(13, "after")
    listener.read()
    kit.wait_for(lambda: listener.facts.records == listener.facts.launches)
    listener.read()
    facts = listener.facts
    assert facts.state == "recording"
    assert facts.records == facts.launches == len(listener.work())
    assert "child" not in listener.by_name()
    assert listener.by_name()["after"] == 13
    assert program.ring_fds() != []
    assert program.faults == {}


def test_a_forked_child_holds_no_ring(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    listen(program)
    program.ask("hold_child")
    child = Path(f"/proc/{program.ask('child?')}")

    def links() -> str:
        found = []
        for link in (child / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed just now
                found.append(os.readlink(link))
        return " ".join(found)

    kit.wait_for(lambda: "memfd" not in links(), what="closing")  # once it runs
    assert "memfd" not in (child / "maps").read_text()
    assert program.ring_fds() != []
    program.ask("kill_child")


def test_exec_begins_a_new_ring(start: Start, listen: Listen, kit: Any) -> None:
    program = start().init()
    first = listen(program)
    program.launch(5)
    first.expect(5)
    program.tell("exec")
    assert program.ask("long 500") == "500"  # the new image answers
    assert program.ring_fds() == []
    program.init()
    second = listen(program)
    program.launch(7)
    second.expect(7)
    assert second.facts.epoch == 1
    assert first.facts.records == 5
    assert len(first.read()) == len(first.slots)
    assert program.end() == 0
    assert second.facts.state == "ended"
    assert first.facts.state == "recording"


def test_sixteen_rings_of_sixteen_processes(start: Start, listen: Listen) -> None:
    programs = [start().init() for _ in range(16)]
    listeners = [listen(program) for program in programs]
    for number, program in enumerate(programs):
        program.launch(number + 1, f"of_{number}")
    for number, listener in enumerate(listeners):
        listener.expect(number + 1)
        assert listener.by_name() == {f"of_{number}": number + 1}
        assert listener.facts.pid == programs[number].pid
