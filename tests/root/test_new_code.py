"""Processes that are new or gone, code that comes and goes, and processes of containers: complete and
named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

WORKLOADS = Path(__file__).parent / "workloads"
SETTLE_S = 0.5  # files that were never seen before are read
CAPTURE_S = 2.0
LIBRARY = """
static volatile unsigned long sink;
__attribute__((noinline)) void burn_in_{name}(void) {{ for (int i = 0; i < 400000; i++) sink += i; }}
{filler}
int turn(int i) {{ burn_in_{name}(); return i + 1; }}
"""
# The libraries differ in size and in the places of their functions.
FILLER = '__attribute__((used)) void filler(void) {{ __asm__ volatile(".skip {size}, 0x90"); }}'
SHORT_PYTHON = """
import time
def burn():
    for _ in range(1_000_000):
        pass
def outer():
    burn()
begin = time.process_time_ns()
outer()
end = time.process_time_ns()
print(end - begin, end, file=open({path!r}, "a"))
"""


class Tools:
    """What the tests run: `chain` and `late_code` (programs), `red` and `blue` (libraries)."""

    def __init__(self, folder: Path) -> None:
        flags = ["gcc", "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
        self.folder, self.chain, self.late_code = folder, folder / "chain", folder / "late_code"
        subprocess.run([*flags, "-o", self.chain, WORKLOADS / "chain.c"], check=True)
        subprocess.run([*flags, "-o", self.late_code, WORKLOADS / "late_code.c", "-ldl"], check=True)
        self.red, self.blue = self.library("red", 16), self.library("blue", 20_000)

    def library(self, name: str, size: int) -> Path:
        source, path = self.folder / f"{name}.c", self.folder / f"lib{name}.so"
        source.write_text(LIBRARY.format(name=name, filler=FILLER.format(size=size)))
        flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-shared", "-fPIC"]
        subprocess.run(["gcc", *flags, "-o", path, source], check=True)
        return path


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    return Tools(tmp_path_factory.mktemp("tools"))


Run = Callable[..., tuple[Any, int]]


@pytest.fixture
def run(sampling: Any) -> Iterator[Run]:
    """Starts a command and gives the rows of all processes over the next seconds, and its pid."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: str | Path) -> tuple[Any, int]:
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, start_new_session=True)
        started.append(process)
        sampling.for_seconds(SETTLE_S)
        span = sampling.for_seconds(CAPTURE_S)
        return sampling.rows(span), process.pid

    yield run
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()


def of_pid(rows: Any, pid: int) -> Any:
    return rows.where(lambda row: f"({pid}" in row.path[0])


def named(rows: Any, name: str) -> Any:
    return rows.where(lambda row: row.path[0].startswith(f"{name} ("))


def check(rows: Any, *names: str, few: float = 0.01) -> None:
    """All stacks are complete and have these names in this order, but a few of a hundred."""
    bad = rows.where(lambda row: not row.complete or not row.has(*names))
    assert rows.weight > 50
    assert bad.weight <= max(1.0, few * rows.weight), [row.path for row in bad][:4]


def test_processes_that_live_for_milliseconds(run: Run, tools: Tools) -> None:
    """Its first samples are not lost: there are no others."""
    short = shutil.copy(tools.chain, tools.folder / "shortlived")
    rows, _ = run("sh", "-c", f"while :; do {short} 0.004; done")
    found = named(rows, "shortlived")
    assert len({row.path[0] for row in found}) > 20
    assert found.share(lambda row: row.complete) >= 0.98
    burning = found.where(lambda row: any(name.startswith("chain_") for name in row.path))
    assert burning.weight > 50
    check(burning, "_start", "main", "chain_burn", few=0.02)


def test_scripts_that_live_for_milliseconds(run: Run, tools: Tools) -> None:
    """Their Python code is named while they live. They say themselves how much of their time it takes."""
    script, times = tools.folder / "short.py", tools.folder / "times"
    script.write_text(SHORT_PYTHON.format(path=str(times)))
    short = tools.folder / "shortpython"
    short.symlink_to(sys.executable)
    rows, _ = run("sh", "-c", f"while :; do {short} -S -E {script}; done")
    found = named(rows, "shortpython")
    assert len({row.path[0] for row in found}) > 5
    assert found.share(lambda row: row.complete) >= 0.98
    burning, total = (
        sum(column) for column in zip(*(map(int, line.split()) for line in times.open()), strict=True)
    )
    expected = found.weight * burning / total
    assert found.where(lambda row: row.has("<module>", "outer", "burn")).weight > 0.8 * expected


def test_children_that_do_not_exec(run: Run, tools: Tools) -> None:
    rows, _ = run(tools.late_code, "forks", tools.red, tools.red)
    found = named(rows, "late_code").where(lambda row: row.has("burn_in_red"))
    assert len({row.path[0] for row in found}) > 10
    check(found, "main", "forks", "call_turn", "turn", "burn_in_red")


def test_a_library_in_the_place_of_another(run: Run, tools: Tools) -> None:
    """Each is there for some 30 ms; what was published of the other must not be believed."""
    rows, pid = run(tools.late_code, "replaced", tools.red, tools.blue)
    found = of_pid(rows, pid).where(lambda row: row.has("call_turn"))
    check(found, "main", "replaced", "call_turn", "turn", few=0.02)
    red = found.where(lambda row: row.has("turn", "burn_in_red")).weight
    blue = found.where(lambda row: row.has("turn", "burn_in_blue")).weight
    assert red + blue >= 0.98 * found.weight
    assert abs(red - blue) < 4.5 * found.weight**0.5 + 0.1 * found.weight


def test_a_library_whose_file_is_deleted(run: Run, tools: Tools) -> None:
    doomed = shutil.copy(tools.red, tools.folder / "libdoomed.so")
    rows, pid = run(tools.late_code, "deleted", doomed, doomed)
    check(of_pid(rows, pid), "main", "deleted", "call_turn", "turn", "burn_in_red", few=0.05)
    assert not Path(doomed).exists()


def test_a_library_in_a_memfd(run: Run, tools: Tools) -> None:
    rows, pid = run(tools.late_code, "nameless", tools.red, tools.red)
    check(of_pid(rows, pid), "main", "nameless", "call_turn", "turn", "burn_in_red", few=0.05)


def may_unshare(*options: str) -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run(["unshare", *options, "true"], capture_output=True, check=False).returncode == 0
    )


def test_a_private_mount_namespace(run: Run, tools: Tools) -> None:
    """The files are where only the process can see them."""
    if not may_unshare("--mount"):
        pytest.skip("no mount namespaces here")
    hidden = tools.folder / "hidden"
    hidden.mkdir()
    copy = f"mount -t tmpfs none {hidden} && cp {tools.late_code} {tools.red} {hidden}/"
    script = f"{copy} && exec {hidden}/late_code"
    library = hidden / tools.red.name
    rows, pid = run("unshare", "--mount", "sh", "-c", f"{script} plain {library} {library}")
    assert list(hidden.iterdir()) == []
    check(of_pid(rows, pid), "main", "call_turn", "turn", "burn_in_red", few=0.05)


def test_a_container_on_an_overlay(sampling: Any, tools: Tools) -> None:
    """Two of them, in pid, mount and user namespaces of their own, on overlays that share their lower
    folder: each is named once, with its files, and both its pids are shown.
    """
    options = ["--mount", "--pid", "--fork", "--user", "--map-root-user", "--mount-proc"]
    if not may_unshare(*options):
        pytest.skip("no user, pid and mount namespaces here")
    lower = tools.folder / "lower"
    lower.mkdir()
    shutil.copy(tools.late_code, lower)
    shutil.copy(tools.red, lower)
    started = []
    for name in ("first", "second"):
        paths = [tools.folder / name / part for part in ("upper", "work", "merged")]
        for path in paths:
            path.mkdir(parents=True)
        upper, work, merged = paths
        mount = f"mount -t overlay overlay -o lowerdir={lower},upperdir={upper},workdir={work} {merged}"
        program = f"{merged}/late_code plain {merged}/{tools.red.name} x"
        started.append(subprocess.Popen(["unshare", *options, "sh", "-c", f"{mount} && exec {program}"]))
    try:
        time.sleep(0.3)
        if any(process.poll() for process in started):
            pytest.skip("no overlay can be mounted in a user namespace here")
        span = sampling.for_seconds(CAPTURE_S)
        rows = named(sampling.rows(span), "late_code")
        check(rows, "main", "call_turn", "turn", "burn_in_red", few=0.05)
        labels = {row.path[0] for row in rows}
        children = [child_of(process.pid) for process in started]
        assert labels == {f"late_code ({child}, 1 in its container)" for child in children}
    finally:
        for process in started:
            subprocess.run(["kill", "-9", str(child_of(process.pid) or process.pid)], check=False)
            process.kill()
            process.wait()


def child_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(text[0]) if text else 0
