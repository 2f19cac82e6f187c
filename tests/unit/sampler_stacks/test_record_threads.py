"""Which name a thread is left with, when it changed its name within one batch or between two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuprof.bpf.records import HEADER, Batch, batch_of
from gpuprof.sampler.record_threads import find_threads
from gpuprof.sampler.thread_ids import ThreadIds
from gpuprof.sampler.wait_reader import WaitReader
from gpuprof.snapshots.frames import ProcessDef
from gpuprof.snapshots.tables import Tables

PID = 70


class Processes:
    """In place of a ProcessFollower: of process PID what it was before and from `exec_ns` on."""

    def __init__(self, exec_ns: int = 1 << 62) -> None:
        self.exec_ns = exec_ns
        self.each = [self._process("before", gone_ns=exec_ns), self._process("after", gone_ns=None)]

    @staticmethod
    def _process(name: str, gone_ns: int | None) -> Any:
        definition = ProcessDef(PID, 5, name, "", "", 0, 1)
        return SimpleNamespace(
            definition=definition, table_threads={}, last_seen_ns=0, since_ns=0, gone_ns=gone_ns
        )

    def get(self, pid: int, start_ns: int, time_ns: int, *, uid: int, comm: bytes) -> Any:
        return self.each[time_ns >= self.exec_ns]

    def all(self) -> list[Any]:
        return self.each


def batch(names: list[tuple[int, int, bytes]]) -> Batch:
    """Records of (time, tid, comm)."""
    header = np.zeros(len(names), HEADER)
    for record, (time_ns, tid, comm) in zip(header, names, strict=True):
        record["time_ns"], record["pid"], record["tid"], record["comm"] = time_ns, PID, tid, comm
        record["header_words"] = HEADER.itemsize // 8
    starts = np.arange(len(names)) * (HEADER.itemsize // 8)
    return batch_of(np.frombuffer(header.tobytes(), np.uint64), starts.astype(np.int64))


class House:
    """The tables that records of threads end in."""

    def __init__(self, exec_ns: int = 1 << 62) -> None:
        self.tables = Tables(0)
        self.processes = Processes(exec_ns)
        self.ids = ThreadIds(self.processes)  # type: ignore[arg-type]

    def take(self, names: list[tuple[int, int, bytes]]) -> None:
        records = batch(names)
        found = find_threads(records, self.processes)  # type: ignore[arg-type]
        for at, process in zip(found.first, found.processes, strict=True):
            self.ids.get(self.tables, process, int(records.tid[at]), bytes(records.comm[at]))
        for at, thread in enumerate(found.of_record.tolist()):  # each record is still of its own thread
            first = found.first[thread]
            assert (records.tid[at], records.comm[at]) == (records.tid[first], records.comm[first])

    @property
    def names(self) -> dict[tuple[str, int], str]:
        """By name of the process and thread id."""
        view = self.tables.view()
        return {(view.processes[thread.process].name, thread.tid): thread.name for thread in view.threads}


@pytest.mark.parametrize("count", [2, 3, 12])
def test_the_latest_name_in_a_batch_stays(count: int) -> None:
    house = House()
    names = [b"name%d" % n for n in range(count)]
    house.take([(10 + n, tid, name) for n, name in enumerate(names) for tid in range(100, 140)])
    assert set(house.names.values()) == {f"name{count - 1}"}
    assert len(house.names) == 40


def test_a_name_that_comes_back_stays() -> None:
    house = House()
    house.take([(1, 100, b"main"), (2, 100, b"loader"), (3, 100, b"main")])
    assert house.names == {("before", 100): "main"}
    house.take([(4, 100, b"loader")])
    assert house.names == {("before", 100): "loader"}
    house.take([(5, 100, b"main")])
    assert house.names == {("before", 100): "main"}


def test_names_before_and_after_an_exec() -> None:
    house = House(exec_ns=8)
    house.take([(1, 100, b"python"), (5, 100, b"worker"), (9, 100, b"python"), (10, 100, b"python")])
    assert house.names == {("after", 100): "python"}  # one process, which has become another program


def test_the_latest_name_among_waits_stays() -> None:
    house = House()
    reader = WaitReader.__new__(WaitReader)
    reader._follower, reader._threads = house.processes, house.ids  # type: ignore[assignment]
    names = [b"main", b"loader", b"main"]
    columns = [np.full(3, value, kind) for value, kind in ((PID, "<u4"), (100, "<u4"), (0, "<u8"))]
    reader._threads_of(
        house.tables, *columns, np.array(names, "S16"), np.zeros(3, np.uint32),
        *[np.arange(3, dtype=np.uint64)] * 2,
    )  # fmt: skip
    assert house.names == {("before", 100): "main"}


def test_a_name_from_before_an_exec_that_comes_late_is_not_taken() -> None:
    """Records of waits come after those of samples, and a waker's after those of who waits."""
    house = House(exec_ns=8)
    for when, name, shown in ((9, b"train", "train"), (5, b"sh", "train"), (12, b"load", "load")):
        process = house.processes.get(PID, 0, when, uid=0, comm=name)
        house.ids.get(house.tables, process, 100, name, when)  # type: ignore[arg-type]
        assert house.names == {("after" if when > 8 else "before", 100): shown}
    process = house.processes.get(PID, 0, 13, uid=0, comm=b"train")
    house.ids.get(house.tables, process, 100, b"train", 13)  # type: ignore[arg-type]
    assert house.names == {("after", 100): "train"}
