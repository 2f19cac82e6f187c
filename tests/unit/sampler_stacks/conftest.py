"""Paths and child processes for the tests of maps, ELF files, symbols and CPython."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Tests are not imported from a package: what they share (noted_tables.py) is found by its folder.
sys.path.append(str(Path(__file__).parent))
_PYENV = Path.home() / ".pyenv" / "versions"
_VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15")


def _interpreters() -> list[str]:
    found = []
    for version in _VERSIONS:
        paths = [path / "bin" / "python" for path in _PYENV.glob(f"{version}.*")]
        on_path = shutil.which(f"python{version}")
        system = [Path(on_path)] if on_path and "shims" not in on_path else []
        found += [str(path) for path in [*paths, *system]]
    return found or [sys.executable]


@pytest.fixture(params=_interpreters(), ids=lambda path: "-".join(Path(path).parts[-3:]))
def interpreter(request: pytest.FixtureRequest) -> str:
    """Each CPython of the machine in turn."""
    path = str(request.param)
    probe = subprocess.run([path, "-c", ""], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{path} does not run")
    return path


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[[str, str], tuple[subprocess.Popen[bytes], bytes]]]:
    """Starts `interpreter -c code` and returns it with the first line that it printed; killed afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def start(path: str, code: str) -> tuple[subprocess.Popen[bytes], bytes]:
        script = tmp_path / "script.py"
        script.write_text(code)
        process = subprocess.Popen([path, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline()

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def compile_c(tmp_path: Path) -> Callable[..., Path]:
    """Compiles C source with gcc, or skips the test."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")

    def build(source: str, *options: str, name: str = "program") -> Path:
        path = tmp_path / f"{name}.c"
        path.write_text(source)
        subprocess.run(["gcc", "-O1", *options, "-o", tmp_path / name, path], check=True)
        return tmp_path / name

    return build
