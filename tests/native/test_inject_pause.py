"""What the injection library does in a pause of the budget, and while nobody listens: nothing to CUPTI, and
it asks the driver nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Any]
Listen = Callable[..., Any]
LOOKS_S = 1.0  # 200 looks of the library's thread
PPM = 1000  # of a library to which a launch costs half a millisecond: pauses of 30 to 90 s


@pytest.fixture(scope="module")
def dear(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A library that takes CUPTI to cost half a millisecond a launch, and looks for its listener every 5
    ms.
    """
    flags = ("-DCUPTI_CALL_NS=1.0", "-DCUPTI_RECORD_NS=500000.0", "-DPOLL_NS=5000000ull")
    return kit.build(tmp_path_factory.mktemp("dear"), library=flags)


def in_a_pause(program: Any, listen: Listen) -> Any:
    listener = listen(program, lock=False)
    assert listener.ring.lock(PPM)
    listener.reach("recording")
    program.ask("spin 4")
    listener.reach("paused")
    return listener


def nothing_happens(program: Any, listener: Any) -> bool:
    """Whether for LOOKS_S the driver is not asked, no call of ours is seen by CUPTI, nothing is flushed,
    enabled or compared. Calls of the program that were under way at the beginning may still be counted.
    """

    def seen() -> tuple[Any, ...]:
        return program.ask("asked?"), program.counters, listener.facts.launches

    for _ in range(3):
        before = seen()
        time.sleep(LOOKS_S)
        if seen() == before:
            return True
    return False


def test_in_a_pause_cupti_is_not_called_and_the_driver_is_not_asked(
    start: Start, listen: Listen, dear: Any
) -> None:
    program = start(which=dear).init()
    listener = in_a_pause(program, listen)
    assert int(program.ask("asked?")) > 0
    counters = program.counters
    assert counters["subscribers"] == counters["callbacks_enabled"] == counters["kinds_enabled"] == 0
    assert nothing_happens(program, listener)
    assert listener.facts.state == "paused"
    assert int(program.ask("stop")) > listener.facts.launches  # though launches went on
    assert program.faults == {}


def test_while_nobody_listens_the_driver_is_not_asked(start: Start, listen: Listen, dear: Any) -> None:
    """Neither before a sampler has come, nor after one has left in a pause."""
    program = start(which=dear).init()
    time.sleep(LOOKS_S)
    assert program.ask("asked?") == "0"
    assert program.counters == {}
    listener = in_a_pause(program, listen)
    watcher = listen(program, lock=False)
    listener.close()
    watcher.reach("waiting")
    assert nothing_happens(program, watcher)
    program.ask("stop")


def test_before_the_end_of_a_pause_the_driver_is_asked_again(
    start: Start, listen: Listen, kit: Any, dear: Any
) -> None:
    """No pause ends in a moment in which a context may be in the making."""
    program = start(which=dear).init()
    listener = listen(program, lock=False)
    assert listener.ring.lock(400_000)  # pauses of seconds
    listener.reach("recording")
    program.ask("spin 4")
    listener.reach("paused")
    asked, epoch = int(program.ask("asked?")), listener.facts.epoch
    kit.wait_for(lambda: listener.facts.epoch > epoch, 60, "the end of the pause")
    assert int(program.ask("asked?")) > asked
    program.ask("stop")
