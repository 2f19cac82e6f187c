"""Planted ratios and lines: work in the ratio 2 : 5 : 11 : 23 through four call paths, native and Python, is
found in that ratio at every sampling rate, and every sampled line is one that ran.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from tree_rows import Rows, sampled_rows

from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import FrameKind, Hello
from gpuprof.snapshots.history import History

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler"),
]

WORKLOADS = Path(__file__).parent / "workloads"
WARM_UP_S = 0.7
WANTED = {19: 120, 99: 300, 997: 2000}  # samples a second: samples of each workload
LONGEST_S = 12.0  # where others keep the machine busy
FEWEST = 25
SHARES = {"two": 2 / 41, "five": 5 / 41, "eleven": 11 / 41, "twenty_three": 23 / 41}
SIGMAS = 4.5  # of the binomial distribution: 7 in a million for each bound


def history_of(hz: int) -> History:
    return History(
        Hello(
            version=1, host="test", boot_id="", kernel="", cpu_count=os.cpu_count() or 1,
            mono_ns=time.monotonic_ns(), wall_ns=time.time_ns(), sampler_version="", sampler_pid=os.getpid(),
            cpu_hz=hz, nvml_hz=0, privileged=True,
        )
    )  # fmt: skip


@dataclass(frozen=True)
class Captured:
    """Rows of a workload, and the samples that its CPU time stands for."""

    rows: Rows
    expected: float


Capture = Callable[[int], dict[str, Captured]]


def cpu_ns(pid: int) -> int:
    """Time that a process of one thread has run, as the scheduler counts it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Capture]:
    """capture(hz) -> each workload, sampled once for each rate."""
    program = tmp_path_factory.mktemp("ratios") / "ratios"
    options = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
    subprocess.run(["gcc", *options, "-o", program, WORKLOADS / "ratios.c"], check=True)
    commands = {"native": [str(program)], "python": [sys.executable, str(WORKLOADS / "ratios.py")]}
    started = {name: subprocess.Popen(line, stdout=subprocess.PIPE) for name, line in commands.items()}
    for process in started.values():
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"

    @lru_cache
    def sample(hz: int) -> dict[str, Captured]:
        history = history_of(hz)
        try:
            stacks = CpuStacks(history, StackPrograms.load(hz), hz)
        except GpuprofError as error:
            pytest.skip(f"no eBPF here: {error}")
        stacks.start()
        try:
            for process in started.values():
                stacks.follow(process.pid)
            time.sleep(WARM_UP_S)
            assert stacks.settle(30.0)  # both are known, however long that takes
            begin = time.monotonic_ns()
            before = {name: cpu_ns(process.pid) for name, process in started.items()}
            expected = dict.fromkeys(started, 0.0)
            while min(expected.values()) < WANTED[hz] and time.monotonic_ns() - begin < LONGEST_S * 1e9:
                time.sleep(0.2)
                for name, process in started.items():
                    expected[name] = (cpu_ns(process.pid) - before[name]) * 1e-9 * hz
            end = time.monotonic_ns()
            assert stacks.settle(30.0)  # what was sampled by then is in the history
        finally:
            stacks.stop()
        return {
            name: Captured(sampled_rows(history, begin, end, [process.pid]), expected[name])
            for name, process in started.items()
        }

    yield sample
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("hz", WANTED)
@pytest.mark.parametrize("workload", ["native", "python"])
def test_the_planted_ratio(workload: str, hz: int, capture: Capture) -> None:
    captured = capture(hz)[workload]
    if captured.expected < FEWEST:
        pytest.skip("the machine is too busy: the workload hardly ran")
    sampled = sum(row.weight for row in captured.rows)
    # As many samples as its CPU time by the scheduler stands for.
    assert abs(sampled - captured.expected) < SIGMAS * captured.expected**0.5 + 0.05 * captured.expected
    burning = [row for row in captured.rows if "burn" in row.path]
    total = sum(row.weight for row in burning)
    assert total >= 0.9 * sampled - 5, [row.path for row in captured.rows if "burn" not in row.path]
    for name, share in SHARES.items():
        found = sum(row.weight for row in burning if f"path_{name}" in row.path)
        bound = SIGMAS * (total * share * (1 - share)) ** 0.5
        assert abs(found - total * share) < bound, f"{name}: {found} of {total}, {share:.1%} expected"
    attributed = sum(row.weight for row in burning if sum(f"path_{name}" in row.path for name in SHARES) == 1)
    assert attributed == total


@pytest.mark.parametrize("hz", WANTED)
def test_the_way_to_the_root_is_whole(hz: int, capture: Capture) -> None:
    """Each path has all its frames, in their order."""
    ways = {
        "native": {
            "two": ["main", "path_two", "burn"],
            "five": ["main", "path_five", "compare_five", "burn"],
            "eleven": ["main", *["path_eleven"] * 31, "burn"],
            "twenty_three": ["main", "path_twenty_three", "handle_twenty_three", "burn"],
        },
        "python": {
            "two": ["<module>", "main", "one_round", "path_two", "burn"],
            "five": ["<module>", "main", "one_round", "path_five", "key_five", "burn"],
            "eleven": ["<module>", "main", "one_round", "path_eleven", *["numbers_eleven"] * 7, "burn"],
            "twenty_three": ["one_round", "path_twenty_three", "replace_twenty_three", "burn"],
        },
    }
    for workload, paths in ways.items():
        own = {name for way in paths.values() for name in way}
        for row in capture(hz)[workload].rows:
            if "burn" not in row.path or FrameKind.UNKNOWN in row.kinds:
                continue
            (name,) = [name for name in paths if f"path_{name}" in row.path]
            kinds = {FrameKind.PYTHON} if workload == "python" else {FrameKind.NATIVE}
            frames = zip(row.path, row.kinds, strict=True)
            found = [frame for frame, kind in frames if frame in own and kind in kinds]
            assert found[-len(paths[name]) :] == paths[name], row.path


def test_every_sampled_line_ran(capture: Capture) -> None:
    """Against the lines that CPython's own tracing saw in one round."""
    command = [sys.executable, str(WORKLOADS / "ratios.py"), "--trace"]
    text = subprocess.run(command, capture_output=True, check=True).stdout
    ran = {(name, line) for name, line in json.loads(text)}
    functions = {name for name, _ in ran}
    sampled = set()
    for hz in WANTED:
        for row in capture(hz)["python"].rows:
            for name, line, kind in zip(row.path, row.lines, row.kinds, strict=True):
                if kind == FrameKind.PYTHON and name in functions:
                    sampled.add((name, line))
    assert {"one_round", "burn"} <= {name for name, _ in sampled}
    assert sampled <= ran


def test_the_hot_line(capture: Capture) -> None:
    source = (WORKLOADS / "ratios.py").read_text().splitlines()
    hot = next(number for number, line in enumerate(source, 1) if "one hot line" in line)
    for hz in WANTED:
        own = [row for row in capture(hz)["python"].rows if row.path[-1] == "burn"]
        total = sum(row.weight for row in own)
        on_it = sum(row.weight for row in own if row.lines[-1] == hot)
        assert on_it >= 0.95 * total
