"""Work rates on the screen, by Pilot over a made-up node: key r, its chart, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pilot_screen import screen_of, shows, tells, until

from gpuprof.snapshots.frames import FrameKind
from gpuprof.tui.app import GpuprofApp
from gpuprof.tui.transports import HistoryTransport, SocketTransport

START = 10**12
SECOND = 10**9
KERNEL = "sm90_xmma_gemm_bf16<128, 256>"


def go_to(app: GpuprofApp, name: str) -> None:
    flame = screen_of(app).flame
    assert flame.rows is not None
    tree = flame.rows.tree
    flame.go_to(next(n for n in range(len(tree.name)) if tree.strings[int(tree.name[n])] == name))


def charts(app: GpuprofApp) -> list[str]:
    return [chart.id for chart in screen_of(app).charts._painter.charts]


@pytest.fixture
def recording(fake_node: ModuleType) -> GpuprofApp:
    node = fake_node.FakeNode(2, gpu_work=True)
    node.fill(START, START + 40 * SECOND)
    return GpuprofApp(HistoryTransport(node.history, "run.gpuprof"))


@pytest.fixture
def live(fake_node: ModuleType, listening: Callable[..., Any]) -> Iterator[tuple[Any, GpuprofApp]]:
    node = fake_node.FakeNode(1, gpu_work=True)
    with listening(node) as path:
        yield node, GpuprofApp(SocketTransport(path=path))


async def test_key_r_charts_a_kernel_and_takes_it_away(recording: GpuprofApp) -> None:
    async with recording.run_test(notifications=True, size=(180, 80)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await until(pilot, lambda: "kernels" in charts(recording))  # of each device, unasked
        await pilot.press("2")
        await shows(pilot, KERNEL)
        go_to(recording, KERNEL)
        await pilot.press("r")
        await until(pilot, lambda: any(chart.startswith("rate ") for chart in charts(recording)))
        store = recording.session.model.store
        (key,) = store.subjects("work_rate_hz")
        view = store.view(key)
        # Every 20 ms one on each of two devices, but for 2.2 s of 9 on either: never more than 100 a second.
        assert 50 < float(view.value.max()) <= 100.5
        await shows(pilot, "work rate /s")
        await shows(pilot, "sm90_xmma_gemm")
        await pilot.press("r")
        await until(pilot, lambda: not any(chart.startswith("rate ") for chart in charts(recording)))
        await tells(pilot, "no longer charted")


async def test_a_function_counts_its_launches_and_the_range_says_how_many(recording: GpuprofApp) -> None:
    async with recording.run_test(notifications=True, size=(180, 80)) as pilot:
        await pilot.press("2")
        await shows(pilot, KERNEL)
        go_to(recording, "linear")
        await pilot.press("r")
        await tells(pilot, "Work rate of launches in linear: charted.")
        await until(pilot, lambda: any(chart.startswith("rate ") for chart in charts(recording)))
        screen_of(recording).charts.select_range(START + 3 * SECOND, START + 5 * SECOND)
        await until(pilot, lambda: bool(recording.session.rates.pinned))
        names = dict(recording.session.rates.pinned)
        history = recording.session.transport._history  # type: ignore[attr-defined]
        rows = history.gpu_work_between(START + 3 * SECOND, START + 5 * SECOND)
        planted = sum(
            int(((end >= START + 3 * SECOND) & (end < START + 5 * SECOND) & (length > 10_000_000)).sum())
            for _, part in rows
            for end, length in [(part.columns["end_ns"], part.columns["end_ns"] - part.columns["start_ns"])]
        )
        assert names["launches in linear"].total == planted > 0
        await shows(pilot, f"launches in linear {planted / 2:.0f} /s ({planted:,} times)")
        await pilot.press("escape")
        await until(pilot, lambda: not recording.session.rates.pinned)


async def test_key_b_is_by_nvtx_range(fake_node: ModuleType) -> None:
    node = fake_node.FakeNode(1, gpu_work=True)
    node.fill(START, START + 20 * SECOND)
    history = node.history
    with history.lock:
        tables = history.tables
        step = tables.stack([tables.frame(tables.function("train step", "", "[nvtx]", FrameKind.NVTX))])
        kernel = tables.stack([tables.frame(tables.function("k", "", "[gpu]", FrameKind.GPU_KERNEL))])
        ends = np.arange(START + SECOND, START + 19 * SECOND, SECOND // 4, dtype=np.uint64)
        same = np.zeros(len(ends), np.uint32)
        history.add_gpu_work(
            start_ns=ends - np.uint64(10**8), end_ns=ends, gpu=same + tables.string(node.gpus[0].uuid),
            stream=same, thread=same + node._threads[0], stack=same + kernel, nvtx=same + step,
        )  # fmt: skip
        history.add_ranges(ends - np.uint64(2 * 10**8), ends, same + node._threads[0], same + step)
    app = GpuprofApp(HistoryTransport(history, "run.gpuprof"))
    async with app.run_test(notifications=True, size=(180, 80)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("b")
        await tells(pilot, "NVTX ranges are in the tree of GPU time")
        await pilot.press("2")
        await shows(pilot, KERNEL)
        store = app.session.model.store
        await until(pilot, lambda: store.has("work_rate_hz"))  # of the loop, which nobody chose
        (key,) = store.subjects("work_rate_hz")
        assert set(store.view(key).value.round(6).tolist()) == {4.0}
        assert app.session.rates.labels == {0: "train step"}
        assert app.session.tree is not None
        assert "train step" not in app.session.tree.strings
        await pilot.press("b")
        await until(pilot, lambda: app.session.tree is not None and "train step" in app.session.tree.strings)
        await shows(pilot, "by NVTX range (b)")
        go_to(app, "train step")
        await pilot.press("r")  # what is charted already is taken away
        await until(pilot, lambda: not store.has("work_rate_hz"))
        await pilot.press("b")
        await until(
            pilot, lambda: app.session.tree is not None and "train step" not in app.session.tree.strings
        )


async def test_samples_are_no_occurrences(recording: GpuprofApp) -> None:
    async with recording.run_test(notifications=True, size=(180, 60)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("r")
        await tells(pilot, "not how often it was called")
        assert recording.session.rates.chosen == []


async def test_live(live: tuple[Any, GpuprofApp]) -> None:
    _, app = live
    async with app.run_test(notifications=True, size=(160, 70)) as pilot:
        await shows(pilot, "main (train.py:88)")
        await pilot.press("2")
        await shows(pilot, KERNEL)
        go_to(app, KERNEL)
        await pilot.press("r")
        store = app.session.model.store
        await until(pilot, lambda: store.has("work_rate_hz") and store.has("kernel_rate_hz"))
        (key,) = store.subjects("work_rate_hz")
        before = len(store.view(key))
        await until(pilot, lambda: len(store.view(key)) > before + 5)
        view = store.view(key)
        assert (view.start_ns[1:] >= view.end_ns[:-1]).all()
