"""Puts GPU records and launches together and adds the rows to the history.

Ids (threads, stacks) belong to one generation of the history's tables: whoever holds launches translates
them when a new generation begins. Everything that uses ids happens under the history's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler.gpu_coverage import COMMUNICATION, COPY, KERNEL
from gpuprof.sampler.gpu_delay import LaunchDelay, delays
from gpuprof.sampler.gpu_names import GPU_BINARY
from gpuprof.sampler.gpu_ranges import GraphLaunches, PathStacks
from gpuprof.sampler.gpu_ring import DEVICES
from gpuprof.sampler.gpu_session import Columns, GpuSession, Work
from gpuprof.sampler.gpu_waits import WaitLeaves, add_waits
from gpuprof.sampler.launch_stacks import Launches
from gpuprof.snapshots.columns import is_constant
from gpuprof.snapshots.gpu_records import (
    LEFT_OUT,
    JoinCounts,
    Joined,
    LeafStacks,
    RecordJoin,
    has_any,
    valid,
)
from gpuprof.snapshots.history import History
from gpuprof.snapshots.join import LaunchTable
from gpuprof.snapshots.rows import MAX_WEIGHT
from gpuprof.snapshots.tables import Tables

HOLD_NS = 1_500_000_000  # after its end: how long a record waits for its launch
MAX_HELD = 1 << 15  # per process and attach epoch
ACTIVE_NS = 10 * 10**9  # a device without work for longer is no longer covered by it
ROLL_AFTER_NS = 2 * 10**9  # full tables that the stack reader has not replaced by then are replaced here

Interval = tuple[str, NDArray[Any], NDArray[Any], int]  # device, starts, ends, kind as gpu_coverage has it


class WorkJoin:
    """One LaunchTable for all processes. Not thread-safe, but for `counts`."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._join = RecordJoin(LaunchTable(), hold_ns=HOLD_NS, max_held=MAX_HELD)
        self._waits = RecordJoin(self._join.launches, hold_ns=HOLD_NS, max_held=MAX_HELD)
        self.delay = LaunchDelay(history)
        self._tables = history.tables  # what the launches' ids refer to
        self._leaf_ids: dict[tuple[int, int], _LeafIds] = {}
        self._path_stacks: dict[tuple[int, int], PathStacks] = {}
        self._graphs: dict[tuple[int, int], GraphLaunches] = {}
        self._wait_leaves: dict[tuple[int, int], WaitLeaves] = {}
        self._leaf_stacks = LeafStacks(history.tables)
        self._active: dict[str, int] = {}
        self._known_uuids: dict[str, str] = {}
        self._full_since_ns: int | None = None
        self.stale_launches = 0  # of a generation that was over before they were taken

    @property
    def counts(self) -> JoinCounts:
        """What became of the records so far."""
        return self._join.counts

    @property
    def wait_counts(self) -> JoinCounts:
        """The same of the waits."""
        return self._waits.counts

    def add_launches(self, launches: Sequence[Launches]) -> None:
        """Take launches from the stack reader."""
        with self._history.lock:
            for part in launches:
                if part.tables is self._history.tables:
                    self._follow_tables()
                if part.tables is not self._tables:
                    self.stale_launches += len(part)
                    continue
                self._join.launches.add(
                    (part.pid, part.start_ns),
                    part.epoch,
                    correlation=part.correlation,
                    enter_ns=part.enter_ns,
                    thread=part.thread,
                    stack=part.stack,
                    weight=part.weight,
                )

    def _follow_tables(self) -> None:
        if self._tables is not self._history.tables:
            self._join.launches.carry_over(self._tables.view(), self._history.tables)
            self._tables = self._history.tables
            self._leaf_ids.clear()
            self._path_stacks.clear()
            self._wait_leaves.clear()
            self._leaf_stacks = LeafStacks(self._tables)

    def add_work(self, session: GpuSession, work: Sequence[Work], now_ns: int) -> list[Interval]:
        """Join what a session read (`work`, session.waits and session.ranges), and what is held of it.

        Returns the valid intervals by device.
        """
        intervals: list[Interval] = []
        waits, session.waits = session.waits, []
        ranges, session.ranges = session.ranges, []
        by_epoch: dict[int, list[Columns]] = {epoch: [] for epoch in session.epochs}
        for epoch, columns in work:
            part = self._join.admit(columns, now_ns)
            by_epoch.setdefault(epoch, []).append(part)
            if len(part["start_ns"]):
                intervals += self._intervals(session, part, now_ns)
        if not work and not waits and not ranges and not self._join.held and not self._waits.held:
            return intervals
        with self._history.lock:
            self._follow_tables()
            for epoch, parts in by_epoch.items():
                for columns in parts or ([_NOTHING] if self._join.holds(session.key, epoch) else []):
                    for joined in self._join.settle(session.key, epoch, columns, now_ns):
                        self._add(session, joined)
            held = [epoch for epoch in session.epochs if self._waits.holds(session.key, epoch)]
            for epoch, columns in [*((epoch, _NO_WAITS) for epoch in held), *waits]:
                self._add_waits(session, self._waits.take(session.key, epoch, columns, now_ns))
            for columns in ranges:
                self._add_ranges(session, columns, now_ns)
        return intervals

    def end(self, session: GpuSession) -> None:
        """The last of a process that is gone."""
        with self._history.lock:
            self._follow_tables()
            for epoch in session.epochs:
                joined = self._join.flush(session.key, epoch)
                if joined is not None:
                    self._add(session, joined)
                joined = self._waits.flush(session.key, epoch)
                if joined is not None:
                    self._add_waits(session, joined)
            self._join.launches.forget(session.key)
            self._leaf_ids.pop(session.key, None)
            self._path_stacks.pop(session.key, None)
            self._graphs.pop(session.key, None)
            self._wait_leaves.pop(session.key, None)

    def active_gpus(self) -> list[str]:
        """Devices that had work lately."""
        return list(self._active)

    def tidy(self, now_ns: int) -> None:
        """Let go of what is too old; call it about once a second."""
        self._join.launches.expire(now_ns)
        self.delay.write(now_ns)
        self._active = {gpu: last for gpu, last in self._active.items() if now_ns - last < ACTIVE_NS}
        gpus = self._history.gpus
        # NVML names MIG instances "MIG-<uuid>", CUDA gives the same 16 bytes without the word.
        self._known_uuids = {facts.uuid.partition("-")[2]: facts.uuid for facts in gpus.gpus} if gpus else {}
        with self._history.lock:
            if not self._history.tables.full:
                self._full_since_ns = None
            elif self._full_since_ns is None:
                self._full_since_ns = now_ns
            elif now_ns - self._full_since_ns > ROLL_AFTER_NS:
                self._history.roll_generation()
                self._follow_tables()

    # -------------------------------------------------------------------------------- rows

    def _add(self, session: GpuSession, joined: Joined) -> None:
        if not len(joined):
            return
        tables = self._history.tables
        ids = self._leaf_ids.get(session.key)
        if ids is None:
            ids = self._leaf_ids[session.key] = _LeafIds()
        columns, launch = joined.columns, joined.launch
        stack = self._leaf_stacks.of(launch.stack, ids.frames(tables, session)[columns["leaf"]])
        thread, weight = launch.thread, launch.weight
        if int(launch.stack.min()) < 0:
            thread = np.where(thread < 0, _unknown_thread(tables, session), thread)
            # A launch that was not seen though it should have been stands for itself.
            weight = np.where(weight > 0, weight, np.where(launch.stack == LEFT_OUT, 0.0, 1.0))
        if weight.max() > MAX_WEIGHT:  # the process says how many it stands for
            weight = np.minimum(weight, np.float32(MAX_WEIGHT))
        self._note_delay(session, joined)
        graphs, paths = has_any(columns["graph"]), not is_constant(columns["nvtx"])
        self._history.add_gpu_work(
            start_ns=columns["start_ns"],
            end_ns=columns["end_ns"],
            gpu=self._gpu_ids(tables, session, columns["device"]),
            stream=columns["stream"],
            thread=thread,
            stack=stack,
            weight=weight,
            nvtx=self._ranges(session)[columns["nvtx"]] if paths else 0,
            again=self._graphs.setdefault(session.key, GraphLaunches()).again(columns) if graphs else 0,
            bytes=columns["bytes"],
        )

    def _ranges(self, session: GpuSession) -> NDArray[np.uint32]:
        """The stacks of a session's NVTX ranges by path id."""
        stacks = self._path_stacks.setdefault(session.key, PathStacks())
        return stacks.of(self._history.tables, session.paths)

    def _add_ranges(self, session: GpuSession, columns: dict[str, NDArray[Any]], now_ns: int) -> None:
        good = valid(columns["start_ns"], columns["end_ns"], now_ns)
        session.invalid += len(good) - int(np.count_nonzero(good))
        if not good.any():
            return
        stack = self._ranges(session)[columns["path"][good]]
        self._history.add_ranges(
            columns["start_ns"][good],
            columns["end_ns"][good],
            np.full(len(stack), _unknown_thread(self._history.tables, session), np.uint32),
            stack,
            columns["weight"][good],
        )

    def _add_waits(self, session: GpuSession, joined: Joined) -> None:
        if not len(joined):
            return
        leaves = self._wait_leaves.setdefault(session.key, WaitLeaves())
        tables = self._history.tables
        unknown = _unknown_thread(tables, session)
        add_waits(self._history, joined, leaves.frames(tables, session.names), self._leaf_stacks, unknown)

    def _note_delay(self, session: GpuSession, joined: Joined) -> None:
        columns = joined.columns
        launched_ns, devices, which = columns["launch_ns"], columns["device"], columns["single"]
        if not has_any(which):
            return
        if int(launched_ns.min()) == 0:
            which = which & (launched_ns > 0)
        delay = delays(columns["start_ns"], launched_ns)
        alike = is_constant(devices) or int(devices.min()) == int(devices.max())
        for ordinal in [int(devices[0])] if alike else np.unique(devices).tolist():
            gpu = self.uuid(session, ordinal) if ordinal < DEVICES else None
            if gpu is not None:
                self.delay.add(gpu, session.pid, delay, which if alike else which & (devices == ordinal))

    def _gpu_ids(
        self, tables: Tables, session: GpuSession, device: NDArray[np.uint16]
    ) -> NDArray[np.uint32] | np.uint32:
        """The id of each device's UUID, or one for all; 0 where it is not known."""
        few = [int(device[0])] if is_constant(device) else range(DEVICES)
        names = [self.uuid(session, ordinal) if ordinal < DEVICES else None for ordinal in few]
        ids = np.array([*(tables.string(name) if name else 0 for name in names), 0], np.uint32)
        return np.uint32(ids[0]) if is_constant(device) else ids[device]

    def uuid(self, session: GpuSession, ordinal: int) -> str | None:
        """The UUID, as NVML writes it, of a device by the process's own ordinal; None: not known."""
        claimed = session.uuids[ordinal]
        if claimed is None or not self._known_uuids:
            return claimed
        return self._known_uuids.get(claimed.partition("-")[2])

    def _intervals(self, session: GpuSession, columns: Columns, now_ns: int) -> list[Interval]:
        """When valid records (at least one) ran, by device and kind."""
        devices, kernel = columns["device"], columns["kernel"]
        communication = session.names.communication(columns["leaf"])
        alike = is_constant(devices) or int(devices.min()) == int(devices.max())
        found: list[Interval] = []
        for device in [int(devices[0])] if alike else np.unique(devices).tolist():
            gpu = self.uuid(session, device) if device < DEVICES else None
            if gpu is None:
                continue
            self._active[gpu] = now_ns
            if alike and communication is None and kernel.all():
                return [(gpu, columns["start_ns"], columns["end_ns"], KERNEL)]
            kinds = [(KERNEL, kernel), (COPY, ~kernel)]
            if communication is not None:
                kinds.append((COMMUNICATION, communication))
            for kind, of_kind in kinds:
                mask = of_kind if alike else of_kind & (devices == device)
                rows = np.flatnonzero(mask)
                if len(rows):
                    found.append((gpu, columns["start_ns"].take(rows), columns["end_ns"].take(rows), kind))
        return found


class _LeafIds:
    """Frame ids of a session's leaves in one generation of tables."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.uint32)

    def frames(self, tables: Tables, session: GpuSession) -> NDArray[np.uint32]:
        leaves = session.names.leaves
        if len(self._ids) < len(leaves):
            new = [
                tables.frame(tables.kernel(name, full, GPU_BINARY, kind))
                for (name, kind), full in list(zip(leaves, session.names.full, strict=True))[len(self._ids) :]
            ]
            self._ids = np.concatenate([self._ids, np.array(new, np.uint32)])
        return self._ids


def _unknown_thread(tables: Tables, session: GpuSession) -> int:
    return tables.thread(tables.process(session.process), 0, session.process.name)


_NOTHING: dict[str, NDArray[Any]] = {
    "correlation": np.zeros(0, np.uint32),
    "start_ns": np.zeros(0, np.uint64),
    "end_ns": np.zeros(0, np.uint64),
    "device": np.zeros(0, np.uint16),
    "stream": np.zeros(0, np.uint32),
    "leaf": np.zeros(0, np.uint32),
    "kernel": np.zeros(0, np.bool_),
    "left_out": np.zeros(0, np.bool_),
    "single": np.zeros(0, np.bool_),
    "graph": np.zeros(0, np.bool_),
    "nvtx": np.zeros(0, np.uint16),
    "launch_ns": np.zeros(0, np.uint64),
    "bytes": np.zeros(0, np.uint64),
}
_NO_WAITS: dict[str, NDArray[Any]] = {
    "correlation": np.zeros(0, np.uint32),
    "start_ns": np.zeros(0, np.uint64),
    "end_ns": np.zeros(0, np.uint64),
    "weight": np.zeros(0, np.float32),
    "leaf": np.zeros(0, np.uint32),
}
