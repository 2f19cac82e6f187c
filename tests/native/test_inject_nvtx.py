"""NVTX ranges, by a program that uses NVTX as its headers do: which launches are in them, how many end."""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuprof.sampler import gpu_ring
from gpuprof.sampler.gpu_ranges import MAX_PATHS, PathTable, decode_ranges

Start = Callable[..., Any]
Listen = Callable[..., Any]


class Ranges:
    """What a listener has read of ranges, by the real decoders."""

    def __init__(self, listener: Any) -> None:
        self.listener = listener

    def paths(self) -> dict[int, tuple[str, ...]]:
        slots = self.listener.read()
        table = PathTable()
        assert table.add(slots[slots["kind"] == gpu_ring.PATH_PART].view(gpu_ring.TEXTS)) == 0
        found: dict[int, tuple[str, ...]] = {0: ()}
        for number, parent, name in table.order:
            found[number] = (*found[parent], name)
        return found

    def ended(self) -> Counter[tuple[str, ...]]:
        """How many ranges have ended, by path."""
        paths, slots = self.paths(), self.listener.slots
        table = PathTable()
        table.add(slots[slots["kind"] == gpu_ring.PATH_PART].view(gpu_ring.TEXTS))
        rows, invalid = decode_ranges(slots[slots["kind"] == gpu_ring.RANGE].view(gpu_ring.RANGES), table)
        assert invalid == 0
        counts: Counter[tuple[str, ...]] = Counter()
        for path, weight in zip(rows["path"].tolist(), rows["weight"].tolist(), strict=True):
            counts[paths[path]] += int(weight)
        return counts

    def wait_for(self, expected: dict[tuple[str, ...], int], seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while self.ended() != expected and time.monotonic() < end:
            time.sleep(0.02)
        assert self.ended() == expected

    def launches(self) -> Counter[tuple[str, ...]]:
        """How many pieces of work are in which ranges."""
        paths = self.paths()
        return Counter(paths[number] for number in self.listener.work()["path"].tolist())


def include_folder() -> str | None:
    """Where nvtx3/nvToolsExt.h lies: NVTX_INCLUDE, NVIDIA's package, or a toolkit."""
    patterns = [
        os.environ.get("NVTX_INCLUDE", ""),
        *(f"{path}/nvidia/*/include" for path in sys.path if path),
    ]
    folders = [folder for pattern in (*patterns, "/usr/local/cuda/include") for folder in glob.glob(pattern)]
    return next((folder for folder in folders if os.path.exists(f"{folder}/nvtx3/nvToolsExt.h")), None)


@pytest.fixture(params=["mock", "real"])
def program(request: pytest.FixtureRequest, start: Start, kit: Any, tmp_path_factory: Any) -> Any:
    """A program with NVTX compiled in: as the mock has it; as NVIDIA's headers do where there are any."""
    if request.param == "mock":
        return start()
    folder = include_folder()
    if folder is None:
        pytest.skip("no NVTX headers: set NVTX_INCLUDE, or install nvidia-nvtx")
    real = tmp_path_factory.mktemp("nvtx")
    return start(which=kit.build(real, harness=("-DREAL_NVTX", f"-isystem{folder}")))


def test_launches_are_in_the_ranges_of_their_thread(program: Any, listen: Listen) -> None:
    program.init()
    listener = listen(program)
    ranges = Ranges(listener)
    assert program.ask("push step") == "0"
    program.launch(3, threads=0)
    assert program.ask("push_event forward") == "1"
    program.launch(5, threads=0)
    program.launch(7, how="graph", threads=0)
    program.launch(11, threads=1)  # of another thread, which has no range
    assert program.ask("push_registered nccl all_reduce") == "2"
    program.launch(13, how="copy", threads=0)
    assert program.ask("pop_in nccl") == "2"
    assert program.ask("pop") == "1"
    assert program.ask("push_wide back_ward") == "1"
    program.launch(17, threads=0)
    assert program.ask("pop") == "1"
    assert program.ask("pop") == "0"
    program.launch(19, threads=0)
    assert int(program.ask("pop")) < 0
    listener.expect(3 + 5 + 3 * 7 + 11 + 13 + 17 + 19)
    forward = ("step", "forward")
    assert ranges.launches() == {
        ("step",): 3,
        forward: 5 + 3 * 7,
        (*forward, "nccl: all_reduce"): 13,
        ("step", "back\U0001f600ward"): 17,
        (): 11 + 19,
    }
    ranges.wait_for(
        {("step",): 1, forward: 1, (*forward, "nccl: all_reduce"): 1, ("step", "back\U0001f600ward"): 1}
    )
    assert program.faults == {}


def test_every_range_is_counted(program: Any, listen: Listen) -> None:
    program.init()
    listener = listen(program)
    ranges = Ranges(listener)
    program.ask("push epoch")
    program.ask("ranges fast 100003")
    program.ask("ranges rare 7")
    number = program.ask("start_range async")
    program.ask("pop")
    program.ask(f"end_range {number}")
    program.ask(f"end_range {number}")  # once is enough
    ranges.wait_for({("epoch", "fast"): 100_003, ("epoch", "rare"): 7, ("epoch",): 1, ("async",): 1})
    slots = listener.slots
    rows = slots[slots["kind"] == gpu_ring.RANGE].view(gpu_ring.RANGES)
    assert len(rows) < 5000  # one a millisecond at most
    assert listener.facts.ranges == 100_003 + 7 + 1 + 1
    assert listener.facts.dropped == 0


def test_domains_need_not_nest(program: Any, listen: Listen) -> None:
    program.init()
    ranges = Ranges(listener := listen(program))
    program.ask("push a")
    program.ask("push_in data b")
    assert program.ask("pop") == "0"
    program.launch(2, threads=0)  # in b alone
    program.ask("push c")
    program.launch(3, threads=0)
    program.ask("pop_in data")
    program.launch(5, threads=0)
    program.ask("pop")
    program.launch(7, threads=0)
    program.ask("push_nothing")
    program.ask("pop")
    listener.expect(17)
    assert ranges.launches() == {("data: b",): 2, ("data: b", "c"): 3, ("c",): 5, (): 7}
    ranges.wait_for({("a",): 1, ("data: b",): 1, ("c",): 1, ("(no name)",): 1})


def test_nobody_listens(program: Any, listen: Listen) -> None:
    """What was open before counts for nothing, and what ends after is not taken for another."""
    program.ask("push early")  # before CUDA is initialised
    program.init()
    assert int(program.ask("push outer")) < 0
    ranges = Ranges(listener := listen(program))
    program.ask("push inner")
    program.launch(2, threads=0)
    program.ask("pop")
    assert int(program.ask("pop")) < 0
    program.ask("push left_open")
    program.launch(3, threads=0)
    listener.expect(5)
    assert ranges.launches() == {("inner",): 2, ("left_open",): 3}
    listener.close()
    watcher = listen(program, lock=False)
    watcher.reach("detaching")
    program.launch(1, threads=0)  # at whose exit it detaches
    watcher.reach("waiting")
    program.launch(1, threads=0)
    assert int(program.ask("push unheard")) < 0
    again = Ranges(second := listen(program))
    program.launch(5, threads=0)
    program.ask("ranges later 3")
    second.expect(5)
    assert again.launches() == {(): 5}
    again.wait_for({("later",): 3})
    assert program.faults == {}


def test_many_names_and_deep_nests_are_bounded(program: Any, listen: Listen) -> None:
    program.init()
    ranges = Ranges(listener := listen(program))
    assert program.ask("nest 1000") == "1000"
    program.ask("push outer")
    program.ask(f"many_ranges {2 * MAX_PATHS}")
    program.ask("pop")
    program.ask("push " + "x" * 500)
    program.launch(3, threads=0)
    listener.expect(3)
    paths = ranges.paths()
    assert len(paths) <= MAX_PATHS
    assert max(map(len, paths.values())) <= 64
    assert ranges.launches() == {(): 3}  # there was no name left for it
    counts: Counter[tuple[str, ...]] = Counter()
    end = time.monotonic() + 30
    wanted = 64 + 2 * MAX_PATHS + 1
    while sum(counts.values()) < wanted and time.monotonic() < end:
        time.sleep(0.1)
        counts = ranges.ended()
    assert sum(counts.values()) == wanted
    assert counts[("outer",)] > MAX_PATHS  # those without a name of their own are those of the range around
    assert listener.facts.dropped == 0


def busy_until(program: Any, reached: Callable[[], bool], *, at_once: int, seconds: float = 60.0) -> None:
    """Many short ranges, until something is reached; ever more, since a busy machine makes fewer a second."""
    began = time.monotonic()
    while not reached():
        passed = time.monotonic() - began
        assert passed < seconds
        program.ask(f"ranges fast {int(at_once * max(1.0, passed / 4))}")
        time.sleep(0.002)


def keep_busy(program: Any, per_s: int, seconds: float = 1.5) -> None:
    """So many short ranges a second: what the mean of the last half a second leads to then stays so for as
    long, whatever the lines that follow take.
    """
    began, made = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        program.ask(f"ranges fast {int(passed * per_s) - made}")
        made = int(passed * per_s)
        time.sleep(0.002)


def test_ranges_that_cost_too_much_count_as_the_one_around_them(program: Any, listen: Listen) -> None:
    """Under a budget the deepest go first, the others stay; and all are followed again when they are few."""
    program.init()
    listener = listen(program, lock=False)
    assert listener.ring.lock(100_000)  # two million calls a second: a fifth of the time, or a fiftieth
    listener.reach("recording")
    ranges = Ranges(listener)
    assert program.ask("push outer") == "0"
    busy_until(program, lambda: listener.facts.range_depth == 1, at_once=2000)
    keep_busy(program, 1_750_000)
    before = listener.facts.ranges
    assert program.ask("push inner") == "1"
    program.launch(5, threads=0)
    assert program.ask("push_registered nccl all_reduce") == "2"
    program.launch(7, threads=0)
    assert program.ask("pop") == "1"  # of another domain than the innermost
    program.launch(11, threads=0)
    assert program.ask("pop_in nccl") == "1"
    assert program.ask("pop") == "0"
    facts = listener.facts
    assert facts.range_depth == 1
    assert facts.ranges == before + 1
    assert program.ask("push next") == "0"
    program.launch(13, threads=0)
    assert program.ask("pop") == "0"
    listener.expect(36)
    assert ranges.launches() == {("outer",): 23, ("next",): 13}
    end = time.monotonic() + 30
    while listener.facts.range_depth is not None and time.monotonic() < end:
        time.sleep(0.05)
    program.ask("push outer")
    program.ask("push inner")
    program.launch(3, threads=0)
    listener.expect(39)
    assert ranges.launches()[("outer", "inner")] == 3
    assert program.faults == {}


def test_ranges_in_no_other_that_cost_too_much_are_left_alone(program: Any, listen: Listen) -> None:
    program.init()
    listener = listen(program, lock=False)
    assert listener.ring.lock(1_000)
    listener.reach("recording")
    busy_until(program, lambda: listener.facts.range_depth == 0, at_once=300_000)
    assert int(program.ask("push unheard")) < 0
    program.launch(3, threads=0)
    listener.expect(3)
    assert Ranges(listener).launches() == {(): 3}
    assert listener.facts.state == "recording"
    assert program.faults == {}


def test_children_have_no_ranges(program: Any, listen: Listen) -> None:
    program.init()
    ranges = Ranges(listener := listen(program))
    program.ask("push parent")
    assert program.ask("fork 3") == "0"
    program.launch(2, threads=0)
    program.ask("pop")
    listener.expect(2)
    assert ranges.launches() == {("parent",): 2}
    ranges.wait_for({("parent",): 1})


FIELDS = {
    "version": "version", "size": "size", "category": "category", "color_type": "colorType", "color": "color",
    "payload_type": "payloadType", "reserved": "reserved0", "payload": "payload",
    "message_type": "messageType", "message": "message",
}  # fmt: skip
NUMBERS = {
    "NVTX_TABLE_CALLBACKS": "NVTX_ETID_CALLBACKS",
    "NVTX_MODULE_CORE": "NVTX_CB_MODULE_CORE",
    "NVTX_MODULE_CORE2": "NVTX_CB_MODULE_CORE2",
    "NVTX_MESSAGE_ASCII": "NVTX_MESSAGE_TYPE_ASCII",
    "NVTX_MESSAGE_WIDE": "NVTX_MESSAGE_TYPE_UNICODE",
    "NVTX_MESSAGE_OF_STRING": "NVTX_MESSAGE_TYPE_REGISTERED",
    "NVTX_NOT_TRACKED": "NVTX_NO_PUSH_POP_TRACKING",
}


def test_declarations_are_those_of_the_real_headers(kit: Any, tmp_path: Path) -> None:
    folder = include_folder()
    if folder is None:
        pytest.skip("no NVTX headers: set NVTX_INCLUDE, or install nvidia-nvtx")
    abi = (kit.INJECT / "nvtx_abi.h").read_text()
    lines = ['#include "nvtx_abi.h"', "#include <nvtx3/nvToolsExt.h>"]
    for ours, real in FIELDS.items():
        at = "offsetof({}, {})"
        lines.append(
            f"_Static_assert({at.format('struct nvtx_event', ours)} == "
            f'{at.format("nvtxEventAttributes_t", real)}, "{real}");'
        )
    lines.append('_Static_assert(sizeof(struct nvtx_event) == sizeof(nvtxEventAttributes_t), "size");')
    lines.append(
        "_Static_assert(offsetof(struct nvtx_callbacks, get_module) == "
        'offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable), "callbacks");'
    )
    lines += [f'_Static_assert((int){ours} == (int){real}, "{real}");' for ours, real in NUMBERS.items()]
    for part in ("CORE", "CORE2"):
        for name in re.findall(rf"\bNVTX_{part}_(\w+) =", abi):
            lines.append(
                f'_Static_assert((int)NVTX_{part}_{name} == (int)NVTX_CBID_{part}_{name}, "{name}");'
            )
    assert len(lines) > 35
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\nint main(void) { return 0; }\n")
    command = ["gcc", "-std=gnu11", "-w", "-fsyntax-only", f"-I{folder}", f"-I{kit.INJECT}", str(source)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[:4000]
