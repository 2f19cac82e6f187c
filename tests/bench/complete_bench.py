"""The share of samples whose stack reaches the root of its thread, by kind of program, as root.

usage: python tests/bench/complete_bench.py [--seconds 4] [--only WORDS] [--details]

Each program is sampled on its own for a few seconds: every CPython found on the machine (3.9 and newer),
Node with --perf-basic-prof, a JVM with -XX:+PreserveFramePointer, and the whole machine while C files are
compiled and short scripts run, which is where processes are gone before anybody could look at them.
`complete` is the share without a row that says why the stack ends early; `named`, for Python, the share in
which the outermost and the innermost planted functions both appear; for the machine, the share in which no
function is without a name.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuprof.bpf.programs import StackPrograms
from gpuprof.sampler.cpu_stacks import CpuStacks
from gpuprof.snapshots.errors import GpuprofError
from gpuprof.snapshots.frames import FrameKind, Hello, Query
from gpuprof.snapshots.history import History

WORKLOADS = Path(__file__).parent.parent / "root" / "workloads"
WARM_UP_S = 1.0
HZ = 499
JVM = "JVM -XX:+PreserveFramePointer"
MACHINE = """
set -e
cd "$1"
i=0
while :; do
    i=$((i + 1))
    sed "s/chain_/chain$i/g" chain.c > copy.c
    gcc -O2 -c copy.c -o copy.o
    gcc copy.o -o copy
    ./copy 0.002
    "$2" -S -E -c 'import json, sys; json.dumps([{"a": i} for i in range(4000)])'
    ls -l /usr/lib > listing
    sort -r listing | grep -c lib | tr 0-9 a-j > counted
    awk '{ n[$1]++ } END { for (k in n) print k, n[k] }' listing > words
    for j in 1 2 3; do (echo $j | cat | wc -c) > count; done
done
"""
Row = tuple[tuple[str, ...], tuple[FrameKind, ...], float]


def interpreters() -> dict[str, list[str]]:
    """Version and command of each CPython from 3.9 on, whatever kind of build; GPUPROF_PYTHONS names
    further ones, separated by colons.
    """
    paths = [path for path in os.environ.get("GPUPROF_PYTHONS", "").split(":") if path]
    for place in ("usr/bin", "usr/local/bin", "opt/*/bin", f"{str(Path.home())[1:]}/.pyenv/versions/*/bin"):
        paths += [str(path) for path in sorted(Path("/").glob(f"{place}/python3*"))]
    found: dict[str, list[str]] = {}
    for path in paths:
        if re.search(r"python3(\.\d+t?)?$", path) is None:
            continue
        code = "import sys; v = sys.version; "
        code += "print(sys.version_info >= (3, 9), v.split()[0], 'free-threading' in v, sys.base_prefix)"
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            out = subprocess.run([path, "-c", code], capture_output=True, text=True, check=True, timeout=20)
            usable, version, free_threaded, prefix = out.stdout.split(maxsplit=3)
            if usable == "True":
                name = f"{version}{' free-threaded' * (free_threaded == 'True')} {prefix.strip()}"
                found.setdefault(name, [path])
    return found


class Sampler:
    """Samples all processes into a fresh history while it is entered."""

    def __init__(self, hz: int) -> None:
        self.history = History(
            Hello(
                version=1, host="bench", boot_id="", kernel="", cpu_count=os.cpu_count() or 1,
                mono_ns=time.monotonic_ns(), wall_ns=time.time_ns(), sampler_version="",
                sampler_pid=os.getpid(), cpu_hz=hz, nvml_hz=0, privileged=True,
            )
        )  # fmt: skip
        self.stacks = CpuStacks(self.history, StackPrograms.load(hz), hz)

    def __enter__(self) -> Sampler:
        self.stacks.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stacks.stop()

    def rows(self, begin_ns: int, end_ns: int, pids: list[int]) -> list[Row]:
        """The stacks of a time, from the process down, with their number of samples; no pids: of all
        processes.
        """
        tree = self.history.query(
            Query(
                id=1,
                tree="cpu",
                start_ns=begin_ns,
                end_ns=end_ns,
                pids=pids,
                min_fraction=0.0,
                max_nodes=1 << 20,
            )
        )
        paths: list[tuple[tuple[str, ...], tuple[FrameKind, ...]]] = [((), ())]
        rows: list[Row] = []
        for node, parent in enumerate(tree.parent.tolist()):
            if node == 0:
                continue
            names, kinds = paths[parent]
            here = ((*names, tree.strings[int(tree.name[node])]), (*kinds, FrameKind(int(tree.kind[node]))))
            paths.append(here)
            if tree.self_weight[node]:
                rows.append((*here, float(tree.self_weight[node])))
        return rows


@contextlib.contextmanager
def running(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A workload in a process group of its own, ended with all its children."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, **options
    )  # type: ignore[call-overload]
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_complete(row: Row) -> bool:
    return FrameKind.UNKNOWN not in row[1]


def is_named(row: Row, wanted: Sequence[str]) -> bool:
    if wanted:
        return all(any(re.search(pattern, name) for name in row[0]) for pattern in wanted)
    return not any(name.startswith("[") for name in row[0][1:])


def report(title: str, rows: list[Row], wanted: Sequence[str], details: bool) -> None:
    total = sum(weight for _, _, weight in rows) or 1.0
    complete = sum(row[2] for row in rows if is_complete(row)) / total
    named = sum(row[2] for row in rows if is_named(row, wanted)) / total
    print(f"{title:48} {total:7.0f} samples   complete {complete:8.3%}   named {named:8.3%}", flush=True)
    if details:
        reasons: Counter[tuple[str, str]] = Counter()
        for row in rows:
            if not is_complete(row):
                reason = next(
                    name for name, kind in zip(row[0], row[1], strict=True) if kind == FrameKind.UNKNOWN
                )
                reason += " " + " / ".join(row[0][2:6])
                reasons[(reason, row[0][0].partition(" (")[0])] += int(row[2])
            elif not is_named(row, wanted):
                reasons[("not named: " + " / ".join(row[0][-5:]), row[0][0].partition(" (")[0])] += int(
                    row[2]
                )
        for (reason, process), count in sorted(
            reasons.items(), key=lambda one: (one[0][0][:1] != "[", -one[1])
        )[:40]:
            print(f"    {count:6} {process:16} {reason[-150:]}")


def cases(directory: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Title: (command, patterns of names that each stack of its working thread must have)."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for version, command in interpreters().items():
        found[f"CPython {version}"] = (
            [*command, str(WORKLOADS / "planted.py"), "3600"],
            ["^<module>$", "^work$"],
        )
    if node := shutil.which("node"):
        found["Node --perf-basic-prof"] = (
            [node, "--perf-basic-prof", str(WORKLOADS / "planted.js")],
            ["^JS:.*planted.js"],
        )
    if (java := shutil.which("java")) and (javac := shutil.which("javac")):
        subprocess.run([javac, "-d", str(directory), str(WORKLOADS / "Planted.java")], check=True)
        flags = ["-XX:+PreserveFramePointer", "-XX:TieredStopAtLevel=1", "-cp", str(directory)]
        found[JVM] = ([java, *flags, "Planted"], [r"Planted\.burn"])
    return found


def write_perf_map(pid: int) -> None:
    """Have a JVM write its perf map, as a user would."""
    if jcmd := shutil.which("jcmd"):
        time.sleep(1)
        subprocess.run([jcmd, str(pid), "Compiler.perfmap"], check=False, capture_output=True)
        time.sleep(1.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", default="", help="titles that contain these words")
    parser.add_argument("--details", action="store_true", help="why stacks are not complete")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        try:
            sampler = stack.enter_context(Sampler(HZ))
        except GpuprofError as error:
            print(f"skipped: {error}")
            return 0
        for title, (command, wanted) in cases(directory).items():
            if arguments.only not in title:
                continue
            with running(command) as process:
                time.sleep(WARM_UP_S)
                if title == JVM:
                    write_perf_map(process.pid)
                begin = time.monotonic_ns()
                time.sleep(arguments.seconds)
                end = time.monotonic_ns()
            time.sleep(0.5)
            report(title, sampler.rows(begin, end, [process.pid]), wanted, arguments.details)
        title = "whole machine, compiling and short scripts"
        if arguments.only in title:
            shutil.copy(WORKLOADS / "chain.c", directory)
            with running(["sh", "-c", MACHINE, "sh", str(directory), sys.executable], cwd=directory):
                time.sleep(WARM_UP_S)
                begin = time.monotonic_ns()
                time.sleep(2 * arguments.seconds)
                end = time.monotonic_ns()
            time.sleep(0.5)
            report(title, sampler.rows(begin, end, []), [], arguments.details)
    return 0


if __name__ == "__main__":
    sys.exit(main())
