"""Small histories written down by hand: CPU samples, waits and GPU work of named threads, stacks as words."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.frames import (
    NO_THREAD,
    STACK_NOT_TAKEN,
    UNMATCHED_LAUNCH,
    FrameKind,
    GpuFacts,
    Gpus,
    Hello,
    ProcessDef,
    Query,
    Tree,
    WaitKind,
)
from gpuprof.snapshots.history import History

MS = 10**6
ORIGIN = 10**12


def a_hello(cpu_hz: int = 99) -> Hello:
    return Hello(1, "node17", "b", "6.1.0", 4, ORIGIN, 1_700_000_000 * 10**9, "0.1.0", 42, cpu_hz, 10, True)


@dataclass
class Story:
    """A history told thread by thread. Times are in ms after ORIGIN. A stack is words, root first: "f" is a
    Python function of f.py, "f@loader.py" one of another file, "f@loader.py:7" with a line, ":f" native code,
    "<poll>" a frame of kind WAIT; "<woken by x y>" is written "<woken_by_x~y>", "%gemm" is a kernel and
    "!ring" one of communication, "=memcpy_HtoD" a copy, "#step" an NVTX range.
    """

    history: History = field(default_factory=lambda: History(a_hello()))
    names: dict[int, str] = field(default_factory=dict)  # of threads, by tid
    process_of: dict[int, int] = field(default_factory=dict)

    def frame(self, word: str) -> int:
        tables = self.history.tables
        kind, file, line, binary = FrameKind.PYTHON, "", 0, ""
        if word.startswith("<"):
            kind, word = FrameKind.WAIT, word[1:-1]
            waker = word.removeprefix("woken_by_")
            word = f"woken by {waker.replace('~', ' ')}" if waker != word else word.replace("_", " ")
        elif word.startswith("%"):
            kind, word = FrameKind.GPU_KERNEL, word[1:]
        elif word.startswith("="):
            kind, word = FrameKind.GPU_COPY, word[1:].replace("_", " ")
        elif word.startswith("#"):
            kind, word = FrameKind.NVTX, word[1:]
        elif word.startswith("!"):
            kind, word = FrameKind.GPU_COMM, word[1:]
        elif word in {UNMATCHED_LAUNCH.replace(" ", "_"), STACK_NOT_TAKEN.replace(" ", "_")}:
            kind, word = FrameKind.UNKNOWN, word.replace("_", " ")
        elif word.startswith(":"):
            kind, word, binary = FrameKind.NATIVE, word[1:], "libx.so"
        else:
            word, _, place = word.partition("@")
            place = place or f"{word}.py"
            file, _, number = place.partition(":")
            line = int(number or 0)
        return tables.frame(tables.function(word, file, binary, kind), line)

    def stack(self, words: str) -> int:
        return self.history.tables.stack([self.frame(word) for word in words.split()])

    def thread(self, tid: int, pid: int | None = None) -> int:
        tables = self.history.tables
        pid = pid or self.process_of.get(tid, 7)
        name = self.names.get(pid, f"proc{pid}")
        process = tables.process(ProcessDef(pid, pid * 10, name, "", "ada", 1000, 1))
        return tables.thread(process, tid, self.names.get(tid, f"t{tid}"))

    def on_cpu(self, tid: int, words: str, start: float, end: float, step: float = 10.0) -> None:
        """CPU samples every `step` ms in [start, end), the first half a step in."""
        with self.history.lock:
            count = max(round((end - start) / step), 0)
            times = [ORIGIN + int((start + (index + 0.5) * step) * MS) for index in range(count)]
            stack, thread = self.stack(words), self.thread(tid)
            self.history.add_samples(times, [0] * count, [thread] * count, [stack] * count)

    def wait(
        self,
        tid: int,
        words: str,
        start: float,
        end: float,
        *,
        waker: int | None = None,
        kind: WaitKind = WaitKind.BLOCKED,
        weight: float = 1.0,
    ) -> None:
        with self.history.lock:
            by = NO_THREAD if waker is None else self.thread(waker)
            times = [ORIGIN + int(start * MS)], [ORIGIN + int(end * MS)]
            self.history.add_waits(
                *times, [self.thread(tid)], [self.stack(words)], [by], [weight], [int(kind)]
            )

    def gpu(
        self,
        tid: int,
        words: str,
        start: float,
        end: float,
        *,
        gpu: str = "G0",
        weight: float | None = None,
        moved: int = 0,
        ranges: str = "",
    ) -> None:
        if weight is None:
            weight = 0.0 if STACK_NOT_TAKEN.replace(" ", "_") in words else 1.0
        with self.history.lock:
            self.history.add_gpu_work(
                start_ns=[ORIGIN + int(start * MS)], end_ns=[ORIGIN + int(end * MS)],
                gpu=[self.history.tables.string(gpu)], stream=[7], thread=[self.thread(tid)],
                stack=[self.stack(words)], weight=[weight], bytes=[moved],
                nvtx=[self.stack(ranges)],
            )  # fmt: skip

    def observed(self, start: float, end: float, *, gpu: str = "G0", value: float = 1.0) -> None:
        self.history.set_gpus(Gpus("580", None, [GpuFacts(f"G{n}", n, "H200") for n in range(2)]))
        series = self.history.series("gpu_observed", gpu=gpu)
        self.history.add_readings([series], [ORIGIN + int(start * MS)], [ORIGIN + int(end * MS)], [value])

    def ask(self, tree: str, start: float, end: float, **more: object) -> Tree:
        low, high = ORIGIN + int(start * MS), ORIGIN + int(end * MS)
        query = Query(1, tree, low, high, min_fraction=0.0, **more)  # type: ignore[arg-type]
        return self.history.query(query)


def totals(tree: Tree) -> dict[str, float]:
    """Totals in ms by path of names below the root, joined by " / " (the root itself: "")."""
    paths: list[str] = []
    found: dict[str, float] = {}
    for row in trees.rows(tree):
        above = paths[int(tree.parent[row.index])] if row.index else ""
        path = "" if not row.index else f"{above} / {row.name}" if above else row.name
        paths.append(path)
        assert path not in found, f"two rows with one path: {path}"
        found[path] = round(row.total_weight / MS, 6)
    return found
