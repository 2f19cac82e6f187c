"""Reports as text and JSON, and ranges as people write them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.snapshots import tree as trees
from gpuprof.snapshots.errors import EXIT_USAGE, GpuprofError
from gpuprof.snapshots.file import SnapshotWriter, read_snapshot
from gpuprof.snapshots.frames import Clock, FrameKind, GpuFacts, Gpus, Query, SourceStatus, Status
from gpuprof.snapshots.history import History
from gpuprof.snapshots.names import width
from gpuprof.snapshots.report import json_report, json_text, nothing_there, parse_range, text_report

START = 10**12
ALL = Query(1, "cpu", 0, 1 << 60)


@pytest.fixture
def history(planted: Any, row: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """Ten seconds from 22:13:20 UTC on 14 November 2023: three in "work", one in "idle"; one GPU at 25 and
    75 %.
    """
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    history: History = planted.history
    for second, stack in ((0, "main work"), (1, "main work"), (2, "main work"), (10, "main idle")):
        planted.add(row(START + second * 10**9, stack))
    series = history.series("util_gpu_percent", gpu="G0")
    history.add_readings(
        [series] * 2, [START, START + 5 * 10**9], [START + 5 * 10**9, START + 10**10], [25.0, 75.0]
    )
    history.set_gpus(
        Gpus("580", "13", [GpuFacts("G0", 0, "NVIDIA H200"), GpuFacts("G1", 1, "NVIDIA H200")], ["G1"])
    )
    sources = [
        SourceStatus("cpu", "ok", samples=4, lost=2),
        SourceStatus("nvml", "degraded", "a reason", "do this"),
    ]
    history.set_status(Status(START, sources, 1, 2, 3, 4))
    yield history
    monkeypatch.undo()
    time.tzset()


# ------------------------------------------------------------------------------------------------------- JSON


def test_json_has_the_public_form(history: History) -> None:
    report = json_report(history, replace(ALL, start_ns=START, end_ns=START + 11 * 10**9))
    assert report == {
        "host": "node17",
        "range_ns": [START, START + 11 * 10**9],
        "tree": "cpu",
        "unit": "samples",
        "total": 4,
        "root": {
            "name": "all", "kind": "root", "self": 0, "total": 4,
            "children": [{
                "name": "proc7 (7)", "kind": "process", "self": 0, "total": 4,
                "children": [{
                    "name": "main", "kind": "python", "file": "a.py", "binary": "python3",
                    "self": 0, "total": 4,
                    "children": [
                        {"name": "work", "kind": "python", "file": "a.py", "binary": "python3",
                         "self": 3, "total": 3,
                         "children": []},
                        {"name": "idle", "kind": "python", "file": "a.py", "binary": "python3",
                         "self": 1, "total": 1,
                         "children": []},
                    ],
                }],
            }],
        },
        "sources": [
            {"name": "cpu", "state": "ok", "rows": 4,
             "lost": 2, "invalid": 0, "early": 0, "unmatched": 0, "truncated": 0},
            {"name": "nvml", "state": "degraded", "reason": "a reason", "rows": 2,
             "lost": 0, "invalid": 0, "early": 0,
             "unmatched": 0, "truncated": 0},
        ],
        "summary": "",
        "range_epoch_ns": [1_700_000_000 * S, 1_700_000_011 * S],
        "range_wall": ["2023-11-14T22:13:20.000000+00:00", "2023-11-14T22:13:31.000000+00:00"],
        "min_percent": 0.05,
    }  # fmt: skip
    assert json.loads(json_text(report)) == report


def test_json_of_a_deep_tree_is_written_without_recursion(planted: Any, row: Any) -> None:
    planted.add(row(1, "f " * 5000))
    text = json_text(json_report(planted.history, ALL))
    assert text.count('"name": "f"') == 5000
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("seed", range(2))
def test_json_text_is_what_the_json_module_writes(planted: Any, random_rows: Any, seed: int) -> None:
    planted.add(*random_rows(seed, 300))
    report = json_report(planted.history, replace(ALL, by_thread=True))
    assert json.loads(json_text(report)) == report


# ------------------------------------------------------------------------------------------------------- text


def test_text_has_the_facts_and_the_tree(history: History) -> None:
    text = text_report(history, replace(ALL, start_ns=START, end_ns=START + 10**10 + 1), columns=100)
    lines = text.split("\n")
    assert lines[0] == "node17: Linux 6.1.0, 4 CPUs, gpuprof 0.1.0"
    assert lines[1] == "recorded  2023-11-14 22:13:20.000 to 22:13:30.000 (10.0 s)"
    assert "source    cpu ok; 4 samples, 2 lost" in lines
    assert "source    nvml degraded: a reason (do this); 2 readings, 0 lost" in lines
    assert "GPU 0     NVIDIA H200, utilization 50 %" in lines
    assert "GPU 1     NVIDIA H200, lost" in lines
    assert lines[-4:] == [
        "100.0 % ████████████   proc7 (7)",
        "100.0 % ████████████   main (a.py)",
        " 75.0 % █████████        work (a.py)",
        " 25.0 % ███              idle (a.py)",
    ]
    assert any("GPU 0 utilization %" in line for line in lines)
    assert "\x1b" not in text


def test_a_hint_in_a_file_names_the_machine_that_it_is_for(history: History, tmp_path: Path) -> None:
    """A reader sits elsewhere; and what only leads to a recording is of no use beside one."""
    sources = [
        SourceStatus("cpu", "failed", "bcc is not installed", "Install it with: apt install python3-bpfcc"),
        SourceStatus("nvml", "off", "No NVML", "Without one, a recording can be opened: `gpuprof-tui demo`."),
        SourceStatus("offcpu", "off", "nothing is followed", "start it with --offcpu-all"),
    ]
    history.set_status(Status(START, sources, 1, 2, 3, 4))
    with SnapshotWriter(str(tmp_path / "a.gpuprof"), history.hello) as writer:
        writer.write(history.frames_between(*history.span))
    opened = read_snapshot(tmp_path / "a.gpuprof").history
    lines = text_report(opened, replace(ALL, start_ns=START, end_ns=START + 11 * S), columns=200).split("\n")
    assert [line for line in lines if line.startswith("source")] == [
        "source    cpu failed: bcc is not installed (on node17: Install it with: apt install python3-bpfcc); "
        "4 samples, 0 lost",
        "source    nvml off: No NVML; 2 readings, 0 lost",
        "source    offcpu off: nothing is followed (on node17: start it with --offcpu-all); 0 lost",
    ]
    with pytest.raises(GpuprofError, match="no off-CPU time was recorded here") as caught:
        opened.query(replace(ALL, tree="offcpu"))
    assert caught.value.hint == "on node17: start it with --offcpu-all"


def test_a_range_is_said(history: History) -> None:
    text = text_report(history, replace(ALL, start_ns=START + 10**9, end_ns=START + 3 * 10**9, pids=[7]))
    assert "range     22:13:21.000 to 22:13:23.000 (2.000 s), 1.000..3.000 s" in text
    assert "only      pid 7" in text


@pytest.mark.parametrize("columns", [1, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_screen(planted: Any, row: Any, history: History, columns: int) -> None:
    planted.add(row(START, "f " * 300), row(START, "f " * 150 + "名" * 200), row(START, "x" * 500))
    history.damage = "the last 1.0 s are missing: " + "x" * 300
    for line in text_report(history, ALL, columns=columns).split("\n"):
        assert width(line) <= max(columns, 40)


def test_a_long_reason_is_wrapped_not_cut(history: History) -> None:
    source = SourceStatus("nvml", "off", "looked for " + "libnvidia-ml.so.1, " * 9, "install the driver")
    history.set_status(Status(START, [source], 1, 2, 3, 4))
    assert text_report(history, ALL, columns=60).replace("\n" + " " * 10, " ").count("libnvidia-ml.so.1") == 9


def test_nothing_sampled_and_nothing_read(planted: Any) -> None:
    text = text_report(planted.history, ALL)
    assert "No CPU stack was sampled in this range." in text


def test_nothing_of_the_process_that_was_asked_for(history: History) -> None:
    text = text_report(history, replace(ALL, pids=[4242, 7 << 20]))
    assert "No CPU stack of pids 4242, 7340032 was sampled in this range." in text
    idle = replace(ALL, tree="idle", pids=[4242])
    assert nothing_there(idle) == "No thread of pid 4242 fed a GPU that was idle in this range."


@pytest.mark.parametrize(
    ("start_s", "end_s", "said"),
    [
        (4, 6, "cpu ok; no samples (the first after it at 10.0 s), "),
        (10.5, 11, "cpu ok; no samples (the last before it at 10.0 s), "),
        (0, 1, "cpu ok; 1 samples, "),
    ],
)
def test_a_source_that_has_nothing_in_the_range_says_where_it_has(
    history: History, start_s: float, end_s: float, said: str
) -> None:
    start_ns, end_ns = (START + round(second * 10**9) for second in (start_s, end_s))
    assert said in text_report(history, replace(ALL, start_ns=start_ns, end_ns=end_ns))


def test_no_row_stands_beside_the_one_that_it_is_part_of(planted: Any, row: Any) -> None:
    """Half of "work" is its own: its only child is set in, while one that is all of its caller is not."""
    planted.add(*(row(START + at, "main step work") for at in range(5)))
    planted.add(*(row(START + at, "main step work leaf") for at in range(5, 10)))
    tree = text_report(planted.history, ALL).split("all that it calls\n")[1]
    column = {name: line.index(name) for line in tree.splitlines() for name in line.split("(a.py")[0].split()}
    assert column["main"] == column["step"] == column["work"] == column["leaf"] - 2


def test_readings_that_are_no_numbers_do_not_break_a_report(history: History) -> None:
    series = history.series("util_gpu_percent", gpu="G0")
    history.add_readings([series] * 3, [START] * 3, [START] * 3, [math.nan, math.inf, -math.inf])
    assert "utilization 50 %" in text_report(history, ALL)


def test_many_readings_are_thinned(history: History) -> None:
    series = history.series("util_gpu_percent", gpu="G1")
    times = START + np.arange(50_000) * 200_000
    history.add_readings(np.full(50_000, series), times, times, np.full(50_000, 99.0))
    assert "GPU 1 utilization %" in text_report(history, ALL, columns=80)


def test_truncated_stacks_are_said(planted: Any, row: Any) -> None:
    whole = row(1, "b")
    cut = ("[truncated: no rule]", "", "", 0, FrameKind.UNKNOWN)
    planted.add(row(0, "a"), type(whole)(1, 0, 7, 7, (cut, *whole.frames)))
    assert "truncated 1 stacks do not reach the root of their thread (50.0 %)" in text_report(
        planted.history, ALL
    )


# ----------------------------------------------------------------------------------------------------- ranges

S = 10**9


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("3.5..7", 3.5, 7),
        (" 0 .. 2 ", 0, 2),
        ("..4", 0, 4),
        ("4..", 4, None),
        ("..", 0, None),
        ("0..1e9", 0, None),
        ("22:13:21..22:13:24.25", 1, 4.25),
        ("22:13..22:13:22", 0, 2),
        ("2023-11-14T22:13:21..2023-11-14T22:13:22", 1, 2),
        ("2023-11-14 22:13:21Z..9", 1, 9),
        ("2023-11-14T23:13:21.5+01:00..9", 1.5, 9),
    ],
)
def test_ranges(history: History, text: str, start: float, end: float | None) -> None:
    last = history.span[1]
    assert parse_range(text, history) == (START + start * S, last if end is None else START + end * S)


@pytest.mark.parametrize(
    "text",
    ["", " ", "5", "7..3", "5..5", "-5..3", "-1..", "..-1",
     "a..b", "nan..5", "inf..", "25:00:00..", "22:61..", "100..200", "20:00..21:00",
     "2023-99-01..", "9999-12-31T23:59:59..", "0001-01-01..0001-01-02", "\x1b[2J..", "1..2..3"],
)  # fmt: skip
def test_what_is_no_range_is_a_usage_error_with_a_hint(history: History, text: str) -> None:
    with pytest.raises(GpuprofError) as error:
        parse_range(text, history)
    assert error.value.exit_code == EXIT_USAGE
    assert error.value.hint
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("text", ["100..", "100..200", "2023-11-14 23:59:59Z.."])
def test_a_range_that_begins_after_the_end_lies_outside(history: History, text: str) -> None:
    """Also where its end is left out: it is not said to end before it starts."""
    with pytest.raises(GpuprofError, match="lies outside of what was recorded") as error:
        parse_range(text, history)
    assert error.value.hint.startswith("There is 0..")


def test_times_of_day_after_midnight_and_after_a_step_of_the_clock(history: History) -> None:
    midnight = START + (3600 + 46 * 60 + 40) * S  # 00:00:00 on the next day
    series = history.series("temp_c", gpu="G0")
    history.add_readings([series], [midnight + 10 * S], [midnight + 10 * S], [1.0])
    assert parse_range("00:00:01..00:00:05", history) == (midnight + S, midnight + 5 * S)
    history.set_clock(Clock(START + 5 * S, history.hello.wall_ns + 3605 * S))  # one hour forward
    assert parse_range("23:13:26..23:13:27", history)[0] == START + 6 * S


def test_the_rows_of_a_report_are_those_of_the_tree(history: History) -> None:
    names = [found.name for found in trees.rows(history.query(ALL))]
    text = text_report(history, ALL)
    assert all(name in text for name in names)
