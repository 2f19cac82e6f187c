"""CPU stacks end to end with real eBPF: planted callers are found by name, in their ratio, to the root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tree_rows import Rows, sampled_rows

from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import FrameKind, Hello, SourceStatus
from gpuprof.snapshots.history import History

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

WORKLOADS = Path(__file__).parent / "workloads"
HZ = 499
WARM_UP_S = 1.5
CAPTURE_S = 8.0
LONGEST_S = 45.0  # where others keep the machine busy,
WANTED_S = 0.5  # until each has used so much of a CPU: 250 samples
PYENV = Path.home() / ".pyenv" / "versions"


@dataclass
class Capture:
    history: History
    pids: dict[str, int]
    begin_ns: int
    end_ns: int
    before: SourceStatus
    after: SourceStatus

    def rows(self, workload: str | None) -> Rows:
        """Of one workload, or of all processes."""
        pids = [self.pids[workload]] if workload else []
        return sampled_rows(self.history, self.begin_ns, self.end_ns, pids)


def interpreters() -> dict[str, str]:
    """CPython versions of this machine."""
    found = {"this": sys.executable}
    for version in ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"):
        for path in PYENV.glob(f"{version}.*/bin/python"):
            if path.is_file():
                found[version] = str(path)
    return found


VERSIONS = interpreters()


def cpu_s(pid: int) -> float:
    """CPU time of a process, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fresh_history() -> History:
    return History(
        Hello(
            version=1, host="test", boot_id="", kernel="", cpu_count=os.cpu_count() or 1,
            mono_ns=time.monotonic_ns(), wall_ns=time.time_ns(), sampler_version="", sampler_pid=os.getpid(),
            cpu_hz=HZ, nvml_hz=0, privileged=True,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """All workloads at once, sampled for a while: loading the programs costs more than the capture."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    chain = tmp_path_factory.mktemp("chain") / "chain"
    subprocess.run(["gcc", "-O2", "-fomit-frame-pointer", "-o", chain, WORKLOADS / "chain.c"], check=True)
    short, library = chain.with_name("shortlived"), chain.with_name("liblate.so")
    shutil.copy(chain, short)
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", "-Dmain=late_main", "-o", library, WORKLOADS / "chain.c"],
        check=True,
    )
    try:
        programs = StackPrograms.load(HZ)
    except GpuprofError as error:
        pytest.skip(f"no eBPF here: {error}")
    history = fresh_history()
    stacks = CpuStacks(history, programs, HZ)
    started: dict[str, subprocess.Popen[bytes]] = {}
    seconds = str(WARM_UP_S + LONGEST_S + 60)
    try:
        stacks.start()
        # One is started under the running sampler in each way: all of them must be picked up.
        started["chain"] = subprocess.Popen([str(chain), seconds])
        for version, path in VERSIONS.items():
            started[version] = subprocess.Popen([path, str(WORKLOADS / "planted.py"), seconds])
        started["short"] = subprocess.Popen(["sh", "-c", f"while :; do {short} 0.3; done"])
        started["dlopen"] = subprocess.Popen(
            [sys.executable, str(WORKLOADS / "late_library.py"), str(library), str(WARM_UP_S + 2)]
        )
        started["thread"] = subprocess.Popen(
            [sys.executable, str(WORKLOADS / "planted.py"), seconds, "--thread"]
        )
        time.sleep(WARM_UP_S)
        assert stacks.settle(30.0)  # however long it takes to read what so many programs are made of
        begin, before = time.monotonic_ns(), stacks.status()
        used = {process.pid: cpu_s(process.pid) for name, process in started.items() if name != "short"}
        time.sleep(CAPTURE_S)
        while time.monotonic_ns() - begin < LONGEST_S * 1e9:
            if all(cpu_s(pid) - since >= WANTED_S for pid, since in used.items()):
                break
            time.sleep(0.2)
        end = time.monotonic_ns()
        assert stacks.settle(30.0)
        after = stacks.status()
    finally:
        for process in started.values():
            process.kill()
            process.wait()
        stacks.stop()
    pids = {name: process.pid for name, process in started.items()}
    return Capture(history, pids, begin, end, before, after)


def test_the_source_is_well(capture: Capture) -> None:
    before, after = capture.before, capture.after
    assert (after.state, after.reason) == ("ok", "")
    assert after.invalid == 0
    assert after.lost - before.lost <= (after.samples - before.samples) * 0.001


@pytest.mark.parametrize("version", [*VERSIONS, "thread"])
def test_python_samples_are_complete_and_named(capture: Capture, version: str) -> None:
    rows = capture.rows(version)
    total = sum(row.weight for row in rows)
    assert total > 100
    outermost = "Thread._bootstrap" if version == "thread" else "<module>"
    if version in {"3.9", "3.10"}:
        outermost = outermost.rpartition(".")[2]
    complete = sum(
        row.weight for row in rows
        if FrameKind.UNKNOWN not in row.kinds and {outermost, "work"} <= set(row.path)
    )  # fmt: skip
    if version == "thread":  # the main thread only waits
        total = sum(
            row.weight for row in rows if "main" not in row.path and "__libc_start_main" not in row.path
        )
    assert complete / total >= 0.99, [row for row in rows if "work" not in row.path]


@pytest.mark.parametrize("version", [*VERSIONS, "thread"])
def test_planted_ratio_in_python(capture: Capture, version: str) -> None:
    rows = [row for row in capture.rows(version) if "burn" in row.path]
    total = sum(row.weight for row in rows)
    method = "native_five" if version in {"3.9", "3.10"} else "Sorter.native_five"
    for name, share in (("plain_two", 2 / 18), (method, 5 / 18), ("generator_eleven", 11 / 18)):
        found = sum(row.weight for row in rows if name in row.path)
        bound = 4.5 * (total * share * (1 - share)) ** 0.5
        assert abs(found - total * share) < bound, (name, found, total)


@pytest.mark.parametrize("version", [*VERSIONS, "thread"])
def test_python_calls_through_native_code_are_in_order(capture: Capture, version: str) -> None:
    rows = [row for row in capture.rows(version) if row.path[-1] == "burn"]
    prefix = "" if version in {"3.9", "3.10"} else "Sorter."
    through_c = [row for row in rows if f"{prefix}native_five" in row.path]
    assert through_c
    for row in through_c:
        caller, key = row.path.index(f"{prefix}native_five"), row.path.index(f"{prefix}key")
        assert row.path.index("work") < caller < key < row.path.index("burn")
        between = row.path[caller + 1 : key]
        # list.sort is a static function: a distribution's stripped Python has no name for it but its place
        assert "list_sort" in between or any("python" in name and "!0x" in name for name in between), between
        assert not any(name.startswith("_PyEval_EvalFrameDefault") for name in row.path)


@pytest.mark.parametrize("version", VERSIONS)
def test_hot_line(capture: Capture, version: str) -> None:
    source = (WORKLOADS / "planted.py").read_text().splitlines()
    loop = source.index("    for _ in range(units * UNIT):") + 1
    rows = [
        row for row in capture.rows(version) if row.path[-1] == "burn" and row.kinds[-1] == FrameKind.PYTHON
    ]
    total = sum(row.weight for row in rows)
    on_loop = sum(row.weight for row in rows if row.lines[-1] in {loop, loop + 1})
    assert on_loop / total >= 0.95


def test_native_chain(capture: Capture) -> None:
    rows = capture.rows("chain")
    total = sum(row.weight for row in rows)
    assert total > 100
    burning = [row for row in rows if "chain_burn" in row.path]
    named = sum(row.weight for row in burning)
    assert named / total >= 0.99
    for row in burning:
        path = row.path[row.path.index("main") :]
        assert path[:4] in {
            ("main", "chain_one", "chain_one_inner", "chain_burn"), ("main", "chain_three", path[2], path[3]),
        }  # fmt: skip
        assert row.path[1] in {"_start", "__libc_start_main", "main"} or row.path[1].startswith("libc")
    one = sum(row.weight for row in burning if "chain_one" in row.path)
    three = sum(row.weight for row in burning if "chain_three_compare" in row.path)
    assert one + three == named
    assert abs(one - named / 4) < 4.5 * (named * 3 / 16) ** 0.5


def test_short_lived_processes(capture: Capture) -> None:
    rows = [row for row in capture.rows(None) if row.path[0].startswith("shortlived (")]
    total = sum(row.weight for row in rows)
    assert len({row.path[0] for row in rows}) > 5
    named = sum(row.weight for row in rows if {"main", "chain_burn"} <= set(row.path))
    assert named / total > 0.8  # what is lost is the time until a process's first sample is answered


def test_a_library_that_is_loaded_late(capture: Capture) -> None:
    rows = [
        row for row in capture.rows("dlopen") if "late_main" in row.path or FrameKind.UNKNOWN in row.kinds
    ]
    total = sum(row.weight for row in rows)
    assert total > 50
    named = sum(
        row.weight for row in rows if {"<module>", "call_late", "late_main", "chain_burn"} <= set(row.path)
    )
    assert named / total > 0.9
