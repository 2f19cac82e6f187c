"""Code that Node and the JVM generate: complete, named through perf maps, and advice where flags are
missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

WORKLOADS = Path(__file__).parent / "workloads"
ATTEMPTS = 4
CAPTURE_S = 2.0
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(sampling: Any, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str | Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, cwd=tmp_path
        )  # node leaves logs
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        sampling.for_seconds(0.7)  # for the compilers, and until it is known
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
        Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    compiler = shutil.which("javac")
    if compiler is None or shutil.which("java") is None:
        pytest.skip("no JDK")
    subprocess.run([compiler, "-d", tmp_path, WORKLOADS / "Planted.java"], check=True)
    return tmp_path


def main_thread(rows: Any) -> Any:
    return rows.where(lambda row: row.has("JavaMain") or not row.complete)


def test_node_with_a_perf_map(sampling: Any, start: Start) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    process = start(node, "--perf-basic-prof", WORKLOADS / "planted.js")
    found = 0.0
    for _ in range(ATTEMPTS):  # a busy machine takes its time to start node and to write the map
        rows = sampling.rows(sampling.for_seconds(CAPTURE_S), [process.pid])
        assert rows.weight > 20
        assert rows.share(lambda row: row.complete) >= 0.99
        # Optimized functions have names of their own; those that are still interpreted share one.
        found = rows.share(lambda row: any(re.match("JS:.*planted.js", name) for name in row.path))
        if found > 0.7:
            break
    assert found > 0.7, rows[0].path
    assert rows.share(lambda row: row.has("_start", "node::Start")) > 0.9


def test_node_without_one_is_told_how(sampling: Any, start: Start) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    process = start(node, WORKLOADS / "planted.js")
    rows = sampling.rows(sampling.for_seconds(CAPTURE_S), [process.pid])
    assert rows.share(lambda row: row.complete) >= 0.99
    assert rows.share(lambda row: "[JIT code of node; --perf-basic-prof names it]" in row.path) > 0.5


def test_a_jvm_with_frame_pointers(sampling: Any, start: Start, classes: Path) -> None:
    """Without a map its frames say how to get one; with it they have names, from a moment later on."""
    process = start("java", "-XX:+PreserveFramePointer", "-XX:TieredStopAtLevel=1", "-cp", classes, "Planted")
    rows = sampling.rows(sampling.for_seconds(CAPTURE_S), [process.pid])
    assert rows.share(lambda row: row.complete) >= 0.99
    label = "[JIT code of java; jcmd PID Compiler.perfmap names it]"
    assert main_thread(rows).share(lambda row: label in row.path) > 0.9
    jcmd = shutil.which("jcmd")
    if jcmd is None:
        pytest.skip("no jcmd")
    subprocess.run([jcmd, str(process.pid), "Compiler.perfmap"], check=True, capture_output=True)
    found = 0.0
    for _ in range(5):  # the map is looked for every second
        rows = sampling.rows(sampling.for_seconds(1.0), [process.pid])
        found = main_thread(rows).share(lambda row: any("Planted.burn" in name for name in row.path))
        if found > 0.9:
            break
    assert found > 0.9, rows[0].path


def test_a_jvm_without_frame_pointers_is_told_the_flag(sampling: Any, start: Start, classes: Path) -> None:
    process = start("java", "-cp", classes, "Planted")
    rows = sampling.rows(sampling.for_seconds(CAPTURE_S), [process.pid])
    flag = "java -XX:+PreserveFramePointer makes it whole"
    found = rows.share(lambda row: any(flag in name for name in row.path))
    assert found > 0.8, rows[0].path
