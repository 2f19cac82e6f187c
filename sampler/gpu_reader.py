"""The NVML source: facts and readings of every GPU, into the history; nothing here can stop the sampler."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from gpuprof.sampler.gpu_worker import GpuWorker, ReadingSink
from gpuprof.sampler.nvml import Nvml
from gpuprof.sampler.nvml_library import NvmlUnavailable, code_words, explain
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import Gpus, SourceStatus

RETRY_S = 30.0  # how often a driver that was not there is looked for
STUCK_S = 3.0  # a call that takes longer is not answering (the slowest healthy one takes about 20 ms)
FACTS_WAIT_S = 2.0  # how long the first list of GPUs waits for a slow one
STOP_WAIT_S = 0.5

SEE_DMESG = "`sudo dmesg | grep -i -e nvrm -e xid` may say why; the other GPUs go on."


class GpuHistory(ReadingSink, Protocol):
    """The part of History that the NVML source needs."""

    def set_gpus(self, gpus: Gpus) -> None: ...


class GpuReader:
    """Reads all GPUs from start() to stop(), each on its own threads; see status() for what is wrong."""

    def __init__(self, history: GpuHistory, *, fast_hz: float = 10, slow_hz: float = 1) -> None:
        self.fast_hz = fast_hz
        self._slow_hz = slow_hz
        self._history = history
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._publishing = False
        self._nvml: Nvml | None = None
        self._unavailable: GpuprofError | None = None
        self._opening_since: float | None = None
        self._workers: list[GpuWorker] = []
        self._opener: threading.Thread | None = None

    # -------------------------------------------------------------------------------- the service

    def start(self) -> None:
        """Begin in the background: opening the driver may take seconds."""
        self._opener = threading.Thread(target=self._open, name="nvml open", daemon=True)
        self._opener.start()

    def stop(self) -> None:
        """Return within a second; the thread of a hanging call is left behind, and NVML then stays open."""
        self._stop.set()
        deadline = time.monotonic() + STOP_WAIT_S
        if self._opener is not None:
            self._opener.join(STOP_WAIT_S)
        finished = [worker.join(deadline) for worker in self._workers]
        if self._nvml is None or not all(finished) or (self._opener is not None and self._opener.is_alive()):
            return
        closer = threading.Thread(target=self._nvml.close, name="nvml close", daemon=True)
        closer.start()
        closer.join(max(0.1, deadline - time.monotonic()))

    def pids(self) -> set[int]:
        """Processes that NVML lists on any GPU now."""
        return set().union(*(worker.pids for worker in self._workers))

    def pids_by_gpu(self) -> dict[str, frozenset[int]]:
        """Processes that NVML lists on each GPU or MIG instance now, by UUID."""
        return {gpu: pids for worker in self._workers for gpu, pids in worker.pids_by_gpu.items()}

    def status(self) -> SourceStatus:
        """Where it stands.

        `off`: no driver; `failed`: there is one, which does not work; `degraded`: a GPU is lost or silent.
        """
        samples = sum(worker.samples for worker in self._workers)
        invalid = sum(worker.invalid for worker in self._workers)
        unavailable = self._unavailable
        if unavailable is not None:
            absent = isinstance(unavailable, NvmlUnavailable) and unavailable.absent
            return SourceStatus("nvml", "off" if absent else "failed", unavailable.message, unavailable.hint)
        if not self._workers:
            waited = 0.0 if self._opening_since is None else time.monotonic() - self._opening_since
            reason = f"the NVIDIA driver has not answered for {waited:.0f} s" if waited > STUCK_S else ""
            return SourceStatus("nvml", "starting", reason)
        troubles = [trouble for worker in self._workers for trouble in _troubles(worker)]
        if troubles:
            reason = "; ".join(reason for reason, _ in troubles)
            hint = next((hint for _, hint in troubles if hint), "")
            return SourceStatus("nvml", "degraded", reason, hint, invalid=invalid, samples=samples)
        state = "ok" if all(worker.opened.is_set() for worker in self._workers) else "starting"
        return SourceStatus("nvml", state, invalid=invalid, samples=samples)

    # -------------------------------------------------------------------------------- the opener

    def _open(self) -> None:
        while not self._stop.is_set():
            self._opening_since = time.monotonic()
            try:
                nvml = Nvml.open()
                devices = nvml.devices()
            except NvmlUnavailable as error:
                self._unavailable = error
                if not error.retry or self._stop.wait(RETRY_S):
                    return
                continue
            except Exception as error:  # noqa: BLE001 - the sampler goes on without NVML, and says why
                self._unavailable = GpuprofError(f"NVML does not start: {type(error).__name__}: {error}")
                return
            self._nvml = nvml
            rates = {"fast_hz": self.fast_hz, "slow_hz": self._slow_hz}
            self._start_workers(
                [GpuWorker(device, self._history, self._stop, self._changed, **rates) for device in devices]
            )
            self._unavailable = None
            return

    def _start_workers(self, workers: Sequence[GpuWorker]) -> None:
        self._workers = list(workers)
        for worker in workers:
            worker.start()
        deadline = time.monotonic() + FACTS_WAIT_S
        for worker in workers:
            worker.opened.wait(max(0.0, deadline - time.monotonic()))
        self._publishing = True
        self._changed()

    def _changed(self) -> None:
        """Send the list of GPUs again; called by workers and the opener."""
        if not self._publishing or self._nvml is None:
            return
        with self._lock:
            facts = [entry for worker in self._workers for entry in worker.facts]
            lost = [entry.uuid for worker in self._workers if worker.device.lost for entry in worker.facts]
            self._history.set_gpus(Gpus(self._nvml.driver_version, self._nvml.nvml_version, facts, lost))


def _troubles(worker: GpuWorker) -> list[tuple[str, str]]:
    """What is wrong with one GPU, as (reason, hint)."""
    name = f"GPU {worker.device.index}"
    if worker.facts:
        name += f" ({worker.facts[0].name})"
    if worker.device.lost:
        reason = worker.unreadable or "is lost: it fell off the bus or needs a reset"
        return [
            (
                f"{name} {reason}",
                "`sudo dmesg | grep -i xid` says why; after a reset, restart the sampler to see it again.",
            )
        ]
    stuck = worker.device.stuck()
    if stuck is not None and stuck[1] > STUCK_S:
        return [
            (
                f"{name} has not answered for {stuck[1]:.0f} s ({stuck[0]})",
                SEE_DMESG,
            )
        ]
    if worker.unreadable:
        return [(f"{name} {worker.unreadable}", "")]
    if worker.device.trouble is not None:
        error = explain(worker.device.trouble)
        return [(f"{name}: {error.message}", error.hint)]
    silent_s = 0.0 if worker.last_reading is None else time.monotonic() - worker.last_reading
    if silent_s > STUCK_S:
        words = code_words(worker.device.failure)
        return [(f"{name} has given no readings for {silent_s:.0f} s (NVML: {words})", SEE_DMESG)]
    if worker.error:
        return [(f"{name}: {worker.error}", "This is a fault of gpuprof-tui; please report it.")]
    return []
