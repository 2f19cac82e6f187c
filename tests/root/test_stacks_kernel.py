"""The BPF programs in the kernel, on processes whose stacks are known."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuprof.bpf.inventory import FAMILIES
from gpuprof.bpf.messages import Message
from gpuprof.bpf.programs import StackPrograms, TableSizes
from gpuprof.bpf.records import Batch, MessageReason, RecordFlag, StopReason
from gpuprof.sampler.maps import read_maps
from gpuprof.sampler.python_runtime import find_python
from gpuprof.sampler.unwind_tables import UnwindTables
from gpuprof.snapshots.errors import EXIT_NO_PERMISSION

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

HERE = Path(__file__).parent
HZ = 499
PC = np.uint64((1 << 47) - 1)


class Kernel:
    """Loaded programs, their tables, and everything that was read since the last collect()."""

    def __init__(self) -> None:
        self.programs = StackPrograms.load(HZ, sizes=TableSizes(row_blocks=1 << 17))
        self.tables = UnwindTables(self.programs)
        self.programs.start(HZ)

    def publish(self, pid: int) -> None:
        mappings = read_maps(pid)
        self.tables.publish(pid, mappings, find_python(pid, mappings))

    def drain(self) -> None:
        self.programs.read()
        self.programs.messages()

    def collect(self, pid: int, count: int = 60) -> tuple[Batch, list[int], list[Message]]:
        """Read until `count` records of a process came; (last batch's records of it are named by index)."""
        batches, messages = [], []
        deadline = time.monotonic() + 60
        got = 0
        while got < count and time.monotonic() < deadline:
            time.sleep(0.05)
            batch = self.programs.read()
            messages += self.programs.messages()
            got += int((batch.pid == pid).sum())
            batches.append(batch)
        merged = join(batches)
        return merged, np.flatnonzero(merged.pid == pid).tolist(), messages


def join(batches: list[Batch]) -> Batch:
    shift, firsts = 0, []
    for batch in batches:
        firsts.append(batch.first + shift)
        shift += len(batch.words)
    columns = {
        name: np.concatenate([getattr(batch, name) for batch in batches])
        for name in Batch.__dataclass_fields__
        if name != "first"
    }
    return Batch(first=np.concatenate(firsts), **columns)


def user_part(batch: Batch, index: int) -> tuple[list[int], list[int]]:
    """(program counters to look up, stack pointers) of a record, innermost first."""
    start = int(batch.first[index]) + int(batch.n_kernel[index])
    words = batch.words[start : start + int(batch.n_user[index])]
    counters = (words & PC).astype(np.int64)
    counters[1:] -= 1
    deltas = (words >> np.uint64(48)).astype(np.int64) * 8
    return counters.tolist(), (np.cumsum(deltas) + int(batch.sp0[index])).tolist()


def python_part(batch: Batch, index: int) -> list[tuple[int, int, int]]:
    """(address, owner, first line) of the Python frames, innermost first."""
    start = int(batch.first[index]) + int(batch.n_kernel[index]) + int(batch.n_user[index])
    words = batch.words[start : start + 2 * int(batch.n_python[index])].tolist()
    return [(w0 & (1 << 48) - 1, w0 >> 56, w1 >> 32) for w0, w1 in zip(words[::2], words[1::2], strict=True)]


def stops(batch: Batch, indices: list[int]) -> set[str]:
    return {StopReason(int(batch.stop[i])).name for i in indices}


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.programs.close()


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = str(tmp_path_factory.mktemp("planted") / "planted")
    flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread", "-Wl,-z,noexecstack"]
    subprocess.run([compiler, *flags, "-o", path, str(HERE / "planted.c")], check=True)
    return path


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    running = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def functions_of(path: str) -> list[tuple[int, int, str]]:
    """(start, end, name) of the functions of a program, by nm."""
    text = subprocess.run(
        ["nm", "-S", "--defined-only", path], capture_output=True, text=True, check=True
    ).stdout
    rows = [re.match(r"([0-9a-f]+) ([0-9a-f]+) [tT] (\w+)$", line) for line in text.splitlines()]
    return [(int(m[1], 16), int(m[1], 16) + int(m[2], 16), m[3]) for m in rows if m]


def names(path: str, pid: int, counters: list[int]) -> list[str]:
    """Names of the program's own functions in a stack; `?` for other code."""
    functions = functions_of(path)
    base = min(
        int(line.split("-")[0], 16)
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if line.endswith(path)
    )
    found = []
    for counter in counters:
        name = next((name for low, high, name in functions if low <= counter - base < high), "?")
        found.append(name)
    return found


Start = Callable[..., "subprocess.Popen[bytes]"]


def test_native_chain_without_frame_pointers(kernel: Kernel, planted: str, start: Start) -> None:
    process = start(planted, "chain")
    kernel.publish(process.pid)
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid)
    assert stops(batch, indices) == {"ROOT"}
    for index in indices:
        counters, stack_pointers = user_part(batch, index)
        assert names(planted, process.pid, counters)[:6] == [
            "burn",
            "big_frame",
            "three",
            "two",
            "one",
            "main",
        ]
        assert names(planted, process.pid, counters)[-1] == "_start"
        assert stack_pointers[2] - stack_pointers[1] > 3000  # the frame of big_frame
        assert all(a < b for a, b in itertools.pairwise(stack_pointers))
        assert batch.comm[index] == b"planted"
        assert int(batch.flags[index]) == 0


def test_start_time_is_that_of_proc(kernel: Kernel, planted: str, start: Start) -> None:
    process = start(planted, "chain")
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid, 1)
    ticks = int(Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    assert int(batch.start_ns[indices[0]]) // (1_000_000_000 // os.sysconf("SC_CLK_TCK")) == ticks
    assert abs(int(batch.time_ns[indices[0]]) - time.monotonic_ns()) < 5_000_000_000


def test_thread_ends_at_its_root(kernel: Kernel, planted: str, start: Start) -> None:
    process = start(planted, "thread")
    kernel.publish(process.pid)
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid)
    assert stops(batch, indices) == {"ROOT"}
    thread = max(map(int, os.listdir(f"/proc/{process.pid}/task")))
    indices = [
        i for i in indices if int(batch.tid[i]) == thread
    ]  # the first thread may still be on its way to wait
    assert indices
    counters, _ = user_part(batch, indices[0])
    assert names(planted, process.pid, counters)[4:6] == ["one", "thread_main"]


@pytest.mark.parametrize(("depth", "stop"), [(100, "ROOT"), (400, "TOO_DEEP")])
def test_depth(kernel: Kernel, planted: str, start: Start, depth: int, stop: str) -> None:
    process = start(planted, "deep", str(depth))
    kernel.publish(process.pid)
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid)
    assert stops(batch, indices) == {stop}
    found = names(planted, process.pid, user_part(batch, indices[0])[0])
    assert found.count("deep") == (depth + 1 if stop == "ROOT" else 127)
    assert len(found) <= 128


def test_signal_frame(kernel: Kernel, planted: str, start: Start) -> None:
    process = start(planted, "signal")
    kernel.publish(process.pid)
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid)
    assert stops(batch, indices) == {"ROOT"}
    found = names(planted, process.pid, user_part(batch, indices[0])[0])
    assert found[:2] == ["burn", "on_signal"]
    assert found.index("signalled") < found.index("main")


def test_assembly_without_rules_is_scanned_and_marked(kernel: Kernel, planted: str, start: Start) -> None:
    process = start(planted, "assembly")
    kernel.publish(process.pid)
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid)
    assert stops(batch, indices) == {"ROOT"}
    found = names(planted, process.pid, user_part(batch, indices[0])[0])
    assert found[:3] == ["no_cfi", "calls_assembly", "main"]
    assert all(int(batch.flags[i]) & RecordFlag.SCANNED for i in indices)
    for index in indices:
        first = int(batch.first[index]) + int(batch.n_kernel[index])
        words = batch.words[first : first + int(batch.n_user[index])].tolist()
        assert [at for at, word in enumerate(words) if word >> 47 & 1] == [
            1
        ]  # calls_assembly was found by scanning


def test_generated_code_by_frame_pointer(kernel: Kernel, planted: str, start: Start) -> None:
    process = start(planted, "generated")
    deadline = time.monotonic() + 60
    while " rwxp " not in Path(f"/proc/{process.pid}/maps").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    kernel.publish(process.pid)
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid)
    assert stops(batch, indices) == {"ROOT"}
    found = names(planted, process.pid, user_part(batch, indices[0])[0])
    assert found[:3] == ["?", "calls_generated", "main"]
    assert all(int(batch.flags[i]) & RecordFlag.FRAME_POINTER for i in indices)


def test_a_forked_child_unwinds_at_once(kernel: Kernel, planted: str, start: Start) -> None:
    process = start(planted, "forks")
    kernel.publish(process.pid)
    kernel.drain()
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    deadline = time.monotonic() + 60
    child = 0
    while not child and time.monotonic() < deadline:
        for message in kernel.programs.messages():
            if message.reason == MessageReason.FORK and message.address == process.pid:
                child = message.pid
    assert kernel.tables.fork(child)
    batch, indices, messages = kernel.collect(child)
    assert stops(batch, indices) == {"ROOT"}
    assert not [m for m in messages if m.pid == child and m.reason == MessageReason.NEW_PROCESS]
    os.kill(child, 9)
    process.wait(60)
    reasons = {(m.pid, m.reason) for m in wait_for(kernel, lambda m: m.pid == process.pid)}
    assert (child, MessageReason.EXIT) in reasons
    assert (process.pid, MessageReason.EXIT) in reasons
    kernel.tables.forget(child)
    kernel.tables.forget(process.pid)


def wait_for(kernel: Kernel, wanted: Callable[[Message], bool]) -> list[Message]:
    """Messages up to the first that is wanted."""
    messages: list[Message] = []
    deadline = time.monotonic() + 60
    while not any(map(wanted, messages)) and time.monotonic() < deadline:
        select.select([kernel.programs.message_fd], [], [], 0.2)
        messages += kernel.programs.messages()
    return messages


def test_exec_needs_no_publishing(kernel: Kernel, planted: str, start: Start) -> None:
    process = start(planted, "exec")
    kernel.publish(process.pid)
    kernel.drain()
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    messages = wait_for(kernel, lambda m: m.pid == process.pid and m.reason == MessageReason.NEW_PROCESS)
    # Of the new program, also where the last sample of the old one came late; in between there is no stack.
    exec_ns = next(m.address for m in messages if m.pid == process.pid and m.reason == MessageReason.EXEC)
    batch, indices, _ = kernel.collect(process.pid)
    indices = [i for i in indices if int(batch.time_ns[i]) > exec_ns and batch.n_user[i]]
    assert len(indices) > 30
    assert stops(batch, indices) == {"ROOT"}
    assert all(int(batch.flags[i]) & RecordFlag.KERNEL_MAPPING for i in indices)
    found = names(planted, process.pid, user_part(batch, indices[-1])[0])  # the first ones are of the loader
    assert found[:6] == ["burn", "big_frame", "three", "two", "one", "main"]
    kernel.tables.forget(process.pid)
    kernel.publish(process.pid)
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid)
    assert stops(batch, indices) == {"ROOT"}
    assert not any(int(batch.flags[i]) & RecordFlag.KERNEL_MAPPING for i in indices)


PYTHON_CHAIN = """import sys

def inner():
    print("ready", flush=True)
    while True:
        sum(i * i for i in range(1000))

def middle():
    list(map(lambda _: inner(), [0]))

class Outer:
    def method(self):
        middle()

if len(sys.argv) > 1:
    import threading
    thread = threading.Thread(target=Outer().method)
    thread.start()
    thread.join()
else:
    Outer().method()
"""
CHAIN_LINES = [3, 9, 8, 12, 1]  # first lines of inner, the lambda, middle, method, and the module


def pythons() -> list[str]:
    found = [sys.executable, "/usr/bin/python3"]
    found += [str(path) for path in Path("/root/.pyenv/versions").glob("3.*/bin/python3")]
    kept: dict[str, str] = {}
    for path in found:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            code = "import sys; print(sys.version_info[:2])"
            out = subprocess.run([path, "-c", code], capture_output=True, text=True, check=True)
            version = tuple(map(int, re.findall(r"\d+", out.stdout)))
            if version >= (3, 9):
                kept.setdefault(out.stdout + str(path.startswith("/usr/bin")), path)
    return list(kept.values())


@pytest.mark.parametrize("python", pythons())
def test_python_chain(kernel: Kernel, start: Start, tmp_path: Path, python: str) -> None:
    script = tmp_path / "chain.py"
    script.write_text(PYTHON_CHAIN)
    process = start(python, str(script))
    kernel.publish(process.pid)
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid, 150)
    assert stops(batch, indices) == {"ROOT"}
    whole = 0
    for index in indices:
        lines = [line for address, owner, line in python_part(batch, index) if line and owner != 3]
        whole += lines[-5:] == CHAIN_LINES
    assert whole >= 0.98 * len(indices)  # a frame that is being set up may be read half done


def test_python_thread_of_its_own(kernel: Kernel, start: Start, tmp_path: Path) -> None:
    script = tmp_path / "chain.py"
    script.write_text(PYTHON_CHAIN)
    process = start(sys.executable, str(script), "thread")
    kernel.publish(process.pid)
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid, 150)
    whole = 0
    for index in indices:
        lines = [line for _, owner, line in python_part(batch, index) if line and owner != 3]
        position = lines.index(CHAIN_LINES[0]) if CHAIN_LINES[0] in lines else 0
        whole += lines[position : position + 4] == CHAIN_LINES[:4]
    assert whole >= 0.98 * len(indices)  # as in test_python_chain


def test_kernel_part(kernel: Kernel, start: Start) -> None:
    process = start(
        sys.executable,
        "-c",
        "print('ready', flush=True)\nf = open('/dev/zero', 'rb', 0)\nwhile 1: f.read(1 << 20)",
    )
    kernel.publish(process.pid)
    kernel.drain()
    batch, indices, _ = kernel.collect(process.pid)
    inside = [i for i in indices if batch.n_kernel[i]]
    assert len(inside) > len(indices) // 2
    for index in inside:
        start_word = int(batch.first[index])
        assert all(
            word >> 63 for word in batch.words[start_word : start_word + int(batch.n_kernel[index])].tolist()
        )
    assert stops(batch, inside) == {"ROOT"}


def test_costs_and_counters(kernel: Kernel) -> None:
    counters = kernel.programs.counters()
    assert counters["conflicts"] == 0
    assert counters["tail_call_failed"] == 0
    assert counters["messages_lost"] == 0
    before, runs = kernel.programs.run_ns(), kernel.programs.runs()
    assert before is not None
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        kernel.programs.read()
    after = kernel.programs.run_ns()
    assert after is not None
    mean = (after - before) / max(kernel.programs.runs() - runs, 1)
    assert 0 < mean < 100_000  # 100 us at 99 Hz would be 1 % of a CPU


def test_published_again_in_less_than_a_millisecond(kernel: Kernel, planted: str, start: Start) -> None:
    first = start(sys.executable, "-c", "import numpy, sqlite3, ssl\nprint('ready', flush=True)\ninput()")
    second = start(sys.executable, "-c", "import numpy, sqlite3, ssl\nprint('ready', flush=True)\ninput()")
    kernel.publish(first.pid)
    mappings = read_maps(second.pid)
    layout = find_python(second.pid, mappings)
    gc.disable()  # what all the tests before have left is not this one's to look through
    try:
        started = time.thread_time()  # which others on a busy machine do not add to
        kernel.tables.publish(second.pid, mappings, layout)
        took = time.thread_time() - started
    finally:
        gc.enable()
    assert took < 0.005


def test_verified_instructions_leave_room(kernel: Kernel) -> None:
    from gpuprof.bpf.syscalls import program_verified_instructions

    for family in FAMILIES:
        kernel.programs.need(family.name)
    counts = {name: program_verified_instructions(fd) for name, fd in kernel.programs.programs.items()}
    assert max(counts.values()) < 400_000, counts  # of a million


def test_no_capabilities() -> None:
    drop = shutil.which("setpriv")
    if drop is None:
        pytest.skip("no setpriv")
    code = (
        "from gpuprof.bpf.programs import StackPrograms\nfrom gpuprof.snapshots.errors import GpuprofError\n"
        "try:\n    StackPrograms.load()\nexcept GpuprofError as error:\n"
        "    print(error.exit_code, error.message)\n"
    )
    out = subprocess.run(
        [drop, "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout == f"{EXIT_NO_PERMISSION} no permission to load BPF programs\n"
    assert out.stderr == ""
