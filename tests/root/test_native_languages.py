"""C++, Rust, Go and Fortran: complete stacks with names as people write them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

WORKLOADS = Path(__file__).parent / "workloads"
ENOUGH, LONGEST_S = 150, 20.0  # samples, however busy the machine is


def run(
    sampling: Any, build: list[str | Path], program: Path, environment: dict[str, str] | None = None
) -> Any:
    """Rows of a program that is built and left to run for a while."""
    compiler = shutil.which(str(build[0]))
    if compiler is None:
        pytest.skip(f"no {build[0]}")
    subprocess.run([compiler, *build[1:]], check=True, env={**os.environ, **(environment or {})})
    process = subprocess.Popen([program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        sampling.for_seconds(0.2)  # then it is known
        begin, end = sampling.for_seconds(1.0)
        deadline = time.monotonic() + LONGEST_S
        while (rows := sampling.rows((begin, end), [process.pid])).weight < ENOUGH:
            if time.monotonic() > deadline:
                break
            end = sampling.for_seconds(0.5)[1]
        return rows
    finally:
        process.kill()
        process.communicate()


def check(rows: Any, *patterns: str) -> None:
    """All but a few stacks are complete and have names that match, in this order."""

    def fits(row: Any) -> bool:
        rest = iter(row.path)
        return row.complete and all(any(re.fullmatch(p, name) for name in rest) for p in patterns)

    assert rows.weight > 20
    bad = rows.where(lambda row: not fits(row))
    assert bad.weight <= max(1.0, rows.weight / 50), [row.path for row in bad][:3]


def test_cpp(sampling: Any, tmp_path: Path) -> None:
    program = tmp_path / "planted_cpp"
    flags: list[str | Path] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
    rows = run(sampling, ["g++", *flags, "-o", program, WORKLOADS / "planted.cpp"], program)
    check(rows, "_start", "main", "repeat", "outer::Worker<long>::burn<7>")


@pytest.mark.parametrize("mangling", ["legacy", "v0"])
def test_rust(sampling: Any, tmp_path: Path, mangling: str) -> None:
    program = tmp_path / "planted_rust"
    flags: list[str | Path] = ["-O", "-C", f"symbol-mangling-version={mangling}"]
    if mangling == "legacy":
        flags += ["-Z", "unstable-options"]
    build = ["rustc", *flags, "-o", program, WORKLOADS / "planted.rs"]
    rows = run(sampling, build, program, {"RUSTC_BOOTSTRAP": "1"})
    check(
        rows,
        "_start",
        "main",
        r"planted::repeat(<.*>)?",
        r"<planted::Worker<.*> as planted::Burns>::burn",
    )


def test_go(sampling: Any, tmp_path: Path) -> None:
    """Its binaries have no unwind rules, and its leaf functions no frames."""
    program = tmp_path / "planted_go"
    compilers = [shutil.which("go"), *map(str, sorted(Path("/usr/lib").glob("go-*/bin/go")))]
    compiler = next((path for path in compilers if path), "go")
    environment = {"GOCACHE": str(tmp_path / "cache"), "GO111MODULE": "off"}
    build: list[str | Path] = [compiler, "build", "-o", program, WORKLOADS / "planted.go"]
    rows = run(sampling, build, program, environment)
    goroutine = rows.where(lambda row: "main.main.func1" in row.path)
    check(goroutine, r"main\.main\.func1", r"main\.\(\*worker\)\.run", r"main\.burn")
    check(
        rows.where(lambda row: "main.main" in row.path),
        r"runtime\.main",
        r"main\.main",
        ".*run",
        r"main\.burn",
    )


def test_fortran(sampling: Any, tmp_path: Path) -> None:
    program = tmp_path / "planted_fortran"
    compilers = [shutil.which("gfortran"), *map(str, sorted(Path("/usr/bin").glob("gfortran-*")))]
    compiler = next((path for path in compilers if path), "gfortran")
    build: list[str | Path] = [compiler, "-O1", "-J", tmp_path, "-o", program, WORKLOADS / "planted.f90"]
    rows = run(sampling, build, program)
    check(rows, "_start", "main", r"(planted|MAIN__)", "work::burn")
