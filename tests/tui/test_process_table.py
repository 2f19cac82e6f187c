"""The process table: values worked out by hand; what is not known is a dash, and who is gone leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from textual.app import App, ComposeResult

from gpuprof.snapshots.frames import GpuFacts, ProcessDef, Readings, SeriesDef
from gpuprof.tui.process_rows import GONE_NS, ProcessRow, process_rows, sort_rows
from gpuprof.tui.series import SeriesStore
from gpuprof.tui.widgets.process_table import ProcessTable, bytes_text

SECOND = 10**9
GPUS = [GpuFacts("GPU-a", 0, "H200"), GpuFacts("GPU-b", 1, "H200")]
PROCESSES = {7: ProcessDef(7, 1, "train", "train", "ada", 1000, 1)}


def store_with(rows: list[tuple[str, str | None, int, int, float]]) -> SeriesStore:
    store = SeriesStore()
    keys: dict[tuple[str, str | None, int], int] = {}
    for metric, gpu, pid, _, _ in rows:
        keys.setdefault((metric, gpu, pid), len(keys) + 1)
    store.define([SeriesDef(number, metric, gpu, pid) for (metric, gpu, pid), number in keys.items()])
    times = np.array([row[3] for row in rows], np.uint64)
    store.add(
        Readings(
            np.array([keys[row[:3]] for row in rows], np.uint32),
            times,
            times,
            np.array([row[4] for row in rows]),
        )
    )
    return store


def test_cpu_is_derived_from_two_readings() -> None:
    store = store_with(
        [("proc_cpu_ns", None, 7, 10 * SECOND, 1e9), ("proc_cpu_ns", None, 7, 12 * SECOND, 6e9)]
    )
    (row,) = process_rows(store, PROCESSES, GPUS, 12 * SECOND)
    assert row == ProcessRow(7, None, "ada", "train", None, None, 250.0)


def test_one_reading_is_no_percentage() -> None:
    store = store_with([("proc_cpu_ns", None, 7, SECOND, 1e9)])
    assert process_rows(store, {}, GPUS, SECOND) == []
    store = store_with(
        [("proc_cpu_ns", None, 7, SECOND, 1e9), ("proc_gpu_mem_bytes", "GPU-a", 7, SECOND, 1e9)]
    )
    (row,) = process_rows(store, {}, GPUS, SECOND)
    assert row == ProcessRow(7, 0, None, None, None, 1e9, None)


def test_a_row_per_gpu() -> None:
    store = store_with(
        [
            ("proc_gpu_mem_bytes", "GPU-a", 7, SECOND, 2e9),
            ("proc_sm_percent", "GPU-a", 7, SECOND, 40.0),
            ("proc_gpu_mem_bytes", "GPU-b", 7, SECOND, 1e9),
        ]
    )
    rows = sort_rows(process_rows(store, PROCESSES, GPUS, SECOND), "mem", False)
    assert [(row.gpu, row.sm_percent, row.gpu_mem_bytes) for row in rows] == [(0, 40.0, 2e9), (1, None, 1e9)]


def test_old_readings_are_not_known_and_then_gone_but_stay_in_a_file() -> None:
    store = store_with([("proc_gpu_mem_bytes", "GPU-a", 7, SECOND, 2e9)])
    (row,) = process_rows(store, PROCESSES, GPUS, 8 * SECOND)
    assert row.gpu_mem_bytes is None
    assert process_rows(store, PROCESSES, GPUS, SECOND + GONE_NS + 1) == []
    (row,) = process_rows(store, PROCESSES, GPUS, 1000 * SECOND, live=False)
    assert row.gpu_mem_bytes == 2e9


def test_unknown_sorts_last_either_way() -> None:
    rows = [ProcessRow(n, None, None, None, None, None, cpu) for n, cpu in ((1, None), (2, 5.0), (3, 9.0))]
    assert [row.pid for row in sort_rows(rows, "cpu", False)] == [3, 2, 1]
    assert [row.pid for row in sort_rows(rows, "cpu", True)] == [2, 3, 1]


def test_bytes() -> None:
    assert bytes_text(None) == "–"
    assert bytes_text(2**30 * 1.5) == "1.5 GiB"
    assert bytes_text(2**20 * 12) == "12 MiB"


class TableApp(App[None]):
    chosen: list[int]

    def on_mount(self) -> None:
        self.chosen = []

    def on_process_table_chosen(self, event: ProcessTable.Chosen) -> None:
        self.chosen.append(event.pid)

    def compose(self) -> ComposeResult:
        yield ProcessTable()


async def test_cursor_follows_its_process_and_enter_chooses_it() -> None:
    app = TableApp()
    async with app.run_test(size=(80, 12)) as pilot:
        table = app.query_one(ProcessTable)
        table.focus()
        table.set_rows(
            [ProcessRow(pid, None, "u", f"p{pid}", None, None, cpu) for pid, cpu in ((1, 9.0), (2, 5.0))]
        )
        await pilot.press("down", "enter")
        table.set_rows(
            [ProcessRow(pid, None, "u", f"p{pid}", None, None, cpu) for pid, cpu in ((1, 1.0), (2, 5.0))]
        )
        await pilot.press("enter", "s", "s")
        assert app.chosen == [2, 2]
        assert table.sort_key == "user"
        await pilot.pause()


async def test_columns_go_before_the_name_does_and_absent_is_a_dash() -> None:
    app = TableApp()
    async with app.run_test(size=(46, 8)) as pilot:
        table = app.query_one(ProcessTable)
        table.set_rows([ProcessRow(7, None, "ada", "a-rather-long-name-of-a-process", None, None, None)])
        await pilot.pause()
        lines = [table.render_line(y).text for y in range(2)]
        assert "USER" not in lines[0]
        assert "NAME" in lines[0]
        assert "a-rather" in lines[1]
        assert lines[1].count("–") == 3
        assert all(len(line) == table.size.width for line in lines)


def test_who_is_recorded() -> None:
    readings = [("proc_gpu_mem_bytes", "GPU-a", pid, SECOND, 1e9) for pid in (7, 8, 9)]
    readings += [("proc_recording", "GPU-a", 7, SECOND, 1.0), ("proc_recording", "GPU-a", 8, SECOND, 0.0)]
    rows = process_rows(store_with(readings), {}, GPUS, SECOND)
    assert {row.pid: row.recording for row in rows} == {7: True, 8: False, 9: None}


def test_what_the_budget_leaves_out_is_told() -> None:
    """A process that pauses for its budget is recorded all the same."""
    readings = [("proc_recording", "GPU-a", pid, SECOND, 0.0) for pid in (7, 8, 9)]
    readings += [("proc_gpu_overhead_percent", None, pid, SECOND, 0.9) for pid in (7, 8)]
    readings += [("proc_launch_stack_percent", None, 7, SECOND, 3.14)]
    readings += [("proc_launch_stack_percent", None, 8, SECOND, 100.0)]
    rows = process_rows(store_with(readings), {}, GPUS, SECOND)
    assert {row.pid: (row.recording, row.budget) for row in rows} == {
        7: (True, "stacks of 3.1 % of launches, costs 0.9 %"), 8: (True, ""), 9: (False, ""),
    }  # fmt: skip


async def test_the_column_rec_is_there_only_where_something_is_known() -> None:
    class Tables(App[None]):
        def compose(self) -> ComposeResult:
            yield ProcessTable()

    app = Tables()
    async with app.run_test(size=(84, 8)):
        table = app.query_one(ProcessTable)
        plain = ProcessRow(7, 0, "ada", "train", 1.0, 2**30, 3.0)
        table.set_rows([plain])
        assert "REC" not in table.render_line(0).text
        table.set_rows([plain, *(replace(plain, pid=pid, recording=pid == 8) for pid in (8, 9))])
        title = table.render_line(0).text
        assert [table.render_line(y).text[title.index("REC")] for y in (1, 2, 3)] == ["–", "●", "a"]


def test_a_row_has_the_reason_why_it_is_not_recorded() -> None:
    rows = [(f"{metric}", "GPU-a", pid, SECOND, 1.0 if pid == 7 and metric == "proc_recording" else 0.0)
            for pid in (7, 8, 9) for metric in ("proc_gpu_mem_bytes", "proc_recording")]  # fmt: skip
    reasons = {7: "old news", 8: "gdb debugs it"}
    found = process_rows(store_with(rows), PROCESSES, GPUS, SECOND, reasons=reasons)
    assert {row.pid: (row.recording, row.reason) for row in found} == {
        7: (True, ""), 8: (False, "gdb debugs it"), 9: (False, ""),
    }  # fmt: skip
