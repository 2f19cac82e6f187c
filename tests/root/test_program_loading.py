"""Programs that are kept load as those that were compiled, and give the same stacks; what is wrong is
compiled anew."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprof.bpf import features, program_source
from gpuprof.bpf.inventory import FAMILIES, MAPS, PROG_PERF_EVENT
from gpuprof.bpf.program_cache import ProgramCache
from gpuprof.bpf.program_load import TooLargeError
from gpuprof.bpf.program_object import ProgramObject, pack
from gpuprof.bpf.program_source import REQUIRED, LoadedPrograms, cache_key, compile_programs, load_programs
from gpuprof.bpf.programs import StackPrograms
from gpuprof.bpf.sizes import TableSizes, config_of
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import Hello, Query
from gpuprof.snapshots.history import History

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

HZ = 499
SMALL = TableSizes(row_blocks=1 << 17)
# 5 ms of CPU time in each branch, whatever either costs on a machine; os.getppid() is a system call, so that
# some samples begin in the kernel.
WORKLOAD = """
import os, time
def innermost(n): return sum(range(n))
def calls_kernel(n):
    for _ in range(n): os.getppid()
def left(end):
    while time.thread_time() < end: innermost(2000)
def right(end):
    while time.thread_time() < end: calls_kernel(400)
def turn():
    left(time.thread_time() + 0.005); right(time.thread_time() + 0.005)
while True: turn()
"""
FUNCTIONS = {"turn", "left", "right", "innermost", "calls_kernel"}
PATHS = {("turn", "left", "innermost"), ("turn", "right", "calls_kernel")}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> ProgramCache:
    return ProgramCache(tmp_path_factory.mktemp("kept") / "cache")


@pytest.fixture(scope="module")
def compiled(cache: ProgramCache) -> ProgramObject:
    """What the first load here compiled and kept."""
    loaded = load_programs(config_of(HZ, SMALL), cache)
    assert loaded.origin == "compiled"
    loaded.wait("launch")  # the other part is kept, too
    loaded.close()
    kept = cache.read(cache_key(REQUIRED))
    assert kept is not None, cache.problem
    return kept


@pytest.fixture(scope="module")
def workload() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", WORKLOAD]) as process:
        yield process.pid
        process.kill()


def sampled_paths(
    loaded: LoadedPrograms, pid: int, wanted: int = 200
) -> tuple[set[tuple[str, ...]], float, float]:
    """(paths of Python functions with a quarter of the samples each, share of samples that are complete and
    below turn(), samples).
    """
    history = History(
        Hello(
            1,
            "test",
            "",
            "",
            os.cpu_count() or 1,
            time.monotonic_ns(),
            time.time_ns(),
            "",
            os.getpid(),
            HZ,
            0,
            True,
        )
    )
    source = CpuStacks(history, StackPrograms.of(loaded), HZ)
    source.start()
    try:
        source.follow(pid)
        time.sleep(0.5)
        assert source.settle(30.0)  # it is known, however long that takes
        began = time.monotonic_ns()
        while True:
            time.sleep(0.2)
            tree = history.query(Query(1, "cpu", began, time.monotonic_ns(), pids=[pid], min_fraction=0.0))
            total = float(tree.total_weight[0])
            if total >= wanted or time.monotonic_ns() > began + 20 * 10**9:
                break
    finally:
        source.stop()
    names: list[tuple[str, ...]] = []
    found = set()
    for node, parent in enumerate(tree.parent.tolist()):
        name = tree.strings[int(tree.name[node])]
        above = names[parent] if node else ()
        names.append((*above, name) if name in FUNCTIONS else above)
        if tree.total_weight[node] > total / 4 and len(names[node]) >= 3:
            found.add(names[node][-3:])
    turns = [node for node, path in enumerate(names) if path[-1:] == ("turn",) and tree.parent[node] != node]
    below = float(tree.total_weight[turns[0]]) if turns else 0.0
    return found, min(below, total - tree.truncated) / max(total, 1), total


def test_kept_programs_are_those_that_were_compiled(compiled: ProgramObject, cache: ProgramCache) -> None:
    loaded = load_programs(config_of(HZ, SMALL), cache)
    try:
        assert loaded.origin == "kept"
        assert set(loaded.maps) >= set(MAPS)
        for family in FAMILIES:
            loaded.wait(family.name)
            assert set(family.programs) <= set(loaded.programs)
    finally:
        loaded.close()
    again = compile_programs({**program_source.CHUNKS[0], **features.macros(), **REQUIRED})
    assert pack(again) == pack(compiled)  # all but the seed, which is taken out, is the same


def test_other_sizes_and_rates_need_no_compiler(compiled: ProgramObject, cache: ProgramCache) -> None:
    for config in (config_of(19, SMALL), config_of(997, TableSizes(row_blocks=1 << 18, mappings=1000))):
        loaded = load_programs(config, cache)
        assert loaded.origin == "kept"
        loaded.close()


def test_the_same_stacks(compiled: ProgramObject, cache: ProgramCache, workload: int) -> None:
    found, complete, total = sampled_paths(load_programs(config_of(HZ, SMALL), cache), workload)
    assert total >= 200
    assert found == PATHS
    assert complete > 0.99
    found, complete, _ = sampled_paths(load_programs(config_of(HZ, SMALL), ProgramCache(None)), workload)
    assert found == PATHS
    assert complete > 0.99


def test_a_torn_file_is_compiled_anew(compiled: ProgramObject, tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path / "cache")
    assert cache.write(cache_key(REQUIRED), compiled)
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    loaded = load_programs(config_of(HZ, SMALL), cache)
    loaded.close()
    assert loaded.origin == "compiled"
    assert cache.read(cache_key(REQUIRED)) is not None


def test_a_file_with_programs_that_the_kernel_refuses(compiled: ProgramObject, tmp_path: Path) -> None:
    """Right in form, but its programs end without an exit: the verifier says no, and they are compiled."""
    exits_removed = {
        name: type(program)(
            name, program.code.replace(b"\x95" + bytes(7), b"\xb7" + bytes(7)), *(program.maps, program.seeds)
        )
        for name, program in compiled.programs.items()
    }
    cache = ProgramCache(tmp_path / "cache")
    assert cache.write(cache_key(REQUIRED), ProgramObject(compiled.maps, exits_removed))
    loaded = load_programs(config_of(HZ, SMALL), cache)
    loaded.close()
    assert loaded.origin == "compiled"


def test_starts_at_the_same_time(compiled: ProgramObject, cache: ProgramCache) -> None:
    origins: list[str] = []

    def load() -> None:
        loaded = load_programs(config_of(HZ, SMALL), cache)
        origins.append(loaded.origin)
        loaded.close()

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert origins == ["kept"] * 3


def test_nothing_stays_open(compiled: ProgramObject, cache: ProgramCache) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def settled() -> None:
        """Programs that were not waited for close as they are loaded."""
        for thread in threading.enumerate():
            if thread.name.startswith(("load-bpf", "bpf-load")):
                thread.join(60)

    settled()
    before = descriptors()
    load_programs(config_of(HZ, SMALL), cache).close()
    for _ in range(3):
        loaded = load_programs(config_of(HZ, SMALL), cache)
        loaded.wait("launch")
        loaded.close()
    settled()
    assert descriptors() == before
    with pytest.raises(GpuprofError, match="closed"):
        loaded.wait("launch")


def test_smaller_programs_where_the_verifier_gives_up(monkeypatch: pytest.MonkeyPatch, workload: int) -> None:
    """The first size is more than it looks at; the next one passes, and its stacks are as good."""
    too_large = {"FRAMES_PER_PROGRAM": 4000, "PYTHON_FRAMES_PER_PROGRAM": 128}
    monkeypatch.setattr(program_source, "CHUNKS", (too_large, *program_source.CHUNKS[1:]))
    found, complete, _ = sampled_paths(load_programs(config_of(HZ, SMALL), ProgramCache(None)), workload)
    assert found == PATHS
    assert complete > 0.99


def test_the_verifier_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """No size passes: the error carries the verifier's last line."""
    too_large = {"FRAMES_PER_PROGRAM": 4000, "PYTHON_FRAMES_PER_PROGRAM": 128}
    monkeypatch.setattr(program_source, "CHUNKS", (too_large,))
    with pytest.raises(TooLargeError, match=r"refused the BPF program cpu_\w+: .*too (large|complex)"):
        load_programs(config_of(HZ, SMALL), ProgramCache(None))


def test_it_does_not_compile() -> None:
    macros = {**program_source.CHUNKS[0], **features.macros(), "SAMPLE_RING_PAGES": "no_such_name"}
    with pytest.raises(GpuprofError, match=r"do not compile here: .*no_such_name"):
        compile_programs(macros)  # type: ignore[arg-type]


def test_every_feature_works_here() -> None:
    assert [feature.name for feature in features.probe() if not feature.works] == []
    assert features.macros() == {"HAVE_TASK_PT_REGS": 1}


def test_helpers_that_are_not_there() -> None:
    assert features.has_helper(PROG_PERF_EVENT, 112)
    assert not features.has_helper(PROG_PERF_EVENT, 9999)
    assert not features.has_helper(PROG_PERF_EVENT, 58)  # bpf_override_return, of kprobes only


def test_registers_from_the_end_of_the_kernel_stack(workload: int) -> None:
    """As on a kernel before 5.15, which has no bpf_task_pt_regs. Kernels with FRED leave 16 bytes behind
    them."""
    reserved = [0, 16]
    for bytes_behind in reserved:
        config = {
            **config_of(HZ, SMALL), "HAVE_TASK_PT_REGS": 0, "KERNEL_STACK_BYTES": 16384 - bytes_behind,
        }  # fmt: skip
        found, complete, _ = sampled_paths(load_programs(config, ProgramCache(None)), workload)
        if found == PATHS and complete > 0.99:
            return
    pytest.fail(f"found {found}, {complete:.1%} complete")
