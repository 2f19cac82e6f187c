"""Builds the injection library, the mocks of libcuda and CUPTI and the harness, and drives them."""

from __future__ import annotations

import mmap
import os
import select
import shutil
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler import gpu_ring
from gpuprof.sampler.gpu_ring import GpuRing, RingFacts

HERE = Path(__file__).parent
INJECT = HERE.parents[1] / "bpf" / "inject"
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wstrict-prototypes")
RING_NAME = "gpuprof-mock"  # a sampler that runs on this machine shall not find the rings of tests
LIBRARY_FLAGS = ("-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-fcf-protection=none", "-mno-red-zone")

ROW = np.dtype(
    [
        ("correlation", "<u4"), ("epoch", "<u4"), ("enter_ns", "<u8"), ("weight", "<u4"), ("tid", "<u4"),
        ("path", "S1"), ("kernel", "S23"),
    ]
)  # fmt: skip
ANSWER_S = 30
PATIENCE_S = 30.0  # for what happens at once where the machine has time for it
SETTLE_NS = 20_000_000
COUNTER = struct.Struct("<40sq")
GRAPH_CALLS = 27  # of the driver API, that make, change or destroy graphs


@dataclass(frozen=True)
class Built:
    """Where everything lies that one set of flags made."""

    folder: Path
    library: Path
    cupti: Path
    harness: Path


_compiled: dict[tuple[str | bytes, ...], Path] = {}  # by flags and what the sources say: the file


def _gcc(target: Path, sources: Sequence[Path], *flags: str) -> None:
    """Compile `sources`, or copy what the same ones became before: most builds differ in one part alone."""
    made_of = (*flags, *(source.read_bytes() for source in sources))
    if made_of in _compiled:
        shutil.copy(_compiled[made_of], target)
        return
    command = ["gcc", *WARNINGS, "-g", "-pthread", "-o", str(target), *map(str, sources), *flags]
    subprocess.run(command, check=True, timeout=120)
    _compiled[made_of] = target


def build_library(target: Path, *flags: str) -> Path:
    """The injection library alone, as it is shipped unless `flags` say otherwise."""
    _gcc(target, sorted(INJECT.glob("*.c")), *LIBRARY_FLAGS, *flags)
    return target


def build(
    folder: Path,
    *,
    all_flags: Sequence[str] = (),
    library: Sequence[str] = (),
    cupti: Sequence[str] = (),
    harness: Sequence[str] = (),
    ring_name: str = RING_NAME,
    settle_ns: int = SETTLE_NS,
) -> Built:
    """Compile everything into `folder`; `library`, `cupti` and `harness` are further flags of these.

    `settle_ns`: how long the library waits for contexts to stay as they are, shorter than as shipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    built = Built(folder, folder / "libgpuprof_inject.so", folder / "libcupti_mock.so", folder / "harness")
    driver = folder / "libcuda.so.1"
    shared = ("-shared", "-fPIC", "-O1")
    mock = [HERE / f"mock_{part}.c" for part in ("cupti", "activity", "records", "shared", "script")]
    own = (f'-DRING_NAME="{ring_name}"', f"-DSETTLE_NS={settle_ns}ull", f"-DNONE_NS={4 * settle_ns}ull")
    build_library(built.library, *own, *library, *all_flags)
    _gcc(built.cupti, mock, *shared, "-Wl,-soname,libcupti_mock.so", *cupti, *all_flags)
    _gcc(driver, [HERE / "mock_cuda.c"], *shared, "-Wl,-soname,libcuda.so.1", *all_flags)
    parts = ("harness", "harness_other", "harness_graphs", "mock_nvtx")
    program = [*(HERE / f"{part}.c" for part in parts), driver]
    _gcc(built.harness, program, "-O1", "-rdynamic", "-Wl,-rpath,$ORIGIN", "-ldl", *harness, *all_flags)
    return built


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE_S, what: str = "it") -> Any:
    """The first true value of `condition`, asked every few milliseconds; AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        time.sleep(0.002)


class Program:
    """A running harness with the library injected."""

    def __init__(
        self, built: Built, folder: Path, *, inject: bool = True, script: str = "", **env: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.built = built
        self._counters, self._log, self._err = folder / "counters", folder / "log", folder / "stderr"
        ours = ("GPUPROF_INJECT_LOG", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
        environment = {
            **{key: value for key, value in os.environ.items() if key not in ours},
            "GPUPROF_CUPTI": str(built.cupti),
            "MOCK_CUPTI": script,
            "MOCK_CUPTI_COUNTERS": str(self._counters),
            "HARNESS_LOG": str(self._log),
            **env,
        }
        if inject:
            environment["CUDA_INJECTION64_PATH"] = environment["NVTX_INJECTION64_PATH"] = str(built.library)
        with self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [str(built.harness)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                env=environment,
            )
        self.pid = self.process.pid

    def tell(self, line: str) -> None:
        """Send a line that has no answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        """Send a line; what comes after the "ok" of its answer."""
        self.tell(line)
        return self.answer(line)

    def answer(self, line: str) -> str:
        """What comes after the "ok" of the answer to a line that was sent."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], ANSWER_S)[0], f"{line!r}: no answer"
        answer = self.process.stdout.readline().decode()
        assert answer.startswith("ok "), f"{line!r}: {answer!r}, stderr {self.errors!r}"
        return answer[3:].strip()

    def init(self) -> Program:
        """cuInit, which loads the library."""
        assert self.ask("init") == "0"
        return self

    def launch(
        self, count: int, name: str = "k", *, path: str = "a", how: str = "kernel", threads: int = 1
    ) -> None:
        """Each thread makes `count` calls."""
        self.ask(f"launch {threads} {path} {how} {name} {count}")

    @property
    def errors(self) -> bytes:
        """What was written to standard error."""
        return self._err.read_bytes()

    @property
    def counters(self) -> dict[str, int]:
        """The mock CUPTI's counters (mock_cupti.h); empty when nobody loaded it."""
        raw = self._counters.read_bytes() if self._counters.exists() else b""
        return {name.rstrip(b"\0").decode(): value for name, value in COUNTER.iter_unpack(raw)}

    @property
    def faults(self) -> dict[str, int]:
        """What the library did to CUPTI that it must not do."""
        return {name: value for name, value in self.counters.items() if name.startswith("fault_") and value}

    def probes(self) -> NDArray[Any]:
        """The calls of gpuprof_launch so far, as rows of ROW."""
        if not self._log.exists() or not self._log.stat().st_size:
            return np.empty(0, ROW)
        with self._log.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as log:
            count = min(int.from_bytes(log[:8], "little"), (len(log) - 48) // ROW.itemsize)
            return np.frombuffer(log[48 : 48 + count * ROW.itemsize], ROW)

    def threads(self) -> dict[str, list[int]]:
        """Thread ids by thread name."""
        found: dict[str, list[int]] = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(OSError):
                found.setdefault((task / "comm").read_text().strip(), []).append(int(task.name))
        return found

    def ring_fds(self) -> list[int]:
        """The process's descriptors that are rings."""
        found = []
        for link in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(link).startswith((f"/memfd:{RING_NAME}", gpu_ring.NAME)):
                    found.append(int(link.name))
        return found

    def end(self, line: str = "exit 0", seconds: float = PATIENCE_S) -> int:
        """Send the line that ends it; its exit status."""
        self.tell(line)
        return self.process.wait(seconds)

    def close(self) -> None:
        """Kill what is left."""
        with suppress(OSError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


class Listener:
    """A sampler's side of one ring: reads by the real reader and keeps everything."""

    def __init__(self, program: Program, *, lock: bool = True) -> None:
        number = wait_for(program.ring_fds, what="a ring")[0]
        self.ring = GpuRing(os.open(f"/proc/{program.pid}/fd/{number}", os.O_RDWR))
        self.slots = np.empty(0, gpu_ring.WORK)
        if lock:
            assert self.ring.lock()

    @property
    def facts(self) -> RingFacts:
        return self.ring.facts()

    def reach(self, state: str, seconds: float = PATIENCE_S) -> RingFacts:
        """Wait until the header says `state`."""
        wait_for(lambda: self.facts.state == state, seconds, f"state {state}, not {self.facts}")
        return self.facts

    def read(self) -> NDArray[Any]:
        """Take what is there; all slots so far."""
        self.slots = np.concatenate([self.slots, self.ring.slots()])
        return self.slots

    def work(self, kind: int | None = None) -> NDArray[Any]:
        """The records read so far: of one kind, or all."""
        slots = self.slots
        return slots[slots["kind"] <= gpu_ring.MEMSET if kind is None else slots["kind"] == kind]

    def expect(self, records: int, seconds: float = PATIENCE_S) -> NDArray[Any]:
        """Read until there are so many records, and see that no more come with them."""
        end = time.monotonic() + seconds
        while len(self.work()) < records and time.monotonic() < end:
            self.read()
            time.sleep(0.005)
        assert len(self.work()) == records, self.facts
        return self.work()

    def reach_records(self, records: int, seconds: float = PATIENCE_S) -> RingFacts:
        """Wait, without reading, until CUPTI has delivered so many records."""
        wait_for(lambda: self.facts.records >= records, seconds, f"record {records}")
        assert self.facts.records == records
        return self.facts

    def waits(self) -> NDArray[Any]:
        """The waits read so far, as rows of WAITS."""
        return self.slots[self.slots["kind"] == gpu_ring.WAIT].view(gpu_ring.WAITS)

    def names(self) -> dict[int, bytes]:
        """Text by name id, from the parts read so far; AssertionError where parts do not fit together."""
        texts: dict[int, bytes] = {}
        open_id, so_far = 0, b""
        for part in self.slots[self.slots["kind"] == gpu_ring.NAME_PART].view(gpu_ring.TEXTS):
            if part["offset"] == 0:
                open_id, so_far = int(part["id"]), b""
            assert (int(part["id"]), int(part["offset"])) == (open_id, len(so_far))
            so_far += part["text"].tobytes()[: part["length"]]
            if len(so_far) == part["total"]:
                assert texts.setdefault(open_id, so_far) == so_far
        return texts

    def by_name(self) -> dict[str, int]:
        """How many kernel records there are of each name."""
        names = self.names()
        counts = Counter(self.work(gpu_ring.KERNEL)["name"].tolist())
        return {names.get(number, b"").decode(): count for number, count in counts.items()}

    def by_launch(self, program: Program) -> dict[tuple[str, str], int]:
        """How many kernel records there are by (path, kernel) of their launch; without one: ("", "")."""
        probes = program.probes()
        launches = {
            (row["epoch"], row["correlation"]): (row["path"].decode(), row["kernel"].decode())
            for row in probes
        }
        assert len(launches) == len(probes)
        kernels = self.work(gpu_ring.KERNEL)
        keys = zip(kernels["epoch"], kernels["correlation"], strict=True)
        return dict(Counter(launches.get(key, ("", "")) for key in keys))

    def close(self) -> None:
        """Let go of the ring."""
        self.ring.close()
