"""The profilers of the comparison bench: how each is started and stopped, and what its stacks say."""

from __future__ import annotations

import abc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO

from gpuprof.bpf import headers

HERE = Path(__file__).resolve().parent
HZ = 99
# Outermost functions of a whole native stack.
ROOTS = {"_start", "clone", "clone3", "__clone3", "thread_start"}  # outermost frames of whole native stacks
PYTHON_FILE = re.compile(r"\.py[:)]|<frozen |<string>")


BCC_HEADERS = {
    "include/linux/sched.h": "#define TASK_COMM_LEN 16\n#define PAGE_OFFSET 0xffff888000000000ul\n",
    "include/uapi/linux/bpf_perf_event.h": (
        "struct bpf_perf_event_data { struct { u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx,"
        " rdx, rsi, rdi, orig_rax, ip, cs, flags, sp, ss; } regs; u64 sample_period, addr; };\n"
    ),
}


@dataclass(frozen=True)
class Stacks:
    """What a profiler found: samples, those that reach the root of their thread, those with Python names."""

    samples: int
    complete: int
    named: int

    def __add__(self, other: Stacks) -> Stacks:
        return Stacks(self.samples + other.samples, self.complete + other.complete, self.named + other.named)


def count(stacks: Iterator[tuple[list[str], int]], *, python_only: bool = False) -> Stacks:
    """Sum up (frames root first, samples); `python_only`: complete means that the Python part is."""
    total = Stacks(0, 0, 0)
    for frames, weight in stacks:
        named = any(PYTHON_FILE.search(frame) for frame in frames)
        outermost = frames[0].split("+")[0].split(" (")[0] if frames else ""
        whole = outermost in ROOTS
        if python_only:  # the native frames outside of the outermost Python frame are left out
            whole |= any(frame.startswith("<module>") for frame in frames[:4])
        total += Stacks(weight, weight * whole, weight * named)
    return total


def folded(text: str) -> Iterator[tuple[list[str], int]]:
    """Lines "frame;frame;frame count", root first."""
    for line in text.splitlines():
        stack, _, weight = line.rpartition(" ")
        if stack and weight.isdigit():
            yield stack.split(";"), int(weight)


class Profiler(abc.ABC):
    """One profiler: start() returns when it samples. `processes` are those whose cost counts."""

    name = ""
    warm_up_s = 1.0
    stop_s = 120.0  # until it has written what it knows

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._output: IO[bytes] | None = None

    def missing(self) -> str | None:
        """Why it cannot run here."""
        return None

    @abc.abstractmethod
    def command(self, pids: list[int]) -> list[list[str]]:
        """One command, or one for each process."""

    @abc.abstractmethod
    def stacks(self, pids: list[int]) -> Stacks:
        """From what it has written."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self, pids: list[int]) -> None:
        self._output = (self.folder / "output").open("wb")
        environment = self.environment()
        for line in self.command(pids):
            worker = subprocess.Popen(
                line, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=self._output,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self.workers.append(worker)
        time.sleep(self.warm_up_s)
        for worker in self.workers:
            if worker.poll() is not None:
                raise RuntimeError(f"{self.name} ended with status {worker.returncode}")

    def processes(self) -> list[int]:
        return [worker.pid for worker in self.workers]

    def interrupt(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGINT)

    def finish(self) -> None:
        if self._output is not None:
            self._output.close()

    def kill(self) -> None:
        for worker in self.workers:
            if worker.returncode is None:
                worker.kill()
                worker.wait()

    def text(self) -> str:
        return (self.folder / "output").read_text(errors="replace")


def needs(program: str, package: str) -> str | None:
    return None if shutil.which(program) else f"{program} is not installed ({package})"


class PySpy(Profiler):
    """py-spy record, one for each process."""

    name = "py-spy"
    native = False

    @staticmethod
    def path() -> str | None:
        return os.environ.get("GPUPROF_PY_SPY") or shutil.which("py-spy")

    def missing(self) -> str | None:
        return (
            None if self.path() else "py-spy is not installed (pip install py-spy; GPUPROF_PY_SPY names it)"
        )

    def command(self, pids: list[int]) -> list[list[str]]:
        options = ["-r", str(HZ + 1), "-f", "raw", *(["--native"] if self.native else [])]
        return [
            [self.path() or "", "record", *options, "-o", str(self.folder / f"raw.{pid}"), "-p", str(pid)]
            for pid in pids
        ]

    def stacks(self, pids: list[int]) -> Stacks:
        total = Stacks(0, 0, 0)
        for pid in pids:
            path = self.folder / f"raw.{pid}"
            if path.exists():
                total += count(folded(path.read_text(errors="replace")), python_only=True)
        return total


class PySpyNative(PySpy):
    """py-spy record --native."""

    name = "py-spy --native"
    native = True


class PerfFp(Profiler):
    """perf record with frame pointers, then perf script."""

    name = "perf fp"
    graph = "fp"

    def missing(self) -> str | None:
        return needs("perf", "apt install linux-perf")

    def command(self, pids: list[int]) -> list[list[str]]:
        processes = ",".join(map(str, pids))
        options = ["-e", "cpu-clock", "-F", str(HZ), "--call-graph", self.graph, "-o", "perf.data"]
        return [["perf", "record", *options, "-p", processes]]

    def interrupt(self) -> None:
        super().interrupt()
        for worker in self.workers:
            wait_for(worker, self.stop_s)
        script = subprocess.Popen(
            ["perf", "script", "-i", "perf.data", "-F", "ip,sym"], cwd=self.folder, stdout=self._output,
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.workers.append(script)

    def stacks(self, pids: list[int]) -> Stacks:
        return count(self._samples())

    def _samples(self) -> Iterator[tuple[list[str], int]]:
        for block in self.text().split("\n\n"):
            frames = [
                line.split(maxsplit=1)[1] for line in block.splitlines() if len(line.split(maxsplit=1)) == 2
            ]
            if block.strip():
                yield frames[::-1], 1


class PerfDwarf(PerfFp):
    """perf record with copies of the stack, unwound by perf script."""

    name = "perf dwarf"
    graph = "dwarf"


class BccProfile(Profiler):
    """bcc's profile."""

    name = "bcc profile"
    warm_up_s = 3.0

    @staticmethod
    def path() -> str | None:
        return shutil.which("profile-bpfcc") or shutil.which("/usr/share/bcc/tools/profile")

    def missing(self) -> str | None:
        return None if self.path() else "bcc's profile is not installed (apt install bpfcc-tools)"

    def command(self, pids: list[int]) -> list[list[str]]:
        processes = ",".join(map(str, pids))
        return [[self.path() or "", "-F", str(HZ), "-f", "--stack-storage-size", "65536", "-p", processes]]

    def environment(self) -> dict[str, str]:
        """With this project's header tree and what else the tool asks of kernel headers, which few have
        installed.
        """
        tree = headers.write_tree(str(self.folder))
        for name, text in BCC_HEADERS.items():
            (tree / name).write_text(text)
        return {**os.environ, "BCC_KERNEL_SOURCE": str(tree)}

    def stacks(self, pids: list[int]) -> Stacks:
        return count(
            (frames[1:], weight) for frames, weight in folded(self.text())
        )  # the first one is the comm


class Bpftrace(Profiler):
    """bpftrace counting user stacks."""

    name = "bpftrace"
    warm_up_s = 3.0

    def missing(self) -> str | None:
        return needs("bpftrace", "apt install bpftrace")

    def command(self, pids: list[int]) -> list[list[str]]:
        wanted = " || ".join(f"pid == {pid}" for pid in pids)
        return [["bpftrace", "-e", f"profile:hz:{HZ} /{wanted}/ {{ @[ustack(perf, 127)] = count(); }}"]]

    def stacks(self, pids: list[int]) -> Stacks:
        return count(self._samples())

    def _samples(self) -> Iterator[tuple[list[str], int]]:
        for stack, weight in re.findall(r"@\[\n?(.*?)\]: (\d+)", self.text(), re.DOTALL):
            lines = [line.split(maxsplit=1) for line in stack.splitlines() if line.strip()]
            yield [line[-1] for line in lines][::-1], int(weight)


def wait_for(worker: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        worker.wait(seconds)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def sampler_bench() -> ModuleType:
    """The client of the sampler bench."""
    spec = importlib.util.spec_from_file_location("sampler_bench", HERE / "sampler_bench.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Ours(Profiler):
    """gpuprof's sampler, as the service runs it."""

    name = "gpuprof"

    def command(self, pids: list[int]) -> list[list[str]]:
        return [[sys.executable, "-m", "gpuprof.sampler", "--socket", str(self.folder / "sampler.sock")]]

    def start(self, pids: list[int]) -> None:
        self._pids = pids
        self.warm_up_s = 0.0
        super().start(pids)
        self._client = sampler_bench().Client(str(self.folder / "sampler.sock"))
        began = time.monotonic()
        while not any(
            source.name == "cpu" and source.state == "ok" for source in self._client.status().sources
        ):
            if time.monotonic() - began > 60:
                raise RuntimeError("the CPU source did not start")
        time.sleep(2)
        self._begin_ns = time.monotonic_ns()

    def interrupt(self) -> None:
        self._end_ns = time.monotonic_ns()
        time.sleep(0.5)  # what was sampled by then is in the history
        self._result = self._ask()
        super().interrupt()

    def _ask(self) -> Stacks:
        from gpuprof.snapshots.frames import FrameKind, Query

        query = Query(
            1, "cpu", self._begin_ns, self._end_ns, pids=self._pids, min_fraction=0.0, max_nodes=1 << 20
        )
        tree = self._client.tree(query)
        total = int(tree.total_weight[0])
        named = [False] * len(tree.parent)
        weight = 0
        for node, parent in enumerate(tree.parent.tolist()):
            own = int(tree.kind[node]) == FrameKind.PYTHON
            named[node] = own or (node > 0 and named[parent])
            weight += int(tree.self_weight[node]) * named[node]
        return Stacks(total, total - int(tree.truncated), weight)

    def stacks(self, pids: list[int]) -> Stacks:
        return self._result


ALL: list[type[Profiler]] = [Ours, PySpy, PySpyNative, PerfFp, PerfDwarf, BccProfile, Bpftrace]
