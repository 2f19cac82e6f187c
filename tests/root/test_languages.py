"""Python of every kind and version on this machine: each sample is complete and names what it should.

Set GPUPROF_PYTHONS to further interpreters, separated by colons.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

WORKLOADS = Path(__file__).parent / "workloads"
PYENV = Path.home() / ".pyenv" / "versions"
WARM_UP_S = 0.8
CAPTURE_S = 2.0

# What every stack of the thread that works has, from the root on.
KINDS = {
    "generators": ("<module>", "main", "generators", "generator", "burn"),
    "asynchronous": ("<module>", "main", "asynchronous", "Task.outer", "Task.inner", "burn"),
    "released": ("<module>", "main", "released"),
    "threads": ("threads.<locals>.work", "burn"),
    "from_c": ("calls_python", "burn"),
    "subinterpreter": ("<module>", "main", "subinterpreter", "<module>", "inner", "burn_inside"),
}
# From 3.12 on an interpreter can be made from Python code that is there in all builds.
SUBINTERPRETERS_FROM = (3, 12)
# Before 3.11 code objects have no qualified names.
QUALIFIED_FROM = (3, 11)


def interpreters() -> dict[tuple[int, int], str]:
    """One interpreter of each version."""
    found = {sys.version_info[:2]: sys.executable}
    paths = [*map(str, sorted(PYENV.glob("3.*/bin/python"))), "/usr/bin/python3"]
    for path in [*os.environ.get("GPUPROF_PYTHONS", "").split(":"), *paths]:
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            code = "import sys; print(*sys.version_info[:2])"
            out = subprocess.run([*path.split(), "-c", code], capture_output=True, check=True, timeout=20)
            major, minor = map(int, out.stdout.split())
            if (major, minor) >= (3, 9):
                found.setdefault((major, minor), path)
    return found


VERSIONS = interpreters()
CASES = [
    (version, kind)
    for version in VERSIONS
    for kind in KINDS
    if kind != "subinterpreter" or version >= SUBINTERPRETERS_FROM
]


@dataclass
class Captured:
    """Rows of each version and kind."""

    rows_of: dict[tuple[tuple[int, int], str], Any]

    def rows(self, version: tuple[int, int], kind: str) -> Any:
        return self.rows_of[version, kind]


@pytest.fixture(scope="module")
def captured(sampling: Any, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """One version after the other, all its kinds at once."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("languages")
    library = folder / "libcallsback.so"
    flags = ["-O2", "-shared", "-fPIC", "-pthread", "-fno-optimize-sibling-calls"]
    subprocess.run(["gcc", *flags, "-o", library, WORKLOADS / "calls_back.c"], check=True)
    script = folder / "python_kinds.py"
    shutil.copy(WORKLOADS / "python_kinds.py", script)
    code = "import sys; print('ready', flush=True); sys.argv = ['x', '600']\n"
    code += (WORKLOADS / "planted.py").read_text()
    found = {}
    for version, path in VERSIONS.items():
        commands = {
            kind: [*path.split(), str(script), kind, str(library)] for v, kind in CASES if v == version
        }
        if program := embed(path, version, folder):
            commands["embedded"] = [str(program), code]
        environment = {**os.environ, "PYTHONHOME": str(Path(path).parents[1])}
        started = {
            kind: subprocess.Popen(
                command, stdout=subprocess.PIPE, env=environment if kind == "embedded" else None
            )
            for kind, command in commands.items()
        }
        try:
            for process in started.values():
                assert process.stdout is not None
                process.stdout.readline()  # "ready"
            sampling.for_seconds(WARM_UP_S)  # then they are known
            span = sampling.for_seconds(CAPTURE_S)
        finally:
            for process in started.values():
                process.kill()
                process.communicate()
        for kind, process in started.items():
            found[version, kind] = sampling.rows(span, [process.pid])
    return Captured(found)


def embed(python: str, version: tuple[int, int], folder: Path) -> Path | None:
    """A C program that embeds this Python, where it comes with what that needs."""
    root = Path(python).parent.parent
    name = f"python{version[0]}.{version[1]}"
    include, library = root / "include" / name, root / "lib" / f"lib{name}.so"
    if not library.is_file() or not (include / "Python.h").is_file():
        return None
    program = folder / f"embedded{version[1]}"
    subprocess.run(
        [
            "gcc", "-O2", "-o", program, WORKLOADS / "embedded.c", f"-I{include}", f"-L{root / 'lib'}",
            f"-l{name}", f"-Wl,-rpath,{root / 'lib'}",
        ],
        check=True,
    )  # fmt: skip
    return program


def expected(version: tuple[int, int], kind: str) -> list[str]:
    names = KINDS[kind]
    return [name if version >= QUALIFIED_FROM else name.rpartition(".")[2] for name in names]


@pytest.mark.parametrize(("version", "kind"), CASES, ids=[f"{v[0]}.{v[1]}-{kind}" for v, kind in CASES])
def test_every_kind_of_python_code(captured: Captured, version: tuple[int, int], kind: str) -> None:
    rows = captured.rows(version, kind)
    names = expected(version, kind)
    leaf = names[-1]
    working = rows.where(lambda row: leaf in row.path)
    assert working.weight > 0.8 * rows.weight > 20
    few = max(1.0, rows.weight / 100)
    bad = [row.path for row in working if not row.complete or not row.has(*names)]
    assert working.where(lambda row: not row.complete or not row.has(*names)).weight <= few, bad[:3]


@pytest.mark.parametrize("version", VERSIONS, ids=[f"{major}.{minor}" for major, minor in VERSIONS])
def test_an_embedded_interpreter(captured: Captured, version: tuple[int, int]) -> None:
    if (version, "embedded") not in captured.rows_of:
        pytest.skip("this Python cannot be embedded: no shared library or no headers")
    rows = captured.rows(version, "embedded")
    names = ["main", "run_code", "PyRun_SimpleStringFlags", "<module>", "work"]
    bad = rows.where(lambda row: not row.complete or not row.has(*names))
    assert rows.weight > 20
    assert bad.weight <= max(1.0, rows.weight / 100), bad[:2]


def test_code_in_c_without_the_lock_keeps_its_callers(captured: Captured) -> None:
    for version in VERSIONS:
        rows = captured.rows(version, "released")
        assert rows.share(lambda row: row.has("main", "released", "deflate")) > 0.5
