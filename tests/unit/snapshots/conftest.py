"""Histories with known rows, and the slow and simple fold that the fast one is compared with."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuprof.snapshots import file
from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.file import SnapshotWriter
from gpuprof.snapshots.frames import UNMATCHED_LAUNCH, FrameKind, Hello, ProcessDef, Query, Tree
from gpuprof.snapshots.history import History

FrameOf = tuple[str, str, str, int, FrameKind]  # name, file, binary, line, kind


@dataclass(frozen=True)
class Row:
    """One sample as a person would write it down; frames root first."""

    time_ns: int
    cpu: int
    pid: int
    tid: int
    frames: tuple[FrameOf, ...]


@dataclass
class Planted:
    """A history and the rows that were put into it."""

    history: History
    rows: list[Row] = field(default_factory=list)

    def process(self, pid: int) -> ProcessDef:
        return ProcessDef(pid, pid * 10, f"proc{pid}", f"proc{pid} --run", "user", 1000, 1)

    def add(self, *rows: Row) -> None:
        history = self.history
        with history.lock:
            tables = history.tables
            columns: list[tuple[int, int, int, int]] = []
            for row in rows:
                process = tables.process(self.process(row.pid))
                thread = tables.thread(process, row.tid, f"t{row.tid}")
                ids = [
                    tables.frame(tables.function(n, f, b, kind), line) for n, f, b, line, kind in row.frames
                ]
                columns.append((row.time_ns, row.cpu, thread, tables.stack(ids)))
            history.add_samples(*zip(*columns, strict=True))
        self.rows += rows

    def brute(self, query: Query) -> dict[tuple[str, ...], tuple[float, float]]:
        """Return self and total by path, counted row by row."""
        found: dict[tuple[str, ...], list[float]] = {("all",): [0, 0]}
        for row in self.rows:
            if not query.start_ns <= row.time_ns < query.end_ns:
                continue
            if (query.pids and row.pid not in query.pids) or (query.tids and row.tid not in query.tids):
                continue
            if query.cpus and row.cpu not in query.cpus:
                continue
            path = ["all", f"proc{row.pid} ({row.pid})"]
            if query.by_thread:
                path.append(f"t{row.tid} ({row.tid})")
            path += ["|".join(map(str, frame)) for frame in row.frames]
            for depth in range(1, len(path) + 1):
                found.setdefault(tuple(path[:depth]), [0, 0])[1] += 1
            found[tuple(path)][0] += 1
        return {path: (own, total) for path, (own, total) in found.items()}


@dataclass(frozen=True)
class Work:
    """One row of GPU work as a person would write it down; frames root first, the kernel or copy last."""

    start_ns: int
    end_ns: int
    gpu: str
    stream: int
    pid: int
    tid: int
    frames: tuple[FrameOf, ...]


@dataclass
class PlantedWork(Planted):
    """A history and the GPU work that was put into it."""

    work: list[Work] = field(default_factory=list)

    def run(self, *work: Work) -> None:
        history = self.history
        with history.lock:
            tables = history.tables
            columns: list[tuple[int, ...]] = []
            for one in work:
                thread = tables.thread(tables.process(self.process(one.pid)), one.tid, f"t{one.tid}")
                ids = [
                    tables.frame(tables.function(n, f, b, kind), line) for n, f, b, line, kind in one.frames
                ]
                gpu = tables.string(one.gpu)
                columns.append((one.start_ns, one.end_ns, gpu, one.stream, thread, tables.stack(ids)))
            names = ("start_ns", "end_ns", "gpu", "stream", "thread", "stack")
            history.add_gpu_work(**dict(zip(names, zip(*columns, strict=True), strict=True)))
        self.work += work

    def brute(self, query: Query) -> dict[tuple[str, ...], tuple[float, float]]:
        """Return self and total of the GPU tree by path, added up row by row."""
        found: dict[tuple[str, ...], list[float]] = {("all",): [0, 0]}
        for one in self.work:
            touches = one.start_ns < query.end_ns and (
                one.end_ns > query.start_ns or one.start_ns == one.end_ns == query.start_ns
            )
            filters = ((query.pids, one.pid), (query.tids, one.tid), (query.gpus, one.gpu))
            if not touches or any(wanted and value not in wanted for wanted, value in filters):
                continue
            path = ["all", f"proc{one.pid} ({one.pid})"]
            if query.by_thread:
                path.append(f"t{one.tid} ({one.tid})")
            path += ["|".join(map(str, frame)) for frame in one.frames]
            weight = min(one.end_ns, query.end_ns) - max(one.start_ns, query.start_ns)
            for depth in range(1, len(path) + 1):
                found.setdefault(tuple(path[:depth]), [0, 0])[1] += weight
            found[tuple(path)][0] += weight
        return {path: (own, total) for path, (own, total) in found.items()}


def by_path(tree: Tree) -> dict[tuple[str, ...], tuple[float, float]]:
    """Return self and total of a Tree by path, in the terms of Planted.brute."""
    paths: list[tuple[str, ...]] = []
    found: dict[tuple[str, ...], tuple[float, float]] = {}
    for row in trees.rows(tree):
        is_frame = row.kind not in {FrameKind.ROOT, FrameKind.PROCESS, FrameKind.THREAD}
        parts = (row.name, row.file, row.binary, str(row.line), str(row.kind))
        label = "|".join(parts) if is_frame else row.name
        above = paths[int(tree.parent[row.index])] if row.index else ()
        paths.append((*above, label))
        assert paths[-1] not in found, "two rows with one path"
        found[paths[-1]] = (row.self_weight, row.total_weight)
    return found


@pytest.fixture
def hello() -> Hello:
    return Hello(1, "node17", "boot-1", "6.1.0", 4, 10**12, 1_700_000_000 * 10**9, "0.1.0", 42, 99, 10, True)


@pytest.fixture
def planted(hello: Hello) -> Planted:
    return Planted(History(hello))


@pytest.fixture
def path_weights() -> Callable[[Tree], dict[tuple[str, ...], tuple[float, float]]]:
    return by_path


@pytest.fixture
def row() -> Callable[..., Row]:
    """Return a maker of rows: frames are given as "outer inner" names of Python functions."""

    def make(time_ns: int, stack: str, *, cpu: int = 0, pid: int = 7, tid: int = 7) -> Row:
        frames = tuple((name, "a.py", "python3", 0, FrameKind.PYTHON) for name in stack.split())
        return Row(time_ns, cpu, pid, tid, frames)

    return make


@pytest.fixture
def random_rows() -> Callable[[int, int], list[Row]]:
    """Return a maker of `count` random rows from `seed`, in nearly the order of time."""

    def make(seed: int, count: int) -> list[Row]:
        rng = random.Random(seed)
        kinds = [FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.KERNEL_SPACE]
        rows = []
        for number in range(count):
            frames = tuple(
                (
                    f"f{rng.randrange(6)}",
                    rng.choice(["", "a.py", "b.c"]),
                    "lib",
                    rng.randrange(2),
                    rng.choice(kinds),
                )
                for _ in range(rng.randrange(0, 7))
            )
            pid = rng.randrange(1, 5)
            time_ns = 10**12 + number * 1000 + rng.randrange(5000)
            rows.append(Row(time_ns, rng.randrange(4), pid, pid * 100 + rng.randrange(3), frames))
        return rows

    return make


@pytest.fixture
def planted_work(hello: Hello) -> PlantedWork:
    return PlantedWork(History(hello))


@pytest.fixture
def work() -> Callable[..., Work]:
    """Return a maker of GPU work: a stack is "outer inner > kernel", "> kernel" where no launch was seen; a
    kernel whose name begins with "copy" is a copy.
    """

    def make(
        start_ns: int,
        end_ns: int,
        stack: str,
        *,
        gpu: str = "G0",
        stream: int = 7,
        pid: int = 7,
        tid: int = 7,
    ) -> Work:
        host, leaf = (part.split() for part in stack.split(">"))
        frames = [(name, "a.py", "python3", 0, FrameKind.PYTHON) for name in host]
        frames = frames or [(UNMATCHED_LAUNCH, "", "", 0, FrameKind.UNKNOWN)]
        kind = FrameKind.GPU_COPY if leaf[0].startswith("copy") else FrameKind.GPU_KERNEL
        return Work(start_ns, end_ns, gpu, stream, pid, tid, (*frames, (leaf[0], "", "", 0, kind)))

    return make


@pytest.fixture
def random_work(work: Callable[..., Work]) -> Callable[[int, int], list[Work]]:
    """Return a maker of `count` random rows of GPU work from `seed`: overlapping, some empty, some long."""

    def make(seed: int, count: int) -> list[Work]:
        rng = random.Random(seed)
        rows = []
        for number in range(count):
            start = 10**12 + number * 700 + rng.randrange(2000)
            length = rng.choice([0, rng.randrange(100), rng.randrange(3000), rng.randrange(3000), 40_000])
            host = " ".join(f"f{rng.randrange(4)}" for _ in range(rng.randrange(4)))
            pid = rng.randrange(1, 4)
            rows.append(
                work(
                    start,
                    start + length,
                    f"{host} > {rng.choice(['gemm', 'add', 'copy'])}",
                    gpu=rng.choice(["G0", "G1", ""]),
                    stream=rng.choice([7, 13, 0xFFFF_FFFF]),
                    pid=pid,
                    tid=pid * 100 + rng.randrange(3),
                )
            )
        return rows

    return make


@pytest.fixture
def stories() -> Any:
    """Return the module story.py: histories written down thread by thread."""
    return _module("story")


@pytest.fixture
def streams() -> Any:
    """Return the module streams.py: histories on the other side of a stream, and readings."""
    return _module("streams")


@pytest.fixture
def files() -> Any:
    """Return the module snapshot_files.py: how snapshot files are made and looked at."""
    return _module("snapshot_files")


@pytest.fixture
def snapshot(files: Any, planted: Any, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of five chunks of one second each."""
    monkeypatch.setattr(file, "CHUNK_NS", 10**9)
    history = files.small(planted, row)
    path = tmp_path / "five.gpuprof"
    with SnapshotWriter(path, history.hello) as writer:
        writer.write(history.frames_between(*history.span))
    assert writer.rows_written == (5, 5)
    assert writer.bytes_written == path.stat().st_size
    return path


def _module(name: str) -> Any:
    """Return a module of this folder, which is no package."""
    full = f"gpuprof_tests_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]
