"""Recordings of an H200 (tests/device/idle_causes.py, two_devices.py): each names its planted cause."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpuprof.snapshots.file import read_snapshot
from gpuprof.snapshots.frames import Query
from gpuprof.snapshots.history import History

HERE = Path(__file__).parent / "h200"
CAUSES = {
    "cpu_loading": ("burn_until (idle_causes.py", "on CPU"),
    "worker_loading": (
        "_try_get_data (dataloader.py",
        "waiting (poll), woken by pt_data_worker in burn_until",
    ),
    "slow_disk": ("write_checkpoint (idle_causes.py", "waiting (disk or file I/O), woken by a disk"),
    "lock": ("take_the_lock (idle_causes.py", "waiting (futex), woken by python3 in work_while_holding"),
    "gil_hog": ("keep_gpu_busy (idle_causes.py", "waiting for the GIL, held up by other threads"),
    "sync_copies": ("copy_synchronously (idle_causes.py", "copy_synchronously"),
    "launch_bound": ("launch_tiny (idle_causes.py", "launch-bound"),
}


def history_of(name: str) -> History:
    opened = read_snapshot(str(HERE / f"{name}.gpuprof"))
    assert opened.damage is None
    return opened.history


def idle_summary(history: History) -> str:
    start, end = history.span
    return history.query(Query(1, "idle", start, end)).summary


@pytest.mark.parametrize("cause", CAUSES)
def test_the_planted_cause_is_named(cause: str) -> None:
    summary = idle_summary(history_of(cause))
    frame, state = CAUSES[cause]
    assert frame in summary
    assert state in summary


def test_a_late_rank_is_communication_on_one_device_and_loading_on_the_other() -> None:
    first, second = idle_summary(history_of("late_rank")).split(" · ")
    assert first.startswith("GPU 0 communication alone for 2.")
    assert "burn_until (idle_causes.py" in second
    assert "on CPU" in second


def test_two_devices_in_reversed_order_have_their_own_kernels() -> None:
    """One more of each than two_devices.py launches: the recording saw its first launches too."""
    history = history_of("two_devices")
    assert history.gpus is not None
    index = {gpu.uuid: gpu.index for gpu in history.gpus.gpus}
    counts: Counter[tuple[str, int]] = Counter()
    for view, rows in history.gpu_work_between(0, 1 << 62):
        for gpu, stack in zip(rows.columns["gpu"].tolist(), rows.columns["stack"].tolist(), strict=True):
            leaf = view.strings[int(view.name[int(view.frame_function[int(view.frame[stack])])])]
            for name in ("sin", "cos", "tan"):
                counts[name, index[view.strings[gpu]]] += f"{name}_kernel" in leaf
    assert [counts["sin", n] for n in (0, 1)] == [212, 1]
    assert [counts["cos", n] for n in (0, 1)] == [1, 308]
    assert [counts["tan", n] for n in (0, 1)] == [102, 54]
