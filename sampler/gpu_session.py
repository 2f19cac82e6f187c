"""One process that records GPU work: its ring, and what the slots of the ring mean.

Everything in the ring is the process's own claim. What is read of it is bounded per call, copied before it is
looked at, and becomes columns of which every number is in range; what cannot be true is counted.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.sampler import pidfd as pidfds
from gpuprof.sampler.gpu_clock import TOLERANCE_NS, GpuClock
from gpuprof.sampler.gpu_discovery import FoundRing
from gpuprof.sampler.gpu_names import MEMSET_INDEX, NameTable
from gpuprof.sampler.gpu_ranges import MAX_PATHS, PathTable, decode_ranges
from gpuprof.sampler.gpu_ring import (
    CLOCK,
    CLOCKS,
    DEVICES,
    KERNEL,
    MEMCPY,
    MEMSET,
    NAME_PART,
    PATH_PART,
    RANGE,
    RANGES,
    SPAN,
    SPANS,
    TEXTS,
    WAIT,
    WAITS,
    GpuRing,
    RingFacts,
    field,
    rows,
)
from gpuprof.sampler.gpu_waits import decode_waits
from gpuprof.sampler.graph_watch import HOLD_NS, GraphWatch
from gpuprof.sampler.launch_source import LaunchSource
from gpuprof.snapshots.columns import constant, is_constant
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.gaps import Spans, union

SLOTS_AT_ONCE = 1 << 15  # all of a round at 150,000 a second
MAX_BYTES = 1 << 50  # no copy moves more
MAX_SLOTS_READ = 1 << 16  # in one read, 4 MB of columns: half of a ring
BUDGET_NS = 15_000_000  # of one read: a ring that never becomes empty must not keep the others waiting
PAUSE_NS = 1_000_000_000  # for a ring of which most is nonsense
MAX_EPOCHS = 4  # in one chunk
EPOCH_NS = 5 * 10**9  # after its last record an epoch is forgotten
MAX_SPANS = 64  # that are over and not yet taken
STAYS = "CUPTI stays loaded"  # bpf/inject/park.c says so while the process makes graphs
MAX_LOST = 1 << 40  # larger counts in a header are not counts

Columns = dict[str, NDArray[Any]]
Work = tuple[int, Columns]  # attach epoch; columns of equal length, see `decode`


class GpuSession:
    """Holds the ring of one process from its discovery to its end. Not thread-safe."""

    def __init__(self, found: FoundRing, *, budget_ppm: int = 0) -> None:
        """Map the ring of `found`, which this takes over. GpuprofError when it is not a sound ring.

        `budget_ppm`: the share of the launching threads' time that recording may take, in millionths; 0: any.
        """
        self.process = found.process
        self.key = (found.process.pid, found.process.start_ns)
        self.identity = found.identity
        self.names = NameTable()
        self.paths = PathTable()
        self.clock = GpuClock()
        self.invalid = 0
        self.ended_ns: int | None = None  # when the process was seen to be gone
        self.probe_fd: int | None = None
        self.probe_problem = ""
        self.graphs: GraphWatch | None = None  # as long as CUPTI is not in use
        self.makes_graphs = self.had_cupti = False  # what was seen of it
        self.mapped_cupti = False  # whether what it maps was asked for since
        self.waits_for = ""  # why it is held back
        self.locked = False
        self.probed_ns = 0  # when the probe was attached
        self.began_ns = time.monotonic_ns()  # when we began to listen
        self.uuids: list[str | None] = [None] * DEVICES  # by the process's own ordinal
        self.epochs: dict[int, int] = {}  # attach epoch: time of its last records
        self.waits: list[Work] = []  # that came with the last `read`; see gpu_waits.decode_waits
        self.more = False  # whether the last `read` left some in the ring
        self.ranges: list[Columns] = []  # that came with the last `read`; see gpu_ranges.decode_ranges
        self.spans: list[tuple[int, int]] = []  # recorded (start_ns, end_ns), over
        self._budget_ppm = budget_ppm
        self._found = found
        self._resume_ns = 0
        try:
            self._ring = GpuRing(found.fd)
            self.facts = self._first = self._read_facts()
        except (OSError, ValueError) as error:
            found.close()
            raise GpuprofError(f"its ring cannot be mapped: {error}") from None
        except GpuprofError:
            found.close()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def own_pid(self) -> int:
        """The pid as the process sees it, which the header should name."""
        return self.process.container_pid or self.process.pid

    def watch_graphs(self, source: LaunchSource, now_ns: int) -> None:
        """Hold the library back from CUPTI while the process makes graphs; to be called often while locked.

        Once CUPTI is in use the library knows by itself. In the pauses of a budget only a process that has
        made some is watched.
        """
        facts = self.facts  # up to a second old: a window of a budget may lie between two looks
        stays = STAYS in facts.message
        in_use = stays or facts.state in {"recording", "detaching"}
        self.had_cupti = self.had_cupti or in_use or self.paused or facts.epoch != self._first.epoch
        self.makes_graphs = self.makes_graphs or stays
        if in_use or (self.had_cupti and not self.makes_graphs):
            if self.graphs is not None:
                self._ring.hold(0)  # what is left of it must not lengthen the next pause
            self.stop_watching()
            return
        if self.graphs is None:
            self._ring.hold(time.monotonic_ns() + HOLD_NS)  # the probes take their time
            self.graphs = GraphWatch(self.pid, source)
        allowed = self.graphs.allows(now_ns)
        self.makes_graphs = self.makes_graphs or self.graphs.made
        self.waits_for = "" if allowed or self.paused else self.graphs.words(now_ns)
        self._ring.hold(0 if allowed else time.monotonic_ns() + HOLD_NS)

    def stop_watching(self) -> None:
        """CUPTI is in use, or the process is gone."""
        if self.graphs is not None:
            self.graphs.close()
        self.graphs, self.waits_for = None, ""

    def lock(self) -> bool:
        """Begin to listen: the process records from now on. False when another sampler listens already."""
        self.locked = self._ring.lock(self._budget_ppm)
        self.began_ns = time.monotonic_ns()
        return self.locked

    def look(self, now_ns: int) -> None:
        """Read the header anew, and see whether the process is still there; call it about once a second."""
        self.facts = self._read_facts()
        if self.ended_ns is None and (pidfds.is_gone(self._found.pidfd) or not self._found.still_open()):
            self.ended_ns = now_ns
        self.epochs = {epoch: last for epoch, last in self.epochs.items() if now_ns - last < EPOCH_NS}
        self._ring.release_pages()

    def _read_facts(self) -> RingFacts:
        facts = self._ring.facts()
        for ordinal, uuid in enumerate(facts.uuids):
            if self.uuids[ordinal] is None:  # once known it stays: a process cannot name devices without end
                self.uuids[ordinal] = uuid
        return facts

    @property
    def recording(self) -> bool:
        """Whether its GPU work is being recorded now."""
        return self.locked and self.ended_ns is None and self.facts.state == "recording"

    @property
    def paused(self) -> bool:
        """Whether it does not record for a moment, so as to stay within the budget."""
        return self.locked and self.ended_ns is None and self.facts.state == "paused"

    def recorded(self, since_ns: int, now_ns: int) -> Spans:
        """When, of [since_ns, now_ns), it was recorded; spans that are over earlier are forgotten."""
        self.spans = [span for span in self.spans if span[1] > since_ns]
        spans = list(self.spans)
        if self.recording:  # 0: a library that does not say when it began
            since = min(max(self.facts.recording_since_ns, self.began_ns), now_ns)
            spans.append((since, now_ns))
        return union([start for start, _ in spans], [end for _, end in spans]).clipped(since_ns, now_ns)

    @property
    def lost(self) -> int:
        """Records that were lost since we listen, as the process counts them, and by its overruns."""
        now, then = self.facts, self._first
        counted = now.dropped - then.dropped + now.cupti_dropped - then.cupti_dropped
        return (counted if 0 <= counted < MAX_LOST else 0) + self._ring.overruns

    def read(self, now_ns: int) -> list[Work]:
        """What came since the last call, as far as the budget goes."""
        work: list[Work] = []
        self.waits, self.ranges, self.more = [], [], False
        if now_ns < self._resume_ns:
            return work
        began_ns, slots_read, invalid_before = time.perf_counter_ns(), 0, self.invalid
        while slots_read < MAX_SLOTS_READ and time.perf_counter_ns() - began_ns < BUDGET_NS:
            words = self._ring.words(SLOTS_AT_ONCE)
            if not words.shape[1]:
                break
            slots_read += words.shape[1]
            work += self.decode(words, time.monotonic_ns())  # not of before: it would lie in the future
            self.more = words.shape[1] == SLOTS_AT_ONCE
        if slots_read > SLOTS_AT_ONCE and (self.invalid - invalid_before) * 2 > slots_read:
            self._resume_ns = now_ns + PAUSE_NS
        if slots_read and self.uuids[0] is None:
            self._read_facts()
        return work

    def decode(self, words: NDArray[np.uint64], now_ns: int) -> list[Work]:
        """Slots, as GpuRing.words has them, as columns by attach epoch; nothing refers to `words` afterwards.

        The columns: correlation u32; start_ns, end_ns u64 (monotonic; 0 where they cannot be true); device
        u16, less than DEVICES or DEVICES; stream u32; leaf u32, an index into names.leaves; kernel bool;
        left_out bool: the stack of its launch was not taken; single bool: a kernel that was launched by
        itself, not as part of a graph; graph bool: the other kernels; nvtx u16, the path (gpu_ranges) that
        its launch was in; launch_ns u64, the enter of its launch (monotonic; 0: not known); bytes u64, of
        copies and memsets (0: not known). What is the same in all rows may be a `constant`.
        Waits are appended to `waits`, spans to `spans`, NVTX ranges to `ranges`.
        """
        is_work = field(words[0], "kind") - np.uint8(KERNEL) <= MEMSET - KERNEL  # less than KERNEL: it wraps
        count = int(np.count_nonzero(is_work))
        at: NDArray[np.intp] | None = None
        if count < len(is_work):
            others = np.flatnonzero(~is_work)  # row by row: `take` along an axis would copy all words first
            self._take_others(rows(np.stack([word.take(others) for word in words])), now_ns)
            at = np.flatnonzero(is_work)
        if not count:
            return []
        head, start, end, ids, name, moved, extra, enter = (
            word if at is None else word.take(at) for word in words
        )
        start, end = self.clock.convert(start, end, now_ns)
        kind, device, epoch = (field(head, part) for part in ("kind", "device", "epoch"))
        kernel = kind == KERNEL
        leaf = self.names.kernels(field(name, "name"))
        if kernel.all():
            kernel, moved = constant(True, np.bool_, count), constant(0, np.uint64, count)
        else:
            copies, sizes = np.flatnonzero(~kernel), moved
            kinds = self.names.copies(field(head, "flags")[copies])
            leaf[copies] = np.where(kind[copies] == MEMCPY, kinds, MEMSET_INDEX)
            moved = np.zeros(count, np.uint64)
            moved[copies] = np.where(sizes[copies] > MAX_BYTES, np.uint64(0), sizes[copies])
        if ((head ^ head[0]) >> np.uint64(16)).any():  # the bits above are device and epoch
            device = np.minimum(device, DEVICES)
        else:
            device = constant(min(int(device[0]), DEVICES), np.uint16, count)
            epoch = constant(epoch[0], np.uint32, count)
        columns: Columns = {
            "correlation": field(ids, "correlation").copy(),
            "start_ns": start,
            "end_ns": end,
            "device": device,
            "stream": field(ids, "stream").copy(),
            "leaf": leaf,
            "kernel": kernel,
            "launch_ns": enter.copy(),
            "bytes": moved,
            **_graph_and_path(extra, kernel),
        }
        # What ran before we listened belongs to nobody: its launches were not seen. It is no fault either.
        if int(start.min()) + TOLERANCE_NS >= self.began_ns:
            ours = constant(True, np.bool_, count)
        else:
            ours = (start == 0) | (start + np.uint64(TOLERANCE_NS) >= self.began_ns)
        return self._by_epoch(epoch, columns, ours, now_ns)

    def _take_others(self, slots: NDArray[Any], now_ns: int) -> None:
        """Take the slots that are not of work."""
        kind = slots["kind"]
        others = [slots[kind == wanted] for wanted in (NAME_PART, CLOCK, WAIT, SPAN, PATH_PART, RANGE)]
        names, clocks, waits, spans, paths, ranges = others
        self.invalid += len(slots) - sum(map(len, others))
        if len(names):
            self.invalid += self.names.add(names.view(TEXTS))
        if len(clocks):
            self.invalid += self.clock.add(clocks.view(CLOCKS), now_ns)
        if len(waits):
            self._take_waits(waits.view(WAITS), now_ns)
        if len(spans):
            self._take_spans(spans.view(SPANS), now_ns)
        if len(paths):
            self.invalid += self.paths.add(paths.view(TEXTS))
        if len(ranges):
            self._take_ranges(ranges.view(RANGES))

    def _take_waits(self, slots: NDArray[Any], now_ns: int) -> None:
        columns, invalid = decode_waits(slots, self.names)
        self.invalid += invalid
        ours = columns["start_ns"] + np.uint64(TOLERANCE_NS) >= self.began_ns
        if len(columns["start_ns"]):
            self.waits += self._by_epoch(columns.pop("epoch"), columns, ours, now_ns)

    def _take_ranges(self, slots: NDArray[Any]) -> None:
        columns, invalid = decode_ranges(slots, self.paths)
        self.invalid += invalid
        ours = columns["end_ns"] + np.uint64(TOLERANCE_NS) >= self.began_ns
        if ours.any():
            self.ranges.append({name: column[ours] for name, column in columns.items()})

    def _take_spans(self, slots: NDArray[Any], now_ns: int) -> None:
        for start_ns, end_ns in slots[["start_ns", "end_ns"]][-MAX_SPANS:].tolist():
            if not 0 < start_ns <= end_ns <= now_ns + TOLERANCE_NS:
                self.invalid += 1
            elif end_ns > self.began_ns:
                self.spans.append((max(start_ns, self.began_ns), end_ns))
        del self.spans[:-MAX_SPANS]

    def _by_epoch(
        self, epoch: NDArray[np.uint32], columns: Columns, keep: NDArray[np.bool_], now_ns: int
    ) -> list[Work]:
        alike = is_constant(epoch) or bool((epoch == epoch[0]).all())
        if alike and keep.all() and int(epoch[0]) in self.epochs:
            self.epochs[int(epoch[0])] = now_ns
            return [(int(epoch[0]), columns)]
        found = np.unique(epoch[keep]).tolist()
        known = [number for number in found if number in self.epochs]
        new = [number for number in found if number not in self.epochs]
        taken = [*known, *new[: max(MAX_EPOCHS - len(self.epochs), 0)]]
        work: list[Work] = []
        total = 0
        for number in taken:
            self.epochs[number] = now_ns
            mask = keep & (epoch == number)
            if mask.all():
                work.append((number, columns))
                return work
            work.append((number, {name: column[mask] for name, column in columns.items()}))
            total += int(np.count_nonzero(mask))
        self.invalid += int(np.count_nonzero(keep)) - total
        return work

    def close(self) -> None:
        """Let go of the ring: the process stops recording at its next launch."""
        self.stop_watching()
        self._ring.close()
        for fd in (self._found.pidfd, self.probe_fd):
            if fd is not None:
                with suppress(OSError):
                    os.close(fd)
        self.probe_fd = None


def _graph_and_path(extra: NDArray[np.uint64], kernel: NDArray[np.bool_]) -> Columns:
    """The columns that say how work was launched; of most batches all of these fields are 0."""
    if not extra.any():
        nothing = constant(0, np.bool_, len(extra))
        return {
            "left_out": nothing,
            "single": kernel,
            "graph": nothing,
            "nvtx": constant(0, np.uint16, len(extra)),
        }
    graph, path = field(extra, "graph"), field(extra, "path")
    return {
        "left_out": field(extra, "no_stack") == 1,
        "single": kernel & (graph == 0),
        "graph": kernel & (graph != 0),
        "nvtx": np.where(path < MAX_PATHS, path, 0),
    }
