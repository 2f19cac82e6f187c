"""CUPTI is not let go of while the process makes, changes or destroys CUDA graphs: recording stops, and the
subscription stays until that is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]
Listen = Callable[..., Any]
QUIET_S, PAUSE_QUIET_S, CAPTURE_S = 0.4, 1.2, 2.5
EACH_US = 2000  # from one graph to the next
STAYS = "CUPTI stays loaded while the process makes CUDA graphs"
PPM = 1000  # of a library to which a launch costs half a millisecond: pauses of 30 s and more


def flags(**more: float) -> list[str]:
    times = {"GRAPHS_QUIET_NS": QUIET_S, "GRAPHS_PAUSE_NS": PAUSE_QUIET_S, "CAPTURE_NS": CAPTURE_S, **more}
    return ["-DPOLL_NS=5000000ull", *(f"-D{name}={int(s * 1e9)}ull" for name, s in times.items())]


@pytest.fixture(scope="module")
def careful(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library with times that a test can tell apart."""
    return kit.build(tmp_path_factory.mktemp("careful"), library=flags())


@pytest.fixture(scope="module")
def dear(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same, to which a launch costs half a millisecond."""
    costs = ("-DCUPTI_CALL_NS=1.0", "-DCUPTI_RECORD_NS=500000.0")
    return kit.build(tmp_path_factory.mktemp("dear_graphs"), library=[*flags(), *costs])


def listened(program: Any, listen: Listen) -> tuple[Any, Any]:
    """One who listens, and one who only reads and stays."""
    return listen(program), listen(program, lock=False)


def in_use(program: Any) -> tuple[int, int]:
    """Subscribers, and kinds of activity that are recorded."""
    counters = program.counters
    return counters["subscribers"], counters["kinds_enabled"]


def finalized(program: Any, kit: Any) -> None:
    """The process goes on to launch, and at the exit of one CUPTI is let go of."""

    def launched() -> bool:
        program.launch(1, "later")
        return int(program.counters["finalizes"]) == 1

    kit.wait_for(launched, what="the finalize")
    counters = program.counters
    assert counters["subscribers"] == counters["callbacks_enabled"] == 0
    assert program.faults == {}


def test_who_leaves_while_graphs_are_made_gets_a_finalize_later(
    start: Start, listen: Listen, kit: Any, careful: Any
) -> None:
    program = start(which=careful).init()
    listener, watcher = listened(program, listen)
    program.ask(f"graphs {EACH_US}")
    program.launch(101, "known")
    listener.expect(101)
    assert listener.by_name() == {"known": 101}
    listener.close()
    assert watcher.reach("waiting").message == STAYS
    assert in_use(program) == (1, 0)
    launches = watcher.facts.launches
    end = time.monotonic() + 2 * QUIET_S
    while time.monotonic() < end:
        program.launch(10, "unseen")
    assert (watcher.facts.launches, program.counters["finalizes"]) == (launches, 0)
    assert int(program.ask("graphs 0")) > 10  # a busy machine may take ten times as long for each
    finalized(program, kit)
    assert watcher.reach("waiting").message == ""
    assert watcher.facts.launches == launches


def test_a_listener_who_comes_meanwhile_is_served_at_once(
    start: Start, listen: Listen, kit: Any, careful: Any
) -> None:
    """In the same epoch, with the subscription that there is; and records and launches still match."""
    program = start(which=careful).init()
    program.ask(f"graphs {EACH_US}")
    for turn in range(1, 6):
        listener = listen(program)
        program.launch(101, f"turn{turn}")
        listener.expect(101)
        assert listener.by_name() == {f"turn{turn}": 101}
        assert set(listener.by_launch(program)) == {("a", f"turn{turn}")}
        assert listener.facts.epoch == 1
        watcher = listen(program, lock=False)
        listener.close()
        watcher.reach("waiting")
        watcher.close()
        program.launch(7, "between")
    assert program.counters["subscribes"] == 1
    program.ask("graphs 0")
    finalized(program, kit)


def test_a_listener_who_comes_while_a_detach_is_wanted(
    start: Start, listen: Listen, kit: Any, careful: Any
) -> None:
    """The process makes no call after the last graph, so that nothing can finalize."""
    program = start(which=careful).init()
    listener, watcher = listened(program, listen)
    program.ask(f"graphs {EACH_US}")
    listener.close()
    watcher.reach("waiting")
    program.ask("graphs 0")
    watcher.reach("detaching")
    again = listen(program)
    program.launch(53, "again")
    again.expect(53)
    assert again.facts.epoch == 1
    again.close()
    watcher.reach("detaching")
    finalized(program, kit)


def test_a_graph_after_the_detach_is_wanted_puts_it_off(
    start: Start, listen: Listen, kit: Any, careful: Any
) -> None:
    program = start(which=careful).init()
    listener, watcher = listened(program, listen)
    listener.close()
    watcher.reach("detaching")
    program.ask(f"graphs {EACH_US}")
    end = time.monotonic() + 2 * QUIET_S
    while time.monotonic() < end:
        program.launch(10)
    assert watcher.reach("waiting").message == STAYS
    assert in_use(program) == (1, 0)
    program.ask("graphs 0")
    finalized(program, kit)


@pytest.mark.parametrize("what", ["instantiate", "capture"])
def test_one_that_takes_long_is_waited_for(
    start: Start, listen: Listen, kit: Any, careful: Any, what: str
) -> None:
    program = start(which=careful).init()
    listener, watcher = listened(program, listen)
    takes_s = 4 * QUIET_S
    began = time.monotonic()
    program.ask(f"instantiate {int(takes_s * 1e9)}" if what == "instantiate" else "capture 1")
    time.sleep(0.05)
    listener.close()
    watcher.reach("waiting")
    while time.monotonic() < began + takes_s - 0.3:
        program.launch(1)
        assert program.counters["finalizes"] == 0
    if what == "capture":
        program.ask("endcapture 1")
    finalized(program, kit)


def test_a_capture_that_never_ends_is_not_waited_for_for_ever(
    start: Start, listen: Listen, kit: Any, careful: Any
) -> None:
    program = start(which=careful).init()
    listener, watcher = listened(program, listen)
    program.ask("capture 1")
    began = time.monotonic()
    listener.close()
    watcher.reach("waiting")
    finalized(program, kit)
    assert time.monotonic() - began > CAPTURE_S / 2


def test_calls_that_were_under_way_at_the_attach_do_not_count(
    start: Start, listen: Listen, kit: Any, careful: Any
) -> None:
    """Neither an instantiation nor a capture."""
    program = start(which=careful).init()
    program.ask("capture 1")
    program.ask(f"instantiate {int(0.5e9)}")
    listener, watcher = listened(program, listen)
    program.ask("endcapture 1")
    time.sleep(0.5 + QUIET_S)
    listener.close()
    watcher.reach("detaching")
    finalized(program, kit)


def test_the_end_of_another_capture_is_not_that_of_one_that_goes_on(
    start: Start, listen: Listen, kit: Any, careful: Any
) -> None:
    """One that was begun before the attach ends; one is begun twice, as its end was not seen; one fails."""
    program = start(which=careful).init()
    program.ask("capture 1")
    listener, watcher = listened(program, listen)
    for line in ("capture 2", "endcapture 1", "capture 2", "capture -1"):
        program.ask(line)
    began = time.monotonic()
    listener.close()
    watcher.reach("waiting")
    while time.monotonic() - began < CAPTURE_S - 1:
        program.launch(1)
        assert program.counters["finalizes"] == 0
    program.ask("endcapture 2")
    finalized(program, kit)
    assert time.monotonic() - began < CAPTURE_S + 2


def test_a_capture_that_was_forgotten_does_not_hold_for_ever_a_process_that_makes_graphs(
    start: Start, listen: Listen, kit: Any, careful: Any
) -> None:
    program = start(which=careful).init()
    listener, watcher = listened(program, listen)
    program.ask("capture 1")
    listener.close()
    watcher.reach("waiting")
    end = time.monotonic() + CAPTURE_S + QUIET_S
    while time.monotonic() < end:
        program.ask("instantiate 1000")  # no capture: the other one ages
        time.sleep(QUIET_S / 4)
    watcher.reach("detaching")
    finalized(program, kit)


def test_callbacks_that_only_a_detach_needs_go_with_it(
    start: Start, listen: Listen, kit: Any, careful: Any
) -> None:
    program = start(which=careful).init()
    listener, watcher = listened(program, listen)
    enabled = program.counters["callbacks_enabled"]
    program.ask(f"graphs {EACH_US}")
    listener.close()
    watcher.reach("waiting")
    program.ask("graphs 0")
    watcher.reach("detaching")
    assert program.counters["callbacks_enabled"] > enabled
    again = listen(program)
    assert program.counters["callbacks_enabled"] == enabled
    again.close()
    watcher.reach("detaching")
    finalized(program, kit)


def test_a_sampler_that_holds_it_back(start: Start, listen: Listen, careful: Any) -> None:
    program = start(which=careful).init()
    listener = listen(program, lock=False)
    assert listener.ring.lock()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        listener.ring.hold(time.monotonic_ns() + 10**12)
        assert program.counters.get("subscribes", 0) == 0
        time.sleep(0.02)
    let_go_ns = time.monotonic_ns() + 200_000_000
    listener.ring.hold(let_go_ns)
    listener.reach("recording")
    assert time.monotonic_ns() > let_go_ns
    listener.ring.hold(time.monotonic_ns() + 10**12)  # what records is not ended
    program.launch(53)
    listener.expect(53)


def test_a_new_sampler_after_one_that_left_in_a_pause_is_served_at_once(
    start: Start, listen: Listen, kit: Any, dear: Any
) -> None:
    """Though the process makes no call any more: the pause was the other one's."""
    program = start(which=dear).init()
    program.ask(f"graphs {EACH_US}")
    listener = listen(program, lock=False)
    assert listener.ring.lock(PPM)
    listener.reach("recording")
    program.ask("spin 4")
    listener.reach("paused")
    program.ask("stop")
    program.ask("graphs 0")
    watcher = listen(program, lock=False)
    kit.wait_for(lambda: STAYS in watcher.facts.message)
    time.sleep(PAUSE_QUIET_S + 0.5)  # the detach is wanted by now
    assert program.counters["finalizes"] == 0
    listener.close()
    assert watcher.reach("detaching").message == "waiting for the next CUDA call"
    again = listen(program)
    assert again.facts.epoch == 1


def test_a_pause_keeps_the_subscription_of_who_makes_graphs(
    start: Start, listen: Listen, kit: Any, dear: Any
) -> None:
    """And lets go of it once none was made for a while, longer than a detach waits."""
    program = start(which=dear).init()
    program.ask(f"graphs {EACH_US}")
    listener = listen(program, lock=False)
    assert listener.ring.lock(PPM)
    listener.reach("recording")
    program.ask("spin 4")
    facts = listener.reach("paused")
    assert STAYS in facts.message
    assert facts.pauses == 1
    time.sleep(QUIET_S)
    assert in_use(program) == (1, 0)
    program.ask("graphs 0")
    began = time.monotonic()
    kit.wait_for(lambda: program.counters["finalizes"] == 1, what="the finalize")
    assert time.monotonic() - began > (QUIET_S + PAUSE_QUIET_S) / 2
    facts = listener.facts
    assert (facts.state, facts.pauses, facts.epoch) == ("paused", 1, 1)
    assert STAYS not in facts.message
    program.ask("stop")
    assert program.faults == {}


def test_who_leaves_in_such_a_pause(start: Start, listen: Listen, kit: Any, dear: Any) -> None:
    program = start(which=dear).init()
    program.ask(f"graphs {EACH_US}")
    listener = listen(program, lock=False)
    assert listener.ring.lock(PPM)
    listener.reach("recording")
    program.ask("spin 4")
    watcher = listen(program, lock=False)
    listener.reach("paused")
    listener.close()
    assert watcher.reach("waiting").message == STAYS
    again = listen(program)
    assert again.facts.epoch == 1
    again.close()
    program.ask("graphs 0")
    kit.wait_for(lambda: program.counters["finalizes"] == 1, what="the finalize")
    program.ask("stop")
    assert program.faults == {}


def test_windows_of_a_budget_are_whole_while_graphs_are_made(
    start: Start, listen: Listen, kit: Any, dear: Any
) -> None:
    """Windows and pauses without a finalize between them: each record has its launch, none is lost."""
    program = start(which=dear).init()
    program.ask(f"graphs {EACH_US}")
    listener = listen(program, lock=False)
    assert listener.ring.lock(400_000)  # pauses of seconds at most
    listener.reach("recording")
    program.ask("spin 2")
    kit.wait_for(lambda: listener.facts.pauses >= 3, 60, "three pauses")
    program.ask("stop")
    program.ask("graphs 0")
    facts = listener.facts
    assert facts.epoch == 1
    assert program.counters["subscribes"] == 1
    listener.read()
    work = listener.work()
    assert len(work) == program.counters["delivered"] == facts.records
    assert (work["enter"] > 0).all()
    assert facts.launches - 2 * facts.pauses <= len(work) <= facts.launches + 2 * facts.pauses
    assert program.faults == {}


def test_an_end_while_it_is_parked_loses_nothing(start: Start, listen: Listen, careful: Any) -> None:
    program = start(which=careful).init()
    listener, watcher = listened(program, listen)
    program.ask(f"graphs {EACH_US}")
    program.launch(101, "known")
    listener.close()
    watcher.reach("waiting")
    assert program.end("exit 0") == 0
    watcher.read()
    assert watcher.by_name() == {"known": 101}


def test_many_threads_that_launch_while_it_comes_and_goes(
    start: Start, listen: Listen, kit: Any, careful: Any
) -> None:
    """With graphs now and then: no finalize meets one, whatever the order."""
    program = start(which=careful).init()
    program.ask("pace 50")
    program.ask("spin 6")
    for turn in range(12):
        program.ask("graphs 0" if turn % 3 == 2 else f"graphs {EACH_US if turn % 3 else 150_000}")
        listener = listen(program)
        time.sleep(0.05 + 0.03 * turn)
        listener.close()
        time.sleep(0.15 if turn % 2 else 2 * QUIET_S)
    program.ask("graphs 0")
    kit.wait_for(lambda: program.counters["subscribers"] == 0, what="the last finalize")
    program.ask("stop")
    assert program.counters["finalizes"] > 1
    assert program.faults == {}


def test_beside_another_subscriber_it_unsubscribes_later(
    start: Start, listen: Listen, kit: Any, tmp_path: Path
) -> None:
    several = kit.build(tmp_path / "several", library=flags(), cupti=("-DMOCK_MULTI",))
    program = start(which=several).init()
    assert program.ask("other_shares torch") == "0"
    program.ask(f"graphs {EACH_US}")
    for _ in range(2):
        listener = listen(program)
        watcher = listen(program, lock=False)
        program.launch(101)
        listener.expect(101)
        listener.close()
        watcher.reach("waiting")
        time.sleep(2 * QUIET_S)
        counters = program.counters
        assert (counters["subscribes"], counters["unsubscribes"], counters["kinds_enabled"]) == (1, 0, 0)
    program.ask("graphs 0")
    kit.wait_for(lambda: program.counters["unsubscribes"] == 1)
    assert program.counters["callbacks_enabled"] == 0
    assert program.faults == {}
