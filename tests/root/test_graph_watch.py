"""A process that makes CUDA graphs is not attached to meanwhile: real eBPF on the mock driver's functions."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mock_kit import load_kit, wait_until

from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler import gpu_discovery, graph_watch
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.sampler.gpu_work import GpuWork
from gpuprof.sampler.graph_watch import FUNCTIONS, WORDS, GraphWatch
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import Hello
from gpuprof.snapshots.history import History

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

RING_NAME = f"gpuprof-watch-{os.getpid()}"  # another sampler of this machine shall not find it first
GPU = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"


def new_history() -> History:
    now = time.monotonic_ns()
    return History(Hello(1, "t", "", "", 2, now, time.time_ns(), "", os.getpid(), 99, 0, True))


@pytest.fixture(scope="module")
def kit() -> Any:
    return load_kit()


@pytest.fixture(scope="module")
def built(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return kit.build(tmp_path_factory.mktemp("mock"), ring_name=RING_NAME)


@pytest.fixture(scope="module")
def stacks() -> Iterator[CpuStacks]:
    try:
        programs = StackPrograms.load(99)
    except GpuprofError as error:
        pytest.skip(f"no eBPF here: {error}")
    source = CpuStacks(new_history(), programs, 99)
    source.start()
    yield source
    source.stop()


@pytest.fixture
def program(kit: Any, built: Any, tmp_path: Path) -> Iterator[Any]:
    one = kit.Program(built, tmp_path)
    yield one
    one.close()


@pytest.fixture
def watches(stacks: CpuStacks) -> Iterator[Callable[[int], GraphWatch]]:
    made: list[GraphWatch] = []

    def watch(pid: int) -> GraphWatch:
        made.append(GraphWatch(pid, stacks))
        return made[-1]

    yield watch
    for one in made:
        one.close()


def test_calls_are_counted_and_captures_followed(
    program: Any, watches: Callable[[int], GraphWatch], stacks: CpuStacks
) -> None:
    """The harness says how many graphs it made: each a capture's begin and end, and two calls more."""
    program.init()
    watch = watches(program.process.pid)
    assert len(watch._fds) == 4  # of FUNCTIONS the mock driver has these
    began = time.monotonic_ns()
    program.ask("graphs 1000")
    wait_until(lambda: stacks.graph_calls(program.process.pid).number > 4 * 20)
    made = int(program.ask("graphs 0"))
    seen = stacks.graph_calls(program.process.pid)
    assert (seen.number, seen.captures) == (4 * made, 0)
    assert began < seen.captured_ns < seen.last_ns < time.monotonic_ns()
    program.ask("endcapture 1")  # of one that was begun before it was watched
    program.ask("capture 1")
    assert stacks.graph_calls(program.process.pid).captures == 1
    program.ask("endcapture 1")
    assert stacks.graph_calls(program.process.pid)[2:] == (4 * made + 3, 0)


def test_launches_are_no_such_calls(
    program: Any, watches: Callable[[int], GraphWatch], stacks: CpuStacks
) -> None:
    program.init()
    watches(program.process.pid)
    program.ask("launch 2 a kernel k 100")
    program.ask("launch 1 a graph k 100")
    assert stacks.graph_calls(program.process.pid) == (0, 0, 0, 0)


def test_the_probes_go(program: Any, watches: Callable[[int], GraphWatch], stacks: CpuStacks) -> None:
    program.init()
    watch = watches(program.process.pid)
    program.ask("capture 1")
    watch.close()

    def seen() -> int:
        program.ask("capture 1")
        return stacks.graph_calls(program.process.pid).number

    wait_until(lambda: seen() == seen())
    assert watch.allows(time.monotonic_ns())


def test_a_process_without_a_driver_is_not_waited_for(watches: Callable[[int], GraphWatch]) -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        watch = watches(process.pid)
        assert watch.allows(time.monotonic_ns())
    finally:
        process.kill()
        process.wait()
    assert watches(process.pid).allows(time.monotonic_ns())  # gone


@pytest.fixture
def work(stacks: CpuStacks, program: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuWork]:
    monkeypatch.setattr(gpu_discovery, "NAME", f"/memfd:{RING_NAME}")
    source = GpuWork(new_history(), lambda: {GPU: {program.process.pid}}, lambda: stacks)
    yield source
    source.stop()


def test_it_is_attached_to_when_its_graphs_are_made(
    program: Any, work: GpuWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while they are; and the status says why. Then at once, with the probes gone."""
    monkeypatch.setattr(graph_watch, "TELL_AFTER_NS", 10**9)
    program.init()
    program.ask("graphs 2000")
    work.start()
    wait_until(lambda: WORDS in work.status().reason)
    assert program.counters.get("subscribes", 0) == 0
    assert "does not record yet" in work.status().reason
    program.ask("graphs 0")
    wait_until(lambda: program.counters.get("subscribers", 0) == 1)
    wait_until(lambda: WORDS not in work.status().reason)
    session = work._sessions[0]
    wait_until(lambda: session.graphs is None)
    program.launch(53)
    wait_until(lambda: work.status().samples == 53)
    assert program.faults == {}


def test_who_makes_few_is_attached_to_after_a_while(
    program: Any, work: GpuWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_watch, "FEW_AFTER_NS", 3 * 10**9)
    program.init()
    program.ask("graphs 100000")  # 40 calls a second
    began = time.monotonic()
    work.start()
    wait_until(lambda: program.counters.get("subscribers", 0) == 1)
    assert time.monotonic() - began > 2
    program.ask("graphs 0")


def test_who_has_cupti_in_use_is_not_watched(
    kit: Any, built: Any, tmp_path: Path, stacks: CpuStacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attached within the driver's start, since a sampler was expected."""
    monkeypatch.setattr(gpu_discovery, "NAME", f"/memfd:{RING_NAME}")
    one = kit.Program(built, tmp_path, GPUPROF_EXPECT_LISTENER="1")
    source = GpuWork(new_history(), lambda: {GPU: {one.process.pid}}, lambda: stacks)
    try:
        one.init()
        one.ask("graphs 2000")
        source.start()
        wait_until(lambda: bool(source._sessions) and source._sessions[0].locked)
        assert source._sessions[0].graphs is None
        one.launch(7)
        wait_until(lambda: source.status().samples == 7)
        assert one.counters["subscribes"] == 1
    finally:
        source.stop()
        one.ask("graphs 0")
        one.close()


def test_every_function_is_one_that_makes_or_destroys_graphs() -> None:
    """They are of the library's own list."""
    header = (Path(__file__).parents[2] / "bpf" / "inject" / "cupti_abi.h").read_text()
    part = header.partition("make, change or destroy graphs")[2].partition("};")[0]
    named = {line.split("CBID_")[1].split(" ")[0] for line in part.splitlines() if "CBID_" in line}
    assert named > set(FUNCTIONS)
    assert len(FUNCTIONS) <= 5


def test_a_pause_that_ends_while_graphs_are_made_is_held(
    kit: Any, tmp_path: Path, stacks: CpuStacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that has made some before; of another one nothing is watched in pauses."""
    monkeypatch.setattr(gpu_discovery, "NAME", f"/memfd:{RING_NAME}")
    costs = ("-DCUPTI_CALL_NS=1.0", "-DCUPTI_RECORD_NS=500000.0", "-DGRAPHS_PAUSE_NS=500000000ull")
    dear = kit.build(tmp_path / "dear", ring_name=RING_NAME, library=costs)
    one = kit.Program(dear, tmp_path)
    source = GpuWork(new_history(), lambda: {GPU: {one.process.pid}}, lambda: stacks, budget_ppm=300_000)
    try:
        one.init()
        source.start()
        one.ask("spin 2")
        wait_until(lambda: one.counters.get("finalizes", 0) >= 1)
        session = source._sessions[0]
        wait_until(lambda: session.had_cupti)
        assert session.graphs is None
        one.ask("graphs 2000")
        wait_until(lambda: one.counters["subscribes"] >= 2)
        wait_until(lambda: session.makes_graphs)  # the library is in use, and says that it stays
        one.ask("graphs 0")
        before = one.counters["finalizes"]
        wait_until(lambda: one.counters["finalizes"] > before)
        wait_until(lambda: session.graphs is not None)
        one.ask("graphs 2000")
        subscribes = one.counters["subscribes"]
        time.sleep(8)  # pauses of this budget are shorter
        assert one.counters["subscribes"] == subscribes
        one.ask("graphs 0")
        wait_until(lambda: one.counters["subscribes"] > subscribes)
    finally:
        source.stop()
        one.ask("graphs 0")
        one.ask("stop")
        one.close()
