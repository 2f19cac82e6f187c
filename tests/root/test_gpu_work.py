"""GPU work end to end, with real eBPF and a library that plays the injection library: launches in known
numbers from known call paths, and processes that end in the middle.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mock_kit import NATIVE, TIMEOUT_S, load_kit, wait_until

from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler import gpu_discovery
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.sampler.gpu_work import GpuWork
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import FrameKind, Hello, Query
from gpuprof.snapshots.history import History

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

WORKLOADS = Path(__file__).parent / "workloads"
INJECT = Path(__file__).parents[2] / "bpf" / "inject"
FLAGS = ["-O2", "-std=gnu11", "-fomit-frame-pointer"]
RING_NAME = f"gpuprof-test-{os.getpid()}"  # another sampler of this machine shall not find it first
NOP_FLAGS = [
    "-fcf-protection=none", "-mno-red-zone", "-fvisibility=hidden", f'-DRING_NAME="{RING_NAME}"',
]  # fmt: skip
GPU = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
ADD_KERNEL = "at::native::vectorized_elementwise_kernel"  # template arguments are cut off below
FORWARD_GEMM, BACKWARD_ADD, COPIES = 1009, 503, 101  # as fake_gpu launches them


@dataclass
class Sampler:
    """Both sources on one history, and the processes that NVML would list."""

    history: History
    stacks: CpuStacks
    programs: StackPrograms
    work: GpuWork | None = None
    pids: set[int] = field(default_factory=set)

    def listen(self) -> None:
        self.work = GpuWork(self.history, lambda: {GPU: set(self.pids)}, lambda: self.stacks)
        self.work.start()

    def stop_listening(self) -> None:
        if self.work is not None:
            self.work.stop()
        self.work = None

    def know(self, pid: int) -> None:
        """Have the tables of a process that has loaded CUPTI ready before its next launch: the walk of one
        that comes before them guesses its way across CUPTI, and may be cut.
        """
        self.stacks.follow(pid)
        wait_until(lambda: self.stacks.follows(pid))

    def rows(self, pid: int) -> int:
        return len(self.paths(pid))

    def paths(self, pid: int) -> list[tuple[tuple[str, FrameKind], ...]]:
        """Of each row of GPU work of a process: (name, kind) from the outermost frame to the kernel."""
        found = []
        with self.history.lock:
            blocks = self.history.gpu_work_between(0, 1 << 62)
        for view, rows in blocks:
            for thread, stack in zip(
                rows.columns["thread"].tolist(), rows.columns["stack"].tolist(), strict=True
            ):
                if view.processes[view.threads[thread].process].pid != pid:
                    continue
                path, node = [], stack
                while node:
                    function = int(view.frame_function[view.frame[node]])
                    path.append((view.strings[view.name[function]], FrameKind(int(view.kind[function]))))
                    node = int(view.parent[node])
                found.append(tuple(reversed(path)))
        return found

    def wait_for_rows(self, pid: int, count: int) -> None:
        wait_until(lambda: self.rows(pid) >= count)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with fake_gpu and its libgpuprof_inject.so."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("fake")
    library = folder / "libgpuprof_inject.so"
    sources = [WORKLOADS / "fake_inject.c", INJECT / "ring.c"]
    subprocess.run(
        ["gcc", *FLAGS, *NOP_FLAGS, "-fPIC", "-shared", f"-I{INJECT}", "-o", library, *sources], check=True
    )
    link = [f"-L{folder}", "-lgpuprof_inject", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(["gcc", *FLAGS, "-o", folder / "fake_gpu", WORKLOADS / "fake_gpu.c", *link], check=True)
    return folder


@pytest.fixture(scope="module")
def loaded() -> Iterator[Sampler]:
    try:
        programs = StackPrograms.load(99)
    except GpuprofError as error:
        pytest.skip(f"no eBPF here: {error}")
    hello = Hello(1, "t", "", "", 2, time.monotonic_ns(), time.time_ns(), "", os.getpid(), 99, 0, True)
    history = History(hello)
    stacks = CpuStacks(history, programs, 99)
    stacks.start()
    yield Sampler(history, stacks, programs)
    stacks.stop()


@pytest.fixture
def sampler(loaded: Sampler, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sampler]:
    monkeypatch.setattr(gpu_discovery, "NAME", f"/memfd:{RING_NAME}")
    loaded.pids.clear()
    loaded.listen()
    yield loaded
    loaded.stop_listening()


@pytest.fixture
def start(fake: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    running = []

    def begin(*arguments: str, program: str = str(fake / "fake_gpu")) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def test_every_launch_is_under_its_path(
    sampler: Sampler, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = start("primes")
    sampler.pids.add(process.pid)
    assert line_of(process) == b"done\n"
    sampler.wait_for_rows(process.pid, FORWARD_GEMM + BACKWARD_ADD + COPIES)
    paths = sampler.paths(process.pid)
    counts: dict[tuple[str, str], int] = {}
    for path in paths:
        names = [name for name, _ in path]
        assert names[0] == "_start"
        assert names[-4:-2] == [
            "main",
            "train_step",
        ]  # nothing of the library between the caller and the kernel
        ending = (names[-2], names[-1].partition("<")[0])
        counts[ending] = counts.get(ending, 0) + 1
    assert counts == {
        ("forward", "gemm_nn"): FORWARD_GEMM,
        ("backward", ADD_KERNEL): BACKWARD_ADD,
        ("forward", "memcpy HtoD"): COPIES,
    }
    assert {path[-1][1] for path in paths} == {FrameKind.GPU_KERNEL, FrameKind.GPU_COPY}
    query = Query(1, "gpu", *sampler.history.span, pids=[process.pid], min_fraction=0.0)
    total = FORWARD_GEMM * 1000 + BACKWARD_ADD * 2000 + COPIES * 1000
    assert sampler.history.query(query).total_weight[0] == total


def test_the_status_counts(sampler: Sampler, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start("primes")
    sampler.pids.add(process.pid)
    assert line_of(process) == b"done\n"
    assert sampler.work is not None
    work = sampler.work
    wait_until(lambda: work.status().samples == FORWARD_GEMM + BACKWARD_ADD + COPIES)
    wait_until(lambda: work.status().state == "ok")
    status = work.status()
    assert (status.lost, status.invalid, status.early, status.unmatched) == (0, 0, 0, 0)
    assert status.reason == "GPU times are placed within 70 ns"
    sampler.pids.add(os.getpid())
    wait_until(lambda: work.status().state == "degraded")
    assert f"not recording: pid {os.getpid()}" in work.status().reason


def test_a_process_that_exits_at_once(
    sampler: Sampler, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Its records are in the ring when it is gone, and its launches were seen."""
    process = start("exit")
    sampler.pids.add(process.pid)
    assert process.wait(TIMEOUT_S) == 0
    sampler.wait_for_rows(process.pid, FORWARD_GEMM + BACKWARD_ADD + COPIES)
    assert {path[-3][0] for path in sampler.paths(process.pid)} == {"train_step"}
    assert sampler.work is not None
    wait_until(lambda: not sampler.work._sessions)  # type: ignore[union-attr]


def test_killed_in_the_middle(sampler: Sampler, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start("forever")
    sampler.pids.add(process.pid)
    assert line_of(process) == b"done\n"
    sampler.wait_for_rows(process.pid, 1000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    sampler.pids.clear()
    work = sampler.work
    assert work is not None
    wait_until(lambda: not work._sessions)
    wait_until(lambda: work.status().reason == "the processes that recorded have ended")
    assert work.status().invalid == 0


def test_a_fork_is_not_its_parent(sampler: Sampler, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start("fork")
    sampler.pids.add(process.pid)
    assert line_of(process) == b"done\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    sampler.pids.update(map(int, children))  # it holds the same ring
    sampler.wait_for_rows(process.pid, 24)
    assert sampler.work is not None
    time.sleep(1.2)  # a look in which the child is a candidate
    assert [session.pid for session in sampler.work._sessions] == [process.pid]
    assert sampler.rows(process.pid) == 24
    assert all(sampler.rows(int(child)) == 0 for child in children)


def test_the_lock_goes_with_the_sampler(
    sampler: Sampler, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = start("release")
    sampler.pids.add(process.pid)
    assert line_of(process) == b"done\n"
    sampler.stop_listening()
    assert line_of(process) == b"released\n"


def test_python_frames(
    sampler: Sampler, fake: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import ctypes, sys, time\n"
        f"fake = ctypes.CDLL({str(fake / 'libgpuprof_inject.so')!r})\n"
        "assert fake.fake_start() == 0\n"
        "print('ready', flush=True)\n"
        "while not fake.fake_has_listener(): time.sleep(0.01)\n"
        "fake.fake_attach()\n"
        "launch = fake.fake_launch_api\n"
        "launch.argtypes = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int\n"
        "def forward(): launch(1, 1000, 1)\n"
        "def backward(): launch(2, 2000, 1)\n"
        "def step(n, m):\n"
        "    for _ in range(n): forward()\n"
        "    for _ in range(m): backward()\n"
        "step(97, 53)\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = start(str(script), program=sys.executable)
    sampler.pids.add(process.pid)
    assert line_of(process) == b"done\n"
    sampler.wait_for_rows(process.pid, 97 + 53)
    counts: dict[tuple[str, ...], int] = {}
    for path in sampler.paths(process.pid):
        names = [name for name, kind in path if kind in {FrameKind.PYTHON, FrameKind.GPU_KERNEL}]
        names[-1] = names[-1].partition("<")[0]
        counts[tuple(names)] = counts.get(tuple(names), 0) + 1
        assert not any(kind == FrameKind.UNKNOWN for _, kind in path)
        assert "fake_launch_api" not in dict(path)
    assert counts == {
        ("<module>", "step", "forward", "gemm_nn"): 97,
        ("<module>", "step", "backward", ADD_KERNEL): 53,
    }


def test_a_probe_without_the_nop_is_refused(
    sampler: Sampler, fake: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """GPU time is still exact; the launch stacks are missing, and the status says why."""
    source = tmp_path / "fake_inject.c"
    source.write_text(
        (WORKLOADS / "fake_inject.c").read_text().replace("0x0f, 0x1f, 0x44, 0x00, 0x00", "0x90")
    )
    library = tmp_path / "libgpuprof_inject.so"
    subprocess.run(
        [
            "gcc",
            *FLAGS,
            *NOP_FLAGS,
            "-fPIC",
            "-shared",
            f"-I{INJECT}",
            "-o",
            library,
            source,
            INJECT / "ring.c",
        ],
        check=True,
    )
    program = tmp_path / "fake_gpu"
    shutil.copy(fake / "fake_gpu", program)
    process = start("primes", program=str(program))
    sampler.pids.add(process.pid)
    assert line_of(process) == b"done\n"
    sampler.wait_for_rows(process.pid, FORWARD_GEMM + BACKWARD_ADD + COPIES)
    assert {path[0][0] for path in sampler.paths(process.pid)} == {"[launch not seen]"}
    assert sampler.work is not None
    work = sampler.work
    wait_until(lambda: "does not begin with a 5-byte nop" in work.status().reason)
    wait_until(lambda: work.status().unmatched == FORWARD_GEMM + BACKWARD_ADD + COPIES)


def test_a_burst_of_launches_costs_no_cpu_samples(
    sampler: Sampler, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    before = sampler.programs.counters()["ring_full"]
    process = start("forever")
    sampler.pids.add(process.pid)
    assert line_of(process) == b"done\n"
    time.sleep(1.5)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    assert sampler.programs.counters()["ring_full"] == before


@pytest.fixture
def mocked(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A CUDA program on the mock driver, and the environment that has it load the real injection library."""
    built = load_kit().build(tmp_path, ring_name=RING_NAME)
    program = tmp_path / "mock_train"
    driver = tmp_path / "libcuda.so.1"
    link = [str(driver), "-Wl,-rpath,$ORIGIN"]
    subprocess.run(
        ["gcc", *FLAGS, f"-I{NATIVE}", "-o", program, WORKLOADS / "mock_train.c", *link], check=True
    )
    environ = {**os.environ, "GPUPROF_CUPTI": str(built.cupti), "CUDA_INJECTION64_PATH": str(built.library)}
    return program, environ


def test_the_real_library_on_a_mocked_cupti(sampler: Sampler, mocked: tuple[Path, dict[str, str]]) -> None:
    """From the lock to the tree: attach, callbacks, probe, records, join."""
    program, environ = mocked
    _, truncated = sampler.stacks.launch_losses()  # of the tests before
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
    try:
        assert line_of(process) == b"ready\n"
        assert sampler.work is not None
        work = sampler.work  # nobody lists the process: it is found in turn
        wait_until(lambda: any(s.pid == process.pid and s.recording for s in work._sessions))
        sampler.know(process.pid)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert line_of(process) == b"done\n"
        sampler.wait_for_rows(process.pid, 211 + 103 + 47)
        counts: dict[tuple[str, ...], int] = {}
        for path in sampler.paths(process.pid):
            names = tuple(name.partition("<")[0] for name, _ in path)
            ending = names[names.index("main") :]
            counts[ending] = counts.get(ending, 0) + 1
        assert counts == {
            ("main", "forward", "cuLaunchKernel", "gemm_nn"): 211,
            ("main", "backward", "cuLaunchKernel", "gemm_nn"): 103,
            ("main", "forward", "cuLaunchKernel", "add_bias"): 47,
        }
        wait_until(lambda: work.status().samples == 211 + 103 + 47)
        status = work.status()
        assert (status.lost, status.invalid, status.unmatched, status.truncated) == (0, 0, 0, truncated)
    finally:
        process.kill()
        process.communicate()


def test_a_short_program_is_recorded_from_its_first_launch_to_its_last(
    sampler: Sampler, mocked: tuple[Path, dict[str, str]]
) -> None:
    """It launches as soon as it can and ends right after, as under `record -- CMD`: cuInit has waited."""
    program, environ = mocked
    environ = environ | {"GPUPROF_EXPECT_LISTENER": "1"}
    assert sampler.work is not None
    for _ in range(3):
        done = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
        output, _ = done.communicate(b"\n\n", timeout=30)
        assert output == b"ready\ndone\n"
        sampler.wait_for_rows(done.pid, 211 + 103 + 47)
        ends = {(path[-3][0], path[-1][0]) for path in sampler.paths(done.pid)}
        assert ends == {
            ("forward", "gemm_nn<float>"),
            ("backward", "gemm_nn<float>"),
            ("forward", "add_bias"),
        }
    status = sampler.work.status()
    assert (status.lost, status.invalid, status.unmatched) == (0, 0, 0)


def test_under_a_budget_paths_keep_their_shares(
    sampler: Sampler, mocked: tuple[Path, dict[str, str]]
) -> None:
    """A sample of launches has a stack, the waits have theirs, and the weights make up for the rest."""
    program, environ = mocked
    sampler.stop_listening()
    sampler.work = GpuWork(sampler.history, lambda: None, lambda: sampler.stacks, budget_ppm=40_000)
    sampler.work.start()
    process = subprocess.Popen(
        [program, "rounds"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    )
    try:
        assert line_of(process) == b"ready\n"
        sampler.pids.add(process.pid)
        work = sampler.work
        wait_until(lambda: any(s.pid == process.pid and s.recording for s in work._sessions))
        sampler.know(process.pid)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_until(lambda: "stacks of" in work.status().reason)
        time.sleep(3)
        process.kill()
        wait_until(lambda: not work._sessions)
        assert "--gpu-overhead 4%" not in work.status().reason
        totals = {"path_2": 0.0, "path_5": 0.0, "path_11": 0.0}
        squares, left_out, rows_seen = dict(totals), 0, 0
        for view, rows in sampler.history.gpu_work_between(0, 1 << 62):
            columns = (rows.columns[name].tolist() for name in ("thread", "stack", "weight"))
            for thread, stack, weight in zip(*columns, strict=True):
                if view.processes[view.threads[thread].process].pid != process.pid:
                    continue
                names = path_names(view, stack)
                rows_seen += 1
                if weight == 0:
                    assert names == ["[stack not taken]", "gemm_nn<float>"]
                    left_out += 1
                    continue
                assert names[-2] == "cuLaunchKernel"
                totals[names[-3]] += weight
                squares[names[-3]] += weight * (weight - 1)
        assert left_out > 0
        for path, share in (("path_2", 2), ("path_5", 5), ("path_11", 11)):
            assert abs(totals[path] - rows_seen * share / 18) < 5 * squares[path] ** 0.5 + 20
        waits = [
            (view, stack, weight)
            for view, rows in sampler.history.waits_between(0, 1 << 62)
            for stack, thread, weight in zip(
                *(rows.columns[name].tolist() for name in ("stack", "thread", "weight")), strict=True
            )
            if view.processes[view.threads[thread].process].pid == process.pid
        ]
        assert len(waits) > 100
        for view, stack, weight in waits:
            assert path_names(view, stack)[-3:] == [
                "wait_for_all",
                "cuStreamSynchronize",
                "cuStreamSynchronize (stream 7)",
            ]
            assert weight >= 1
    finally:
        process.kill()
        process.communicate()


def path_names(view: Any, stack: int) -> list[str]:
    names = []
    while stack:
        names.append(view.strings[int(view.name[int(view.frame_function[int(view.frame[stack])])])])
        stack = int(view.parent[stack])
    return names[::-1]
