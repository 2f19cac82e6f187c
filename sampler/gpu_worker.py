"""The threads of one GPU, one per pace, so that a call that hangs holds up nothing but itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gpuprof.sampler.gpu_facts import read_facts
from gpuprof.sampler.gpu_readings import FastReadings, PcieReadings, Reading, SlowReadings
from gpuprof.sampler.nvml_device import Device
from gpuprof.sampler.nvml_values import Absent, DeviceLost
from gpuprof.snapshots.frames import GpuFacts

MAX_SERIES = 20_000  # pids come and go; the cache of their series ids is dropped when it is full


class ReadingSink(Protocol):
    """The part of History that a reader needs."""

    def series(
        self, metric: str, *, gpu: str | None = None, pid: int | None = None, core: int | None = None
    ) -> int: ...

    def add_readings(
        self, series: Sequence[int], start_ns: Sequence[int], end_ns: Sequence[int], value: Sequence[float]
    ) -> None: ...


class SeriesWriter:
    """Writes the readings of one subject into the history, one call per cycle. Used by one thread."""

    def __init__(self, history: ReadingSink, uuid: str) -> None:
        self._history = history
        self._uuid = uuid
        self._ids: dict[tuple[str, int | None], int] = {}

    def write(self, readings: Sequence[Reading]) -> None:
        if not readings:
            return
        if len(self._ids) > MAX_SERIES:
            self._ids.clear()
        ids = []
        for reading in readings:
            key = (reading.metric, reading.pid)
            series = self._ids.get(key)
            if series is None:
                series = self._history.series(reading.metric, gpu=self._uuid, pid=reading.pid)
                self._ids[key] = series
            ids.append(series)
        self._history.add_readings(
            ids,
            [reading.start_ns for reading in readings],
            [reading.end_ns for reading in readings],
            [reading.value for reading in readings],
        )


class GpuWorker:
    """Opens one physical GPU, reads its facts and those of its MIG instances, then keeps reading them.

    `changed` is called, from a worker thread, when facts were read, the device was lost or cannot be opened.
    """

    def __init__(
        self,
        device: Device,
        history: ReadingSink,
        stop: threading.Event,
        changed: Callable[[], None],
        *,
        fast_hz: float,
        slow_hz: float = 1.0,
    ) -> None:
        self.device = device
        self.facts: list[GpuFacts] = []  # the device, then its MIG instances
        self.unreadable: str | None = None  # why the device cannot be opened at all
        self.opened = threading.Event()  # facts are read, or never will be
        self.samples = 0
        self.last_reading: float | None = (
            None  # time.monotonic() of the last one; None before the first cycle
        )
        self.error: str | None = None  # an unforeseen failure of the last cycle
        self._history = history
        self._stop = stop
        self._changed = changed
        self._fast_s, self._slow_s = 1.0 / fast_hz, 1.0 / slow_hz
        self._devices: list[Device] = []
        self._fast: list[FastReadings] = []
        self._slow: list[SlowReadings] = []
        self._threads: list[threading.Thread] = []
        self._told_lost = threading.Lock()

    def start(self) -> None:
        self._spawn("fast", self._run_fast)

    def join(self, deadline: float) -> bool:
        """Wait for the threads until `deadline` (time.monotonic()); False when one hangs in a call."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def pids(self) -> frozenset[int]:
        if self.device.lost:
            return frozenset()
        return frozenset().union(*(slow.pids for slow in self._slow))

    @property
    def pids_by_gpu(self) -> dict[str, frozenset[int]]:
        """Processes on the device, or on each of its MIG instances, by UUID, as far as the driver says."""
        if self.device.lost:
            return {}
        return {
            facts.uuid: slow.pids
            for facts, slow in zip(self.facts, self._slow, strict=False)
            if slow.pids_known
        }

    @property
    def invalid(self) -> int:
        return sum(fast.invalid for fast in self._fast) + sum(slow.invalid for slow in self._slow)

    # -------------------------------------------------------------------------------- threads

    def _spawn(self, pace: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"gpu{self.device.index} {pace}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run_fast(self) -> None:
        try:
            if not self._open():
                return
            self._spawn("slow", self._run_slow)
            began_ns = time.monotonic_ns()
            self._fast = [FastReadings(device, began_ns) for device in self._devices]
            writers = self._writers()
            self._repeat(self._fast_s, lambda: self._cycle(self._fast, writers))
        except DeviceLost:
            self._lost()
        finally:
            self.opened.set()

    def _run_slow(self) -> None:
        try:
            # In MIG mode processes are those of the instances; the GPU's own list would count them twice.
            with_mig = len(self._devices) > 1
            self._slow = [
                SlowReadings(device, processes=not (with_mig and device is self.device))
                for device in self._devices
            ]
            writers = self._writers()
            self._cycle(self._slow, writers)
            if not self._slow[0].gpm_works:
                self._spawn("pcie", self._run_pcie)
            self._repeat(self._slow_s, lambda: self._cycle(self._slow, writers))
            for source in self._slow:
                source.close()
        except DeviceLost:
            self._lost()

    def _run_pcie(self) -> None:
        try:
            source, writer = PcieReadings(self.device), self._writers()[0]
            self._repeat(self._slow_s, lambda: self._cycle([source], [writer]))
        except DeviceLost:
            self._lost()

    def _repeat(self, period_s: float, cycle: Callable[[], None]) -> None:
        """Run `cycle` every `period_s`; a cycle that took longer skips the beats it missed."""
        due = time.monotonic() + period_s
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            cycle()
            due = max(due + period_s, time.monotonic())

    def _cycle(
        self, sources: Sequence[FastReadings | SlowReadings | PcieReadings], writers: Sequence[SeriesWriter]
    ) -> None:
        for source, writer in zip(sources, writers, strict=False):
            try:
                readings = source.read()
                writer.write(readings)
                self.samples += len(readings)
                if readings or self.last_reading is None:
                    self.last_reading = time.monotonic()
                self.error = None
            except DeviceLost:
                raise
            except Exception as error:  # noqa: BLE001 - a thread that dies would freeze the charts without a word
                self.error = f"{type(error).__name__}: {error}"

    def _writers(self) -> list[SeriesWriter]:
        return [SeriesWriter(self._history, facts.uuid) for facts in self.facts]

    # -------------------------------------------------------------------------------- states

    def _open(self) -> bool:
        try:
            missing = self.device.open()
            if missing is not None:
                self.unreadable = _unreadable(missing)
                return False
            devices = [self.device, *self.device.mig_devices()]
            self.facts = [read_facts(device) for device in devices]
            self._devices = devices
            return True
        except Exception as error:
            if isinstance(error, DeviceLost):
                self.unreadable = "was lost before it could be read"
                raise
            self.unreadable = f"cannot be read: {type(error).__name__}: {error}"
            return False
        finally:
            self.opened.set()
            self._changed()

    def _lost(self) -> None:
        """Tell once, however many threads notice."""
        if self._told_lost.acquire(blocking=False):
            self._changed()


def _unreadable(missing: Absent) -> str:
    if missing is Absent.NO_PERMISSION:
        return "cannot be opened: no permission (its /dev/nvidia* file, or the container's device list)"
    return f"cannot be opened: {missing.value}"
