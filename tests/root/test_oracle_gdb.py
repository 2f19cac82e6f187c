"""The same stack by another reader: a process is stopped again and again, and the unwinder's frames are
compared with gdb's (native) and py-spy's (Python).

At a stop the unwinder runs as an ordinary program (tests/native/unwinder) over the stopped process, with the
tables that the sampler publishes. That the kernel's build of the same code sees the same is shown on
processes whose stack stands still.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpuprof.bpf.programs import StackPrograms
from gpuprof.bpf.records import RecordFlag
from gpuprof.bpf.sizes import TableSizes
from gpuprof.sampler.maps import read_maps
from gpuprof.sampler.python_code import CodeReader
from gpuprof.sampler.python_runtime import PythonLayout, find_python
from gpuprof.sampler.unwind_tables import UnwindTables
from gpuprof.snapshots.errors import GpuprofError

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler"),
]

HERE = Path(__file__).parent
KIT = HERE.parent / "native" / "unwinder" / "user_unwinder.py"
WORKLOADS = HERE / "workloads"
PYENV = Path.home() / ".pyenv" / "versions"
SIZES = TableSizes(row_blocks=1 << 16)
SHIM_OWNER = 3
STEP_S = 2.0  # what a step may take
STOPS = int(os.environ.get("GPUPROF_ORACLE_STOPS", "100"))  # of a workload; for a longer run
START_FIELDS = ("pc", "sp", "bp", "r10", "r13", "fsbase")


def interpreters() -> dict[str, str]:
    """CPython versions of this machine."""
    found = {"this": sys.executable}
    for version in ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"):
        for path in PYENV.glob(f"{version}.*/bin/python"):
            found[version] = str(path)
    if Path("/usr/bin/python3").exists():
        found["distribution"] = "/usr/bin/python3"
    return found


VERSIONS = interpreters()


def find_py_spy() -> str | None:
    """py-spy, which does not belong into the project's environment: GPUPROF_PY_SPY names one elsewhere."""
    return os.environ.get("GPUPROF_PY_SPY") or shutil.which("py-spy")


@dataclass(frozen=True)
class Stop:
    """A moment of a stopped process, by gdb."""

    registers: dict[str, int]
    tid: int
    counters: list[int]
    stack_pointers: list[int]
    names: list[str]


class Gdb:
    """gdb attached to a process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        ours, theirs = socket.socketpair()
        ours.settimeout(20)
        environment = {
            "PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": "/nonexistent",
            "GPUPROF_ORACLE_FD": str(theirs.fileno()), "GPUPROF_ORACLE_PID": str(pid),
        }  # fmt: skip
        command = [
            "gdb",
            "-nx",
            "-batch",
            "-iex",
            "set debuginfod enabled off",
            "-x",
            str(HERE / "gdb_stops.py"),
        ]
        with theirs:
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self._socket, self._lines = ours, ours.makefile("rw")
        self.ask("here")  # attached: from now on SIGINT stops the process, and does not end it

    def ask(self, command: str, before_answer: Callable[[], None] = lambda: None) -> Stop:
        self._lines.write(command + "\n")
        self._lines.flush()
        before_answer()
        line = self._lines.readline()
        assert line, "gdb ended"
        answer = json.loads(line)
        counters, pointers, names = (list(column) for column in zip(*answer["frames"], strict=True))
        registers = {name: answer[name] for name in START_FIELDS}
        return Stop(registers, answer["tid"], counters, pointers, names)

    def run_for(self, seconds: float) -> Stop:
        """Let the process run, then stop it wherever it is."""

        def interrupt() -> None:
            time.sleep(seconds)
            os.kill(self._pid, signal.SIGINT)

        return self.ask("continue", interrupt)

    def step(self, count: int) -> Stop:
        """Some instructions further on; or anywhere, where signals come faster than gdb steps over them."""

        def interrupt() -> None:
            if not select.select([self._socket], [], [], STEP_S)[0]:
                os.kill(self._pid, signal.SIGINT)

        return self.ask(f"step {count}", interrupt)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._lines.close()
        self._socket.close()


class Ours:
    """The unwinder as an ordinary program, and the tables that it uses."""

    def __init__(self, kit: ModuleType, folder: Path) -> None:
        self.kit = kit
        self.unwinder = kit.UserUnwinder(folder)
        self.tables = kit.MemoryTables(SIZES, self.unwinder.element_bytes)

    def publish(self, pid: int) -> PythonLayout | None:
        """Be ready to walk a process; its interpreter."""
        layout: PythonLayout | None = self.tables.publish(pid)
        self.unwinder.use_published(self.tables, pid)
        return layout

    def walk(self, pid: int, stop: Stop) -> Any:
        """A Walk from the registers of a stop."""
        registers = (stop.registers[name] for name in START_FIELDS)
        return self.unwinder.walk(self.kit.Start(*registers, pid, stop.tid))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    spec = importlib.util.spec_from_file_location("user_unwinder", KIT)
    assert spec is not None
    assert spec.loader is not None
    kit = importlib.util.module_from_spec(spec)
    sys.modules["user_unwinder"] = kit  # dataclasses look their module up
    spec.loader.exec_module(kit)
    ours = Ours(kit, tmp_path_factory.mktemp("unwinder"))
    yield ours
    ours.tables.close()


@pytest.fixture
def start() -> Iterator[Callable[..., int]]:
    """start(command...) -> pid of a process that has said "ready"."""
    running: list[subprocess.Popen[bytes]] = []

    def start_one(*command: str) -> int:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    yield start_one
    for process in running:
        process.kill()
        process.communicate()


def stops_of(pid: int, count: int) -> Iterator[Stop]:
    """A process stopped at `count` random places: at some moment, then a few instructions further on."""
    rng = random.Random(pid)
    gdb = Gdb(pid)
    try:
        for number in range(count):
            if number % 4 == 0:
                yield gdb.run_for(rng.uniform(0.0005, 0.004))
            else:
                yield gdb.step(rng.choice((1, 1, 2, 3, 7)))
    finally:
        gdb.close()


def describe(stop: Stop, found: Any) -> str:
    """Both stacks side by side."""
    theirs = list(zip(stop.counters, stop.stack_pointers, stop.names, strict=True))
    ours = list(zip(found.counters, found.stack_pointers, strict=True))
    lines = [f"ours stopped with {found.stop.name}, flags {int(found.flags)}"]
    for row in range(max(len(theirs), len(ours))):
        pc, sp, name = theirs[row] if row < len(theirs) else (0, 0, "-")
        own_pc, own_sp = ours[row] if row < len(ours) else (0, 0)
        lines.append(
            f"{pc:#x} {sp:#x} {name[:40]:40} {own_pc:#x} {own_sp:#x}" + " <<" * ((pc, sp) != (own_pc, own_sp))
        )
    return "\n".join(lines)


def native_faults(ours: Ours, pid: int, count: int) -> tuple[list[str], list[int]]:
    """(descriptions of the stops at which gdb and we differ, depths of all stacks)."""
    faults, depths = [], []
    for stop in stops_of(pid, count):
        found = ours.walk(pid, stop)
        depths.append(len(stop.counters))
        if (found.counters, found.stack_pointers) != (stop.counters, stop.stack_pointers):
            faults.append(describe(stop, found))
        assert int(found.flags) == 0, describe(stop, found)  # nothing was guessed
    return faults, depths


@pytest.mark.parametrize("binding", ["lazy", "now"])
def test_cpp_as_gdb_sees_it(binding: str, ours: Ours, start: Callable[..., int], tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    program = str(tmp_path / "many_frames")
    source = str(WORKLOADS / "many_frames.cpp")
    flags = ["-O2", "-fomit-frame-pointer", f"-Wl,-z,{binding}"]
    subprocess.run(["g++", *flags, "-o", program, source], check=True)
    pid = start(program)
    ours.publish(pid)
    faults, depths = native_faults(ours, pid, STOPS)
    assert not faults, f"{len(faults)} of {len(depths)} differ, such as\n{faults[0]}"
    assert len(depths) == STOPS
    assert max(depths) > 12


PRINT_LINES = """
import dis, json, sys
def visit(code, found):
    if hasattr(code, "co_lines"):
        runs = [run for run in code.co_lines() if run[2] is not None]
    else:
        starts = [*dis.findlinestarts(code), (len(code.co_code), 0)]
        runs = [(begin, end, line) for (begin, line), (end, _) in zip(starts, starts[1:])]
    found.append((code.co_name, code.co_firstlineno, runs))
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            visit(constant, found)
    return found
source = open(sys.argv[1]).read()
print(json.dumps(visit(compile(source, sys.argv[1], "exec"), [])))
"""
Lines = dict[tuple[str, int], list[tuple[int, int, int]]]


def lines_by_the_interpreter(python: str, path: str) -> Lines:
    """(first byte, end, line) of each run of instructions by (function, first line), as that CPython says."""
    done = subprocess.run([python, "-c", PRINT_LINES, path], capture_output=True, check=True)
    return {(name, first): runs for name, first, runs in json.loads(done.stdout)}


@dataclass(frozen=True)
class PythonFrame:
    """A frame as we name it; `offset`: of its instruction, in bytes."""

    name: str
    file: str
    first_line: int
    line: int
    offset: int


def python_frames(layout: PythonLayout, codes: CodeReader, found: Any) -> list[PythonFrame]:
    """The Python frames of a walk, innermost first."""
    frames = []
    for word, detail in found.python:
        if layout.has_shim_frames and word >> 56 == SHIM_OWNER:
            continue
        code = codes.get(word & (1 << 48) - 1, detail >> 32 & 0xFFFFFF)
        if code is None:
            frames.append(PythonFrame("?", "?", 0, 0, 0))
            continue
        offset = detail & 0xFFFFFFFF
        offset = offset - (1 << 32) if offset >> 31 else offset
        name, file = code.name.rpartition(".")[2], Path(code.file).name
        in_bytes = offset * (1 if layout.version == (3, 9) else 2)
        frames.append(PythonFrame(name, file, code.first_line, code.line(offset), in_bytes))
    return frames


def frames_by_py_spy(py_spy: str, pid: int) -> list[tuple[str, str]] | None:
    """(function, file) by py-spy, innermost first; None where it could not read them."""
    command = [py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=20)
    if done.returncode:
        return None
    frames = [frame for thread in json.loads(done.stdout) for frame in thread["frames"]]
    found = [(frame["name"].rpartition(".")[2], Path(frame["filename"]).name) for frame in frames]
    return [frame for frame in found if frame[0] != "<shim>"]


def line_faults(frames: list[PythonFrame], lines: Lines) -> list[PythonFrame]:
    """Frames of the workload whose line is not the one that the interpreter gives for the instruction."""
    faults = []
    for frame in frames:
        runs = lines.get((frame.name, frame.first_line), [])
        true = [line for begin, end, line in runs if begin <= frame.offset < end]
        if true and frame.line not in true:
            faults.append(frame)
    return faults


@pytest.mark.parametrize("version", VERSIONS)
def test_cpython_as_gdb_and_py_spy_see_it(version: str, ours: Ours, start: Callable[..., int]) -> None:
    source = str(WORKLOADS / "many_python_frames.py")
    lines = lines_by_the_interpreter(VERSIONS[version], source)
    pid = start(VERSIONS[version], source)
    layout = ours.publish(pid)
    assert layout is not None
    py_spy = find_py_spy()
    codes = CodeReader(pid, layout)
    native, python, cut, compared = [], [], [], 0
    count = STOPS if version == "this" else STOPS * 2 // 5
    for number, stop in enumerate(stops_of(pid, count)):
        found = ours.walk(pid, stop)
        if (found.counters, found.stack_pointers) != (stop.counters, stop.stack_pointers):
            native.append(describe(stop, found))
        frames = python_frames(layout, codes, found)
        if found.flags & RecordFlag.PYTHON_TRUNCATED:
            cut.append(describe(stop, found))  # a frame was just being linked or unlinked
            continue
        assert [frame.name for frame in frames[-2:]] == ["main", "<module>"], (frames, found)
        assert not line_faults(frames, lines)
        assert sum((frame.name, frame.first_line) in lines for frame in frames) > 1
        if py_spy is not None and number % 8 == 0:
            theirs = frames_by_py_spy(py_spy, pid)
            if theirs is not None:
                compared += 1
                if theirs != [(frame.name, frame.file) for frame in frames]:
                    python.append(f"py-spy {theirs}\nours   {frames}")
    codes.close()
    assert not native, f"{len(native)} of {count} differ, such as\n{native[0]}"
    assert not python, f"{len(python)} of {compared} differ, such as\n{python[0]}"
    print(f"{len(cut)} of {count} cut, {compared} compared with py-spy")
    assert len(cut) <= count // 10, f"{len(cut)} of {count} Python chains are cut, such as\n{cut[0]}"
    if py_spy is None:
        pytest.skip("gdb agrees; for the comparison of Python frames py-spy is needed (GPUPROF_PY_SPY=path)")


@pytest.mark.parametrize("version", sorted({"3.11", "3.12"} & set(VERSIONS)))
def test_an_eval_loop_that_has_just_begun(version: str, ours: Ours, start: Callable[..., int]) -> None:
    """For some instructions the thread's newest C frame is one that nothing was written to yet: what is found
    then is said to be cut, whatever lay there before.
    """
    pid = start(VERSIONS[version], str(WORKLOADS / "many_python_frames.py"))
    layout = ours.publish(pid)
    assert layout is not None
    codes = CodeReader(pid, layout)
    gdb, cut, whole = Gdb(pid), 0, 0
    try:
        stop = gdb.ask("enter _PyEval_EvalFrameDefault")
        for _ in range(70):
            found = ours.walk(pid, stop)
            if found.flags & RecordFlag.PYTHON_TRUNCATED:
                cut += 1
            else:
                names = [frame.name for frame in python_frames(layout, codes, found)]
                assert names[-2:] == ["main", "<module>"], describe(stop, found)
                whole += 1
            stop = gdb.step(1)
    finally:
        gdb.close()
        codes.close()
    assert 0 < cut < whole


# ------------------------------------------------------------------------- the kernel's build of the code


SPINS_IN_C = """
import itertools
def inner():
    print("ready", flush=True)
    max(itertools.repeat(0, 1 << 60))
class Outer:
    def method(self, _):
        inner()
        return 0
[0].sort(key=Outer().method)
"""


class Kernel:
    """The BPF programs, loaded and sampling."""

    def __init__(self) -> None:
        self.programs = StackPrograms.load(499, sizes=SIZES)
        self.tables = UnwindTables(self.programs)
        self.programs.start(499)

    def walks(self, kit: ModuleType, pid: int, count: int) -> list[Any]:
        """Records of a process as walks."""
        mappings = read_maps(pid)
        self.tables.publish(pid, mappings, find_python(pid, mappings))
        self.programs.read()
        found: list[Any] = []
        deadline = time.monotonic() + 10
        while len(found) < count and time.monotonic() < deadline:
            time.sleep(0.02)
            batch = self.programs.read()
            indices = np.flatnonzero(batch.pid == pid).tolist()
            found += [kit.Walk.of_record(batch, index) for index in indices]
        return found


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    try:
        kernel = Kernel()
    except GpuprofError as error:
        pytest.skip(f"no eBPF here: {error}")
    yield kernel
    kernel.programs.close()


@pytest.mark.parametrize("what", ["chain", "signal", "thread", "deep", "python"])
def test_the_kernel_sees_what_gdb_sees(
    what: str, ours: Ours, kernel: Kernel, start: Callable[..., int], tmp_path: Path
) -> None:
    """All but the innermost frames of these stand still; the kernel's samples, gdb and the user-space build
    of the unwinder agree on them.
    """
    if what == "python":
        pid = start(sys.executable, "-c", SPINS_IN_C)
    else:
        program = str(tmp_path / "planted")
        flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]
        subprocess.run(["gcc", *flags, "-o", program, str(HERE / "planted.c")], check=True)
        pid = start(program, what, "100")
    time.sleep(0.05)
    samples = kernel.walks(ours.kit, pid, 20)
    assert len(samples) >= 20
    ours.publish(pid)
    gdb = Gdb(pid)
    try:
        stop = gdb.run_for(0.01)
        found = ours.walk(pid, stop)
    finally:
        gdb.close()
    moving = 8 if what == "python" else 1  # innermost frames that come and go
    gdb_sees = list(zip(stop.counters, stop.stack_pointers, strict=True))
    assert list(zip(found.counters, found.stack_pointers, strict=True)) == gdb_sees
    assert len(gdb_sees) > (100 if what == "deep" else 20 if what == "python" else 5)
    gdb_sees = gdb_sees[moving:]
    for sample in samples:
        frames = list(zip(sample.counters, sample.stack_pointers, strict=True))
        assert frames[-len(gdb_sees) :] == gdb_sees
        assert len(frames) - len(gdb_sees) <= 2 * moving
        assert [word for word, _ in sample.python] == [word for word, _ in found.python]
